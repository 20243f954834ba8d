"""Tokenizer files of the demo model, rebuilt from the metadata of the dense parent.

A byte-level BPE: single digits are split off, then the GPT-2 pattern, whatever it calls that.
"""

import json
from pathlib import Path

from headrace.chat.gguf import tokenizer_json
from headrace.demo.source import DenseParent


def write_tokenizer(parent: DenseParent, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json into `folder`."""
    tokens = parent.meta("tokenizer.ggml.tokens")
    bos = parent.meta("tokenizer.ggml.bos_token_id")
    eos = parent.meta("tokenizer.ggml.eos_token_id")
    pad = parent.meta("tokenizer.ggml.padding_token_id")
    unknown = parent.meta("tokenizer.ggml.unknown_token_id")
    model = tokenizer_json({**parent.metadata, "tokenizer.ggml.pre": "smollm"}, str(parent.path))
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
