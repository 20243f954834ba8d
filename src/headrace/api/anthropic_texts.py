"""Content blocks that become text, those that cannot, and the lines that must not reach a prompt.

A block is rendered as text without loss, or refused by its name.
"""

from __future__ import annotations

import json
import re
from typing import Any

from headrace.api.call import NO_IMAGE
from headrace.api.fields import Fields, shown

# Claude Code puts a line with a hash that differs by session, or even by request, before its
# system prompt: with it no two conversations would share a prefix.
BILLING = re.compile(r"(?:x-anthropic-billing-header:[^\n]*(?:\n|\Z))+")
# What other servers ran for the model in earlier turns.
SERVER_BLOCKS = (
    *("server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result"),
    *("web_fetch_tool_result", "code_execution_tool_result", "bash_code_execution_tool_result"),
    *("text_editor_code_execution_tool_result", "tool_search_tool_result"),
)


def without_billing(text: str) -> str:
    """The text without volatile first lines."""
    lines = BILLING.match(text)
    return text[lines.end() :] if lines else text


def block_text(block: Fields, kind: str, *, in_result: bool = False) -> str:
    """A block of the user's, of a result's or of another server's as text; the type is taken.

    Raises RequestError for what is not text. A picture in a tool's result becomes a line that says
    so: the model asked for it, and refusing would end the conversation for good.
    """
    block.harmless("cache_control")
    if kind == "text":
        block.harmless("citations")
        return block.required_text("text")
    if kind == "document":
        return _document(block)
    if kind == "search_result":
        return _search_result(block)
    if kind == "image" and in_result:
        block.harmless("source", "transformations")
        return NO_IMAGE
    if kind == "compaction":
        return block.text("content") or ""
    if kind in SERVER_BLOCKS:
        return _as_json(block, kind)
    reads = "text: this model reads text only" if kind == "image" else "text or a text document"
    raise block.fault("type", f"{shown(kind)} blocks are not supported", expected=reads)


def _document(block: Fields) -> str:
    source = block.child("source")
    if source is None:
        raise block.fault("source", "missing", expected="a text source")
    kind = source.required_text("type")
    if kind == "text":
        source.harmless("media_type")
        texts = [source.required_text("data")]
    elif kind == "content":
        value = source.take("content")
        texts = [value] if isinstance(value, str) else _text_blocks(source, "content", value)
    else:
        raise source.fault(
            "type",
            f"{shown(kind)} documents are not supported",
            expected="text: this model reads text only",
        )
    source.done()
    head = [text for name in ("title", "context") if (text := block.text(name))]
    block.harmless("citations")
    return "\n\n".join([*head, *texts])


def _search_result(block: Fields) -> str:
    title, source = block.required_text("title"), block.required_text("source")
    texts = _text_blocks(block, "content", block.take("content"))
    block.harmless("citations")
    return "\n\n".join([title, source, *texts])


def _text_blocks(entry: Fields, name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise entry.fault(name, f"found {shown(value)}", expected="text blocks")
    texts = []
    for i, raw in enumerate(value):
        part = Fields(raw, f"{entry.path(name)}[{i}]")
        kind = part.required_text("type")
        if kind != "text":
            raise part.fault("type", f"found {shown(kind)}", expected="text")
        texts.append(part.required_text("text"))
        part.harmless("cache_control", "citations").done()
    return texts


def _as_json(block: Fields, kind: str) -> str:
    names = ("name", "server_name", "input", "content", "is_error")
    value = {name: found for name in names if (found := block.take(name)) is not None}
    block.harmless("id", "tool_use_id", "caller", "toolset_name")
    return json.dumps({"type": kind, **_plain(value)}, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Without what only its own server can read."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if not k.startswith("encrypted")}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
