"""From the tensors that publishers store for one quantised matrix to its Format. No torch.

Decided tensor by tensor, from names, dtypes and shapes: published configs list what they ignore
wrongly often enough. `Recipe.pack` then turns the stored parts into tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.formats import fp8, ggml, int4, mx, nvfp4
from headrace.formats.format import (
    FP8_ROW,
    LANE_ROWS,
    LANED,
    MOST_ORDERED,
    NVFP4,
    NVFP4_COLUMNS,
    Format,
    fp8_block,
    int4_ordered,
)
from headrace.formats.format import int4 as int4_format
from headrace.formats.format import mxfp4 as mxfp4_format
from headrace.formats.format import mxfp8 as mxfp8_format
from headrace.formats.recipe import Pack


class Stored(NamedTuple):
    """dtype and shape of a stored part."""

    tag: str
    shape: tuple[int, ...]


class Role(NamedTuple):
    """What a stored tensor is to the matrix `base`; `part` "" is read by nobody."""

    base: str
    part: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the parts of [.., N, K] become tiles of `format`. `by_rows`: of one part, row by row."""

    format: Format
    shape: tuple[int, ...]
    pack: Pack
    by_rows: bool = False


class SchemeFault(ValueError):
    """Parts that no scheme knows; the text says what was found."""


_ROLES = {
    ".weight": (".weight", "codes"),
    ".weight_packed": (".weight", "codes"),
    ".weight_scale_inv": (".weight", "scale"),
    ".weight_scale": (".weight", "scale"),
    ".scale": (".weight", "scale"),
    ".weight_scale_2": (".weight", "whole"),
    ".weight_global_scale": (".weight", "divisor"),
    ".weight_zero_point": (".weight", "zeros"),
    ".weight_shape": (".weight", ""),
    ".weight_g_idx": (".weight", "order"),
    ".qweight": (".weight", "qweight"),
    ".qzeros": (".weight", "zeros"),
    ".scales": (".weight", "scale"),
    ".g_idx": (".weight", "order"),
    "_blocks": ("", "codes"),
    "_scales": ("", "scale"),
}
_ACTIVATIONS = (
    *(".input_scale", ".input_global_scale", ".input_amax", ".k_scale", ".v_scale"),
    *(".output_scale", ".q_scale", ".kv_scale", ".weight_amax"),
)
_BYTES, _POWERS = ("U8", "I8"), ("U8", "F8_E8M0")


def role_of(name: str) -> Role:
    """A name that plays no part in quantisation is the codes of itself."""
    if name.endswith(_ACTIVATIONS):
        return Role(name, "")
    for suffix in sorted(_ROLES, key=len, reverse=True):
        if name.endswith(suffix):
            base, part = _ROLES[suffix]
            return Role(name.removesuffix(suffix) + base, part)
    return Role(name, "codes")


def recipe_of(parts: Mapping[str, Stored], config: Mapping[str, Any]) -> Recipe:
    """`parts`: role -> what is stored; `config`: the published quantization_config. Raises
    SchemeFault.
    """
    if "qweight" in parts:
        return _transposed_int4(parts, config)
    for tag in LANED.keys() & parts.keys():
        return _laned(LANED[tag], parts[tag])
    codes, scale = parts.get("codes"), parts.get("scale")
    if codes is None or scale is None:
        raise SchemeFault(f"{' and '.join(sorted(parts))} alone")
    if codes.tag == "F8_E4M3":
        return _eight_bits(codes, scale, config)
    if codes.tag == "I32":
        return _packed_int4(codes, scale, parts)
    if codes.tag in _BYTES and len(codes.shape) >= 2:
        return _four_bits(codes, scale, parts)
    raise SchemeFault(f"{codes.tag} with scales of {scale.tag}")


def _laned(form: Format, blocks: Stored) -> Recipe:
    *lead, nbytes = blocks.shape
    columns = nbytes * LANE_ROWS // form.group_bytes * form.group
    return Recipe(form, (*lead, columns), ggml.pack, by_rows=True)


def _eight_bits(codes: Stored, scale: Stored, config: Mapping[str, Any]) -> Recipe:
    *lead, rows, columns = codes.shape
    each = scale.shape[len(lead) :]
    if _count(each) == 1 or each in ((rows,), (rows, 1)):
        return Recipe(FP8_ROW, codes.shape, fp8.pack_rows)
    if scale.tag in _POWERS and len(each) == 2 and each[0] == rows:
        group = _group(columns, each[1])
        return Recipe(mxfp8_format(group), codes.shape, mx.pack)
    block = config.get("weight_block_size") or [128, 128]
    tall, wide = (int(n) for n in block)
    if tall % 8 or each != (-(-rows // tall), -(-columns // wide)):
        raise SchemeFault(f"F8_E4M3 {list(codes.shape)} with scales of {list(scale.shape)}")
    return Recipe(fp8_block(wide), codes.shape, fp8.block_packer(tall))


def _four_bits(codes: Stored, scale: Stored, parts: Mapping[str, Stored]) -> Recipe:
    shape = codes.shape
    if len(shape) == len(scale.shape) + 1:  # [.., G, 16]
        shape = (*shape[:-2], shape[-2] * shape[-1])
    shape = (*shape[:-1], shape[-1] * 2)
    if scale.shape[:-1] != shape[:-1]:
        raise SchemeFault(f"{codes.tag} {list(codes.shape)} with scales of {list(scale.shape)}")
    group = _group(shape[-1], scale.shape[-1])
    if "whole" in parts or "divisor" in parts:
        if group != NVFP4_COLUMNS:
            raise SchemeFault(f"a scale of NVFP4 for {group} columns, not {NVFP4_COLUMNS}")
        return Recipe(NVFP4, shape, nvfp4.pack)
    if scale.tag in _POWERS:
        if group == LANED["MXFP4"].group:
            return Recipe(LANED["MXFP4"], shape, mx.pack_lanes)
        return Recipe(mxfp4_format(group), shape, mx.pack)
    raise SchemeFault(f"{codes.tag} with scales of {scale.tag}")


def _packed_int4(codes: Stored, scale: Stored, parts: Mapping[str, Stored]) -> Recipe:
    shape = (*codes.shape[:-1], codes.shape[-1] * 8)
    if scale.shape[:-1] != shape[:-1] or scale.tag not in ("F16", "BF16"):
        raise SchemeFault(f"I32 {list(codes.shape)} with {scale.tag} {list(scale.shape)}")
    made = (_ordered(parts, shape[-1]) or int4_format)(
        _group(shape[-1], scale.shape[-1]),
        bf16_scales=scale.tag == "BF16",
        zeros="zeros" in parts,
    )
    return Recipe(made, shape, int4.pack)


def _transposed_int4(parts: Mapping[str, Stored], config: Mapping[str, Any]) -> Recipe:
    codes, scale = parts["qweight"], parts.get("scale")
    if scale is None or "zeros" not in parts or config.get("bits", 4) != 4:
        raise SchemeFault(f"{config.get('bits', 4)} bits of {' and '.join(sorted(parts))}")
    if scale.tag not in ("F16", "BF16") or codes.tag != "I32" or len(codes.shape) != 2:
        raise SchemeFault(f"{codes.tag} {list(codes.shape)} with scales of {scale.tag}")
    awq = config.get("quant_method") == "awq"
    rows = codes.shape[1] * (8 if awq else 1)
    columns = codes.shape[0] * (1 if awq else 8)
    if scale.shape[1:] != (rows,):
        raise SchemeFault(f"I32 {list(codes.shape)} with scales of {list(scale.shape)}")
    # Files have a g_idx whether or not it says something; only the config tells before it is read.
    ordered = not awq and config.get("desc_act", True) and _ordered(parts, columns)
    made = (ordered or int4_format)(
        _group(columns, scale.shape[0]), bf16_scales=scale.tag == "BF16", zeros=True
    )
    if awq:
        return Recipe(made, (rows, columns), int4.pack_awq)
    as_is = config.get("checkpoint_format") == "gptq_v2"
    return Recipe(made, (rows, columns), int4.pack_gptq_v2 if as_is else int4.pack_gptq)


def _ordered(parts: Mapping[str, Stored], columns: int) -> Callable[..., Format] | None:
    """How a format is made whose columns g_idx puts into an order; None without one."""
    if "order" not in parts:
        return None
    tag, shape = parts["order"]
    if tag not in ("I32", "I64") or shape[-1:] != (columns,) or columns > MOST_ORDERED:
        raise SchemeFault(f"g_idx of {tag} {list(shape)} for {columns} columns")
    return int4_ordered


def _group(columns: int, groups: int) -> int:
    if groups <= 0 or columns % groups or columns // groups % 16 or columns // groups >= 1 << 16:
        raise SchemeFault(f"{groups} scales for {columns} columns")
    return columns // groups


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count
