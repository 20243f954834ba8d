"""Masks as sets, and answers that follow them."""

import numpy as np

from headrace.chat.types import Message, Tool

RENDERERS = ["hermes", "xml", "hermes_as_text", "xml_as_text"]
USER = (Message("user", "q"),)
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": -99, "maximum": 99},
        "kind": {"enum": ["wet", "dry"]},
        "on": {"type": "boolean"},
    },
    "required": ["n", "kind"],
    "additionalProperties": False,
}
FIRST, SECOND = Tool("first", "", SCHEMA), Tool("second", "", {**SCHEMA, "required": ["n"]})


def allowed(constraint, tokenizer):
    words = constraint.mask()
    assert words.dtype == np.int32
    assert words.shape == ((tokenizer.vocab_size + 31) // 32,)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    assert not bits[tokenizer.vocab_size :].any()
    return set(np.flatnonzero(bits[: tokenizer.vocab_size]).tolist())


def accepts(constraint, tokenizer, text, *, special=False):
    """Whether `text` and then an end is allowed token by token; the part that was if not."""
    done = []
    for token in tokenizer.encode(text, special=special):
        if token not in allowed(constraint, tokenizer):
            return tokenizer.decode(done, skip_special=False)
        constraint.accept(token)
        done.append(token)
    return bool(allowed(constraint, tokenizer) & tokenizer.eos_ids)


def walk(constraint, tokenizer, rng, limit=4000):
    """A random answer under the mask, ended at a random chance."""
    tokens = []
    for _ in range(limit):
        if constraint.done:
            return tokens
        choice = allowed(constraint, tokenizer)
        ends = choice & tokenizer.eos_ids
        if ends and (rng.random() < 0.5 or choice == ends):
            constraint.accept(min(ends))
            assert constraint.done
            return tokens
        token = rng.choice(sorted(choice - tokenizer.eos_ids))
        constraint.accept(token)
        tokens.append(token)
    raise AssertionError("no end in sight: " + tokenizer.decode(tokens, skip_special=False))


def is_valid(value, required):
    return (
        isinstance(value, dict)
        and set(required) <= set(value) <= {"n", "kind", "on"}
        and ("n" not in value or (type(value["n"]) is int and -99 <= value["n"] <= 99))
        and value.get("kind", "wet") in ("wet", "dry")
        and type(value.get("on", True)) is bool
    )
