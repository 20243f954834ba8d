"""Grammars that would overflow the compiler's stack, against long chains and a slow search."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from chat_masks import SCHEMA, USER
from hypothesis import given
from hypothesis import strategies as st

from headrace.chat.depth import MAX_CHAIN, rules_depth, schema_depth
from headrace.chat.types import ChatRequest, OutputFormat, TextInput, Tool, ToolChoice
from headrace.errors import RequestError

LARK = {
    "sequence": ('r{}: "a" r{}', 1),
    "choice": ('r{}: r{} | "b"', 1),
    "option": ('r{}: "a" r{}?', 1),
    "brackets": ('r{}: ("a" ("b" ("c" r{})))', 4),
    "terminals": ('R{}: "a" R{}', 1),
    "attributes": ('r{}[capture="x:y"]: "a" r{}', 2),
}
SCHEMAS = {
    "reference": (lambda ref: ref, 1),
    "object": (lambda ref: {"type": "object", "properties": {"a": ref}, "required": ["a"]}, 3),
    "tuple": (lambda ref: {"type": "array", "prefixItems": [ref], "minItems": 1}, 3),
    "pattern": (lambda ref: {"type": "object", "patternProperties": {"^a$": ref}}, 3),
    "choice": (lambda ref: {"anyOf": [ref, {"type": "null"}]}, 3),
    "all": (lambda ref: {"allOf": [ref]}, 3),
}


def lark(kind, levels):
    line, weight = LARK[kind]
    name = line[0]
    count = levels // weight
    lines = [line.format(k, k + 1) for k in range(count)]
    return "\n".join([f"start: {name}0", *lines, f'{name}{count}: "z"'])


def schema(kind, levels, reference="#/$defs/d{}", named=None):
    make, weight = SCHEMAS[kind]
    count = levels // weight
    made = {f"d{k}": dict(make({"$ref": reference.format(k + 1)})) for k in range(count)}
    made[f"d{count}"] = {"type": "null"}
    if named is not None:
        made = {key: {**value, named: key} for key, value in made.items()}
    return {"$ref": reference.format(0), "$defs": made}


def compiled_elsewhere(output):
    """In a process and on a quarter of the usual stack: the exit status."""
    script = (
        "import sys, threading\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from conftest import FILES\n"
        "from tiny_chat import byte_level_json\n"
        "from headrace.chat.grammar import compile_text_constraint\n"
        "from headrace.chat.types import OutputFormat\n"
        "from headrace.chat.tokenizer import Tokenizer\n"
        "tokenizer = Tokenizer.from_json(byte_level_json(marks=True), FILES)\n"
        f"outputs = {output!r}\n"
        "made = []\n"
        "def work():\n"
        "    made.extend(compile_text_constraint(tokenizer, output) for output in outputs)\n"
        "threading.stack_size(2 << 20)\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "thread.join()\n"
        "sys.exit(0 if len(made) == len(outputs) else 3)\n"
    )
    return subprocess.run([sys.executable, "-c", script], check=False).returncode


def test_what_is_allowed_leaves_most_of_the_stack():
    most = MAX_CHAIN - 20
    outputs = [OutputFormat("lark", pattern=lark(kind, most)) for kind in LARK]
    outputs += [OutputFormat("json_schema", schema=schema(kind, most)) for kind in SCHEMAS]
    assert compiled_elsewhere(outputs) == 0


@pytest.mark.parametrize("kind", LARK)
def test_rules_that_lead_too_deep(hermes, kind):
    grammar = lark(kind, 3000)
    asked = ChatRequest(USER, format=OutputFormat("lark", pattern=grammar))
    tool = Tool("f", "", {}, input=TextInput("lark", grammar, "tools[0].grammar"))
    called = ChatRequest(USER, (tool,), tool_choice=ToolChoice("required"))
    for request, field in ((asked, "response_format"), (called, "tools[0].grammar")):
        with pytest.raises(RequestError, match=rf"levels deep.*at most {MAX_CHAIN}") as caught:
            hermes.constraint(request, hermes.prompt(ChatRequest(USER)))
        assert caught.value.field == field


@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize(
    ("reference", "named"),
    [("#/$defs/d{}", None), ("#/%24defs/d{}", None), ("#d{}", "$anchor"), ("d{}", "$id")],
)
def test_references_that_lead_too_deep(hermes, kind, reference, named):
    deep = schema(kind, 6000, reference, named)
    asked = ChatRequest(USER, format=OutputFormat("json_schema", schema=deep))
    tool = Tool("f", "", {"type": "object", "properties": {"a": {"$ref": "#"}}, **deep})
    called = ChatRequest(USER, (tool,), tool_choice=ToolChoice("required"))
    where = "response_format.json_schema.schema"
    for request, field in ((asked, where), (called, "tools[0].function.parameters")):
        with pytest.raises(RequestError, match=rf"levels deep.*at most {MAX_CHAIN}") as caught:
            hermes.constraint(request, hermes.prompt(ChatRequest(USER)))
        assert caught.value.field == field


def test_a_schema_within_a_lark_grammar_counts(hermes):
    deep = f"start: a\na: %json {json.dumps(schema('object', 1800))}\n"
    asked = ChatRequest(USER, format=OutputFormat("lark", pattern=deep))
    with pytest.raises(RequestError, match="levels deep"):
        hermes.constraint(asked, hermes.prompt(asked))


def test_what_is_common_is_not_deep():
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert schema_depth(tree) == 3
    assert schema_depth(SCHEMA) < 10
    wide = {"properties": {f"p{k}": {"$ref": f"#/$defs/d{k}"} for k in range(2000)}}
    wide["$defs"] = {f"d{k}": {"type": "object", "properties": {}} for k in range(2000)}
    assert schema_depth(wide) == 5
    assert rules_depth("start: " + " | ".join(f'"{k}:("' for k in range(2000))) == 1
    assert rules_depth('start: a\na: "((" a | /\\/((/ // ((\n') == 2


def heaviest(weights, after, node, seen=frozenset()):
    seen |= {node}
    further = (heaviest(weights, after, to, seen) for to in after[node] if to not in seen)
    return weights[node] + max(further, default=0)


GRAPHS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 6), max_size=3)), min_size=7, max_size=7
)


@given(GRAPHS)
def test_the_depth_is_never_less_than_that_of_the_deepest_way(graph):
    """All ways that meet no rule twice; without cycles it is exactly the heaviest of them."""
    for cycles in (True, False):
        after = [[to for to in tos if cycles or to > k] for k, (_, tos) in enumerate(graph)]
        weights = [1 + nesting for nesting, _ in graph]
        lines = [
            f'r{k}: {"(" * nesting}"x"{")" * nesting} {" ".join(f"r{to}" for to in after[k])}'
            for k, (nesting, _) in enumerate(graph)
        ]
        most = max(heaviest(weights, after, k) for k in range(len(graph)))
        found = rules_depth("\n".join(lines))
        assert found >= most if cycles else found == most
