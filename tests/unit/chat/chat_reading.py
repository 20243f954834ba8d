"""Answers read piece by piece, and events in a form that compares."""

import json

from headrace.chat.reader import TurnReader, joined
from headrace.chat.types import TextDelta, Tool, ToolCallDelta, ToolCallEnd, ToolCallStart

WEATHER = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "share": {"type": "number"},
            "wet": {"type": "boolean"},
            "where": {"type": "object"},
            "list": {"type": ["array", "null"]},
            "either": {"anyOf": [{"$ref": "#/$defs/count"}, {"type": "null"}]},
            "mixed": {"type": ["string", "integer"]},
            "any": {},
        },
        "$defs": {"count": {"type": "integer"}},
    },
)
TOOLS = (WEATHER,)
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>'
)
XML = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)


def read(renderer, pieces, *, tools=TOOLS, **options):
    """Events of an answer given as texts, each encoded by itself."""
    reader = TurnReader(renderer.tokenizer, renderer.style, tools, **options)
    events = []
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        for token in renderer.tokenizer.encode(piece, special=False):
            events += reader.feed(token)
    return joined(events + reader.finish())


def plain_events(events):
    """Calls as (name, arguments text), so that two readings compare although ids are random."""
    out = []
    for event in events:
        match event:
            case ToolCallStart(index, _, name):
                out.append((index, name, ""))
            case ToolCallDelta(index, text):
                assert out[-1][0] == index
                out[-1] = (*out[-1][:2], out[-1][2] + text)
            case ToolCallEnd(index):
                assert out[-1][0] == index
            case _:
                out.append(event)
    return out


def calls(events):
    return [(e[1], json.loads(e[2])) for e in plain_events(events) if isinstance(e, tuple)]


def text_of(events):
    return "".join(e.text for e in events if isinstance(e, TextDelta))
