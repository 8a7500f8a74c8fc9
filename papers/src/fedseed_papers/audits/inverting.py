"""From inner products to the gradient, and from a gradient to the example behind it.

Linear inversion knows the directions alone: the shortest g with V^T g as it was told. It is exact
once K directions span the space. A softmax layer's gradient of one example is then an open book:
with p the probabilities, y the label and x the layer's input,

    dl/db = p - e_y,    dl/dW = (p - e_y) x^T    the label is where dl/db is negative; x = dl/dW^T
    dl/db / |dl/db|^2

Matching also knows the model: it looks for the picture and the label whose gradient has the inner
products that were told, as Zhu, Liu, Han ("Deep Leakage from Gradients", NeurIPS 2019) do with a
whole gradient. K need only outnumber the pixels then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import log_softmax

from fedseed.weights.layout import Layout
from fedseed_papers.audits.observing import Array, Observation

# pixel values, class probabilities -> g, shape (d,)
GradientOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
STEPS = 300
# entries of directions that are inverted as they are; of more, their inner products
DIRECT = 1 << 22
PIECE = 1 << 14  # elements of each direction that are held in double precision then
RATE = 0.1


def estimated_gradient(observation: Observation) -> Array:
    """g, shape (d,): the shortest with these inner products; of votes its direction.

    Or as it was told.
    """
    if observation.directions is None:
        return observation.values
    along = observation.directions
    if observation.votes:
        return np.asarray(
            (observation.values.astype(np.float32) @ along).astype(np.float64)
            / len(observation.values)
        )
    if along.size <= DIRECT or len(along) >= along.shape[1]:
        solution: Array = np.asarray(
            np.linalg.lstsq(along.astype(np.float64), observation.values, rcond=1e-6)[0], np.float64
        )
        return solution
    gram = np.zeros((len(along), len(along)))
    for begin in range(0, along.shape[1], PIECE):
        piece = along[:, begin : begin + PIECE].astype(np.float64)
        gram += piece @ piece.T
    return (
        np.linalg.lstsq(gram, observation.values, rcond=None)[0].astype(np.float32) @ along
    ).astype(np.float64)


def relative_error(estimate: Array, true: Array) -> float:
    """|found - true| / |true|; 1 for a guess of zero."""
    return float(np.linalg.norm(estimate - true) / np.linalg.norm(true))


@dataclass(frozen=True)
class SoftmaxLayer:
    """Where the last layer's parameters lie in the vector.

    Args:
        weight: of W, shape (classes, inputs).
        bias: of b, shape (classes,).
        classes: how many.
    """

    weight: slice
    bias: slice
    classes: int

    def opened(self, gradient: Array) -> tuple[int, Array]:
        """Return the label, and the layer's input, shape (inputs,), by a gradient of one
        example.
        """
        bias = gradient[self.bias]
        weight = gradient[self.weight].reshape(self.classes, -1)
        square = float(bias @ bias)
        return int(bias.argmin()), weight.T @ bias / (square or 1.0)


def last_layer(layout: Layout) -> SoftmaxLayer | None:
    """The softmax layer of a classifier: the last matrix that trains, with a bias behind it.

    None: there is none.
    """
    position, previous = 0, None
    layer_slices = None
    for entry in layout.tensors:
        span = slice(position, position + entry.size)
        if (
            previous is not None
            and len(entry.shape) == 1
            and len(previous[0].shape) == 2
            and entry.shape[0] == previous[0].shape[0]
        ):
            layer_slices = SoftmaxLayer(previous[1], span, entry.shape[0])
        position, previous = span.stop, (entry, span)
    return layer_slices


def match(
    observation: Observation,
    gradient_of: GradientOf,
    low: torch.Tensor,
    high: torch.Tensor,
    classes: int,
    start: torch.Tensor,
    steps: int = STEPS,
) -> tuple[NDArray[np.float32], list[int], float]:
    """Look for pictures and labels whose gradient was seen.

    Args:
        observation: what was told.
        gradient_of: the model's gradient, differentiable.
        low: the pixel values of black pictures, shape (B, channels, height, width).
        high: those of white ones.
        classes: how many.
        start: where the search begins: pictures from 0 (black) to 1 (white), in the shape of `low`.
        steps: of Adam, at a rate that falls to zero.

    Returns:
        Pictures as `start` has them, their labels, and what is left of |V^T g - told|^2 / |told|^2
        (votes: 1 - cosine).
    """
    picture = torch.logit(start, eps=0.02).requires_grad_()
    label = torch.zeros(len(low), classes).requires_grad_()
    target = torch.from_numpy(observation.values).float()
    along = None
    if observation.directions is not None:
        along = torch.from_numpy(observation.directions)
    adam = torch.optim.Adam([picture, label], lr=RATE)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    distance = 1.0
    for _ in range(steps):
        gradient = gradient_of(low + (high - low) * torch.sigmoid(picture), torch.softmax(label, 1))
        mine = gradient
        if along is not None:
            mine = along @ gradient
        if observation.votes:  # their length is not known
            miss = 1 - torch.nn.functional.cosine_similarity(mine, target, dim=0)
        else:
            miss = (mine - target).square().sum() / target.square().sum()
        # the model's own are left alone
        picture.grad, label.grad = torch.autograd.grad(miss, (picture, label))
        adam.step()
        plan.step()
        distance = float(miss.detach())
    return torch.sigmoid(picture).detach().numpy(), label.argmax(1).tolist(), distance


def gradient_by(model: torch.nn.Module, parameters: list[torch.nn.Parameter]) -> GradientOf:
    """Return the gradient of the mean cross-entropy of an image classifier, differentiable in
    pictures and labels.
    """

    def gradient_of(values: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        output: Any = model(pixel_values=values)
        loss = -(label * log_softmax(output.logits.float(), 1)).sum(1).mean()
        parts = torch.autograd.grad(loss, parameters, create_graph=True)
        return torch.cat([part.reshape(-1) for part in parts])

    return gradient_of
