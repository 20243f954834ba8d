"""Every call syntax as a row; the first whose signs a template shows is its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from headrace.chat.tools.body import CallBody, Syntax
from headrace.chat.tools.gemma import QUOTE, GemmaCall
from headrace.chat.tools.hermes import HermesCall
from headrace.chat.tools.named_json import NamedJsonCall
from headrace.chat.tools.nested import NS, NestedCall
from headrace.chat.tools.tagged import TaggedCall, Tags
from headrace.chat.tools.whole import JsonCalls, KeyedCalls, PythonCalls
from headrace.chat.types import Tool

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")

QWEN_TAGS = Tags(
    "<function=", ">", "<parameter=", ">", "</parameter>", "", "</function>", line=True
)
GLM_TAGS = Tags("", "", "<arg_key>", "</arg_key>", "</arg_value>", "<arg_value>")
MINIMAX_TAGS = Tags("", '">', '<parameter name="', '">', "</parameter>")
DSML = "｜DSML｜"
DSML_TAGS = Tags("", '">', f'<{DSML}parameter name="', '">', f"</{DSML}parameter>", typed=True)

HY = ":opensource"
HY_TAGS = Tags(
    "",
    f"<tool_sep{HY}>",
    f"<arg_key{HY}>",
    f"</arg_key{HY}>",
    f"</arg_value{HY}>",
    f"<arg_value{HY}>",
)

SEP, ARGS, CALL_ID = "<｜tool▁sep｜>", "[ARGS]", "[CALL_ID]"
KIMI_SEP = "<|tool_call_argument_begin|>"
# The older form of DeepSeek's calls: a kind, the name, and JSON in a fence.
_FENCE = "\n```json\n"


def _tagged(tags: Tags, tools: Mapping[str, Tool], first: str) -> CallBody | None:
    return TaggedCall(tags, tools)


def _chatml(tools: Mapping[str, Tool], first: str) -> CallBody | None:
    """Models with these marks write either syntax, whatever their template shows."""
    if first == "{":
        return HermesCall()
    return TaggedCall(QWEN_TAGS, tools) if first == "<" else None


def _plain(head: str) -> str | None:
    name = head.strip()
    return name if _NAME.fullmatch(name) else None


def _deepseek_name(head: str) -> str | None:
    return _plain(head.removeprefix(f"function{SEP}"))


def _deepseek(tools: Mapping[str, Tool], first: str) -> CallBody | None:
    return DeepSeekCall()


class DeepSeekCall(NamedJsonCall):
    """`NAME<sep>{...}`, or the older `function<sep>NAME` with the object in a fence."""

    def __init__(self) -> None:
        super().__init__((SEP,), _plain)

    def _headed(self) -> str:
        if self._head.startswith(f"function{SEP}"):
            self._separators, self._name_of = (_FENCE,), _deepseek_name
        return super()._headed()


def _kimi_name(head: str) -> str | None:
    return _plain(re.sub(r":\d+\s*$", "", head).strip().removeprefix("functions."))


def _kimi(tools: Mapping[str, Tool], first: str) -> CallBody | None:
    return NamedJsonCall((KIMI_SEP,), _kimi_name)


def _mistral_name(head: str) -> str | None:
    return _plain(head.partition(CALL_ID)[0])


def _mistral(tools: Mapping[str, Tool], first: str) -> CallBody | None:
    if first in "[{":
        return JsonCalls()
    return NamedJsonCall((ARGS,), _mistral_name, alone=True)


def _gemma(tools: Mapping[str, Tool], first: str) -> CallBody | None:
    return GemmaCall()


def _nested(tools: Mapping[str, Tool], first: str) -> CallBody | None:
    return NestedCall(tools)


def _json_rows(tools: Mapping[str, Tool], first: str) -> CallBody | None:
    return JsonCalls() if first in "[{" else None


def _keyed(tools: Mapping[str, Tool], first: str) -> CallBody | None:
    return KeyedCalls() if first == "[" else None


def _object(tools: Mapping[str, Tool], first: str) -> CallBody | None:
    return HermesCall(alone=True) if first == "{" else None


def _python(tools: Mapping[str, Tool], first: str) -> CallBody | None:
    return PythonCalls()


def _python_or_json(tools: Mapping[str, Tool], first: str) -> CallBody | None:
    return HermesCall() if first == "{" else PythonCalls()


def _llama(tools: Mapping[str, Tool], first: str) -> CallBody | None:
    return HermesCall(alone=True) if first == "{" else PythonCalls()


_TOOL_CALL = ("<tool_call>", "</tool_call>")
HERMES = Syntax("hermes", ("<tool_call>", "name", "arguments"), *_TOOL_CALL, _chatml)
DEEPSEEK = Syntax(
    "deepseek",
    ("<｜tool▁calls▁begin｜>", SEP),
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    _deepseek,
    wraps=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    spelled=(SEP,),
)


def _dsml(name: str, sign: str) -> Syntax:
    """Readers take either mark around calls; writers that of the template."""
    return Syntax(
        name,
        (DSML, "invoke name=", sign),
        f'<{DSML}invoke name="',
        f"</{DSML}invoke>",
        partial(_tagged, DSML_TAGS),
        wraps=(
            *(f"<{DSML}tool_calls>", f"</{DSML}tool_calls>"),
            *(f"<{DSML}function_calls>", f"</{DSML}function_calls>"),
        ),
        spelled=(DSML,),
    )


def _glm(name: str, sign: str) -> Syntax:
    return Syntax(
        name,
        ("<tool_call>", "<arg_key>", sign),
        *_TOOL_CALL,
        partial(_tagged, GLM_TAGS),
        spelled=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    )


SYNTAXES = (
    _dsml("dsml_functions", "function_calls"),
    _dsml("dsml", "tool_calls"),
    DEEPSEEK,
    _glm("glm_tight", "</arg_key><arg_value>"),
    _glm("glm", "<arg_value>"),
    Syntax(
        "minimax_nested",
        (NS, "<invoke name="),
        f'{NS}<invoke name="',
        f"{NS}</invoke>",
        _nested,
        wraps=(f"{NS}<tool_call>", f"{NS}</tool_call>"),
        spelled=(NS,),
    ),
    Syntax(
        "minimax",
        ("<minimax:tool_call>", "<invoke name="),
        '<invoke name="',
        "</invoke>",
        partial(_tagged, MINIMAX_TAGS),
        wraps=("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    Syntax(
        "kimi",
        ("<|tool_calls_section_begin|>", KIMI_SEP),
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        _kimi,
        wraps=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        spelled=(KIMI_SEP,),
    ),
    Syntax(
        "gemma",
        ("<|tool_call>", "call:", QUOTE),
        "<|tool_call>",
        "<tool_call|>",
        _gemma,
        spelled=(QUOTE,),
    ),
    Syntax("mistral", ("[TOOL_CALLS]",), "[TOOL_CALLS]", "", _mistral, spelled=(ARGS, CALL_ID)),
    Syntax(
        "seed",
        ("<seed:tool_call>", "<function=", "<parameter="),
        "<seed:tool_call>",
        "</seed:tool_call>",
        _chatml,
    ),
    Syntax(
        "json_rows",
        ("<tool_calls>", "</tool_calls>", "name"),
        "<tool_calls>",
        "</tool_calls>",
        _json_rows,
    ),
    Syntax(
        "hunyuan",
        (f"<tool_sep{HY}>", f"<arg_key{HY}>"),
        f"<tool_call{HY}>",
        f"</tool_call{HY}>",
        partial(_tagged, HY_TAGS),
        wraps=(f"<tool_calls{HY}>", f"</tool_calls{HY}>"),
        spelled=(
            *(f"<tool_sep{HY}>", f"<arg_key{HY}>", f"</arg_key{HY}>"),
            *(f"<arg_value{HY}>", f"</arg_value{HY}>"),
        ),
    ),
    Syntax(
        "cohere",
        ("<|START_ACTION|>", "<|END_ACTION|>", "tool_name"),
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        _json_rows,
        wraps=("<|START_TEXT|>", "<|END_TEXT|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    Syntax(
        "apertus",
        ("<|tools_prefix|>", "<|tools_suffix|>"),
        "<|tools_prefix|>",
        "<|tools_suffix|>",
        _keyed,
    ),
    Syntax("granite", ("<|tool_call|>", "<|start_of_role|>"), "<|tool_call|>", "", _json_rows),
    Syntax("gigachat", ("<|function_call|>", "<|role_sep|>"), "<|function_call|>", "", _object),
    Syntax("json_list", ("<TOOLCALL>", "</TOOLCALL>"), "<TOOLCALL>", "</TOOLCALL>", _json_rows),
    Syntax(
        "lfm",
        ("<|tool_call_start|>", "<|tool_call_end|>"),
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        _python_or_json,
    ),
    Syntax(
        "python",
        ("<|python_start|>",),
        "<|python_start|>",
        "<|python_end|>",
        _python_or_json,
        bare="[",
    ),
    Syntax(
        "llama_json",
        ("<|start_header_id|>", '"name"', '"parameters"'),
        "<|python_tag|>",
        "",
        _llama,
        bare="{",
    ),
    Syntax("qwen_xml", ("<tool_call>", "<function=", "<parameter="), *_TOOL_CALL, _chatml),
    HERMES,
)
# Ways to write calls that no row here reads: a template that shows one is not taken for another.
OTHER_SIGNS = ("<arg_key", "<invoke", "<tool_sep")
