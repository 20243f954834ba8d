"""Quantised checkpoints as FTW folders: the same tiles, so the same logits bit for bit."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path

import ftw_folders
import gguf
import gguf_files
import pytest
import quantised
import tiny
import torch
from engines import load
from safetensors.torch import load_file, save_file
from torch import Tensor

from headrace.errors import CheckpointError, ConfigError
from headrace.experts import reading
from headrace.experts.bank import tensors_of
from headrace.formats import format as formats
from headrace.formats.words import format_of, word_of
from headrace.models.source import open_model
from headrace.weights import convert, packing
from headrace.weights.arena import Arena
from headrace.weights.checkpoint import StoredTensor
from headrace.weights.ftw_index import INDEX, parse
from headrace.weights.ftw_layout import Layout, lay_out
from headrace.weights.names import Layout as NameLayout
from headrace.weights.plan import WeightPlan
from headrace.weights.quantised import Quantised, cut, recipe_for
from headrace.weights.verify import verify_ftw

PROMPT = list(range(3, 30))


def built(path: Path, case: str, **changes: object) -> Path:
    old = tiny.CASES[case]
    with pytest.MonkeyPatch.context() as patch:
        values = {**old.values, "num_hidden_layers": 2, **changes}
        patch.setitem(tiny.CASES, "changed", tiny.Case(old.model_type, values, old.seed))
        tiny.build("changed", path, dtype=torch.bfloat16)
    return path


def scores(path: Path, **keys: object) -> Tensor:
    engine = load(path, **keys)
    try:
        return torch.tensor(engine.score(PROMPT))
    finally:
        engine.close()


def same(source: Path, made: Path) -> set[str]:
    """The number formats of the folder, once it is known to compute the same."""
    ftw_folders.converted(source, made)
    assert verify_ftw(made) == []
    expected, found = scores(source), scores(made)
    assert expected.isfinite().all()
    assert torch.equal(found, expected)
    for path in (source, made):  # rows by rows from disk, packed as they come
        assert torch.equal(scores(path, **{"experts.ram": "3 slots"}), expected)
    a, b = open_model(made), open_model(source)
    assert a.facts.expert_bytes[0] >= b.facts.expert_bytes[0]  # biases are wider
    index = parse(made)
    words = {dense.tag for dense in index.tensors.values()}
    forms = [form for layer in index.experts.values() for form in layer.forms]
    return words | {part.tag for form in forms for part in form}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "MXFP4"])
def test_gguf(tmp_path: Path, kind: str) -> None:
    folder = built(
        tmp_path / "source", "qwen3_moe",
        hidden_size=256, moe_intermediate_size=256, num_attention_heads=4, head_dim=64,
    )  # fmt: skip
    few = gguf_files.matrices(gguf.GGMLQuantizationType[kind])

    def kinds(name: str, values: gguf_files.Array) -> gguf.GGMLQuantizationType:
        chosen = few(name, values)
        more = "ffn_down" in name and chosen.name == kind
        return gguf.GGMLQuantizationType.Q6_K if more else chosen

    gguf_files.write_gguf(folder, tmp_path / "q.gguf", kinds)
    word = kind if kind in formats.BY_TAG else f"{kind}-X16"
    assert same(tmp_path / "q.gguf", tmp_path / "made") == {"F32", word, "Q6_K"}


def packed_file(folder: Path) -> Path:
    """A GGUF file with all matrices in Q8_0."""
    source = built(
        folder / "source", "qwen3_moe",
        hidden_size=256, moe_intermediate_size=96, num_attention_heads=4, head_dim=64,
    )  # fmt: skip
    gguf_files.write_gguf(
        source, folder / "q.gguf", gguf_files.matrices(gguf.GGMLQuantizationType.Q8_0)
    )
    return folder / "q.gguf"


def test_matrices_are_packed_in_cuts_and_rows_in_few_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = packed_file(tmp_path)
    expected = scores(file)
    monkeypatch.setattr(packing, "STAGING_BYTES", 20_000)  # four tiles of a matrix
    monkeypatch.setattr(convert, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(reading, "STAGE_BYTES", 1)
    plan = open_model(file).plan
    assert max(len(piece.cuts(packing.STAGING_BYTES)) for piece in plan.packed) > 3
    assert torch.equal(scores(file), expected)
    assert torch.equal(scores(file, **{"experts.arrive": "beside"}), expected)
    assert same(file, tmp_path / "made") == {"F32", "Q8_0-X16"}
    assert torch.equal(scores(tmp_path / "made"), expected)


def test_a_folder_of_an_older_version_is_not_gone_on_with(tmp_path: Path) -> None:
    file, made = packed_file(tmp_path), tmp_path / "made"
    ftw_folders.converted(file, made)
    index = made / INDEX
    index.write_text(index.read_text().replace("Q8_0-X16", "Q8_0"))
    with pytest.raises(CheckpointError, match=r"dtype 'Q8_0'.*convert the model again"):
        parse(made)
    with pytest.raises(ConfigError, match=r"dtype 'Q8_0'.*delete it"):
        ftw_folders.converted(file, made)


def test_a_conversion_begun_with_other_words_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes alone may agree: dense rows as the file has them, and as tiles."""
    file, made = packed_file(tmp_path), tmp_path / "made"

    def as_before(plan: WeightPlan) -> Layout:
        layout = lay_out(plan)
        tensors = {n: d._replace(tag=d.tag.removesuffix("-X16")) for n, d in layout.tensors.items()}
        return replace(layout, tensors=tensors)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(convert, "lay_out", as_before)
        patch.setattr(convert, "_publish", killed)
        with pytest.raises(KeyboardInterrupt):
            ftw_folders.converted(file, made)
    with pytest.raises(ConfigError, match="unfinished conversion of something else"):
        ftw_folders.converted(file, made)


def test_what_a_quantised_tensor_of_gguf_cannot_be(tmp_path: Path) -> None:
    rows = StoredTensor("x", "U8", (68,), tmp_path, 0, 68)
    with pytest.raises(CheckpointError, match=r"shape \[64\]; expected a matrix or a stack"):
        recipe_for(Quantised("x", {"Q8_0": rows}), {})
    matrix = Quantised("x", {"Q8_0": replace(rows, shape=(4, 34), nbytes=136)})
    assert cut(matrix, recipe_for(matrix, {}), [NameLayout.FLATTEN]) is None


HYBRID = {"experts.placement": "hybrid", "experts.fill": "balanced", "experts.cache": "40%"}
MORE = {"Q4_K": "Q6_K", "Q3_K": "Q5_K"}


@pytest.mark.parametrize("kind", MORE)
def test_gguf_whose_layers_differ(tmp_path: Path, kind: str) -> None:
    """As published mixtures are: some layers' down and values have more bits, rows their own
    sizes.
    """
    folder = built(
        tmp_path / "source", "qwen3_moe", num_hidden_layers=4,
        hidden_size=256, moe_intermediate_size=256, num_attention_heads=4, head_dim=64,
    )  # fmt: skip
    few = gguf_files.matrices(gguf.GGMLQuantizationType[kind])

    def kinds(name: str, values: gguf_files.Array) -> gguf.GGMLQuantizationType:
        more = name.startswith(("blk.0.", "blk.3.")) and ("ffn_down" in name or "attn_v" in name)
        chosen = few(name, values)
        return gguf.GGMLQuantizationType[MORE[kind]] if more else chosen

    gguf_files.write_gguf(folder, tmp_path / "q.gguf", kinds)
    words = {"F32", "Q4_K-X16" if kind == "Q4_K" else kind, MORE[kind]}
    assert same(tmp_path / "q.gguf", tmp_path / "made") == words
    sizes = open_model(tmp_path / "made").facts.expert_bytes
    assert sizes[0] == sizes[3] > sizes[1] == sizes[2]
    expected = scores(tmp_path / "q.gguf")
    for path in (tmp_path / "q.gguf", tmp_path / "made"):
        for more in ({}, {"experts.ram": "4 slots"}):  # RAM that holds all experts, or the disk
            keys = {"device": "emulated", "emulated.memory": "64MiB", **HYBRID, **more}
            assert torch.equal(scores(path, **keys), expected)


def test_gguf_whose_experts_have_no_whole_blocks_of_256(tmp_path: Path) -> None:
    """As Q5_K_M has them where an expert is 1408 wide: down falls back to types of 32 columns."""
    folder = built(
        tmp_path / "source", "qwen3_moe",
        hidden_size=256, moe_intermediate_size=96, num_attention_heads=4, head_dim=64,
    )  # fmt: skip
    types = gguf.GGMLQuantizationType
    few = gguf_files.matrices(types.Q5_K)

    def kinds(name: str, values: gguf_files.Array) -> gguf.GGMLQuantizationType:
        down = types.Q8_0 if name.startswith("blk.0.") else types.Q5_1
        more = types.Q4_1 if "attn_q.weight" in name else few(name, values)
        return down if "ffn_down" in name else more

    gguf_files.write_gguf(folder, tmp_path / "q.gguf", kinds)
    words = {"F32", "Q5_K", "Q5_1", "Q8_0-X16", "Q4_1"}
    assert same(tmp_path / "q.gguf", tmp_path / "made") == words


def test_fp8_in_blocks(tmp_path: Path) -> None:
    """Eight rows a tile, the last one of each matrix not full."""
    folder = built(tmp_path / "source", "mixtral", hidden_size=144, intermediate_size=150)
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if ".experts." in n or "_proj" in n]:
        values = tensors.pop(name).float()
        tall, wide = (-(-n // 128) for n in values.shape)
        scale = torch.rand(tall, wide) + 0.5
        spread = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        tensors[name] = (values / spread[: values.shape[0], : values.shape[1]]).to(
            torch.float8_e4m3fn
        )
        tensors[f"{name}_scale_inv"] = scale
    quantise(folder, tensors, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert same(folder, tmp_path / "made") == {"BF16", "FP8-128"}


def test_mxfp4_with_gate_and_up_in_turns(tmp_path: Path) -> None:
    folder = built(tmp_path / "source", "gpt_oss", hidden_size=64, intermediate_size=96)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        count, columns, rows = tensors.pop(name).shape
        blocks = (count, rows, columns // 32, 16)
        tensors[f"{name}_blocks"] = torch.randint(
            0, 256, blocks, dtype=torch.uint8, generator=generator
        )
        tensors[f"{name}_scales"] = torch.randint(
            119, 124, blocks[:3], dtype=torch.uint8, generator=generator
        )
    quantise(folder, tensors, {"quant_method": "mxfp4"})
    assert same(folder, tmp_path / "made") == {"BF16", "F32", "MXFP4-X16"}


def test_gptq_whose_groups_are_columns_from_anywhere(tmp_path: Path) -> None:
    """And matrices whose last tile is not full."""
    folder = built(
        tmp_path / "source", "qwen3_moe",
        hidden_size=64, moe_intermediate_size=96, num_attention_heads=4, head_dim=32,
    )  # fmt: skip
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        parts, _ = quantised.QUANTISE["gptq-order"](tensors.pop(name).float())
        stem = name.removesuffix(".weight")
        tensors |= {stem + suffix: part.contiguous() for suffix, part in parts.items()}
    quantise(folder, tensors, quantised.CONFIG["gptq-order"])
    assert same(folder, tmp_path / "made") == {"BF16", "INT4-32-ZEROS-ORDERED"}


def test_experts_of_one_layer_in_several_formats_are_planned_as_they_will_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = built(
        tmp_path / "source", "qwen3_moe",
        hidden_size=64, moe_intermediate_size=96, num_attention_heads=4, head_dim=32,
    )  # fmt: skip
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if "layers.0" in n and (".experts.1." in n or "q_proj" in n)]:
        parts, _ = quantised.QUANTISE["int4"](tensors.pop(name).float())
        tensors |= {name.removesuffix(".weight") + end: part for end, part in parts.items()}
    quantise(folder, tensors, quantised.CONFIG["int4"])
    facts = open_model(folder).facts
    wide, narrow = 2 * 3 * 64 * 96, 3 * (64 * 96 // 2 + 2 * 64 * 96 // 32)
    experts = facts.experts[0]
    assert facts.expert_bytes == (-(-((experts - 1) * wide + narrow) // experts), wide)
    assert facts.slot_bytes == wide
    arenas: weakref.WeakSet[Arena] = weakref.WeakSet()
    made = Arena.__init__

    def watched(self: Arena, nbytes: int) -> None:
        made(self, nbytes)
        arenas.add(self)

    monkeypatch.setattr(Arena, "__init__", watched)
    engine = load(folder)
    gc.collect()
    rows = engine.live._built.placement._rows(0)
    held = [sum(t.numel() * t.element_size() for t in tensors_of(rows, e)) for e in range(3)]
    every = sum(arena.nbytes for arena in arenas)
    engine.close()
    assert held == [wide, narrow, wide]
    assert abs(every - facts.total_bytes) < 16384, (every, facts.total_bytes)
    assert same(folder, tmp_path / "made") == {"BF16", "INT4-BF16-32"}
    index = parse(tmp_path / "made")
    assert index.experts[0].form_of == (0, 1, *[0] * (experts - 2))
    assert len(index.experts[1].forms) == 1
    assert open_model(tmp_path / "made").facts == facts


def quantise(folder: Path, tensors: dict[str, Tensor], how: dict[str, object]) -> None:
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": how}))


@pytest.mark.parametrize(
    "form",
    [
        *formats.FLOATS,
        *formats.GGML,
        formats.FP8_ROW,
        formats.fp8_block(128),
        formats.mxfp8(),
        formats.mxfp4(64),
        formats.NVFP4,
        formats.int4(128, bf16_scales=False, zeros=False),
        formats.int4(32, bf16_scales=False, zeros=True),
        formats.int4(128, bf16_scales=True, zeros=True),
        formats.int4_ordered(32, bf16_scales=False, zeros=True),
        formats.int4_ordered(128, bf16_scales=True, zeros=False),
    ],
)  # fmt: skip
def test_every_format_has_a_word(form: formats.Format) -> None:
    assert format_of(word_of(form)) == form


@pytest.mark.parametrize(
    "word",
    [
        "",
        "F33",
        "F8_E4M3",
        "MXFP4",
        "MXFP4-",
        "MXFP4-0",
        "MXFP4-032",
        "MXFP4-32",
        "Q4_0",
        "Q4_K",
        "Q5_K-X16",
        "MXFP4--32",
        "FP8-128-ZEROS",
        "NVFP4-16",
        "NVFP4-X16-ORDERED",
    ],
)
def test_other_words_mean_nothing(word: str) -> None:
    if word not in formats.BY_TAG:
        assert format_of(word) is None
