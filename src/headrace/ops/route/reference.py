"""Routers in plain PyTorch: which experts a token goes to, and with what weight."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.ops.table import Router, Routing, Score


def route(
    logits_TE: Tensor, bias_E: Tensor | None, router: Router, scales_E: Tensor | None = None
) -> Routing:
    """Chooses by score + bias, weighs by the score alone (arXiv 2412.19437, section 2.1.2).

    Groups: the score of a group is the sum of its two best, or its best alone; only the best
    `keep_groups` stay. Equal scores go to the lower id, and ids come best first. `scales_E`: times
    the weights, by expert.
    """
    logits = logits_TE.float()
    scores = {
        Score.SOFTMAX: lambda: torch.softmax(logits, -1),
        Score.SOFTMAX_OF_TOP_K: lambda: logits,
        Score.SIGMOID: lambda: torch.sigmoid(logits),
    }[router.score]()
    choice = scores if bias_E is None else scores + bias_E
    if router.groups > 1:
        grouped = choice.view(choice.shape[0], router.groups, -1)
        best_two = grouped.topk(min(router.group_best, grouped.shape[-1]), -1).values.sum(-1)
        kept = best_two.argsort(dim=-1, descending=True, stable=True)[:, : router.keep_groups]
        dropped = torch.ones_like(best_two, dtype=torch.bool).scatter_(1, kept, False)
        choice = grouped.masked_fill(dropped[..., None], -torch.inf).flatten(1)
    ids = choice.argsort(dim=-1, descending=True, stable=True)[:, : router.top_k]
    weights = scores.gather(1, ids)
    if router.score == Score.SOFTMAX_OF_TOP_K:
        weights = torch.softmax(weights, -1)
    if router.renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + router.renorm_eps)
    weights = weights * router.scale
    return Routing(ids.to(torch.int32), weights if scales_E is None else weights * scales_E[ids])
