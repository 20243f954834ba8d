"""Tokenizer files of the demo model, rebuilt from the metadata of the dense parent.

A byte-level BPE as in `tokenizer.json`: single digits are split off, then the GPT-2 pattern.
"""

import json
from pathlib import Path
from typing import Any

from headrace.demo.source import DenseParent

_CONTROL = 3  # token_type of tokens that text can never produce


def tokenizer_json(tokens: list[str], kinds: list[int], merges: list[str]) -> dict[str, Any]:
    """The content of `tokenizer.json` for a vocabulary and its merges ("left right" each)."""
    special = [i for i, kind in enumerate(kinds) if kind == _CONTROL]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": tokens[i],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i in special
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }


def write_tokenizer(parent: DenseParent, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json into `folder`."""
    tokens = parent.meta("tokenizer.ggml.tokens")
    bos = parent.meta("tokenizer.ggml.bos_token_id")
    eos = parent.meta("tokenizer.ggml.eos_token_id")
    pad = parent.meta("tokenizer.ggml.padding_token_id")
    unknown = parent.meta("tokenizer.ggml.unknown_token_id")
    kinds = parent.meta("tokenizer.ggml.token_type")
    model = tokenizer_json(tokens, kinds, parent.meta("tokenizer.ggml.merges"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": parent.dims.context,
        "bos_token": tokens[bos],
        "eos_token": tokens[eos],
        "pad_token": tokens[pad],
        "unk_token": tokens[unknown],
        "clean_up_tokenization_spaces": False,
        "chat_template": parent.meta("tokenizer.chat_template"),
    }
    # `unknown` is <|endoftext|>: the end of a document, which also ends a completion.
    generation = {
        "bos_token_id": bos,
        "eos_token_id": sorted({eos, unknown}),
        "pad_token_id": pad,
        "do_sample": True,
        "temperature": 0.2,
        "top_p": 0.9,
        "repetition_penalty": 1.1,  # without it so small a model falls into loops
    }
    for name, content in (
        ("tokenizer.json", model),
        ("tokenizer_config.json", settings),
        ("generation_config.json", generation),
    ):
        text = json.dumps(content, ensure_ascii=False, indent=None if "model" in content else 2)
        (folder / name).write_text(text + "\n", encoding="utf-8")
