"""The small floats of scaled formats, as numpy: E4M3, E2M1 and the power-of-two scale E8M0. No
torch.
"""

from __future__ import annotations

import numpy as np

from headrace.formats.recipe import Array

_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate([_MAGNITUDES, -_MAGNITUDES])  # by code


def _e4m3() -> Array:
    code = np.arange(256)
    sign = np.where(code & 128, -1.0, 1.0)
    exponent, mantissa = code >> 3 & 15, code & 7
    normal = (1 + mantissa / 8) * np.exp2(exponent - 7.0)
    value = sign * np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    value[code & 127 == 127] = np.nan
    return value.astype(np.float32)


def _e8m0() -> Array:
    value = np.exp2(np.arange(256) - 127.0)
    value[255] = np.nan
    return value.astype(np.float32)


E4M3, E8M0 = _e4m3(), _e8m0()
_E4M3_UP = E4M3[:127]  # ascending
_E2M1_MIDDLES = (_MAGNITUDES[1:] + _MAGNITUDES[:-1]) / 2


def to_e4m3(x: Array) -> Array:
    """Codes of the nearest values, ties to the even code; beyond ±448, those."""
    magnitude = np.minimum(np.abs(x), 448).astype(np.float64)
    up = np.searchsorted(_E4M3_UP, magnitude).clip(1, 126)
    low, high = _E4M3_UP[up - 1].astype(np.float64), _E4M3_UP[up].astype(np.float64)
    middle = (low + high) / 2
    code = np.where((magnitude > middle) | ((magnitude == middle) & (up % 2 == 0)), up, up - 1)
    return (code | np.where(np.signbit(x), 128, 0)).astype(np.uint8)


def to_e2m1(x: Array) -> Array:
    """Codes of the nearest values; beyond ±6, those."""
    code = np.searchsorted(_E2M1_MIDDLES, np.abs(x), side="right")
    return (code | np.where(np.signbit(x), 8, 0)).astype(np.uint8)


def to_e8m0(largest: Array, top_exponent: int) -> Array:
    """The shared exponent of groups whose largest magnitudes are given (OCP MX 1.0, 6.3)."""
    safe = np.where(largest > 0, largest, 1.0)
    exponent = np.floor(np.log2(safe.astype(np.float64))) - top_exponent
    return (exponent.clip(-127, 127) + 127).astype(np.uint8)


def pairs(codes: Array) -> Array:
    """[.., K] codes of four bits -> [.., K/2] bytes, the even column low."""
    return (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)


def unpaired(packed: Array) -> Array:
    """[.., K/2] bytes -> [.., K] codes."""
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)
