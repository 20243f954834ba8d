"""What a parameter's JSON schema says about text: is it a string, and if not, which JSON is it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
_MAX_REFS = 16
_MAX_LITERAL = 1 << 16  # characters of a Python literal that is tried where JSON fails
_ANYTHING: Mapping[str, Any] = {}
ALL_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))


def parameter_types(parameters: Mapping[str, Any], key: str) -> set[str]:
    """The JSON types of one parameter; a parameter nobody declared is a string."""
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping) or key not in properties:
        return {"string"}
    return schema_types(resolved(properties[key], parameters), parameters)


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema` behind its local references; empty, which allows anything, if there is none."""
    for _ in range(_MAX_REFS):
        if not isinstance(schema, Mapping):
            return _ANYTHING
        ref = schema.get("$ref")
        if not isinstance(ref, str) or not ref.startswith("#"):
            return schema
        schema = _at_pointer(root, ref[1:])
    return _ANYTHING


def schema_types(schema: Mapping[str, Any], root: Mapping[str, Any]) -> set[str]:
    """The JSON types `schema` allows; all of them if it does not say."""
    types: set[str] = set()
    waiting: list[Mapping[str, Any]] = [schema]
    seen: set[int] = set()  # a schema may refer to itself, and to others many times
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        inner = one.get("anyOf", one.get("oneOf"))
        if isinstance(inner, list) and not any(key in one for key in ("type", "const", "enum")):
            waiting += [resolved(choice, root) for choice in inner]
        else:
            types |= _own_types(one)
    return types or set(ALL_TYPES)


def _own_types(schema: Mapping[str, Any]) -> set[str]:
    stated = schema.get("type")
    if isinstance(stated, str):
        return {stated} & ALL_TYPES or set(ALL_TYPES)
    if isinstance(stated, list):
        return {t for t in stated if isinstance(t, str)} & ALL_TYPES or set(ALL_TYPES)
    if "const" in schema:
        return {_type_of(schema["const"])}
    if isinstance(schema.get("enum"), list):
        return {_type_of(value) for value in schema["enum"]}
    return {"object"} if isinstance(schema.get("properties"), Mapping) else set(ALL_TYPES)


def is_text(types: Iterable[str]) -> bool:
    """Whether a value of these types is a string whatever it looks like."""
    return set(types) == {"string"}


def to_json(text: str, types: set[str]) -> str:
    """`text` as JSON of one of `types`, in their most telling reading; a string if none fits."""
    trimmed = text.strip()
    if "null" in types and trimmed in ("null", "None"):
        return "null"
    if "boolean" in types and trimmed.lower() in ("true", "false"):
        return trimmed.lower()
    if types & {"number", "integer"} and _NUMBER.fullmatch(trimmed):
        return trimmed
    if "object" in types and trimmed[:1] == "{" and (found := _container(trimmed)) is not None:
        return found
    if "array" in types and trimmed[:1] == "[" and (found := _container(trimmed)) is not None:
        return found
    return json.dumps(text, ensure_ascii=False)


def _container(text: str) -> str | None:
    """`text` if it is JSON, or the JSON of the Python literal it is; None if it is neither."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _python_literal(text)
    return text


def _python_literal(text: str) -> str | None:
    if len(text) > _MAX_LITERAL:
        return None
    try:
        value = ast.literal_eval(text)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _type_of(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case None:
            return "null"
        case _:
            return "object"


def _at_pointer(root: Mapping[str, Any], pointer: str) -> Any:
    """RFC 6901, objects only."""
    at: Any = root
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        at = at.get(name) if isinstance(at, Mapping) else None
    return at
