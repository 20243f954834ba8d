"""Custom tools: whatever a model may write is text of the tool's grammar, by another's parser."""

import dataclasses
import json
import random
import re

import lark
import pytest
from chat_masks import FIRST, USER, accepts, walk
from chat_reading import calls, text_of
from families import FAMILIES, renderer_of
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.chat.grammar import (
    MAX_PATTERN_CHARS,
    compile_constraint,
    compile_text_constraint,
)
from headrace.chat.reader import TurnReader, joined
from headrace.chat.tools.lark_text import lark_in_json
from headrace.chat.tools.lark_tree import COMMON
from headrace.chat.tools.regex_text import regex_in_json
from headrace.chat.types import ChatRequest, OutputFormat, TextInput, Tool, ToolChoice
from headrace.errors import RequestError

SUM = r"""
start: expr  // with a comment "of quotes"
expr: term (("+" | "-") term){0,3}
term: NUMBER | "(" expr ")"
NUMBER: /[0-9]{1,3}/
%ignore " "
"""
PATCH = r"""
start: begin line{1,3} end
begin: "*** Begin \"\\Patch\\\"" LF
line: /[-+ ][^\n]{0,5}/ LF
    | "@@" /[\t\f"]/ LF
end: "*** End"i
%import common.LF
"""
WORDS = r"""
start: word ("," word){0,2}
word: "\"" SIGN{1,4} "\""
SIGN: "a".."d" | /[\s\\]/ | /\x22/
"""
GRAMMARS = {"sum": SUM, "patch": PATCH, "words": WORDS}
REGEXES = {
    "letters": r"[abc]{3,9}",
    "signs": r'(["\\/\n\x00-\x02]|é){1,5}',
    "line": r"[+-][^\n]{0,6}\n|[0-9]{2}",
}
# As codex has it.
APPLY_PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF
%import common.LF
"""
PATCHED = """*** Begin Patch
*** Add File: a "b"\\c.txt
+<p>\té \\n "x" </p>
+
*** Update File: a/b.py
*** Move to: b.py
@@ def "f"
-x\\n
+'y'
*** End of File
*** Delete File: c
*** End Patch"""
EVERY = [
    *((f"lark {name}", TextInput("lark", text)) for name, text in GRAMMARS.items()),
    *((f"regex {name}", TextInput("regex", text)) for name, text in REGEXES.items()),
]
RENDERERS = {
    (name, as_text): renderer_of(family, as_text=as_text)
    for name, family in FAMILIES.items()
    for as_text in (False, True)
}


def fits(grammar, text):
    """By the Lark package, whose ranges and repetitions are spelled otherwise, or by `re`."""
    if grammar.kind == "regex":
        return re.fullmatch(grammar.pattern, text) is not None
    spelled = re.sub(r"(?<=[\w)])\{(\d),(\d)\}(?!/)", r"~\1..\2", grammar.pattern)
    try:
        lark.Lark(spelled, parser="earley").parse(text)
    except lark.exceptions.UnexpectedInput:
        return False
    return True


def custom(grammar, name="run"):
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return Tool(name, "", schema, input=grammar)


def read(renderer, tokens, tools):
    reader = TurnReader(renderer.tokenizer, renderer.style, tools)
    return joined([e for token in tokens for e in reader.feed(token)] + reader.finish())


@pytest.mark.parametrize(("name", "as_text"), RENDERERS)
def test_in_every_syntax_a_forced_call_is_text_of_the_grammar(name, as_text):
    renderer, rng = RENDERERS[name, as_text], random.Random(name)
    for label, grammar in EVERY:
        tools = (custom(grammar), FIRST)
        wanted = ChatRequest(USER, tools, tool_choice=ToolChoice("named", "run"))
        for _ in range(3):
            constraint = compile_constraint(renderer.tokenizer, wanted, renderer.style)
            tokens = walk(constraint, renderer.tokenizer, rng)
            events = read(renderer, tokens, tools)
            shown = renderer.tokenizer.decode(tokens, skip_special=False)
            ((called, arguments),) = calls(events)
            assert (called, text_of(events), set(arguments)) == ("run", "", {"input"}), shown
            assert fits(grammar, arguments["input"]), (label, shown)


@pytest.mark.parametrize(("name", "as_text"), RENDERERS)
def test_a_model_that_chooses_to_call_is_held_to_it(name, as_text):
    renderer = RENDERERS[name, as_text]
    tools = (custom(TextInput("lark", 'start: "go " /[a-z]{2}/')),)

    def outcome(text):
        constraint = compile_constraint(renderer.tokenizer, ChatRequest(USER, tools), style)
        return accepts(constraint, renderer.tokenizer, text, special=True)

    style = renderer.style
    forced = ChatRequest(USER, tools, tool_choice=ToolChoice("required"), parallel_tool_calls=False)
    tokens = walk(
        compile_constraint(renderer.tokenizer, forced, style), renderer.tokenizer, random.Random(1)
    )
    call = renderer.tokenizer.decode(tokens, skip_special=False)
    said = re.search("go [a-z]{2}", call)[0]
    assert outcome("Only text.") is True
    assert outcome(call) is True
    wrong = call.replace(said, "go 12")
    held = outcome(wrong)
    if held is True:  # marks that are mere text: then it is none
        assert calls(read(renderer, renderer.tokenizer.encode(wrong, special=True), tools)) != []
        assert as_text
    else:
        assert held.endswith("go ")


def shown_call(renderer, tools):
    """A call as the family writes it, with GO for its text."""
    sample = (custom(TextInput("lark", 'start: "GO"'), tools[0].name),)
    forced = ChatRequest(
        USER, sample, tool_choice=ToolChoice("required"), parallel_tool_calls=False
    )
    constraint = compile_constraint(renderer.tokenizer, forced, renderer.style)
    tokens = walk(constraint, renderer.tokenizer, random.Random(1))
    return renderer.tokenizer.decode(tokens, skip_special=False)


ENDINGS = [
    (r"/(.+)/ LF", "a\\nb\n"),
    (r'/[^"]+/ "\""', 'a\n"'),
    (r'/[^\n]*/ "\n" "\t" /c/', "ab\n\tc"),
    (r"WORD LF", 'a"\n'),
    (r'(/[a-z]/ WS)+ "."', "a\t\nb\n."),
    (r'"x" /[ \t]+/ LF', "x \t\n"),
    (r'MORE "\""', 'a\n"'),
]


@pytest.mark.parametrize(("name", "as_text"), RENDERERS)
def test_in_every_syntax_valid_text_is_accepted(name, as_text):
    renderer = RENDERERS[name, as_text]
    common = "\n%import common.LF\n%import common.WS\nWORD: /[^\\s]+/\nMORE: /a/ LF*\n"
    asked = [(APPLY_PATCH, PATCHED), *((f"start: {rule}{common}", text) for rule, text in ENDINGS)]
    for grammar, text in asked:
        tools = (custom(TextInput("lark", grammar)),)
        call = shown_call(renderer, tools)
        escaped = json.dumps(text, ensure_ascii=False)[1:-1]
        call = call.replace("GO", escaped if '"GO"' in call else text)
        events = read(renderer, renderer.tokenizer.encode(call, special=True), tools)
        assert calls(events) == [("run", {"input": text})]
        request = ChatRequest(USER, tools, tool_choice=ToolChoice("named", "run"))
        constraint = compile_constraint(renderer.tokenizer, request, renderer.style)
        outcome = accepts(constraint, renderer.tokenizer, call, special=True)
        assert outcome is True, (grammar, call, outcome)


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_rewritten_grammar_accepts_the_escaped_texts(marked, name):
    """Both ways: texts of the grammar as JSON writes them, and what else is written is none."""
    plain = OutputFormat("lark", pattern=GRAMMARS[name])
    inside = OutputFormat("lark", pattern=lark_in_json(GRAMMARS[name], "here"))
    for seed in range(12):
        rng = random.Random(seed)
        text = marked.decode(walk(compile_text_constraint(marked, plain), marked, rng))
        escaped = json.dumps(text, ensure_ascii=False)[1:-1]
        assert accepts(compile_text_constraint(marked, inside), marked, escaped) is True
        escaped = marked.decode(walk(compile_text_constraint(marked, inside), marked, rng))
        text = json.loads(f'"{escaped}"')
        assert fits(TextInput("lark", GRAMMARS[name]), text)
        assert accepts(compile_text_constraint(marked, plain), marked, text) is True


CLASSES = [
    *(r".", r"(?s:.)", r"(?s).(?-s:.)", r"\s", r"\S", r"\w", r"\W", r"\d", r"\D", r"[^\s]"),
    *(r'[^"]', r'["]', r"[\\]", r"[^\\\n]", r"[\x00-\x1f]", r"[ -~]", r"[!-\]]", r"[^a-z]"),
    *(r"[]a]", r"[a-]", r"[[:cntrl:]x]", r"[[:^space:]]", r"\p{Cc}", r"\pP", r"\P{L}", r"\x22"),
    *(r"\p{Punctuation}", r"\p{Punct}", r"\p{gc=Po}", r"\p{po}", r"\p{Other}", r"\p{Control}"),
    *(r"\p{Common}", r"\p{White_Space}", r"\p{Pattern_Syntax}", r"[^\p{Punct}]", r"\P{Sc}"),
    *(r"\"", r"\/", r"\\", r"(?i:N\n)", r"\t|b", r"a{2}\n?", r"(?P<x>\r)", r"[\d\"]", r"\u{1f}"),
]


@pytest.mark.parametrize("pattern", CLASSES)
def test_a_rewritten_expression_is_the_same_of_escaped_texts(marked, pattern):
    texts = [*map(chr, range(128)), "é", "🙂", "aa", "aa\n", "n\n", "N\n", "\n\n", "a\n", '""']
    inside = regex_in_json(pattern, "", "here")
    for text in texts:
        plain = compile_text_constraint(marked, OutputFormat("regex", pattern=pattern))
        made = compile_text_constraint(marked, OutputFormat("regex", pattern=inside))
        escaped = json.dumps(text, ensure_ascii=False)[1:-1]
        assert (accepts(plain, marked, text) is True) == (accepts(made, marked, escaped) is True), (
            text,
            inside,
        )


@pytest.mark.parametrize(
    "pattern", [r"[\x00-\x1f]", ".", r"\d", r"\p{Cc}", "(?x)a #c", "[^ -~]", "a*"]
)
def test_an_expression_in_json_holds_as_it_does_in_text(pattern):
    renderer = RENDERERS["hermes", False]
    tools = (custom(TextInput("regex", pattern)),)
    request = ChatRequest(USER, tools, tool_choice=ToolChoice("named", "run"))
    call = shown_call(renderer, tools)
    for text in ("\n", '"', "\\", "\x01", "\x7f", "a", "\u0663", ""):
        plain = compile_text_constraint(renderer.tokenizer, OutputFormat("regex", pattern=pattern))
        made = compile_constraint(renderer.tokenizer, request, renderer.style)
        spelled = call.replace("GO", json.dumps(text, ensure_ascii=False)[1:-1])
        got = accepts(made, renderer.tokenizer, spelled, special=True) is True
        wanted = accepts(plain, renderer.tokenizer, text) is True
        told = "(?x)" in pattern and text != "\x7f"  # which stands in no JSON string of theirs
        assert got is (wanted or told), text


@pytest.mark.parametrize("pattern", ["(?R).", "(?x: a)", "(?s-R:.)", "[a&&b]"])
def test_what_cannot_be_rewritten_is_refused(pattern):
    with pytest.raises(RequestError):
        regex_in_json(pattern, "", "here")


@pytest.mark.parametrize("name", COMMON)
def test_imported_terminals_are_those_of_lark(marked, name):
    texts = ["1", "1.5", ".5", "-2e3", '"a\\"b"', "x", "X", "Xy_1", " \t", "\n", "\r\n", "# c"]
    texts += ["// c", "/* a\n* */", "/* */ */", "-- x", "\r", "7f", "1.", "", "+3", "1e5"]
    inside = lark_in_json(f"%import common.{name} -> IT\nstart: IT", "here")
    theirs = lark.Lark(f"%import common.{name} -> IT\nstart: IT", parser="earley")
    for text in texts:
        made = compile_text_constraint(marked, OutputFormat("lark", pattern=inside))
        try:
            theirs.parse(text)
            fine = True
        except lark.exceptions.UnexpectedInput:
            fine = False
        got = accepts(made, marked, json.dumps(text, ensure_ascii=False)[1:-1])
        assert (got is True) is fine, text


@settings(max_examples=200)
@given(st.text(alphabet='ab"/\\%<>@{}[]()|:.*?+^$-&~=,\n ix1', max_size=40))
def test_any_text_is_rewritten_told_or_refused(text):
    try:
        assert isinstance(lark_in_json(text, "here"), str | None)
    except RequestError as found:
        error = found
    else:
        error = None
    assert error is None or error.field == "here"


@pytest.mark.parametrize(
    ("kind", "pattern", "field"),
    [
        ("lark", "start: (", "at"),
        ("lark", "start: nothing", "at"),
        ("lark", 'begin: "x"', "at"),
        ("lark", 'start: %json {"type": "string"}', "at"),
        ("lark", "start: <|im_end|>", "at"),
        ("lark", "start: @other", "at"),
        ("lark", "%import other.X\nstart: X", "at"),
        ("lark", 'start: "' + "a" * MAX_PATTERN_CHARS + '"', "at"),
        ("regex", "(", "at"),
        ("regex", "(?=a)b", "at"),
        ("regex", "a" * (MAX_PATTERN_CHARS + 1), "at"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "none", "required"])
def test_a_grammar_that_cannot_be_compiled_is_refused_by_name(kind, pattern, field, mode):
    renderer = RENDERERS["hermes", False]
    tools = (FIRST, custom(TextInput(kind, pattern, "at")))
    asked = ChatRequest(USER, tools, tool_choice=ToolChoice(mode))
    with pytest.raises(RequestError) as error:
        compile_constraint(renderer.tokenizer, asked, renderer.style)
    assert error.value.field == field


def test_grammars_are_bounded_all_together():
    renderer = RENDERERS["glm", False]
    long = 'start: "' + "a" * (MAX_PATTERN_CHARS // 2) + '"'
    tools = tuple(custom(TextInput("lark", long, f"t{i}"), f"run{i}") for i in range(2))
    assert compile_constraint(renderer.tokenizer, ChatRequest(USER, tools[:1]), renderer.style)
    with pytest.raises(RequestError) as error:
        compile_constraint(renderer.tokenizer, ChatRequest(USER, tools), renderer.style)
    assert error.value.field == "t1"


def test_where_calls_cannot_be_read_a_grammar_is_only_told():
    renderer = RENDERERS["hermes", False]
    unknown = dataclasses.replace(renderer.style, calls=None)
    tools = (custom(TextInput("lark", SUM)),)
    assert compile_constraint(renderer.tokenizer, ChatRequest(USER, tools), unknown) is None
