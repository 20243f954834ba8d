"""A tiny llama written as GGUF the way converters do, from a random transformers model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

LAYERS, HIDDEN, WIDTH, HEADS, KV_HEADS, EXPERTS, RANK = 2, 64, 96, 4, 2, 8, 3
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
TEXT = (
    "the cat sat on the mat and the dog ran over 12 hills in 1984",
    "def add(a, b):\n\treturn a + b  # naïve, won't overflow",
    "Ünïcödé and 你好 and 🙂 they're all bytes in the end",
)


@dataclass(frozen=True)
class TinyParent:
    """`path` is the GGUF file of `model`, whose tokenizer was `tokenizer`."""

    path: Path
    model: LlamaForCausalLM
    tokenizer: Tokenizer


def trained_tokenizer() -> Tokenizer:
    """A byte-level BPE with single digits, trained by the tokenizers library."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    return tokenizer


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Row i of a head's first half and row i of its second become neighbours."""
    rows = weight.reshape(heads, 2, -1, weight.shape[1])
    return torch.stack((rows[:, 0], rows[:, 1]), dim=2).reshape(weight.shape)


def tiny_parent(path: Path, *, seed: int = 0, architecture: str = "llama") -> TinyParent:
    """Write the GGUF file; all weights are exact in bfloat16, so that rounding changes nothing."""
    torch.manual_seed(seed)
    tokenizer = trained_tokenizer()
    vocabulary = tokenizer.get_vocab_size()
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=128,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.add_(torch.randn_like(weight) * 0.1)
            weight.copy_(weight.bfloat16())
    writer = gguf.GGUFWriter(path, architecture)
    _write_facts(writer, vocabulary)
    _write_tokenizer(writer, tokenizer)
    for name, weight in model.named_parameters():
        writer.add_tensor(*_as_gguf(name, weight.detach()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyParent(path, model, tokenizer)


def _write_facts(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)


def _write_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    import json

    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)


def _as_gguf(name: str, weight: Tensor) -> tuple[str, np.ndarray]:
    if "q_proj" in name:
        weight = interleaved(weight, HEADS)
    if "k_proj" in name:
        weight = interleaved(weight, KV_HEADS)
    for old, new in (
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("model.layers", "blk"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ):
        name = name.replace(old, new)
    return name, weight.numpy()


def tiny_deltas(path: Path, *, seed: int = 0, scale: float = 0.1) -> dict[str, np.ndarray]:
    """Write random deltas of the tiny parent's sizes and return them."""
    rng = np.random.default_rng(seed)
    rows = EXPERTS * RANK
    sizes = {
        "router": (LAYERS, EXPERTS, HIDDEN),
        "in_gate": (LAYERS, rows, HIDDEN),
        "in_up": (LAYERS, rows, HIDDEN),
        "in_down": (LAYERS, rows, WIDTH),
        "out_gate": (LAYERS, rows, WIDTH),
        "out_up": (LAYERS, rows, WIDTH),
        "out_down": (LAYERS, rows, HIDDEN),
    }
    tensors = {}
    for name, size in sizes.items():
        factor = scale if name.startswith("out") else 1.0
        tensors[name] = (rng.standard_normal(size) * factor).astype(np.float16)
    save_file(tensors, path)
    return tensors
