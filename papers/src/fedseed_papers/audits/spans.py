"""Which of many known inputs a linear layer had, from what is known of its gradient.

With x_t the inputs of a layer W and delta_t what the loss says of its outputs,

    dl/dW = sum_t delta_t x_t^T        so the rows of the gradient lie in the span of the inputs

Two attacks ask which candidates, such as the embeddings of all tokens, are in there:

    span      how much of a candidate is left outside the span of the rows: nothing, if it was an
              input and the rows do not span the whole space
    pursuit   orthogonal matching pursuit: pick the candidate that explains most of the gradient,
              take away what the chosen ones explain together, and so on. It needs no exact
              gradient and no deficient rank

Where B = dl/dW P^T is known, for a known P, the same holds of B and of the projected inputs P x_t.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# singular values below this share of the largest count as zero: rounding leaves 1e-7 in float32
SMALLEST = 1e-5


@dataclass(frozen=True)
class LayerGradient:
    """What is known of one layer's gradient, and what the candidates would look like in it.

    Args:
        rows: the gradient's rows, shape (outputs, n); n is the number of inputs, or r after a
            projection onto r directions.
        candidates: one row each, shape (candidates, n).
    """

    rows: Array
    candidates: Array

    @cached_property
    def directions(self) -> Array:
        """Return the candidates at length 1; a candidate of length 0 stays."""
        lengths = np.linalg.norm(self.candidates, axis=1, keepdims=True)
        directions: Array = self.candidates / np.where(lengths == 0, 1, lengths)
        return directions


def row_space(rows: Array) -> Array:
    """Return an orthonormal basis of the span of rows, shape (rank, n)."""
    _, values, basis = np.linalg.svd(rows, full_matrices=False)
    rank = int((values > SMALLEST * values[0]).sum()) if len(values) and values[0] > 0 else 0
    orthonormal: Array = basis[:rank]
    return orthonormal


def residuals(layers: Sequence[LayerGradient]) -> Array:
    """Return how much of each candidate is outside the span of the rows, from 0 to 1.

    A layer whose rows span everything says nothing; several layers are averaged.

    Returns:
        Shape (candidates,); all 1 if no layer says anything.
    """
    outside = []
    for layer in layers:
        basis = row_space(layer.rows)
        if 0 < len(basis) < layer.rows.shape[1]:
            inside = np.square(layer.directions @ basis.T).sum(axis=1)
            outside.append(np.sqrt(np.clip(1 - inside, 0, 1)))
    if not outside:
        return np.ones(len(layers[0].candidates))
    return np.asarray(np.mean(outside, axis=0))


def pick_by_span(layers: Sequence[LayerGradient], count: int, allowed: Sequence[int]) -> list[int]:
    """Return the candidates that are the least outside the span; none if the span says nothing.

    Args:
        layers: what is known.
        count: how many to pick.
        allowed: the candidates there are.
    """
    outside = residuals(layers)
    if (outside == 1).all():
        return []
    order = sorted(allowed, key=lambda candidate: outside[candidate])
    return order[:count]


def pick_by_pursuit(
    layers: Sequence[LayerGradient], count: int, allowed: Sequence[int], certain: Sequence[int] = ()
) -> list[int]:
    """Return candidates in the order in which pursuit picks them.

    Args:
        layers: what is known; a candidate explains all of them at once.
        count: how many to pick; fewer, if nothing is left to explain.
        allowed: the candidates there are.
        certain: candidates that are inputs for certain, such as the words of a template: what they
            explain is taken away first.
    """
    numbers = np.array(list(allowed))
    limit = min(layer.rows.shape[1] for layer in layers) - 1
    explained = list(certain)[:limit]
    residual_rows = [_without(layer, explained) for layer in layers]
    choices: list[int] = []
    is_picked = np.zeros(len(numbers), dtype=bool)
    while len(choices) < min(count, len(numbers)):
        gains = np.zeros(len(numbers))
        for layer, rows in zip(layers, residual_rows, strict=True):
            gains += np.square(layer.directions[numbers] @ rows.T).sum(axis=1)
        gains[is_picked] = -1
        best = int(gains.argmax())
        if gains[best] <= 0:
            break
        is_picked[best] = True
        choices.append(int(numbers[best]))
        # as many candidates as dimensions would explain everything: later picks go by the rest
        # that is left before
        if len(explained) < limit:
            explained.append(choices[-1])
            residual_rows = [_without(layer, explained) for layer in layers]
    return choices


def _without(layer: LayerGradient, explained: Sequence[int]) -> Array:
    """Return a layer's rows without what some candidates explain together."""
    if not explained:
        return layer.rows
    basis = np.linalg.qr(layer.directions[list(explained)].T)[0]
    residual: Array = layer.rows - (layer.rows @ basis) @ basis.T
    return residual


def similarity(a: Array, b: Array) -> float:
    """Return the cosine of two vectors; 0 if one of them is zero."""
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


def rank_share(members: Sequence[float], others: Sequence[float]) -> float:
    """Return the probability that a member scores above another (area under the curve).

    Ties count half; 0.5 is chance.
    """
    differences = np.subtract.outer(np.asarray(members), np.asarray(others))
    return float(np.mean((1 + np.sign(differences)) / 2))
