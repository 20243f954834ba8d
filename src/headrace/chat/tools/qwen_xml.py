"""Calls as `<function=NAME>` with `<parameter=KEY>` blocks, delivered as JSON by the tool's schema.

A string is delivered while it comes; other types when they are whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from headrace.chat.marks import Mark
from headrace.chat.stops import held_back
from headrace.chat.tools.schema import is_text, parameter_types, to_json
from headrace.chat.types import Tool

_FUNCTION, _PARAMETER = "<function=", "<parameter="
_END_FUNCTION, _END_PARAMETER = "</function>", "</parameter>"
# With the line break that belongs to the layout, and without, as some answers leave it out.
_VALUE_ENDS = tuple(lead + tag for tag in (_END_PARAMETER, _END_FUNCTION) for lead in ("\n", ""))
_MAX_NAME = 512


class XmlCall:
    """One call. It is certain, and begins to be delivered, at its first parameter or its end.

    A closing tag inside a value is told from the real one by what follows: another parameter, the
    function's end, or the call's end.
    """

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.name: str | None = None
        self.failed = False
        self._tools = tools
        self._phase = (
            "head"  # head, gap, key, lead (a value's first character), value, tag, end, closed
        )
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
        if self._phase == "tag" and not self._rest.strip():
            self._value_done()
            self._phase = "end"
        elif self._phase in ("lead", "value", "tag"):
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
            case "lead":
                return self._lead()
            case "value":
                return self._inside()
            case "tag":
                return self._after_tag()
        self._rest = ""
        return False

    def _head(self) -> bool:
        self._rest = self._rest.lstrip()
        if not self._rest.startswith(_FUNCTION):
            self.failed = not _FUNCTION.startswith(self._rest)
            return False
        name = self._name(_FUNCTION)
        if name is None:
            return False
        self._function, self._phase = name, "gap"
        return True

    def _name(self, tag: str) -> str | None:
        """The name in `tag`NAME`>`, taken off `_rest`; None if it is not whole or none."""
        name, closing, rest = self._rest[len(tag) :].partition(">")
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
        self._rest = self._rest.lstrip()
        if self._rest.startswith(_PARAMETER):
            self._phase = "key"
            return True
        if self._rest.startswith(_END_FUNCTION):
            self._rest = ""
            self._finish_object()
            return False
        if not any(tag.startswith(self._rest) for tag in (_PARAMETER, _END_FUNCTION)):
            self._broken()
        return False

    def _key(self) -> bool:
        key = self._name(_PARAMETER)
        if key is None:
            return False
        self.name = self._function
        lead = ", " if self._parameters else "{"
        self._out.append(f"{lead}{json.dumps(key, ensure_ascii=False)}: ")
        self._parameters += 1
        tool = self._tools.get(self._function)
        types = parameter_types(tool.parameters if tool is not None else {}, key)
        self._types = None if is_text(types) else types
        self._value.clear()
        if self._types is None:
            self._out.append('"')
        self._phase = "lead"
        return True

    def _lead(self) -> bool:
        """A value's first line break is layout."""
        if not self._rest:
            return False
        if self._rest[0] == "\n" and self._rest.startswith(_VALUE_ENDS):
            # An empty value, if the tag is real: then the one line break stands before the tag.
            self._phase, self._lead_in_tag = "value", True
            return True
        if self._rest[0] == "\n" and any(end.startswith(self._rest) for end in _VALUE_ENDS):
            return False
        self._rest = self._rest.removeprefix("\n")
        self._phase = "value"
        return True

    def _inside(self) -> bool:
        places = [(at, end) for end in _VALUE_ENDS if (at := self._rest.find(end)) >= 0]
        if places:
            at, self._tag = min(places)
            self._say(self._rest[:at])
            self._rest = self._rest[at + len(self._tag) :]
            self._phase = "tag"
            return True
        cut = len(self._rest) - held_back(self._rest, _VALUE_ENDS)
        self._say(self._rest[:cut])
        self._rest = self._rest[cut:]
        return False

    def _after_tag(self) -> bool:
        rest = self._rest.lstrip()
        followers = (_PARAMETER, _END_FUNCTION) if _END_PARAMETER in self._tag else ()
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
