"""Bodies of the Responses API for hypothesis: right ones in which a few things are wrong."""

from __future__ import annotations

from hypothesis import strategies as st

LEAF = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
)
JSON = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
TEXT = st.text(max_size=8)
IDS = st.sampled_from(["c1", "c2", "rs_" + "0" * 34, "fc_" + "1" * 34])
KINDS = st.sampled_from(
    ["message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
     "custom_tool_call_output", "item_reference", "local_shell_call", "mcp_call",
     "web_search_call", "additional_tools", "compaction", "input_text", "output_text",
     "function", "custom", "namespace", "web_search", "allowed_tools", "grammar"]
)  # fmt: skip


def mostly(right):
    """One in twelve is any JSON."""
    return st.integers(0, 11).flatmap(lambda n: right if n else JSON)


def record(required, optional=None):
    fields = {key: mostly(value) for key, value in required.items()}
    rest = {key: mostly(value) for key, value in (optional or {}).items()}
    return mostly(st.fixed_dictionaries(fields, optional=rest))


def just(word):
    return st.just(word) | KINDS


PARTS = st.lists(record({"type": st.just("input_text"), "text": TEXT}), max_size=3)
ROLES = st.sampled_from(["user", "assistant", "system", "developer"])
MESSAGE = record({"role": ROLES, "content": TEXT | PARTS}, {"type": st.just("message"), "id": IDS})
REASONING = record(
    {"type": st.just("reasoning"), "summary": st.just([])},
    {"id": IDS, "content": PARTS, "encrypted_content": TEXT | IDS},
)
CALL = record(
    {
        "type": st.just("function_call"),
        "call_id": IDS,
        "name": st.sampled_from(["f", "g"]),
        "arguments": st.sampled_from(["{}", "[]", "{", ""]),
    },
    {"id": IDS, "namespace": TEXT},
)
CUSTOM = record({"type": st.just("custom_tool_call"), "call_id": IDS, "name": TEXT, "input": TEXT})
OUTPUT = record(
    {
        "type": st.sampled_from(["function_call_output", "custom_tool_call_output"]),
        "call_id": IDS,
        "output": TEXT | PARTS,
    }
)
OTHER = st.fixed_dictionaries(
    {"type": KINDS},
    optional={
        "id": IDS, "call_id": IDS, "name": TEXT, "tools": JSON, "action": JSON, "role": TEXT,
        "arguments": JSON, "output": JSON, "input": TEXT, "server_label": TEXT,
    },
)  # fmt: skip
ITEMS = st.lists(st.one_of(MESSAGE, MESSAGE, REASONING, CALL, CUSTOM, OUTPUT, OTHER), max_size=6)

NAMES = st.sampled_from(["f", "g", "h", "a b", ""])
SCHEMA = st.just({"type": "object", "properties": {"a": {"type": "string"}}}) | JSON
FUNCTION = record(
    {"type": st.just("function"), "name": NAMES}, {"parameters": SCHEMA, "strict": st.booleans()}
)
FORMAT = record(
    {"type": st.sampled_from(["text", "grammar"])}, {"syntax": TEXT, "definition": TEXT}
)
CUSTOM_TOOL = record({"type": st.just("custom"), "name": NAMES}, {"format": FORMAT})
SPACE = record(
    {"type": st.just("namespace"), "name": NAMES, "tools": st.lists(FUNCTION, max_size=2)}
)
HOSTED = record({"type": st.sampled_from(["web_search", "mcp", "unheard_of"])}, {"x": JSON})
TOOLS = st.lists(FUNCTION | CUSTOM_TOOL | SPACE | HOSTED, max_size=3)
CHOICE = st.sampled_from(["auto", "none"]) | record(
    {"type": st.sampled_from(["function", "custom", "allowed_tools", "mcp"])},
    {"name": NAMES, "mode": TEXT, "tools": TOOLS},
)

OPTIONAL = {
    "instructions": TEXT,
    "tools": TOOLS,
    "tool_choice": CHOICE,
    "text": record({}, {"format": record({"type": st.just("text")}), "verbosity": TEXT}),
    "reasoning": record({}, {"effort": st.sampled_from(["low", "none"]), "summary": TEXT}),
    "stream": st.booleans(),
    "store": st.booleans(),
    "model": TEXT,
    "include": st.just(["reasoning.encrypted_content"]),
    "metadata": st.dictionaries(TEXT, TEXT, max_size=2),
    "max_output_tokens": st.integers(1, 9),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_logprobs": st.integers(0, 3),
    "previous_response_id": st.none(),
    "parallel_tool_calls": st.booleans(),
    "truncation": st.sampled_from(["disabled", "auto"]),
    "background": st.just(False),
    "service_tier": st.just("auto"),
    "prompt_cache_key": TEXT,
    "user": TEXT,
    "conversation": st.none(),
    "chat_template_kwargs": st.just({}),
}
BODIES = record({"input": TEXT | ITEMS}, OPTIONAL)
