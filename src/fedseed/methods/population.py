"""Estimates along many directions in one pass over a batch, each on a part of the batch of its own.

    rho_j = [l(w + eps z_j; X_j) - l(w - eps z_j; X_j)] / (2 eps)     j = 1..n, X = X_1 + ... + X_n, equally large
    g     = (1 / n) sum_j rho_j z_j

With one direction a batch, g's noise is about d |mean g_i|^2 however large the batch is; with one for each of n parts,
(d / n) mean |g_j|^2, of the parts' gradients g_j. So it pays where parts of a batch have gradients that agree, and an
estimate of a batch costs the same two passes. Evaluating rows at weights of their own: Sarkar et al., "Evolution
Strategies at the Hyperscale", arXiv 2511.16652; with "lowrank" directions it takes one pass
(`fedseed.weights.perturbed_rows`), with others one for each part, over that part alone.
"""

from collections.abc import Sequence
from math import nan
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from fedseed.errors import NonFiniteError
from fedseed.methods.client import Client
from fedseed.methods.payload import Floats
from fedseed.methods.zeroth import Projection, ZerothOrder
from fedseed.randomness import Basis

MOST = 1 << 16  # directions of one step


class Population(ZerothOrder):
    """What a method takes that can look along many directions with the passes of one.

    Args (besides those of `ZerothOrder`):
        population: n, directions of an estimate, each on a part of `batch` / n examples; two passes in all. One pass
            for all of them takes basis = "lowrank"; with other bases each part has passes of its own.
    """

    population: Annotated[int, Field(ge=1, le=MOST)] = 1

    @model_validator(mode="after")
    def _parts_are_equal(self) -> "Population":
        if self.batch % self.population:
            raise ValueError(
                f"population = {self.population} does not divide batch = {self.batch}: each direction has an equal "
                "part of the batch"
            )
        return self

    def measured(
        self, client: Client, basis: Basis, along: Sequence[int], items: Sequence[Any], one_sided: bool = False
    ) -> list[Projection]:
        """The estimates along some directions, a population of n after the other, each on all of `items`.

        In a population, an estimate that is not usable is 0, its loss is NaN, and it is counted as skipped.

        Args:
            client: the client.
            basis: where the directions come from.
            along: their indices, a multiple of n.
            items: a batch of n equal parts.
            one_sided: one-point estimates, with one more pass for all of them together; else two-point ones.

        Raises:
            NonFiniteError: no estimate of a population is usable.
        """
        n = self.population
        if n == 1:
            return super().measured(client, basis, along, items, one_sided)
        groups = [along[at : at + n] for at in range(0, len(along), n)]
        found: list[Projection] = []
        here: list[float] = []
        for group in groups:
            with client.autocast(self.autocast):
                plus = client.population_losses(basis, group, self.scale, items)
                if not one_sided:
                    minus = client.population_losses(basis, group, -self.scale, items)
                else:
                    minus = here = here or client.population_losses(basis, group, 0.0, items)
            found += self._usable(client, plus, minus, self.scale if one_sided else 2 * self.scale)
        return found

    def _usable(self, client: Client, plus: Sequence[float], minus: Sequence[float], width: float) -> list[Projection]:
        """The quotients of a population."""
        found, usable, reasons = [Projection(0.0, nan)] * len(plus), [], []
        for number, pair in enumerate(zip(plus, minus, strict=True)):
            try:
                self.check_pair(*pair)
                usable.append(number)
            except NonFiniteError as error:
                reasons.append(str(error))
        if not usable:
            raise NonFiniteError(f"of {len(found)} parts of the batch none was usable: {reasons[-1]}")
        for reason in reasons:
            client.skip(reason)
        quotients = self.quotients([plus[i] for i in usable], [minus[i] for i in usable], width)
        for number, one in zip(usable, quotients, strict=True):
            found[number] = one
        return found


def shares(found: Sequence[Projection]) -> Floats:
    """rho_j / n of each of n estimates, float32, shape (n,)."""
    return np.array([one.rho / len(found) for one in found], dtype=np.float32)
