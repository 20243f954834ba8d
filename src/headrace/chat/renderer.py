"""A checkpoint's chat: requests to prompts, answers to events, formats to grammars.

Text that a client wrote never becomes a control token: where it spells one (`<|im_end|>`), that
text is encoded as ordinary characters. Marks that are not control tokens (`<think>`, `<tool_call>`)
are left to the template, which reads them in earlier answers.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.chat.conversation import template_messages, tool_dict
from headrace.chat.detokenizer import Detokenizer
from headrace.chat.grammar import (
    GrammarConstraint,
    Reasoning,
    compile_constraint,
    compile_text_constraint,
)
from headrace.chat.harmony import HarmonyReader
from headrace.chat.reader import TurnReader
from headrace.chat.schema_text import check_depth
from headrace.chat.style import Style, detect_style
from headrace.chat.template import RESERVED, ChatTemplate, Shape
from headrace.chat.tokenizer import Tokenizer
from headrace.chat.types import ChatRequest, Message, OutputFormat, Prompt, Tool, ToolCall
from headrace.errors import RequestError


@dataclass(frozen=True)
class Renderer:
    """Tokenizer, template and style of one checkpoint. Immutable; any thread may use it.

    `template` is None for a checkpoint without one: then only plain completions work.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    style: Style

    @classmethod
    def from_folder(cls, folder: Path) -> Renderer:
        """Raises CheckpointError if a file is missing, corrupt or of an unknown kind."""
        tokenizer = Tokenizer.from_folder(folder)
        return cls.of(tokenizer, ChatTemplate.from_folder(folder, tokenizer))

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: ChatTemplate | None) -> Renderer:
        shape = template.shape if template else Shape()
        style = detect_style(
            template.source if template else None,
            template.variables if template else frozenset(),
            native_tools=shape.tools,
            tokenizer=tokenizer,
        )
        return cls(tokenizer.ending_at(style.end_ids), template, style)

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self.tokenizer.eos_ids

    def prompt(self, request: ChatRequest) -> Prompt:
        """The prompt for `request`.

        Raises RequestError for text that is not Unicode, for a conversation the template refuses,
        and if the checkpoint has no template.
        """
        if self.template is None:
            raise RequestError(
                "this checkpoint has no chat template",
                field="messages",
                fix="use completions, or serve it with a template",
            )
        _check_request(request)
        guard = _Guard(self.tokenizer, self.style)
        messages = [guard.message(message) for message in request.messages]
        cut = ""
        if request.continue_last:
            cut = guard.new_word()
            messages[-1] = _with_cut(messages[-1], cut)
        tools = [tool for tool in self._offered(request) if not tool.deferred]
        text = self.template.render(
            template_messages(messages, [guard.tool(tool) for tool in tools], self.template.shape),
            [guard.data(tool_dict(tool)) for tool in tools] if self.template.shape.tools else (),
            generate=not request.continue_last,
            variables=self._variables(request, guard),
        )
        if cut:
            text, found, _ = text.rpartition(cut)
            if not found:
                raise RequestError(
                    "the model's chat template cannot go on with an answer",
                    field="continue_final_message",
                    fix="leave it out, or end with a user message",
                )
        text, in_reasoning = self._thinking(request, text)
        tokens: list[int] = []
        for part, special in guard.parts(text):
            tokens += self.tokenizer.encode(part, special=special)
        return Prompt(tuple(tokens), guard.restored(text), in_reasoning, self._anchors(tokens))

    def reader(self, request: ChatRequest, prompt: Prompt) -> TurnReader | HarmonyReader:
        """What reads the answer to `prompt`, token by token."""
        if self.style.channels is not None:
            return HarmonyReader(
                self.tokenizer,
                calls=bool(self._offered(request)),
                in_body=request.continue_last,
                stop=request.stop,
            )
        return TurnReader(
            self.tokenizer,
            self.style,
            self._offered(request),
            in_reasoning=prompt.in_reasoning,
            stop=request.stop,
            after_text=request.continue_last,
        )

    def constraint(self, request: ChatRequest, prompt: Prompt) -> GrammarConstraint | None:
        """A fresh grammar for one answer to `prompt`, None if it is free.

        With `continue_last` it holds for what is added.
        """
        return compile_constraint(
            self.tokenizer, request, self.style, reasoning=self._reasoning(prompt)
        )

    def prepare_grammars(self) -> None:
        """Build what all grammars share (a second or more), so that no request has to wait for it.

        Does nothing for a checkpoint without end tokens, where grammars are refused.
        """
        if self.end_ids:
            compile_text_constraint(self.tokenizer, OutputFormat("regex", pattern="a"))

    def completion_prompt(self, text: str) -> Prompt:
        """A plain completion: control tokens in the text are read as such, and BOS is added where
        the checkpoint asks for it. Raises RequestError for text that is not Unicode."""
        _check_text(text, "prompt")
        tokens = self.tokenizer.encode(text, special=True, bos=True)
        return Prompt(tuple(tokens), text, in_reasoning=False, anchors=self._anchors(tokens))

    def completion_constraint(self, output: OutputFormat) -> GrammarConstraint | None:
        return compile_text_constraint(self.tokenizer, output)

    def completion_detokenizer(self) -> Detokenizer:
        """For an answer that goes on from the prompt's text."""
        return Detokenizer(self.tokenizer, after_text=True)

    def _anchors(self, tokens: Sequence[int]) -> tuple[int, ...]:
        starts = self.style.start_ids
        return tuple(i for i, token in enumerate(tokens) if token in starts)

    def _offered(self, request: ChatRequest) -> tuple[Tool, ...]:
        return () if request.tool_choice.mode == "none" else request.tools

    def _variables(self, request: ChatRequest, guard: _Guard) -> dict[str, Any]:
        variables = {key: guard.data(value) for key, value in request.template_args.items()}
        switch = self.style.thinking_switch
        if switch is not None and request.thinking is not None:
            variables[switch] = request.thinking
        return variables

    def _thinking(self, request: ChatRequest, text: str) -> tuple[str, bool]:
        """Whether the prompt leaves a thinking open; an unwanted one is closed."""
        span = self.style.think
        if span is None:
            return text, False
        if request.continue_last:
            last = request.messages[-1]
            inside = bool(last.reasoning) and not last.content
            return text, inside and text.rfind(span.open.text) > text.rfind(span.close.text)
        is_open = text.rstrip().endswith(span.open.text)
        if is_open and request.thinking is False:
            return f"{text.rstrip()}\n\n{span.close.text}\n\n", False
        return text, is_open

    def _reasoning(self, prompt: Prompt) -> Reasoning:
        span = self.style.think
        if prompt.in_reasoning:
            return "open"
        if span is None or prompt.text.rstrip().endswith(span.close.text):
            return "closed"
        return "possible"


class _Guard:
    """Replaces what spells a control token in a client's text by a word the template copies.

    After rendering, the words tell where that text stands, and it is encoded as plain text.
    """

    def __init__(self, tokenizer: Tokenizer, style: Style) -> None:
        spans = (style.call, style.think) if style.think else (style.call,)
        marks = {d.text for span in spans for d in (span.open, span.close)}
        control = (t for t, i in tokenizer.added.items() if i in tokenizer.special_ids and t)
        texts = sorted(
            (text for text in control if text not in marks),
            key=len,
            reverse=True,
        )
        self._spelled = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._nonce = f"q{secrets.token_hex(12)}"
        self._numbers = itertools.count()
        self._words: dict[str, str] = {}  # word -> the text it stands for
        self._of_text: dict[str, str] = {}

    def new_word(self) -> str:
        """A word no client could have written. Plain ASCII, so that templates copy it."""
        return f"{self._nonce}x{next(self._numbers)}x"

    def text(self, text: str) -> str:
        return self._spelled.sub(self._word, text) if self._spelled else text

    def message(self, message: Message) -> Message:
        return replace(
            message,
            content=self.text(message.content),
            reasoning=self._optional(message.reasoning),
            tool_calls=tuple(
                ToolCall(self.text(call.id), self.text(call.name), self.text(call.arguments))
                for call in message.tool_calls
            ),
            tool_call_id=self._optional(message.tool_call_id),
            name=self._optional(message.name),
        )

    def _optional(self, text: str | None) -> str | None:
        return None if text is None else self.text(text)

    def tool(self, tool: Tool) -> Tool:
        return replace(
            tool,
            name=self.text(tool.name),
            description=self.text(tool.description),
            parameters=self.data(tool.parameters),
        )

    def data(self, value: Any) -> Any:
        """The same JSON value with all its strings guarded."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.data(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(inner) for inner in value]
        return value

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """(text, whether control tokens are read in it), in order."""
        for piece in self._split(text):
            if piece in self._words:
                yield self._words[piece], False
            elif piece:
                yield piece, True

    def restored(self, text: str) -> str:
        return "".join(self._words.get(piece, piece) for piece in self._split(text))

    def _split(self, text: str) -> Sequence[str]:
        if not self._words:
            return [text]
        return re.split(f"({self._nonce}x\\d+x)", text)

    def _word(self, match: re.Match[str]) -> str:
        text = match[0]
        word = self._of_text.get(text)
        if word is None:
            word = self._of_text[text] = self.new_word()
            self._words[word] = text
        return word


def _with_cut(message: Message, cut: str) -> Message:
    if message.reasoning and not message.content:
        return replace(message, reasoning=message.reasoning + cut)
    return replace(message, content=message.content + cut)


def _check_request(request: ChatRequest) -> None:
    if not request.messages:
        raise RequestError("there are no messages", field="messages", expected="at least one")
    if request.continue_last and request.messages[-1].role != "assistant":
        raise RequestError(
            f"the last message is of role {request.messages[-1].role}",
            field="continue_final_message",
            expected="an assistant's message to go on with",
        )
    taken = sorted(RESERVED & set(request.template_args))
    if taken:
        raise RequestError(
            f"chat_template_kwargs sets {', '.join(taken)}",
            field="chat_template_kwargs",
            expected="names the server does not set itself",
        )
    for i, tool in enumerate(request.tools):
        check_depth(tool.parameters, f"tools[{i}].function.parameters")
    check_depth(request.template_args, "chat_template_kwargs")
    for field, text in _texts(request):
        _check_text(text, field)


def _texts(request: ChatRequest) -> Iterable[tuple[str, str]]:
    for i, message in enumerate(request.messages):
        yield f"messages[{i}].content", message.content
        yield f"messages[{i}].reasoning_content", message.reasoning or ""
        yield f"messages[{i}].name", message.name or ""
        yield f"messages[{i}].tool_call_id", message.tool_call_id or ""
        for n, call in enumerate(message.tool_calls):
            for part in (call.id, call.name, call.arguments):
                yield f"messages[{i}].tool_calls[{n}]", part
    for i, tool in enumerate(request.tools):
        yield f"tools[{i}].function.name", tool.name
        yield f"tools[{i}].function.description", tool.description
        yield from ((f"tools[{i}].function.parameters", text) for text in _strings(tool.parameters))
    for i, text in enumerate(request.stop):
        if not text:
            raise RequestError("an empty stop string", field=f"stop[{i}]", expected="some text")
        yield f"stop[{i}]", text
    yield from (("chat_template_kwargs", text) for text in _strings(request.template_args))


def _strings(value: Any) -> Iterator[str]:
    """All strings in a JSON value, keys too."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)


def _check_text(text: str, field: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"character {error.start} is a lone surrogate, U+{ord(text[error.start]):04X}",
            field=field,
            expected="valid Unicode",
        ) from error
