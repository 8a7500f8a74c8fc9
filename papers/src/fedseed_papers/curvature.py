"""The Hessian of a model's loss: its largest eigenvalue, its trace, and steps that feel it.

Products with the Hessian are derivatives of a gradient's product, so that it is never made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedseed.federation.client.worker import Worker
from fedseed_papers.theorems import descent_factor

PROBES = 64
ITERATIONS = 40


@dataclass(frozen=True)
class Curvature:
    """What is known of a loss around some weights.

    Args:
        worker: who has the model.
        items: examples whose mean loss it is.
        gradient: of that loss, shape (d,).
        largest: the Hessian's largest eigenvalue.
        trace: its trace.
        seed: of probes and directions.
    """

    worker: Worker
    items: Sequence[Any]
    gradient: torch.Tensor
    largest: float
    trace: float
    seed: int

    @classmethod
    def measure(cls, worker: Worker, items: Sequence[Any], seed: int) -> "Curvature":
        """Measure the curvature of the mean loss of some examples at the worker's weights."""
        parameters = worker.space.parameters
        was_trained = [p.requires_grad for p in parameters]
        for p in parameters:
            p.requires_grad_(True)
        random = torch.Generator().manual_seed(seed)
        with torch.enable_grad():
            grads = torch.autograd.grad(
                mean_loss(worker, items), list(parameters), create_graph=True
            )
            gradient = torch.cat([g.reshape(-1) for g in grads])
            probes = [random_signs(len(gradient), random) for _ in range(PROBES)]
            trace = sum(float(z @ product(gradient, parameters, z)) for z in probes) / PROBES
            v = torch.randn(len(gradient), generator=random)
            for _ in range(ITERATIONS):
                v = product(gradient, parameters, v / v.norm())
        for p, trained in zip(parameters, was_trained, strict=True):
            p.requires_grad_(trained)
        return cls(worker, items, gradient.detach(), float(v.norm()), trace, seed)

    @property
    def rank(self) -> float:
        """Return the effective rank, tr H / |H|."""
        return self.trace / self.largest

    def descent_over_bound(self, directions: int) -> float:
        """Return the mean fall of the loss by a step at the rate 1 / (L zeta), over what FeedSign's
        Lemma 3.9 promises, |grad|^2 / (2 L zeta).

        Args:
            directions: how many steps are tried, each from the same weights.
        """
        zeta = descent_factor(len(self.gradient), self.rank)
        rate = 1 / (self.largest * zeta)
        promised = rate * float(self.gradient @ self.gradient) / 2
        space, random = self.worker.space, torch.Generator().manual_seed(self.seed)
        start = torch.cat([p.detach().reshape(-1) for p in space.parameters]).clone()
        with torch.no_grad():
            loss_before = float(mean_loss(self.worker, self.items))
            total = 0.0
            for _ in range(directions):
                z = torch.randn(len(start), generator=random)
                step = rate * float(z @ self.gradient) * z
                torch.nn.utils.vector_to_parameters(start - step, space.parameters)
                total += loss_before - float(mean_loss(self.worker, self.items))
            torch.nn.utils.vector_to_parameters(start, space.parameters)
        return total / directions / promised


def mean_loss(worker: Worker, items: Sequence[Any]) -> torch.Tensor:
    """Return the mean loss of some examples, each weighted by its terms."""
    losses = worker.objective.losses(worker.space.model, list(items))
    return losses.double().sum() / sum(worker.objective.weight(item) for item in items)


def random_signs(length: int, random: torch.Generator) -> torch.Tensor:
    """Return random signs, shape (length,)."""
    return torch.randint(0, 2, (length,), generator=random).float() * 2 - 1


def product(
    gradient: torch.Tensor, parameters: Sequence[torch.nn.Parameter], v: torch.Tensor
) -> torch.Tensor:
    """Return H v, from a gradient that can be differentiated."""
    hessian_product = torch.autograd.grad(
        gradient @ v.to(gradient.dtype), parameters, retain_graph=True
    )
    return torch.cat([f.reshape(-1) for f in hessian_product]).detach()
