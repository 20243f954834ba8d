"""A client's JSON schema as text for a grammar, after checks of its size and depth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.chat.depth import check_references
from headrace.errors import RequestError

MAX_SCHEMA_CHARS = 1 << 18
MAX_SCHEMA_DEPTH = 128


def checked_schema(schema: Any, field: str, guidance: Mapping[str, Any]) -> str:
    """JSON of `schema` with llguidance's options added.

    Raises RequestError naming `field` if it is no schema, too large, too deep (behind
    references as well), or not JSON.
    """
    if not isinstance(schema, Mapping):
        raise RequestError(
            f"a schema of type {type(schema).__name__}", field=field, expected="a JSON object"
        )
    check_depth(schema, field)
    check_references(schema, field)
    try:
        text = json.dumps({**schema, "x-guidance": dict(guidance)}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"the schema is not JSON: {error}", field=field, expected="a JSON schema"
        ) from error
    if len(text) > MAX_SCHEMA_CHARS:
        raise RequestError(
            f"a schema of {len(text)} characters",
            field=field,
            expected=f"at most {MAX_SCHEMA_CHARS}",
        )
    return text


def check_depth(schema: Any, field: str) -> None:
    """Raises RequestError naming `field` if the JSON value nests too deep to be walked safely."""
    level = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                inner.extend(value.values())
            elif isinstance(value, list | tuple):
                inner.extend(value)
        if not inner:
            return
        level = inner
    raise RequestError(
        f"a value nested deeper than {MAX_SCHEMA_DEPTH} levels",
        field=field,
        expected="a flatter one",
    )
