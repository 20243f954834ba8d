"""From a row of logits to a token; the same row and seed give the same token, alone or batched.

Order: repetition, presence and frequency penalties, logit bias, `min_tokens`, grammar; log
probabilities are of that distribution; then temperature, top-k, top-p and min-p, and one uniform
number per token.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.engine.request import Logprob, Request, Sampling
from headrace.engine.step import Draw
from headrace.errors import DeviceError, HeadraceError, RequestError

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

_STRIDE = 512


class Drawer:
    """What one sequence draws with: parameters, its own random numbers, tokens seen so far.

    It lives from submit to finish and no preemption rewinds it: it advances once per token.
    """

    def __init__(self, request: Request, end_ids: frozenset[int]) -> None:
        s = request.sampling
        self.sampling = s
        self.constraint = request.constraint
        seed = secrets.randbits(63) if s.seed is None else s.seed
        self._uniform = np.random.Generator(np.random.Philox(seed % (1 << 64)))
        self._seen = _Seen(request.tokens if s.repetition_penalty != 1.0 else ())
        self._bias_ids = np.array(list(s.logit_bias), dtype=np.int64)
        self._bias = np.array(list(s.logit_bias.values()), dtype=np.float32)
        ends = s.stop_ids if s.ignore_eos else s.stop_ids | end_ids
        self._ends = np.array(sorted(ends), dtype=np.int64)
        self._drawn = 0
        self._penalized = (
            s.repetition_penalty != 1.0 or s.presence_penalty != 0.0 or s.frequency_penalty != 0.0
        )

    @property
    def plain(self) -> bool:
        """Greedy over the bare logits: nothing to do but to find the largest."""
        return (
            self.sampling.temperature == 0.0
            and self.sampling.logprobs is None
            and self.constraint is None
            and not self._penalized
            and not self._bias_ids.size
            and self._drawn >= self.sampling.min_tokens
        )

    def draw(self, logits: Floats) -> Draw:
        """One token from a row of finite logits [vocab], which is overwritten."""
        self._adjust(logits)
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            raise DeviceError(
                "the model computed logits that are not finite",
                fix="verify the checkpoint; report the prompt if it is sound",
            )
        s = self.sampling
        token = best
        if s.temperature > 0.0:
            token = pick(logits, s, float(self._uniform.random()))
        logprob = None if s.logprobs is None else logprobs(logits, token, s.logprobs)
        self.took(token)
        return Draw(token, logprob)

    def took(self, token: int) -> None:
        """Note a drawn token."""
        self._drawn += 1
        if self._penalized:
            self._seen.add(token)
        if self.constraint is not None:
            self.constraint.accept(token)

    def _adjust(self, logits: Floats) -> None:
        if self._penalized:
            self._penalize(logits)
        if self._bias_ids.size:
            logits[self._bias_ids] += self._bias
        held = logits[self._ends].copy() if self._drawn < self.sampling.min_tokens else None
        if held is not None:
            logits[self._ends] = -np.inf
        if self.constraint is None:
            return
        allowed = unpack(self.constraint.mask(), logits.size)
        if held is not None and not (allowed & np.isfinite(logits)).any():
            # The grammar allows nothing but the end: it outranks min_tokens.
            logits[self._ends] = held
        if not allowed.any():
            raise RequestError(
                "the grammar allows no token here",
                field="response_format",
                expected="a grammar that the model's tokens can spell",
            )
        np.copyto(logits, -np.inf, where=~allowed)

    def _penalize(self, logits: Floats) -> None:
        s, ids, counts = self.sampling, self._seen.ids, self._seen.counts
        x = logits[ids]
        if s.repetition_penalty != 1.0:
            p = np.float32(s.repetition_penalty)
            x = np.where(x > 0, x / p, x * p)
        x -= np.float32(s.presence_penalty) * (counts > 0)
        x -= np.float32(s.frequency_penalty) * counts
        logits[ids] = x


class _Seen:
    """Distinct tokens met, and how often each was drawn (0 = in the prompt only)."""

    def __init__(self, prompt: Iterable[int]) -> None:
        distinct = sorted(set(prompt))
        self._place = {token: i for i, token in enumerate(distinct)}
        self._ids: Ids = np.array(distinct, dtype=np.int64)
        self._counts: Floats = np.zeros(len(distinct), dtype=np.float32)

    @property
    def ids(self) -> Ids:
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> Floats:
        return self._counts[: len(self._place)]

    def add(self, token: int) -> None:
        i = self._place.setdefault(token, len(self._place))
        if i == self._ids.size:
            more = max(64, i)
            self._ids = np.concatenate([self._ids, np.zeros(more, dtype=np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(more, dtype=np.float32)])
        self._ids[i] = token
        self._counts[i] += 1


def sample(
    logits_NV: Floats, drawers: Sequence[Drawer], best: Sequence[int] | None = None
) -> list[Draw]:
    """One draw per row, which is overwritten. A bad row (grammar, not finite) fails alone.

    `best`: each row's largest, the first of equal ones, or -1 for a row that is not finite.
    """
    if best is not None and min(best) >= 0 and all(d.plain for d in drawers):
        for drawer, token in zip(drawers, best, strict=True):
            drawer.took(token)
        return [Draw(token) for token in best]
    return [_guarded(d, row) for d, row in zip(drawers, logits_NV, strict=True)]


def _guarded(drawer: Drawer, row: Floats) -> Draw:
    try:
        return drawer.draw(row)
    except HeadraceError as error:
        return Draw(-1, error=error)


def pick(logits: Floats, s: Sampling, uniform: float) -> int:
    """The token at `uniform` in [0, 1) of the truncated distribution.

    top-k keeps k tokens (of equal ones the lower ids), top-p the fewest that reach that share of
    what top-k kept, min-p those with at least that share of the best token's probability.
    """
    scaled = (logits - logits.max()) / np.float32(max(s.temperature, 1e-6))
    weights = np.exp(scaled)
    if s.top_k == 0 and s.top_p >= 1.0 and s.min_p == 0.0:
        return _invert(weights, uniform)
    kept = _keep(weights, s)
    return int(kept[_invert(weights[kept], uniform)])


def _keep(weights: Floats, s: Sampling) -> Ids:
    """Ids, ascending, that top-k, then top-p, then min-p leave; at least one."""
    ids = _candidates(weights, s)
    inside = weights[ids]
    ranked = np.sort(inside)[::-1]
    keep = min(s.top_k, ranked.size) if s.top_k else ranked.size
    if s.top_p < 1.0:
        sums = ranked[:keep].cumsum(dtype=np.float64)
        mass = float(sums[-1]) if s.top_k else float(weights.sum(dtype=np.float64))
        keep = min(keep, int(np.searchsorted(sums, s.top_p * mass)) + 1)
    if s.min_p > 0.0:
        keep = min(keep, int(np.count_nonzero(ranked >= s.min_p * ranked[0])))
    edge = ranked[max(1, keep) - 1]
    chosen = inside > edge
    ties = np.flatnonzero(inside == edge)
    chosen[ties[: max(1, keep - np.count_nonzero(chosen))]] = True
    kept: Ids = ids[chosen]
    return kept


def _candidates(weights: Floats, s: Sampling) -> Ids:
    """Ids, ascending, among which is everything that `_keep` can keep.

    Almost all of the weight lies in few tokens: only those above a threshold are ranked, which
    falls until they are provably enough.
    """
    mass = float(weights.sum(dtype=np.float64)) if s.top_p < 1.0 and not s.top_k else 0.0
    for threshold in (1e-2, 1e-4, 1e-6):
        ids = np.flatnonzero(weights >= threshold)
        if (
            (s.top_k > 0 and ids.size >= s.top_k)
            or (mass > 0.0 and weights[ids].sum(dtype=np.float64) > s.top_p * mass)
            # Everything min-p can keep is there; top-p after top-k needs all that top-k keeps.
            or (s.min_p >= threshold and not (s.top_k and s.top_p < 1.0))
        ):
            return ids
    return np.arange(weights.size)


def _invert(weights: NDArray[np.float32] | NDArray[np.float64], uniform: float) -> int:
    """Where the running sum passes `uniform` of the total; never an index of weight 0."""
    if weights.size > 2 * _STRIDE:
        # A running sum over a whole vocabulary takes 2.6 ms; one over sums of its pieces 0.1 ms.
        edges = np.arange(0, weights.size, _STRIDE)
        sums = np.add.reduceat(weights, edges).cumsum(dtype=np.float64)
        piece = _pass(sums, uniform * sums[-1])
        before = sums[piece - 1] if piece else 0.0
        first, target = piece * _STRIDE, uniform * sums[-1] - before
        return first + _pass(weights[first : first + _STRIDE].cumsum(dtype=np.float64), target)
    sums = weights.cumsum(dtype=np.float64)
    return _pass(sums, uniform * sums[-1])


def _pass(sums: NDArray[np.float64], target: float) -> int:
    """The first index whose running sum exceeds `target`, or, if rounding hid it, the last rise."""
    i = int(np.searchsorted(sums, target, side="right"))
    return i if i < sums.size else int(np.searchsorted(sums, sums[-1], side="left"))


def logprobs(logits: Floats, token: int, top: int) -> Logprob:
    """Natural log probabilities of `token` and of the `top` best, best first (ties: lower id)."""
    peak = logits.max()
    total = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    best: tuple[tuple[int, float], ...] = ()
    if top:
        top = min(top, logits.size)
        edge = np.partition(logits, logits.size - top)[logits.size - top]
        ids = np.flatnonzero(logits >= edge)
        ids = ids[np.argsort(-logits[ids], kind="stable")[:top]]
        # What a mask forbids has no place among the best, and no finite number to show.
        best = tuple((int(i), float(logits[i]) - total) for i in ids if logits[i] > -np.inf)
    return Logprob(token, float(logits[token]) - total, best)


def unpack(mask: NDArray[np.int32], vocab: int) -> NDArray[np.bool_]:
    """Bit `i % 32` of word `i // 32` for each token; tokens beyond the mask are not allowed."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little", count=min(vocab, mask.size * 32))
    allowed = np.zeros(vocab, dtype=np.bool_)
    allowed[: bits.size] = bits
    return allowed
