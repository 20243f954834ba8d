"""Grammars over token ids: output formats and forced or strict calls, by llguidance.

A grammar is written in Lark with llguidance's extensions (`<[id]>` is a token, `%json` a schema,
`[lazy]` a rule that ends at its first chance) and matched against the tokenizer's own byte table.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, Literal

import llguidance
import numpy as np
from numpy.typing import NDArray

from headrace.chat.depth import check_rules
from headrace.chat.schema_text import checked_schema
from headrace.chat.style import Delimiter, Style, is_mark
from headrace.chat.tokenizer import Tokenizer
from headrace.chat.tool_grammar import JSON_BLANK, CallRules, call_rules, final
from headrace.chat.tools.lark_tree import checked_lark
from headrace.chat.trial import Trials
from headrace.chat.types import ChatRequest, OutputFormat, TextInput
from headrace.errors import RequestError

_TRIALS = Trials()
Reasoning = Literal["open", "possible", "closed"]

MAX_PATTERN_CHARS = 1 << 16
# Work on the expressions before the first token: (a{999}){999} takes 13 s with llguidance's
# 1,000,000 and under 1 s with this.
MAX_LEXER_FUEL = 200_000
# Text without a choice is not run ahead of: /x+/ before "x" is such text without an end, and the
# library has no bound for that.
OPTIONS = '%llguidance {"no_forcing": true}'


class GrammarConstraint:
    """One answer's grammar: fits `engine.request.Constraint`. For use by one thread.

    Raises RequestError from `mask` and `accept` if the grammar needs more work than is allowed.
    """

    def __init__(self, matcher: llguidance.LLMatcher, tokenizer: Tokenizer, field: str) -> None:
        self._matcher = matcher
        self._field = field
        self._words = (tokenizer.vocab_size + 31) // 32
        self._eos = tokenizer.eos_ids

    def mask(self) -> NDArray[np.int32]:
        """int32 [ceil(vocab_size / 32)]; end tokens are set exactly where the answer may end."""
        words = np.zeros(self._words, dtype=np.int32)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():
            raise _too_complex(self._matcher, self._field)
        return words

    def accept(self, token: int) -> None:
        """Advance by one token that `mask` allowed."""
        if token in self._eos and self._matcher.is_stopped():
            return
        if not self._matcher.consume_token(token):
            raise _too_complex(self._matcher, self._field)

    @property
    def done(self) -> bool:
        return bool(self._matcher.is_stopped())


def compile_constraint(
    tokenizer: Tokenizer, request: ChatRequest, style: Style, *, reasoning: Reasoning = "closed"
) -> GrammarConstraint | None:
    """The grammar `request` asks for, None if the answer is free.

    `reasoning` says whether the answer begins inside a thinking (`open`), may begin with one
    (`possible`), or not; the grammar holds after it. A format and tools together mean: the answer
    in that format, or calls. Raises RequestError naming the field of what cannot be compiled.
    """
    _check_inputs(tokenizer, request)
    calls = call_rules(request, style)
    if calls is None and request.format.kind == "text":
        return None
    lines = [OPTIONS]
    grammars: list[dict[str, str]] = []
    head = _reasoning_rules(style, reasoning, lines)
    alternatives: list[str] = []
    if calls is not None:
        lines += calls.lines
        grammars += calls.grammars
        alternatives.append(calls.start(format_given=request.format.kind != "text"))
    if request.format.kind != "text" and request.tool_choice.mode in ("auto", "none"):
        answer = _format_rule(request.format, lines, grammars)
        alternatives.append(final(style.channels, answer) if style.channels else answer)
    lines.append(f"start: {head} ({' | '.join(alternatives)})")
    return _constraint(tokenizer, lines, grammars, _field_of(request, calls))


def compile_text_constraint(tokenizer: Tokenizer, output: OutputFormat) -> GrammarConstraint | None:
    """The grammar of a plain completion, None for free text. Errors as `compile_constraint`."""
    if output.kind == "text":
        return None
    lines = [OPTIONS]
    grammars: list[dict[str, str]] = []
    lines.append(f"start: {_format_rule(output, lines, grammars)}")
    return _constraint(tokenizer, lines, grammars, "response_format")


def _check_inputs(tokenizer: Tokenizer, request: ChatRequest) -> None:
    """The custom tools' grammars by themselves, so that an error names the one that is wrong."""
    inputs = tuple(tool.grammar for tool in request.tools if tool.grammar is not None)
    total = 0
    for text in inputs:
        total += len(text.pattern)
        if total > MAX_PATTERN_CHARS:
            raise RequestError(
                f"grammars of more than {MAX_PATTERN_CHARS} characters",
                field=text.field,
                expected=f"at most {MAX_PATTERN_CHARS} in all tools of a request",
            )
    if inputs:
        _check_texts(tokenizer, inputs)


@lru_cache(maxsize=64)
def _check_texts(tokenizer: Tokenizer, inputs: tuple[TextInput, ...]) -> None:
    """Each grammar by itself, without the work that fuel is for; that is done for all at once."""
    grammars = [{"name": f"text{k}", "lark_grammar": _lark(text)} for k, text in enumerate(inputs)]
    for text, grammar in zip(inputs, grammars, strict=True):
        check_rules(grammar["lark_grammar"], text.field)
        failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(
            json.dumps({"grammars": [grammar]}), limits=_limits()
        )
        if failed:
            raise _not_compiled(messages[0], text.field)
    choices = " | ".join(f"@{grammar['name']}" for grammar in grammars)
    field = inputs[0].field if len(inputs) == 1 else "tools"
    _constraint(tokenizer, [f"start: {choices}"], grammars, field)


def _lark(text: TextInput) -> str:
    if text.kind == "lark":
        return checked_lark(text.pattern, text.field)
    made = json.loads(llguidance.LLMatcher.grammar_from_regex(text.pattern))
    return str(made["grammars"][0]["lark_grammar"])


def _reasoning_rules(style: Style, reasoning: Reasoning, lines: list[str]) -> str:
    """What stands in front of the answer; layout line breaks may follow a thinking."""
    if style.channels is not None:
        at = style.channels
        lines.append("THOUGHT: /(.|\\n)*/")
        lines.append(
            f'thought: <[{at.channel}]> "analysis" <[{at.message}]> THOUGHT <[{at.end}]> '
            f'<[{at.start}]> "assistant"'
        )
        return "thought?"
    if style.think is None or reasoning == "closed":
        return ""
    if style.think.close.token is None:
        lines.append(f"thought[lazy]: /(.|\\n)*/ {_literal(style.think.close)}")
    else:
        lines.append(f"thought: THOUGHT {_literal(style.think.close)}")
        lines.append("THOUGHT: /(.|\\n)*/")
    lines.append("layout: /\\n{0,2}/")
    if reasoning == "open":
        return "thought layout"
    return f"({_literal(style.think.open)} thought layout)?"


def _format_rule(output: OutputFormat, lines: list[str], grammars: list[dict[str, str]]) -> str:
    guidance = {"whitespace_pattern": JSON_BLANK}
    match output.kind:
        case "json_object":
            schema: dict[str, Any] = {"type": "object", "x-guidance": guidance}
            lines.append(f"answer: %json {json.dumps(schema)}")
            return "answer"
        case "json_schema":
            field = "response_format.json_schema.schema"
            text = checked_schema(output.schema, field, guidance)
            lines.append(f"answer: %json {text}")
            return "answer"
        case "regex":
            pattern = _pattern(output, "response_format.pattern")
            made = json.loads(llguidance.LLMatcher.grammar_from_regex(pattern))
            grammars.append({"name": "answer", "lark_grammar": made["grammars"][0]["lark_grammar"]})
        case "lark":
            pattern = _pattern(output, "response_format.pattern")
            grammars.append({"name": "answer", "lark_grammar": pattern})
    return "@answer"


def _pattern(output: OutputFormat, field: str) -> str:
    pattern = output.pattern
    if not pattern:
        raise RequestError("no pattern is given", field=field, expected=f"a {output.kind} text")
    if len(pattern) > MAX_PATTERN_CHARS:
        raise RequestError(
            f"a {output.kind} of {len(pattern)} characters",
            field=field,
            expected=f"at most {MAX_PATTERN_CHARS}",
        )
    return pattern


def _field_of(request: ChatRequest, calls: CallRules | None) -> str:
    if calls is None:
        return "response_format"
    return "tools" if request.format.kind == "text" else "tools or response_format"


def _constraint(
    tokenizer: Tokenizer, lines: list[str], grammars: list[dict[str, str]], field: str
) -> GrammarConstraint:
    main = "\n".join(lines) + "\n"
    for text in (main, *(grammar["lark_grammar"] for grammar in grammars)):
        check_rules(text, field)
    made = json.dumps({"grammars": [{"lark_grammar": main}, *grammars]})
    return GrammarConstraint(_compiled(tokenizer, made, field).deep_copy(), tokenizer, field)


# Agents send the same tools with each request.
@lru_cache(maxsize=16)
def _compiled(tokenizer: Tokenizer, made: str, field: str) -> llguidance.LLMatcher:
    """The matcher of a grammar, ready for its first mask; to be copied."""
    _TRIALS.check(made, field, lexer_fuel=MAX_LEXER_FUEL)
    matcher = llguidance.LLMatcher(_vocabulary(tokenizer), made, log_level=0, limits=_limits())
    # The first mask does the lexer's slow preparation: here, not in the thread that drives steps.
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise _not_compiled(str(matcher.get_error()), field)
    return matcher


def _limits() -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(verbose_errors=False, initial_lexer_fuel=MAX_LEXER_FUEL)


def _literal(delimiter: Delimiter) -> str:
    if delimiter.token is not None:
        return f"<[{delimiter.token}]>"
    return json.dumps(delimiter.text, ensure_ascii=False)


def _not_compiled(message: str, field: str) -> RequestError:
    return RequestError(
        f"the grammar cannot be compiled: {_reason(message)}",
        field=field,
        fix="change the schema or pattern as the message says",
    )


def _reason(message: str) -> str:
    text = message.split("\n<state>")[0]
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\d+ \||\^)", line)]
    return re.sub(r"^at \d+\(\d+\): ", "", " ".join(line.strip() for line in lines)).strip()[:500]


def _too_complex(matcher: llguidance.LLMatcher, field: str) -> RequestError:
    return RequestError(
        f"the grammar failed while answering: {_reason(str(matcher.get_error()))}",
        field=field,
        fix="simplify the schema or pattern",
    )


class _Vocabulary:
    """The byte table as llguidance asks for it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = tokenizer.bos_id
        self.tokens = tokenizer.byte_table
        # Vocabularies that begin each text with a blank would put one before forced text as well:
        # such text is encoded behind a character that joins nothing.
        self._lead = "\x02" if tokenizer.decoder.strip_lead else ""
        self._lead_ids = tokenizer.encode(self._lead, special=False)
        marks = {i for text, i in tokenizer.added.items() if is_mark(text)}
        self.special_token_ids = sorted(
            i for i in marks | tokenizer.special_ids if i < tokenizer.vocab_size
        )

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        ids = self._tokenizer.encode(self._lead + text, special=True)
        assert ids[: len(self._lead_ids)] == self._lead_ids
        return ids[len(self._lead_ids) :]


# Building one takes a second for 150,000 tokens; a process has one or two tokenizers.
@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    if not tokenizer.eos_ids:
        raise RequestError(
            "the checkpoint names no end token, so a grammar could never end",
            field="response_format",
            fix="add eos_token_id to generation_config.json",
        )
    wrapper = llguidance.TokenizerWrapper(_Vocabulary(tokenizer))
    return llguidance.LLTokenizer(
        wrapper, n_vocab=tokenizer.vocab_size, eos_token=sorted(tokenizer.eos_ids)
    )
