"""A checkpoint's chat: requests to prompts, answers to events, formats to grammars.

Text that a client wrote never becomes a control token: where it spells one (`<|im_end|>`), that
text is encoded as ordinary characters. Marks that are not control tokens (`<think>`, `<tool_call>`)
are left to the template, which reads them in earlier answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from headrace.chat.budget import ThinkingBudget
from headrace.chat.conversation import template_messages, tool_dict
from headrace.chat.detokenizer import Detokenizer
from headrace.chat.echo import EchoStore, SpokenTurn
from headrace.chat.effort import EffortSwitch, find_effort
from headrace.chat.gguf import templates_of, tokenizer_of
from headrace.chat.grammar import (
    GrammarConstraint,
    Reasoning,
    compile_constraint,
    compile_text_constraint,
)
from headrace.chat.guard import Guard
from headrace.chat.harmony import HarmonyReader, thought_words
from headrace.chat.length import check_length
from headrace.chat.reader import TurnReader
from headrace.chat.request_check import check_request, check_text
from headrace.chat.splice import Splice, Splicer
from headrace.chat.style import Style, detect_style
from headrace.chat.template import ChatTemplate, Shape
from headrace.chat.tokenizer import Tokenizer
from headrace.chat.types import ChatRequest, Message, OutputFormat, Prompt, Tool
from headrace.errors import RequestError


@dataclass(frozen=True)
class Renderer:
    """Tokenizer, template and style of one checkpoint. Immutable; any thread may use it.

    `template` is None for a checkpoint without one: then only plain completions work.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    style: Style
    effort: EffortSwitch | None = None
    most_tokens: int | None = None  # a prompt of many more is refused before all of it is read

    @classmethod
    def from_folder(cls, folder: Path) -> Renderer:
        """Raises CheckpointError if a file is missing, corrupt or of an unknown kind."""
        tokenizer = Tokenizer.from_folder(folder)
        return cls.of(tokenizer, ChatTemplate.from_folder(folder, tokenizer))

    @classmethod
    def from_gguf(
        cls, metadata: Mapping[str, Any], config: Mapping[str, Any], name: str
    ) -> Renderer:
        """From what a GGUF file says; raises CheckpointError as `from_folder` does."""
        tokenizer = tokenizer_of(metadata, config, name)
        return cls.of(tokenizer, ChatTemplate.of(templates_of(metadata), tokenizer))

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: ChatTemplate | None) -> Renderer:
        shape = template.shape if template else Shape()
        style = detect_style(
            template.source if template else None,
            template.variables if template else frozenset(),
            native_tools=shape.tools,
            tokenizer=tokenizer,
        )
        effort = find_effort(template) if template else None
        return cls(tokenizer.ending_at(style.end_ids), template, style, effort)

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self.tokenizer.eos_ids

    def prompt(self, request: ChatRequest, turns: EchoStore | None = None) -> Prompt:
        """The prompt for `request`; answers that `turns` knows keep the tokens they were made of.

        Raises RequestError for text that is not Unicode, for a conversation the template refuses,
        and if the checkpoint has no template; ContextOverflow.
        """
        if self.template is None:
            raise RequestError(
                "this checkpoint has no chat template",
                field="messages",
                fix="use completions, or serve it with a template",
            )
        check_request(request)
        guard = Guard(self.tokenizer, self.style)
        request, spoken = _recalled(request, turns)
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
        self._check_length(text, "messages")
        text, in_reasoning = self._thinking(request, text)
        splices = self._splicer(request, guard).splices(text, spoken) if spoken else []
        tokens, shown = self._encoded(text, splices, guard)
        return Prompt(
            tuple(tokens),
            shown,
            in_reasoning,
            self._anchors(tokens),
            guard.opening(text),
            self.style.cut_before,
            self.style.cut_after,
        )

    def _check_length(self, text: str, field: str) -> None:
        check_length(text, self.most_tokens, field, partial(self.tokenizer.encode, special=True))

    def _encoded(self, text: str, splices: Sequence[Splice], guard: Guard) -> tuple[list[int], str]:
        """The tokens, and their text as a client would have written it."""
        tokens: list[int] = []
        shown: list[str] = []
        at = 0
        for splice in (*splices, Splice(len(text), len(text), (), "")):
            between = text[at : splice.start]
            tokens += self._tokens(between, guard)
            tokens += splice.tokens
            shown += [guard.restored(between), splice.text]
            at = splice.end
        return tokens, "".join(shown)

    def _tokens(self, text: str, guard: Guard) -> list[int]:
        tokens: list[int] = []
        for part, special in guard.parts(text):
            tokens += self.tokenizer.encode(part, special=special)
        return tokens

    def _splicer(self, request: ChatRequest, guard: Guard) -> Splicer:
        fresh = replace(request, stop=(), continue_last=False)

        def read(rendered: str, turn: SpokenTurn) -> SpokenTurn:
            prompt = Prompt((), "", turn.in_reasoning)
            reader = self.reader(fresh, prompt)
            events = [e for t in self._tokens(rendered, guard) for e in reader.feed(t)]
            return SpokenTurn.of((), events + reader.finish(), prompt, whole=True)

        # Where the next message begins the turn is over, but in channels it has several parts.
        over = self.end_ids | (self.style.start_ids if self.style.channels is None else set())
        ends = [self.tokenizer.token_bytes(i).decode("utf-8", "replace") for i in over]
        return Splicer(
            self.tokenizer,
            guarded=guard.text,
            read=read,
            ends=[end for end in ends if end],
            lead=self._lead,
        )

    def _lead(self, text: str) -> list[str]:
        """The words of a turn before its calls, in channels those of its thinking."""
        if self.style.channels is not None:
            return thought_words(text)
        return text.partition(self.style.call.open.text)[0].split()

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

    def constraint(
        self, request: ChatRequest, prompt: Prompt
    ) -> GrammarConstraint | ThinkingBudget | None:
        """A fresh grammar and limit for one answer to `prompt`, None if it is free.

        With `continue_last` it holds for what is added. A family that does not think has no limit.
        """
        grammar = compile_constraint(
            self.tokenizer, request, self.style, reasoning=self._reasoning(prompt)
        )
        thinks = self.style.think is not None or self.style.channels is not None
        if request.thinking_budget is None or not thinks:
            return grammar
        return ThinkingBudget(
            self.tokenizer,
            self.style,
            request.thinking_budget,
            in_reasoning=prompt.in_reasoning,
            tools=bool(self._offered(request)),
            grammar=grammar,
        )

    def completion_prompt(self, text: str) -> Prompt:
        """A plain completion: control tokens in the text are read as such, and BOS is added where
        the checkpoint asks for it. Raises RequestError for text that is not Unicode."""
        check_text(text, "prompt")
        self._check_length(text, "prompt")
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

    def _variables(self, request: ChatRequest, guard: Guard) -> dict[str, Any]:
        # What the client sends of earlier thinking it wants kept, and the prefix with it.
        variables: dict[str, Any] = dict(self.style.keep_thinking)
        variables |= {key: guard.data(value) for key, value in request.template_args.items()}
        switch, thinking = self.style.thinking_switch, self._wants_thinking(request)
        if switch is not None and thinking is not None:
            on, off = self.style.thinking_words
            variables[switch] = on if thinking else off
        if self.effort is not None and (request.effort is not None or thinking is False):
            word = self.effort.word("none" if thinking is False else request.effort or "none")
            if word is None and thinking is False and switch is None:
                word = self.effort.word("minimal")  # it cannot but think
            if word is not None:
                variables.setdefault(self.effort.name, word)
        return variables

    def _wants_thinking(self, request: ChatRequest) -> bool | None:
        if request.thinking is not None or request.effort is None:
            return request.thinking
        return request.effort != "none"

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
        if is_open and self._wants_thinking(request) is False:
            return f"{text.rstrip()}\n\n{span.close.text}\n\n", False
        return text, is_open

    def _reasoning(self, prompt: Prompt) -> Reasoning:
        span = self.style.think
        if prompt.in_reasoning:
            return "open"
        if span is None or prompt.text.rstrip().endswith(span.close.text):
            return "closed"
        return "possible"


def _recalled(
    request: ChatRequest, turns: EchoStore | None
) -> tuple[ChatRequest, list[list[tuple[SpokenTurn, bool]]]]:
    """The request with its known turns as they were said, and candidates per such message.

    An answer that the model goes on with is left as the client wrote it.
    """
    messages = list(request.messages)
    spoken: list[list[tuple[SpokenTurn, bool]]] = []
    tools = {tool.name: tool for tool in request.tools}
    for i, message in enumerate(messages[: -1 if request.continue_last else None]):
        if turns is None or message.role != "assistant":
            continue
        found = [(turn, turn.says(message, tools)) for turn in turns.find(message)]
        found.sort(key=lambda pair: not pair[1])
        if found:
            spoken.append(found)
        if found and found[0][1]:
            messages[i] = _as_said(message, found[0][0])
    return replace(request, messages=tuple(messages)), spoken


def _as_said(message: Message, turn: SpokenTurn) -> Message:
    """The ids stay the client's: results name them."""
    calls = tuple(
        replace(theirs, arguments=ours.arguments)
        for theirs, ours in zip(message.tool_calls, turn.calls, strict=True)
    )
    restored = message.sealed and not message.reasoning and turn.reasoning
    reasoning = turn.reasoning if restored else message.reasoning
    return replace(message, tool_calls=calls, reasoning=reasoning)


def _with_cut(message: Message, cut: str) -> Message:
    if message.reasoning and not message.content:
        return replace(message, reasoning=message.reasoning + cut)
    return replace(message, content=message.content + cut)
