"""A word for every number format, for files of our own: a tag where other files have one. No
torch.
"""

from __future__ import annotations

import re

from headrace.formats import format as formats
from headrace.formats.format import BY_TAG, LANE_ROWS, LANED, Format

_WORD = re.compile(r"(FP8|MXFP8|MXFP4|INT4|INT4-BF16)-([1-9][0-9]{0,4})(-ZEROS)?(-ORDERED)?")
_NAMES = {3: "FP8", 5: "MXFP8", 6: "MXFP4", 8: "INT4", 9: "INT4-BF16"}
_LANES = f"-X{LANE_ROWS}"
_WORDS = {formats.FP8_ROW: "FP8-ROW", formats.NVFP4: "NVFP4" + _LANES}
_FORMATS = {word: form for form, word in _WORDS.items()}


def word_of(form: Format) -> str:
    """Such as BF16, Q6_K, Q4_0-X16, MXFP4-32: enough to find the format again."""
    if form.tag in LANED:
        return form.tag + _LANES
    if form.tag:
        return form.tag
    if form in _WORDS:
        return _WORDS[form]
    kind = form.code & ((1 << formats.GROUP_SHIFT) - 1)
    zeros = "-ZEROS" if form.code >> formats.ZEROS_SHIFT else ""
    if form.order_bytes:
        return f"{_NAMES[kind - formats.ORDERED]}-{form.group}{zeros}-ORDERED"
    return f"{_NAMES[kind]}-{form.group}{zeros}"


def format_of(word: str) -> Format | None:
    """The format that a word means, None for other words."""
    if word in BY_TAG:
        return BY_TAG[word]
    if word in _FORMATS:
        return _FORMATS[word]
    if word.endswith(_LANES):
        return LANED.get(word.removesuffix(_LANES))
    match = _WORD.fullmatch(word)
    if match is None:
        return None
    name, group, zeros = match[1], int(match[2]), match[3] is not None
    if name.startswith("INT4"):
        made = formats.int4_ordered if match[4] else formats.int4
        return made(group, bf16_scales=name == "INT4-BF16", zeros=zeros)
    if zeros or match[4] or (name, group) == ("MXFP4", LANED["MXFP4"].group):
        return None
    return {"FP8": formats.fp8_block, "MXFP8": formats.mxfp8, "MXFP4": formats.mxfp4}[name](group)
