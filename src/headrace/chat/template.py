"""The chat template of a checkpoint, and what it can take: found by rendering probes at load."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2
from jinja2 import meta

from headrace.chat.sandbox import SandboxedTemplate
from headrace.chat.tokenizer import Json, Tokenizer, read_json
from headrace.chat.tools.syntaxes import DEEPSEEK
from headrace.errors import CheckpointError, RequestError
from headrace.files import read_text

RESERVED = frozenset(
    (
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token"),
        *("raise_exception", "strftime_now", "range", "__tick"),
    )
)

# For vocabularies with ChatML's marks and no template of their own.
CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe_description",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "probe_text"}},
            "required": ["probe_key"],
        },
    },
}


# nine = nine letters or digits; indexed = functions.NAME:N, N counting through the conversation
CallIds = Literal["any", "nine", "indexed"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a template accepts; messages are put into this shape before it is rendered."""

    parts: bool = False  # content as a list of parts, not a string
    arguments_text: bool = False  # a call's arguments as JSON text, not as an object
    system: bool = True  # a first message of role `system`
    later_system: bool = True  # such messages further on, where they stand
    alternating: bool = False  # refuses two user messages in a row
    tools: bool = False  # describes tools, and renders calls and results
    calls: bool = False  # renders calls and results, though it does not describe tools
    call_ids: CallIds = "any"
    single_call: bool = False  # refuses a turn with several calls
    reasoning_keys: tuple[str, ...] = ()  # the names it reads an earlier reasoning by


class ChatTemplate:
    """A default template and, where the checkpoint has one, another for requests with tools."""

    def __init__(
        self, source: str, *, tool_source: str | None = None, named: Mapping[str, str] | None = None
    ) -> None:
        """`named` are the special tokens' texts. Raises CheckpointError for a broken template."""
        self.source = source + (tool_source or "")
        self._named = dict(named or {})
        self._default = SandboxedTemplate(source)
        self._with_tools = SandboxedTemplate(tool_source) if tool_source else self._default
        tree = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
        self.variables = _variables(tree, source) | _variables(tree, tool_source or "")
        self.shape = self._probe()

    @classmethod
    def from_folder(cls, folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The checkpoint's template; ChatML if the vocabulary has its marks; otherwise None.

        Raises CheckpointError for a template that cannot be read or parsed.
        """
        return cls.of(_stored_templates(folder, tokenizer.files.config), tokenizer)

    @classmethod
    def of(cls, templates: Mapping[str, str], tokenizer: Tokenizer) -> ChatTemplate | None:
        """From texts by name (`default`, `tool_use`); ChatML or None where there are none."""
        named = tokenizer.files.named
        source = templates.get("default")
        if source is None and templates:
            source = next(iter(templates.values()))
        if source is None:
            marks = tokenizer.id_of("<|im_start|>"), tokenizer.id_of("<|im_end|>")
            return None if None in marks else cls(CHATML, named=named)
        return cls(source, tool_source=templates.get("tool_use"), named=named)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        generate: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. `generate` opens the assistant's turn at the end.

        Raises RequestError if the template refuses or fails.
        """
        template = self._with_tools if tools else self._default
        return template.render(
            {
                "documents": None,
                **self._named,
                **(variables or {}),
                "messages": list(messages),
                "tools": list(tools) or None,
                "add_generation_prompt": generate,
            }
        )

    def _probe(self) -> Shape:
        parts = not self._shows("probe_user", [_user()]) and self._shows(
            "probe_user", [_user(parts=True)]
        )

        def say(role: str, text: str) -> dict[str, Any]:
            content: Any = [{"type": "text", "text": text}] if parts else text
            return {"role": role, "content": content}

        user, answer = say("user", "probe_user"), say("assistant", "probe_answer")
        system = self._shows("probe_system", [say("system", "probe_system"), user])
        later = [say("system", "first"), user, answer, say("system", "probe_system"), user]
        twice = [say("user", "probe_first"), user]
        tools = self._shows("probe_tool", [user], [_PROBE_TOOL])
        as_text = self._wants_arguments_text(say)
        return Shape(
            parts=parts,
            arguments_text=as_text,
            single_call=self._takes_one_call(say, '{"a": 1}' if as_text else {"a": 1}),
            system=system,
            later_system=system and self._in_place("probe_answer", "probe_system", later),
            alternating=not self._shows("probe_first", twice),
            tools=tools,
            calls=not tools and all(sign in self.source for sign in DEEPSEEK.signs),
            call_ids=self._call_ids(),
            reasoning_keys=tuple(
                key
                for key in ("reasoning_content", "thinking", "reasoning")
                if re.search(rf"\.{key}\b|['\"]{key}['\"]", self.source)
            ),
        )

    def _call_ids(self) -> CallIds:
        if re.search(r"length *(!=|==) *9", self.source):
            return "nine"
        return "indexed" if "<|tool_call_argument_begin|>" in self.source else "any"

    def _wants_arguments_text(self, say: Any) -> bool:
        as_object = self._called(say, {"probe_key": "probe_value"})
        if "probe_value" in as_object and "{'probe_key'" not in as_object:
            return False
        return "probe_value" in self._called(say, '{"probe_key": "probe_value"}')

    def _called(self, say: Any, arguments: Any, *, calls: int = 1) -> str:
        """A conversation with so many calls in one turn; empty if it is refused."""
        ids = [f"abcdefgh{n}" for n in range(calls)]
        function = {"name": "probe_tool", "arguments": arguments}
        made = [{"id": id, "type": "function", "function": function} for id in ids]
        turn = {**say("assistant", ""), "tool_calls": made}
        results = [
            {**say("tool", "probe_result"), "tool_call_id": id, "name": "probe_tool"} for id in ids
        ]
        messages = [say("user", "probe_user"), turn, *results]
        return self._tried(messages, [_PROBE_TOOL]) or ""

    def _takes_one_call(self, say: Any, arguments: Any) -> bool:
        once = "probe_tool" in self._called(say, arguments)
        return once and "probe_tool" not in self._called(say, arguments, calls=2)

    def _tried(self, messages: list[dict[str, Any]], tools: Any = ()) -> str | None:
        try:
            return self.render(messages, tools)
        except RequestError:
            return None

    def _shows(self, word: str, messages: list[dict[str, Any]], tools: Any = ()) -> bool:
        return word in (self._tried(messages, tools) or "")

    def _in_place(self, before: str, after: str, messages: list[dict[str, Any]]) -> bool:
        text = self._tried(messages) or ""
        return -1 < text.find(before) < text.find(after)


def _user(*, parts: bool = False) -> dict[str, Any]:
    text = "probe_user"
    return {"role": "user", "content": [{"type": "text", "text": text}] if parts else text}


def _variables(env: jinja2.Environment, source: str) -> frozenset[str]:
    try:
        return frozenset(meta.find_undeclared_variables(env.parse(source)))
    except (jinja2.TemplateError, RecursionError):  # a `generation` tag, or no template at all
        return frozenset()


def _stored_templates(folder: Path, config: Json) -> dict[str, str]:
    """Template texts by name; files beside the tokenizer's config win over what it holds."""
    found: dict[str, str] = {}
    stored = config.get("chat_template")
    if stored is None:
        stored = (read_json(folder / "chat_template.json") or {}).get("chat_template")
    if isinstance(stored, str):
        found["default"] = stored
    elif isinstance(stored, list):
        for entry in stored:
            match entry:
                case {"name": str(name), "template": str(text)}:
                    found[name] = text
                case _:
                    raise CheckpointError(
                        "chat_template in tokenizer_config.json has an entry without text",
                        expected="entries with `name` and `template`",
                        fix="fetch tokenizer_config.json again",
                    )
    elif stored is not None:
        raise CheckpointError(
            f"chat_template is a JSON {type(stored).__name__}",
            expected="a string or a list of named templates",
            fix="fetch tokenizer_config.json again",
        )
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = _read_text(path)
    if (folder / "chat_template.jinja").exists():
        found["default"] = _read_text(folder / "chat_template.jinja")
    return found


def _read_text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}", expected="UTF-8 text", fix="fetch the file again"
        ) from error
