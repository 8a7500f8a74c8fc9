"""What a client's message tells of its gradient: inner products with directions that everybody
knows, or all of it.

Ferret                      gamma_l = V_l^T Delta_l / (rho_l K_l),  Delta = eta g after one step of
plain SGD
FedKSeed, ZO-FedSGD, MeZO   rho_j = z_j . g, up to the finite difference
FeedSign                    vote_j = sign(z_j . g)
FedSGD, FedAvg              g; w - w_k = eta g
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import RecipeError
from fedseed.methods.dense import Weights
from fedseed.methods.fedkseed import Pairs
from fedseed.methods.fedsgd import Gradient
from fedseed.methods.feedsign import Votes
from fedseed.methods.ferret import Coefficients
from fedseed.methods.payload import to_floats
from fedseed.randomness import Basis
from fedseed.weights.layout import ITEM_BYTES, Layout

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Observation:
    """What a message tells.

    Args:
        directions: shape (K, d); None: `values` are the gradient itself.
        values: V^T g, shape (K,); of votes their signs; or g, shape (d,).
        votes: whether signs alone are known.
    """

    directions: NDArray[np.float32] | None
    values: Array
    votes: bool = False

    @property
    def count(self) -> int:
        """Return K, how many numbers were told."""
        return len(self.values)


@dataclass(frozen=True)
class Known:
    """What the coordinator knows besides the message.

    Args:
        method: the method.
        state: the state before the round.
        plan: the round's plan.
        round: its number.
        weights: at which the round began, as bytes (`ParameterSpace.dense`).
    """

    method: Any
    state: Any
    plan: Any
    round: int
    weights: bytes

    @property
    def layout(self) -> Layout:
        """Return the vector of parameters."""
        layout: Layout = self.state.layout
        return layout


@singledispatch
def observed(payload: Any, knowledge: Known) -> Observation:
    """Return what an update tells of the client's gradient.

    Args:
        payload: the update, decoded.
        knowledge: what is known besides.

    Raises:
        RecipeError: no attack is known for such messages.
    """
    raise RecipeError(
        f'audit reconstruct: no attack is known for messages of "{knowledge.method.name}"'
    )


@observed.register
def _(payload: Coefficients, knowledge: Known) -> Observation:
    method, layout = knowledge.method, knowledge.layout
    basis, rows, values = method.directions_of(payload.seed), [], []
    for (a, b), gamma in zip(pairwise(layout.boundaries), payload.gammas, strict=True):
        own = np.zeros((len(gamma), layout.size), dtype=np.float32)
        own[:, a:b] = directions(basis, range(len(gamma)), layout, a, b)
        scale = (
            basis.variance(b - a)
            * len(gamma)
            / method.training.for_round(knowledge.round).learning_rate
        )
        rows.append(own)
        values.append(scale * gamma.astype(np.float64))
    return Observation(np.concatenate(rows), np.concatenate(values))


@observed.register
def _(payload: Pairs, knowledge: Known) -> Observation:
    basis = knowledge.method.directions(knowledge.plan.seed)
    along = directions(basis, payload.indices.tolist(), knowledge.layout, 0, knowledge.layout.size)
    return Observation(along, payload.scalars.astype(np.float64))


@observed.register
def _(payload: Votes, knowledge: Known) -> Observation:
    basis = knowledge.method.directions(knowledge.state.seed)
    along = directions(
        basis, knowledge.method.indices(knowledge.round), knowledge.layout, 0, knowledge.layout.size
    )
    return Observation(along, payload.signs.astype(np.float64), votes=True)


@observed.register
def _(payload: Gradient, knowledge: Known) -> Observation:
    return Observation(None, _vector(payload.data, knowledge.layout))


@observed.register
def _(payload: Weights, knowledge: Known) -> Observation:
    step_vector = _vector(knowledge.weights, knowledge.layout) - _vector(
        payload.data, knowledge.layout
    )
    return Observation(
        None, step_vector / knowledge.method.training.for_round(knowledge.round).learning_rate
    )


def directions(
    basis: Basis, indices: Sequence[int], layout: Layout, start: int, stop: int
) -> NDArray[np.float32]:
    """Return directions as rows, shape (len(indices), stop - start)."""
    return np.stack(
        [basis.direction(k, start, stop, stop - start, layout.matrices) for k in indices]
    )


def _vector(data: bytes, layout: Layout) -> Array:
    """Return all tensors as one vector, shape (d,)."""
    parts, position = [], 0
    for entry in layout.tensors:
        size = entry.size * ITEM_BYTES[entry.dtype]
        parts.append(to_floats(data[position : position + size], entry.dtype).astype(np.float64))
        position += size
    return np.concatenate(parts)
