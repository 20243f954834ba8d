"""What is served, as each vendor's clients list it."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

from headrace.api.served import Served
from headrace.errors import RequestError

Json = dict[str, Any]
PAGE = 20
MOST = 1000


def openai_card(served: Served, name: str) -> Json:
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "headrace",
        "max_model_len": served.context,
        "context_length": served.context,
        "meta": {"family": served.family} if served.family else {},
    }


def openai_list(served: Served) -> Json:
    return {"object": "list", "data": [openai_card(served, name) for name in served.names]}


def anthropic_card(served: Served, name: str) -> Json:
    made = datetime.datetime.fromtimestamp(served.created, datetime.UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": made.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "capabilities": None,
        "max_input_tokens": served.context,
        "max_tokens": served.context,
    }


def anthropic_page(served: Served, query: Mapping[str, str]) -> Json:
    """One page: `limit` names behind `after_id` or before `before_id`. Raises RequestError."""
    names = list(served.names)
    limit = query.get("limit", str(PAGE))
    if not (re.fullmatch("[0-9]{1,4}", limit) and 1 <= int(limit) <= MOST):
        raise RequestError(
            f"limit: found {limit!r}", field="limit", expected=f"a number from 1 to {MOST}"
        )
    for key in ("after_id", "before_id"):
        if key in query and query[key] not in names:
            raise RequestError(
                f"{key}: {query[key]!r} is not in the list", field=key, expected="a model's id"
            )
    if "before_id" in query:
        names = names[: names.index(query["before_id"])]
        page = names[-int(limit) :]
    else:
        names = names[names.index(query["after_id"]) + 1 :] if "after_id" in query else names
        page = names[: int(limit)]
    return {
        "data": [anthropic_card(served, name) for name in page],
        "has_more": len(page) < len(names),
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
    }
