"""Jinja for chat templates: sandboxed, and bounded in size and work.

A template comes with a checkpoint, not from us: it can read what it is given and produce text, and
a runaway one ends in an error instead of a hung server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from headrace.chat.sandbox_limits import (
    MAX_SEQUENCE,
    MAX_TEXT,
    check_binop,
    check_form,
    check_method,
    concatenated,
    limited_filters,
)
from headrace.errors import CheckpointError, RequestError

MAX_TEMPLATE_CHARS = 1 << 20
MAX_STEPS = 2_000_000  # loop passes and macro calls of one rendering

Tick = Callable[[], None]


class RaisedByTemplate(Exception):
    """The template called `raise_exception`."""


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Counts every loop pass and macro call, and refuses oversized products.

    Lists, all made for one rendering, may change by `append` and `pop`, as some templates collect
    into them and take from them; all else stays immutable.
    """

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _BoundedJoins().visit(super()._parse(source, name, filename))
        assert isinstance(tree, nodes.Template)
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
            assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
            call = nodes.Call(nodes.Name("__tick", "load"), [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, list) and attr in ("append", "pop"):
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        check_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            check_form(value.__self__)
        return wrapped

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        check_method(obj, args, kwargs)
        return super().call(context, obj, *args, **kwargs)


class _BoundedJoins(NodeTransformer):
    """`a ~ b` as a call that is bounded."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        name = nodes.Name("__concat", "load")
        return nodes.Call(name, node.nodes, [], None, None, lineno=node.lineno)


def _raise_exception(message: object) -> None:
    raise RaisedByTemplate(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Not jinja's own filter: that one escapes `<`, `>` and `&` for HTML and all but ASCII.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_SEQUENCE:
        raise SecurityError(f"range of {len(numbers)}, at most {MAX_SEQUENCE} is allowed")
    return numbers


def _environment() -> _Sandbox:
    env = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationTag]
    )
    env.filters |= limited_filters(env.filters)
    env.filters["tojson"] = _tojson
    env.globals["__concat"] = concatenated
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    env.globals["range"] = _range
    return env


class SandboxedTemplate:
    """One compiled template."""

    def __init__(self, source: str) -> None:
        """Raises CheckpointError if `source` is too large or not a template."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise CheckpointError(
                f"the chat template has {len(source)} characters",
                expected=f"at most {MAX_TEMPLATE_CHARS}",
                fix="check that chat_template holds a template",
            )
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise CheckpointError(
                f"the chat template cannot be parsed: {error}",
                expected="a Jinja template",
                fix="fetch the checkpoint's chat template again or pass another",
            ) from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text for `variables`.

        Raises RequestError with the template's own words if it refuses the conversation, and with
        the reason if it fails in another way or exceeds a limit.
        """
        try:
            return self._text(variables)
        except RaisedByTemplate as error:
            raise RequestError(
                f"the model's chat template refuses this conversation: {error}", field="messages"
            ) from error
        except (
            jinja2.TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise RequestError(
                f"the model's chat template failed on this conversation: {error}",
                field="messages",
                fix="change the messages, or serve the checkpoint with another template",
            ) from error

    def _text(self, variables: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(**variables, __tick=_ticker()):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_TEXT:
                raise SecurityError(f"it wrote more than {MAX_TEXT} characters")
        return "".join(pieces)


def _ticker() -> Tick:
    steps = 0

    def tick() -> None:
        nonlocal steps
        steps += 1
        if steps > MAX_STEPS:
            raise SecurityError(f"it took more than {MAX_STEPS} steps")

    return tick
