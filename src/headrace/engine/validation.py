"""Whether a request can be served at all; what stands against it is told in numbers. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.request import Request, Sampling
from headrace.errors import CapacityError, RequestError

MAX_LOGPROBS = 1024


def check_request(request: Request, *, vocab: int, context: int) -> None:
    """Raises RequestError (malformed) or CapacityError (longer than the context)."""
    check_tokens(request.tokens, vocab=vocab, context=context, answer=1)
    _check_sampling(request.sampling, vocab)


def check_tokens(tokens: Sequence[int], *, vocab: int, context: int, answer: int) -> None:
    """Known token ids, at least one, that leave room for so many tokens of an answer."""
    if not tokens:
        raise RequestError("an empty prompt", field="tokens", expected="at least one token")
    if min(tokens) < 0 or max(tokens) >= vocab:
        bad = next(t for t in tokens if not 0 <= t < vocab)
        raise RequestError(
            f"the prompt holds token {bad}", field="tokens", expected=f"token ids 0 to {vocab - 1}"
        )
    most = context - answer
    if len(tokens) > most:
        raise CapacityError(
            f"the prompt has {len(tokens)} tokens",
            expected=f"at most {most}, since the context is {context} tokens, answer included",
            fix="shorten the prompt or start the engine with a larger context",
        )


def output_limit(request: Request, context: int) -> int:
    """Tokens, prompt included, at which the sequence ends."""
    most = request.sampling.max_tokens
    return context if most is None else min(context, len(request.tokens) + most)


def _check_sampling(s: Sampling, vocab: int) -> None:
    def within(name: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:  # also false for NaN
            raise RequestError(
                f"{name} = {value}", field=name, expected=f"a number from {low:g} to {high:g}"
            )

    within("temperature", s.temperature, 0.0, 100.0)
    within("top_k", s.top_k, 0, 1 << 31)
    within("top_p", s.top_p, 0.0, 1.0)
    within("min_p", s.min_p, 0.0, 1.0)
    within("repetition_penalty", s.repetition_penalty, 0.01, 100.0)
    within("presence_penalty", s.presence_penalty, -100.0, 100.0)
    within("frequency_penalty", s.frequency_penalty, -100.0, 100.0)
    within("min_tokens", s.min_tokens, 0, 1 << 31)
    if s.max_tokens is not None:
        within("max_tokens", s.max_tokens, 1, 1 << 31)
        if s.min_tokens > s.max_tokens:
            raise RequestError(
                f"min_tokens = {s.min_tokens}",
                field="min_tokens",
                expected=f"at most max_tokens = {s.max_tokens}",
            )
    if s.logprobs is not None:
        within("logprobs", s.logprobs, 0, MAX_LOGPROBS)
    for name, ids in (("logit_bias", s.logit_bias), ("stop_ids", s.stop_ids)):
        for token in ids:
            if not 0 <= token < vocab:
                raise RequestError(
                    f"{name} names token {token}",
                    field=name,
                    expected=f"token ids 0 to {vocab - 1}",
                )
    for token, bias in s.logit_bias.items():
        within(f"logit_bias[{token}]", bias, -1000.0, 1000.0)


def check_load(load: int, max_sequences: int, max_queued: int) -> None:
    """Raises CapacityError where no more requests are taken."""
    if load >= max_sequences + max_queued:
        raise CapacityError(
            f"{load} requests are running or queued",
            expected=f"at most {max_sequences + max_queued} ({max_sequences} running, "
            f"{max_queued} queued)",
            fix="try again later",
            # No answer is shorter than about a second; a longer queue empties more slowly.
            retry_s=float(max(1, load // max_sequences)),
        )
