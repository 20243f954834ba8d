"""Calls as a name and tagged parameters, delivered as JSON by the tool's schema.

A string is delivered while it comes; other types when they are whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.chat.marks import Mark
from headrace.chat.stops import held_back
from headrace.chat.tools.schema import ALL_TYPES, is_text, parameter_types, to_json
from headrace.chat.types import Tool

_MAX_NAME = 512
_NAME = re.compile(r"[^\s<>{}\[\]\"'`]{1,128}")


@dataclass(frozen=True, slots=True)
class Tags:
    """What stands around the parts of a call.

    `function` comes before the name (empty where the call's own mark does), `name_end` after it
    (empty where a parameter, a line break or the call's end does), `value` between a key and its
    value, `end` after the parameters (empty where the call's closing mark does). `line` says that
    a line break on either side of a value is layout, `typed` that a key ends in `" string="true`
    or `" string="false`.
    """

    function: str
    name_end: str
    parameter: str
    key_end: str
    value_end: str
    value: str = ""
    end: str = ""
    line: bool = False
    typed: bool = False

    @property
    def value_ends(self) -> tuple[str, ...]:
        """With the line break that belongs to the layout, and without, as some answers leave it
        out."""
        leads = ("\n", "") if self.line else ("",)
        return tuple(lead + tag for tag in (self.value_end, self.end) if tag for lead in leads)


class TaggedCall:
    """One call. It is certain, and begins to be delivered, at its first parameter or its end.

    A closing tag inside a value is told from the real one by what follows: another parameter, the
    function's end, or the call's end.
    """

    ended = False
    left = ""
    more: tuple[tuple[str, str], ...] = ()

    def __init__(self, tags: Tags, tools: Mapping[str, Tool]) -> None:
        self.name: str | None = None
        self.failed = False
        self._tags = tags
        self._ends = tags.value_ends
        self._tools = tools
        # head, gap, key, open (before a value), lead (its first character), value, tag, end, closed
        self._phase = "head"
        self._function = ""
        self._rest = ""  # text not yet understood
        self._tag = ""  # the closing tag whose follower is awaited
        self._lead_in_tag = False  # the line break in front of that tag is the value's lead
        self._types: set[str] | None = None  # of the value being read; None = a plain string
        self._value: list[str] = []  # of a value that is converted when whole
        self._parameters = 0
        self._out: list[str] = []

    def closes(self, mark: Mark) -> bool:
        if self._phase == "tag":
            return not self._rest.strip()
        return self._phase not in ("lead", "value")

    def take(self) -> str:
        text = "".join(self._out)
        self._out.clear()
        return text

    def feed(self, text: str) -> None:
        self._rest += text
        while not self.failed and self._step():
            pass

    def end(self, *, cut: bool) -> None:
        if self._phase == "head" and not cut and not self._tags.name_end:
            self._bare_head(self._rest)
        if self._phase == "tag" and not self._rest.strip():
            self._value_done()
            self._phase = "end"
        elif self._phase in ("open", "lead", "value", "tag"):
            # Cut off inside a value: what came is delivered, and the JSON stays open.
            self._say(self._tag[self._lead_in_tag :] + self._rest)
            if self._types is not None:
                self._out.append("".join(self._value))
            return
        if self._phase in ("gap", "key") and not (cut and self.name is None):
            self._phase = "end"
        if self._phase == "end":
            self._finish_object()
        if self.name is None:
            self.failed = True

    def _step(self) -> bool:
        """One advance over `_rest`; False when more text is needed."""
        match self._phase:
            case "head":
                return self._head()
            case "gap":
                return self._gap()
            case "key":
                return self._key()
            case "open":
                return self._open()
            case "lead":
                return self._lead()
            case "value":
                return self._inside()
            case "tag":
                return self._after_tag()
        self._rest = ""
        return False

    def _head(self) -> bool:
        tags = self._tags
        self._rest = self._rest.lstrip()
        if not self._rest.startswith(tags.function):
            self.failed = not tags.function.startswith(self._rest)
            return False
        if not tags.name_end:
            places = [at for sign in ("\n", tags.parameter) if (at := self._rest.find(sign)) >= 0]
            if places:
                return self._bare_head(self._rest[: min(places)])
            self.failed = len(self._rest) > _MAX_NAME
            return False
        name = self._name(tags.function, tags.name_end)
        if name is None:
            return False
        self._function, self._phase = name, "gap"
        return True

    def _bare_head(self, text: str) -> bool:
        """The name where nothing but its own characters tells its end."""
        self.failed = _NAME.fullmatch(text.strip()) is None
        self._function, self._phase = text.strip(), "gap"
        self._rest = self._rest[len(text) :]
        return not self.failed

    def _name(self, tag: str, end: str) -> str | None:
        """The name between the two, taken off `_rest`; None if it is not whole or none."""
        name, closing, rest = self._rest[len(tag) :].partition(end)
        if closing and name.strip() and "\n" not in name:
            self._rest = rest
            return name.strip()
        if closing or "\n" in name or len(name) > _MAX_NAME:
            self._broken()
        return None

    def _broken(self) -> None:
        """Before the call is certain it is none; later the rest of it cannot be read."""
        if self.name is None:
            self.failed = True
        else:
            self._phase, self._rest = "end", ""

    def _gap(self) -> bool:
        tags = self._tags
        self._rest = self._rest.lstrip()
        if self._rest.startswith(tags.parameter):
            self._phase = "key"
            return True
        if tags.end and self._rest.startswith(tags.end):
            self._rest = ""
            self._finish_object()
            return False
        if not any(tag.startswith(self._rest) for tag in (tags.parameter, tags.end)):
            self._broken()
        return False

    def _key(self) -> bool:
        key = self._name(self._tags.parameter, self._tags.key_end)
        if key is None:
            return False
        stated = ""
        if self._tags.typed:
            key, _, stated = key.partition('" string="')
        self.name = self._function
        lead = ", " if self._parameters else "{"
        self._out.append(f"{lead}{json.dumps(key, ensure_ascii=False)}: ")
        self._parameters += 1
        tool = self._tools.get(self._function)
        types = parameter_types(tool.parameters if tool is not None else {}, key)
        if stated:
            types = {"string"} if stated == "true" else types - {"string"} or set(ALL_TYPES)
        self._types = None if is_text(types) else types
        self._value.clear()
        if self._types is None:
            self._out.append('"')
        self._phase = "open"
        return True

    def _open(self) -> bool:
        """The tag before a value, where there is one."""
        tag = self._tags.value
        if tag:
            self._rest = self._rest.lstrip()
        if not self._rest.startswith(tag):
            if not tag.startswith(self._rest):
                self._phase = "lead"
            return self._phase == "lead"
        self._rest, self._phase = self._rest[len(tag) :], "lead"
        return True

    def _lead(self) -> bool:
        """A value's first line break is layout."""
        if not self._rest:
            return False
        if not self._tags.line:
            self._phase = "value"
            return True
        if self._rest[0] == "\n" and self._rest.startswith(self._ends):
            # An empty value, if the tag is real: then the one line break stands before the tag.
            self._phase, self._lead_in_tag = "value", True
            return True
        if self._rest[0] == "\n" and any(end.startswith(self._rest) for end in self._ends):
            return False
        self._rest = self._rest.removeprefix("\n")
        self._phase = "value"
        return True

    def _inside(self) -> bool:
        places = [(at, end) for end in self._ends if (at := self._rest.find(end)) >= 0]
        if places:
            at, self._tag = min(places)
            self._say(self._rest[:at])
            self._rest = self._rest[at + len(self._tag) :]
            self._phase = "tag"
            return True
        cut = len(self._rest) - held_back(self._rest, self._ends)
        self._say(self._rest[:cut])
        self._rest = self._rest[cut:]
        return False

    def _after_tag(self) -> bool:
        rest = self._rest.lstrip()
        tags = self._tags
        followers = tuple(
            tag for tag in (tags.parameter, tags.end) if tag and tags.value_end in self._tag
        )
        if rest.startswith(followers):
            self._value_done()
            self._rest, self._phase = rest, "gap"
            return True
        if not rest or any(tag.startswith(rest) for tag in followers):
            return False
        self._say(self._tag[self._lead_in_tag :])
        self._tag, self._phase, self._lead_in_tag = "", "value", False
        return True

    def _say(self, text: str) -> None:
        if self._types is None:
            self._out.append(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._value.append(text)

    def _value_done(self) -> None:
        if self._types is None:
            self._out.append('"')
        else:
            self._out.append(to_json("".join(self._value), self._types))
        self._value.clear()
        self._tag, self._rest, self._lead_in_tag = "", "", False

    def _finish_object(self) -> None:
        self.name = self._function
        self._out.append("}" if self._parameters else "{}")
        self._phase = "closed"
