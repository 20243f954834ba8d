"""Routers on the native pool."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace._native import Pool
from headrace.ops.table import Router, Routing


class NativeRoute:
    """Ids best first, equal scores to the lower id."""

    def __init__(self, pool: Pool) -> None:
        self._run = pool.route

    def __call__(
        self,
        logits_TE: Tensor,
        bias_E: Tensor | None,
        router: Router,
        scales_E: Tensor | None = None,
    ) -> Routing:
        logits_TE = logits_TE.contiguous()
        tokens, experts = logits_TE.shape
        ids = torch.empty(tokens, router.top_k, dtype=torch.int32)
        weights = torch.empty(tokens, router.top_k)
        self._run(
            logits=logits_TE.data_ptr(),
            tokens=tokens,
            experts=experts,
            top_k=router.top_k,
            score=int(router.score),
            bias=0 if bias_E is None else bias_E.data_ptr(),
            groups=router.groups,
            keep_groups=router.keep_groups,
            renormalize=router.renormalize,
            renorm_eps=router.renorm_eps,
            scale=router.scale,
            group_best=router.group_best,
            scales=0 if scales_E is None else scales_E.data_ptr(),
            ids=ids.data_ptr(),
            weights=weights.data_ptr(),
        )
        return Routing(ids, weights)
