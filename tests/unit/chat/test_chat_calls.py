"""Calls in answers: both syntaxes, values by schema, and nothing malformed is lost."""

import pytest
from chat_reading import CALL, TOOLS, XML, calls, plain_events, read, text_of
from hypothesis import given
from hypothesis import strategies as st

from headrace.chat.reader import TurnReader
from headrace.chat.types import TextDelta, Tool, ToolCallDelta, ToolCallEnd, ToolCallStart


@pytest.mark.parametrize("name", ["hermes", "xml", "hermes_as_text", "xml_as_text"])
@pytest.mark.parametrize("call", [CALL, XML])
def test_calls_and_the_text_around_them(request, name, call):
    renderer = request.getfixturevalue(name)
    events = read(renderer, f"First.\n\n{call}\n{call}\nThen.\n")
    got = ("get_weather", {"city": "Paris", "days": 3})
    assert calls(events) == [got, got]
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["First.", "Then.\n"]
    starts = [e for e in events if isinstance(e, ToolCallStart)]
    assert [s.index for s in starts] == [0, 1]
    assert len({s.id for s in starts}) == 2
    assert all(len(s.id) == 28 and s.id.isalnum() for s in starts)
    assert [e.index for e in events if isinstance(e, ToolCallEnd)] == [0, 1]


def test_arguments_stream(hermes, xml):
    for renderer, call in ((hermes, CALL), (xml, XML)):
        reader = TurnReader(renderer.tokenizer, renderer.style, TOOLS)
        counts = [
            sum(isinstance(e, ToolCallDelta) for e in reader.feed(token))
            for token in renderer.tokenizer.encode(
                call.replace("Paris", "the wheel " * 20), special=True
            )
        ]
        assert sum(counts) > 20


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "get_weather", "arguments": {"a": [1, {"b": "}"}]}}', {"a": [1, {"b": "}"}]}),
        ('{"arguments": {"a": 1}, "name": "get_weather"}', {"a": 1}),
        ('{"name": "get_weather"}', {}),
        ('{"name": "get_weather", "arguments": {}}', {}),
        ('{"name": "get_weather", "arguments": null}', {}),
        ('{"name": "get_weather", "parameters": {"a": 1}}', {"a": 1}),
        ('{"name": "get_weather", "arguments": "{\\"a\\": 1}"}', {"a": 1}),
        ('{"name": "get_weather", "arguments": ""}', {}),
        (
            '{"id": [1, {"x": null}], "name": "get_weather", "arguments": {"a": -1.5e3}}',
            {"a": -1500},
        ),
        ('{"name": "get_weather", "arguments": {"a": 1}', {"a": 1}),
        ('{"name": "get_weather", "arguments": {"a": "x\ny\tz"}}', {"a": "x\ny\tz"}),
        ('{"name": "get_weather", "arguments": {"a": "</tool_call>"}}', {"a": "</tool_call>"}),
        ('{"name": "get_weather", "arguments": {"a": "<think>"}}', {"a": "<think>"}),
        ('{"name":"get_weather","arguments":{"a":"\\u00e9\\n\\"é🙂"}}', {"a": 'é\n"é🙂'}),
        (' \n\n {"name": "get_weather" , "arguments" : {"a" : true } } \n', {"a": True}),
        ('{"name": "unheard_of", "arguments": {}}', {}),
    ],
)
def test_one_hermes_object(hermes, hermes_as_text, body, arguments):
    for renderer in (hermes, hermes_as_text):
        events = read(renderer, f"<tool_call>{body}</tool_call>")
        assert text_of(events) == ""
        name = "unheard_of" if "unheard_of" in body else "get_weather"
        assert calls(events) == [(name, arguments)]


def test_arguments_are_passed_on_as_written(hermes):
    written = '{"b":  1000.0, "a": "\\u00e9",\n "c": 1e2}'
    events = read(hermes, f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>')
    assert plain_events(events) == [(0, "f", written)]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "\n",
        "get_weather(city=1)",
        "{",
        "{}",
        "[]",
        '{"name": 3, "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"nam": "f"}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": 5}',
        '{"name": "f", "arguments": ' + "1" * 6000 + "}",
        '{"name": "f", "arguments": "not json"}',
        '{"name": "f" "arguments": {}}',
        '{"name": "f", "arguments": {"a": 1}'[:18],
        '{"arguments": {"a": tru}, "name": "f"}',
        '{"arguments": {"a": 1}}',
        "<function>",
        "<function=>",
        "<function=f\n>",
        "<function=get_weather>garbage",
        "<funktion=get_weather>",
        "<parameter=city>x</parameter>",
    ],
)
def test_a_malformed_call_is_text(hermes, hermes_as_text, body):
    for renderer in (hermes, hermes_as_text):
        text = f"before <tool_call>{body}</tool_call> after"
        assert read(renderer, text) == [TextDelta(text)]
        assert read(renderer, f"<tool_call>{body}") == [TextDelta(f"<tool_call>{body}")]


def test_a_call_after_a_malformed_one(hermes):
    events = read(hermes, f"<tool_call>oops</tool_call>{CALL}")
    assert text_of(events) == "<tool_call>oops</tool_call>"
    assert len(calls(events)) == 1


def test_arguments_that_break_later_are_passed_on(hermes):
    events = read(hermes, '<tool_call>{"name": "f", "arguments": {"a": oops, "b": 1}}</tool_call>x')
    (index, name, arguments), rest = plain_events(events)
    assert (index, name) == (0, "f")
    assert arguments.startswith('{"a": oops')
    assert rest == TextDelta("x")


@pytest.mark.parametrize("call", [CALL, XML])
def test_an_answer_cut_off_inside_a_call(hermes, call):
    for n in range(len("<tool_call>"), len(call) - len("</tool_call>")):
        events = read(hermes, call[:n])
        if isinstance(events[0], TextDelta):
            assert events == [TextDelta(call[:n])]
        else:
            assert isinstance(events[-1], ToolCallEnd)
            assert text_of(events) == ""


def test_without_tools_nothing_is_a_call(hermes, hermes_as_text):
    for renderer in (hermes, hermes_as_text):
        assert read(renderer, f"a\n{CALL}\nb", tools=()) == [TextDelta(f"a\n{CALL}\nb")]


def parameter(key, value):
    inner = f"<parameter={key}>\n{value}\n</parameter>"
    return f"<tool_call>\n<function=get_weather>\n{inner}\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("city", "Paris", "Paris"),
        ("city", "12", "12"),
        ("city", "true", "true"),
        ("city", '{"a": 1}', '{"a": 1}'),
        ("city", "", ""),
        ("city", "\n", "\n"),
        ("city", "  two\n\n lines\n", "  two\n\n lines\n"),
        ("city", 'quote " back \\ tab\t', 'quote " back \\ tab\t'),
        ("city", "</parameter> is a tag", "</parameter> is a tag"),
        ("city", "a </function> b", "a </function> b"),
        ("city", "x</parameter></parameter>y", "x</parameter></parameter>y"),
        ("city", "<tool_call> and </tool_call>", "<tool_call> and </tool_call>"),
        ("city", "<think>", "<think>"),
        ("city", "<parameter=days>", "<parameter=days>"),
        ("days", "3", 3),
        ("days", " -3 ", -3),
        ("days", "three", "three"),
        ("days", "007", "007"),
        ("share", "1000.5e1", 10005.0),
        ("share", "NaN", "NaN"),
        ("wet", "True", True),
        ("wet", "false", False),
        ("wet", "yes", "yes"),
        ("where", '{"a": [1, null]}', {"a": [1, None]}),
        ("where", "{'a': True, 'b': None}", {"a": True, "b": None}),
        ("where", '{"a": NaN}', '{"a": NaN}'),
        ("where", "{" * 5000, "{" * 5000),
        ("list", "[1, 2]", [1, 2]),
        ("list", "null", None),
        ("either", "5", 5),
        ("either", "None", None),
        ("mixed", "5", 5),
        ("mixed", "five", "five"),
        ("any", '["x"]', ["x"]),
        ("any", "x", "x"),
        ("undeclared", "5", "5"),
    ],
)
def test_xml_values_follow_the_schema(xml, xml_as_text, key, text, value):
    for renderer in (xml, xml_as_text):
        events = read(renderer, parameter(key, text))
        assert text_of(events) == ""
        assert calls(events) == [("get_weather", {key: value})]


def test_a_schema_that_refers_to_itself(xml):
    either = {"anyOf": [{"$ref": "#/$defs/a"}] * 9 + [{"type": "integer"}]}
    loop = {"properties": {"city": either}, "$defs": {"a": either, "b": {"$ref": "#/$defs/b"}}}
    endless = {"properties": {"city": {"$ref": "#/$defs/b"}}, "$defs": loop["$defs"]}
    for parameters in (loop, endless):
        events = read(xml, parameter("city", "5"), tools=(Tool("get_weather", "", parameters),))
        assert calls(events) == [("get_weather", {"city": 5})]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("<function=get_weather>\n</function>", {}),
        ("<function=get_weather>", {}),
        ("<function=get_weather><parameter=city>Paris</parameter></function>", {"city": "Paris"}),
        ("<function=get_weather><parameter=city>Paris</parameter>", {"city": "Paris"}),
        ("<function=get_weather>\n<parameter=city>\nParis\n</function>\n", {"city": "Paris"}),
        ("<function=get_weather>\n<parameter=city>\nParis\n</parameter>\nnoise", None),
    ],
)
def test_xml_with_tags_left_out(xml, body, arguments):
    events = read(xml, f"<tool_call>{body}</tool_call>")
    if arguments is not None:
        assert calls(events) == [("get_weather", arguments)]
    assert text_of(events) == ""


# --- round trips ----------------------------------------------------------------------------------

words = st.text(
    st.one_of(st.sampled_from('{}[]<>/=",:\\\n\t <parmte>'), st.characters(codec="utf-8")),
    max_size=20,
)
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        words,
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


def answer_text(renderer, tool_calls):
    """The assistant's turn as the family's template writes it."""
    call_dicts = [{"function": {"name": n, "arguments": a}} for n, a in tool_calls]
    text = renderer.template.render(
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "", "tool_calls": call_dicts},
        ],
        generate=False,
    )
    return text.split("<|im_start|>assistant\n", 1)[1].removesuffix("<|im_end|>\n")


@given(arguments=st.lists(st.dictionaries(words, values, max_size=3), min_size=1, max_size=2))
def test_hermes_calls_come_back_from_the_template(hermes, hermes_as_text, arguments):
    wanted = [("get_weather", a) for a in arguments]
    for renderer in (hermes, hermes_as_text):
        text = answer_text(renderer, wanted)
        assert calls(read(renderer, text)) == wanted


typed = st.fixed_dictionaries(
    {},
    optional={
        "city": words,
        "days": st.integers(),
        "share": st.floats(allow_nan=False, allow_infinity=False),
        "wet": st.booleans(),
        "where": st.dictionaries(words, values, max_size=3),
        "list": st.none() | st.lists(values, max_size=3),
        "either": st.none() | st.integers(),
    },
)


@given(arguments=st.lists(typed, min_size=1, max_size=2))
def test_xml_calls_come_back_from_the_template(xml, xml_as_text, arguments):
    wanted = [("get_weather", a) for a in arguments]
    for renderer in (xml, xml_as_text):
        text = answer_text(renderer, wanted)
        assert calls(read(renderer, text)) == wanted
