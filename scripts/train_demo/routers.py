"""Starting point of the routers: a linear guess of domain and token kind, layer by layer.

Target of a token: SHARE on the expert of its domain, the rest on the expert of its cluster among
all tokens of that layer (k-means). A multinomial regression learns it, so where the domain cannot
be seen yet, as in early layers, token kinds decide; later the domain does.
"""

import torch
from torch import Tensor
from torch.nn import functional as nnf

from train_demo.model import EXPERTS

SHARE = 0.6
DECAY = 1e-4


def initial_router(x_TH: Tensor, domain_T: Tensor, generator: torch.Generator) -> Tensor:
    """Router [E, H] for one layer from its inputs and their domain numbers (at most E of them)."""
    x = x_TH.float()
    place = torch.randperm(EXPERTS, generator=generator)
    kinds = clusters(x, domain_T, generator)
    target = SHARE * nnf.one_hot(place[domain_T], EXPERTS)
    target = target + (1 - SHARE) * nnf.one_hot(kinds, EXPERTS)
    scale = x.std(0, correction=0) + 1e-3
    weight = torch.zeros(EXPERTS, x.shape[1], requires_grad=True)
    solver = torch.optim.LBFGS([weight], max_iter=60, history_size=8, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = nnf.cross_entropy((x / scale) @ weight.T, target) + DECAY * weight.square().sum()
        loss.backward()
        return loss

    solver.step(closure)
    return (weight / scale).detach()


def clusters(x_TH: Tensor, domain_T: Tensor, generator: torch.Generator) -> Tensor:
    """K-means labels [T] of directions after each domain's mean is taken away."""
    means = torch.stack([x_TH[domain_T == d].mean(0) for d in range(int(domain_T.max()) + 1)])
    x = nnf.normalize((x_TH - means[domain_T]) / (x_TH.std(0) + 1e-3), dim=-1)
    centre = x[torch.randperm(len(x), generator=generator)[:EXPERTS]]
    for _ in range(20):
        label = (x @ centre.T).argmax(-1)
        sums = torch.zeros_like(centre).index_add_(0, label, x)
        centre = nnf.normalize(sums, dim=-1)
    return (x @ centre.T).argmax(-1)
