"""Lark grammars inside JSON against the same grammars on plain text, by the library itself."""

import json
import random
import re

import llguidance
import pytest
from chat_masks import accepts
from hypothesis import given, settings
from hypothesis import strategies as st
from test_chat_custom import APPLY_PATCH, GRAMMARS, PATCHED

from headrace.chat.grammar import OPTIONS, compile_text_constraint
from headrace.chat.tools.lark_text import lark_in_json
from headrace.chat.types import OutputFormat

BYTES = llguidance.LLTokenizer("byte")
SQL = r"""
start: select (";" select)* ";"?
select: "SELECT"i column ("," column)* "FROM"i NAME ("WHERE"i test)?
column: NAME | TEXT | "*"
test: NAME ("=" | "<" | ">") (NAME | TEXT | NUMBER) ("AND"i test)?
NAME: /[a-z_][a-z0-9_]*/
TEXT: "'" /[^']/* "'" | "\"" /[^"]/+ "\""
NUMBER: /[0-9]+/ | /[0-9]+\.[0-9]+/
COMMENT: "--" /[^\n]/* "\n"
%import common.WS
%ignore WS
%ignore COMMENT
"""
CODE = r"""
start: (line NEWLINE)*
line: INDENT? (NAME "=" value | "pass")
value: ESCAPED_STRING | NUMBER | NAME "(" (value ("," " "? value)*)? ")"
INDENT: "\t"+
NAME: ("_" | "a".."z")+
%import common (ESCAPED_STRING, NUMBER)
%import common.LF -> NEWLINE
"""
IGNORED = {"sql": r"\s|--[^\n]*\n"}
KNOWN = {**GRAMMARS, "apply_patch": APPLY_PATCH, "sql": SQL, "code": CODE}
SAID = {
    "sql": [
        "SELECT a,\n\t'it \\ \"x\"\n', * FROM t -- \"all\"\n WHERE a='\\n';",
        'select "\n" from b',
    ],
    "code": ['a="\\"x\\n\t"\n\t\tb=f("", 1.5e3, g("é"))\npass\n', "pass\n", 'a="b\\\\"\n'],
    "apply_patch": [PATCHED],
}


def matcher(grammar):
    made = llguidance.LLMatcher.grammar_from_lark(f"{OPTIONS}\n{grammar}")
    return llguidance.LLMatcher(BYTES, made, log_level=0)


def takes(fresh, text):
    one, data = fresh.deep_copy(), list(text.encode())
    return one.try_consume_tokens(data) == len(data) and one.is_accepting()


def escaped(text):
    return json.dumps(text, ensure_ascii=False)[1:-1]


def wander(fresh, rng, favoured, most):
    """A text that the grammar begins with; where it may, of the favoured bytes."""
    one, said = fresh.deep_copy(), []
    while len(said) < most and not one.is_stopped():
        if one.is_accepting() and rng.random() < 0.2:
            break
        bits = one.compute_bitmask()
        allowed = [k for k in range(128) if bits[k // 8] >> k % 8 & 1]
        choices = [k for k in allowed if k in favoured] or allowed
        if not choices:
            break
        said.append(rng.choice(choices))
        assert one.consume_token(said[-1])
    return bytes(said).decode()


def said_by(inside, rng, favoured):
    """What a text of JSON stands for, cut before an escape that is not whole."""
    said = re.match(r"(?:\\(?:u00..|[^u])|[^\\])*", wander(inside, rng, favoured, 40)).group()
    return json.loads(f'"{said}"')


def same(plain, inside, text, ignored=""):
    """Whether both take `text`. At its very end the one in JSON may take what is ignored, too."""
    fine, made = takes(plain, text), takes(inside, escaped(text))
    ends = [k for k in range(len(text)) if ignored and re.fullmatch(f"({ignored})*", text[k:])]
    return made is fine or (made and any(takes(plain, text[:k]) for k in ends))


@pytest.mark.parametrize("name", KNOWN)
def test_of_known_grammars_the_same_texts_are_accepted(name):
    plain, inside = matcher(KNOWN[name]), matcher(lark_in_json(KNOWN[name], "here"))
    rng, texts = random.Random(name), list(SAID.get(name, []))
    for text in texts:
        assert takes(plain, text), text
        assert takes(inside, escaped(text)), text
    favoured = b'*** Begin+-@\n\t"\\ abSELCTFROM=;1n'
    texts += [wander(plain, rng, favoured, 60) for _ in range(20)]
    for _ in range(60):
        text = rng.choice(texts)
        at = rng.randrange(len(text) + 1)
        texts.append(text[:at] + rng.choice('\n\t"\\ ax1') + text[at + rng.randrange(2) :])
    texts += [said_by(inside, rng, favoured) for _ in range(20)]
    for text in texts:
        assert same(plain, inside, text, IGNORED.get(name, "")), text


ATOMS = [
    *("a", "b", "x", r"\n", '"', r"\\", " ", r"\t", ".", r"[^\n]", '[^"]', "[ab]", r"[a\n]", "é"),
    *(r"[\n\t ]", "[^a]", r"\s", r'[^\n"]', r'[b"\\]', r"[^\s]", r"\x01", "(?s:.)", "(?i:B)"),
]
LITERALS = [
    *('"a"', r'"\n"', r'"a\nb"', r'"\""', r'"x\""', '" "', r'"\t"', '"ab"', r'"\\"', '"B"i'),
    *('"a".."c"', r'"\u0001".."#"', '""'),
]
IGNORABLE = ['" "', r"/[ \t]+/", "WS", r"/[ \n]/", r"/x[^\n]*/", r"/\n+/"]


def expression(rng, depth=0):
    kind = rng.random()
    if depth > 2 or kind < 0.5:
        return rng.choice(ATOMS)
    parts = [expression(rng, depth + 1) for _ in range(rng.randint(2, 3))]
    if kind < 0.7:
        return "".join(parts)
    if kind < 0.8:
        return f"({'|'.join(parts)})"
    return f"({parts[0]}){rng.choice(['*', '+', '?', '{2}', '{1,2}', '{0,3}', '{2,}', '{1,6}'])}"


def right_side(rng, names, depth=0):
    kind = rng.random()
    if depth > 2 or kind < 0.35:
        return rng.choice(names)
    if kind < 0.6:
        return rng.choice(LITERALS) if rng.random() < 0.6 else f"/{expression(rng)}/"
    first, second = (right_side(rng, names, depth + 1) for _ in range(2))
    if kind < 0.9:
        return f"({first} {'|' if kind > 0.8 else ''} {second})"
    return f"({first}){rng.choice('*+?')}"


def any_grammar(rng):
    """And what it ignores."""
    every = ["p", "q", "T", "U"]
    lines = [
        f"start: {right_side(rng, every)} {right_side(rng, every)}",
        f"p: {right_side(rng, ['T', 'U'])}",
        f"q: {right_side(rng, ['p', 'T', 'LF'])}",
        f"T: /{expression(rng)}/",
        f"U: {rng.choice(LITERALS)} T{rng.choice(['', '*', '?'])} | /{expression(rng)}/",
        "%import common (LF, WS)",
    ]
    ignored = rng.choice(IGNORABLE) if rng.random() < 0.3 else ""
    if ignored:
        lines.append(f"%ignore {ignored}")
    return "\n".join(lines), r"\s+" if ignored == "WS" else ignored.strip('/"')


@settings(max_examples=150)
@given(st.integers(0, 1 << 40))
def test_of_any_grammar_that_is_not_only_told_the_same_texts_are_accepted(seed):
    rng = random.Random(seed)
    grammar, ignored = any_grammar(rng)
    inside = lark_in_json(grammar, "here")
    plain = matcher(grammar)
    if inside is None or plain.is_error():
        return
    made = matcher(inside)
    assert not made.is_error(), made.get_error()
    signs = 'ab\n\t"\\ x'
    texts = ["".join(rng.choice(signs) for _ in range(rng.randint(0, 6))) for _ in range(10)]
    texts += [wander(plain, rng, signs.encode(), 12) for _ in range(10)]
    texts += [said_by(made, rng, signs.encode() + b"nt01u") for _ in range(10)]
    for text in texts:
        assert same(plain, made, text, ignored), (grammar, inside, text)


# Each accepts a text by what one terminal takes of it; in pieces another would take more.
LOST = [
    (r'start: /.*/ "\t"', None),
    (r'start: /a\n[a-z]*/ (/[0-9]/ | /[a-z0-9]{5}/) "\n"?', "a\nab1"),
    ('start: T V | T U\nT: /x\\n?(ab)?/\nU: /\\n[a-z]+!/\nV: "cd"', "x\nabcd"),
    ('start: N N "ab" | N "a" "bc"\nN: /\\n+/', "\n\nabc"),
    (
        "start: (/[a-z]+/ | TEXT)+\nTEXT: /'[^\"']*'/ | \"\\n\"\n%ignore /#[^\\n]*/\n%ignore /\\s/",
        None,
    ),
    ('start: "a" "\\n" "b"\n%import common.WS\n%ignore WS', None),
]


@pytest.mark.parametrize(("grammar", "text"), LOST)
def test_a_grammar_that_pieces_would_change_is_only_told(grammar, text, monkeypatch):
    assert lark_in_json(grammar, "here") is None
    monkeypatch.setattr("headrace.chat.tools.lark_text.keeps_texts", lambda *_: True)
    changed = matcher(lark_in_json(grammar, "here"))
    if text is not None:
        assert takes(matcher(grammar), text)
        assert not takes(changed, escaped(text))


@pytest.mark.parametrize(
    "grammar",
    [
        'start[lazy]: /./ /x/ "\\n"',
        'start: A\nA: ~"\\n"',
        'start: A\nA: B & C\nB: /[^a]/\nC: "\\n"',
        r"start: /[\s&&[^\n]]/",
        r"start: /(?x)a \n/",
        "start: nothing",
        'start: A\nA: B "\\n"\nB: A?',
        'start: "\\n"',
        r"start: /[\n\"a]{0,999}x/",
        "start: A0\n" + "".join(f"A{k}: A{k + 1} A{k + 1}\n" for k in range(40)) + 'A40: "\\n"',
        "start: " + "(" * 200 + '"\\n"' + ")" * 200,
        "start: /" + r"\p{L}" * 101 + r"\n/",
        "start: (" + " | ".join(f"/{k}[\\n'a]+x/" for k in range(161)) + ')+ "\\n"',
        "start: " + " | ".join(f'"\\n{k}" /[^a]+{k}/' for k in range(300)),
        "\n".join(
            ['start: r80 /.+/ "\\n"', 'r0: "a"', *(f"r{k + 1}: r{k} r{k}" for k in range(80))]
        ),
    ],
)
def test_what_takes_too_much_or_is_not_known_is_only_told(grammar):
    known = grammar == 'start: "\\n"'
    assert (lark_in_json(grammar, "here") is not None) is known


def test_a_grammar_without_escapes_is_left_as_it_is():
    grammar = 'start: ("+" | /[a-z]+/)+  // "quoted"\n%ignore " "\n'
    assert lark_in_json(grammar, "here") is grammar


def tokens_of(words):
    """A vocabulary of all bytes and `words`, and what cuts a text at random."""
    table = [bytes([k]) for k in range(256)] + [word.encode() for word in words]

    class Words:
        def __init__(self):
            self.eos_token_id, self.bos_token_id = len(table), None
            self.tokens, self.special_token_ids = [*table, b"<end>"], [len(table)]

        def __call__(self, text):
            return list(text.encode() if isinstance(text, str) else text)

    def cut(text, rng):
        data, at = text.encode(), 0
        while at < len(data):
            fitting = [k for k, word in enumerate(table) if data.startswith(word, at)]
            token = rng.choice(fitting)
            yield token
            at += len(table[token])

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Words())), cut


def test_tokens_may_cut_the_text_anywhere():
    words = [
        r"\n",
        r"\n\n",
        r"\n+",
        r"+\t",
        r"\"",
        r"\\",
        r"\\n",
        "n***",
        r"\u00",
        "01",
        r"c\n",
        " F",
    ]
    tokenizer, cut = tokens_of([*words, r"\n*** ", r'"\n', r".txt\n+", "Patch", r"\n-\\", "é"])
    rng = random.Random(1)
    grammar = f"{OPTIONS}\n{lark_in_json(APPLY_PATCH, 'here')}"
    made = llguidance.LLMatcher.grammar_from_lark(grammar)
    for _ in range(20):
        one = llguidance.LLMatcher(tokenizer, made, log_level=0)
        for token in cut(escaped(PATCHED), rng):
            bits = one.compute_bitmask()
            assert bits[token // 8] >> token % 8 & 1, token
            assert one.consume_token(token)
        assert one.is_accepting()


def test_text_without_a_choice_does_not_run_ahead_for_ever(marked):
    """/x+/ leaves no x to stand behind it: the library would look for its end without one."""
    for pattern in ('start: /x+/ "x"', '%llguidance {"no_forcing": false}\nstart: "y" /x+/ "x"'):
        constraint = compile_text_constraint(marked, OutputFormat("lark", pattern=pattern))
        assert accepts(constraint, marked, "yxxx"[pattern.startswith("start") :]) is False
