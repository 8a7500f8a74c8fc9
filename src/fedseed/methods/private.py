"""What `[privacy]` does to what a client sends: private estimates of examples, and vectors that are short enough.

    d_ij  = l(w + eps z_j; x_i) - l(w - eps z_j; x_i)      of example i along direction j, over its own terms
    rho_j = [sum_i d_ij + noise] / (2 eps B)                each (d_i1, ..., d_in) at most `clip` long

B is the recipe's batch, however many examples were drawn: that is nobody's secret.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from fedseed.errors import NonFiniteError
from fedseed.methods.base import Answer, Answers, Method
from fedseed.methods.client import Client
from fedseed.methods.zeroth import Projection, ZerothOrder
from fedseed.privacy import PrivateScalars
from fedseed.privacy.scalars import bounded
from fedseed.randomness import Basis
from fedseed.weights.change import Floats

NO_SUM = "noise goes to the sum of what clients send, and along directions of their own there is none"


def answering(method: Method) -> AbstractContextManager[None, bool]:
    """Inside, what is not finite ends nothing but the block where clients are protected: silence would tell."""
    return suppress(*((NonFiniteError,) if method.level == "client" else ()))


def private_estimates(
    method: ZerothOrder, client: Client, basis: Basis, along: Sequence[int], items: Sequence[Any], one_sided: bool
) -> list[Projection]:
    """Private estimates along some directions, all on the same examples: one noisy vector.

    An example whose loss is not finite counts as one that no direction changes.

    Args:
        method: the method and its settings.
        client: the client.
        basis: where the directions come from.
        along: their indices.
        items: the examples that were drawn; there may be none.
        one_sided: d_ij = l(w + eps z_j; x_i) - l(w; x_i).

    Returns:
        An estimate for each direction; no losses are told.
    """
    mechanism = method.privacy
    assert isinstance(mechanism, PrivateScalars)
    scale = method.scale
    with client.autocast(method.autocast):
        plus = [client.example_losses(basis, k, scale, items) for k in along]
        if one_sided:
            minus = [client.example_losses(basis, 0, 0.0, items)] * len(along)
        else:
            minus = [client.example_losses(basis, k, -scale, items) for k in along]
    with np.errstate(invalid="ignore"):
        differences = np.array(plus, dtype=np.float64) - np.array(minus, dtype=np.float64)
    width = (scale if one_sided else 2 * scale) * method.batch
    rho = mechanism.noisy_sum(list(differences.T), len(along)) / width
    return [Projection(value, 0.0) for value in rho.astype(np.float32).tolist()]


def shortened(method: Method, scalars: Floats, by: float = 1.0) -> Floats:
    """What a client sends, `by` times `privacy.clip` long at most where clients are protected.

    The coordinator shortens it, too: an honest client is not surprised by that.
    """
    if method.private is None or method.level != "client":
        return scalars
    return (by * bounded(scalars / by, method.private.clip)).astype(np.float32)


def shortened_blocks(method: Method, blocks: Sequence[Floats]) -> list[Floats]:
    """The same for a vector that comes in blocks."""
    if method.level != "client":
        return list(blocks)
    joined = shortened(method, np.concatenate(blocks))
    return np.split(joined, np.cumsum([len(block) for block in blocks])[:-1])


def noisy(answers: Answers, by: float) -> Answers:
    """Answers of clients that have directions of their own: each one's `scalars`, noise added where `noise` says so.

    Args:
        answers: the answers.
        by: what bounded scalars are multiplied by before they are sent.
    """
    if answers.noise is None:
        return answers
    made = []
    for client, weight, update in answers:
        scalars = by * answers.noise.mean([update.scalars / by], 1)
        made.append(Answer(client, weight, replace(update, scalars=scalars.astype(np.float32))))
    return replace(answers, answers=tuple(made))
