"""Vectors and their reconstructions from random directions, as Ferret's figures compare them."""

from collections.abc import Callable, Sequence
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from fedseed.randomness import Basis, kernels
from fedseed.randomness.kernels.reference import Part
from fedseed.reports.charts import Series

Vector = NDArray[np.float64]


def direction(basis: Basis, k: int, length: int) -> Vector:
    """Return direction k, shape (length,), in double precision."""
    return basis.direction(k, 0, length, length).astype(np.float64)


def projected(basis: Basis, vector: Vector, count: int, blocks: int = 1) -> list[Vector]:
    """gamma_l = (rho_l K_l)^-1 V_l^T Delta_l (Ferret, Eq. 8), K and d shared out evenly.

    Args:
        basis: of the directions.
        vector: Delta, shape (d,).
        count: K, of all blocks.
        blocks: L; it divides d and K.
    """
    kernel, size, per_block = kernels.current(), len(vector) // blocks, count // blocks
    values = vector.astype(np.float32)
    return [
        np.asarray(
            kernel.project(basis.spec, 0, per_block, values[a : a + size], a, size),
            dtype=np.float64,
        )
        / (basis.variance(size) * per_block)
        for a in range(0, len(vector), size)
    ]


def combined(basis: Basis, gammas: Sequence[Vector], length: int) -> Vector:
    """sum_l V_l gamma_l, shape (length,); as many blocks as there are gammas."""
    kernel, size = kernels.current(), length // len(gammas)
    parts = [
        kernel.prepare([Part(basis.spec, 0, gamma.astype(np.float32))], size) for gamma in gammas
    ]
    return np.concatenate(
        [
            np.asarray(kernel.combine(part, i * size, (i + 1) * size), dtype=np.float64)
            for i, part in enumerate(parts)
        ]
    )


def reconstructed(basis: Basis, vector: Vector, count: int, blocks: int = 1) -> Vector:
    """Return what is left of a vector after its way through `count` coefficients (Ferret, Eqs. 7
    and 8).
    """
    return combined(basis, projected(basis, vector, count, blocks), len(vector))


def cosine(a: Vector, b: Vector) -> float:
    """Return the cosine of the angle between two vectors; 0 if one of them is zero."""
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    if norms:
        return float(a @ b) / norms
    return 0.0


def squares(x: Vector) -> float:
    """F(x) = sum x_i^2 (Ferret, Fig. 7)."""
    return float(x @ x)


def sines(x: Vector) -> float:
    """F(x) = sum sin^2 x_i (Ferret, Fig. 8)."""
    s = np.sin(x)
    return float(s @ s)


def sines_gradient(x: Vector) -> Vector:
    """2 sin x_i cos x_i."""
    return np.sin(2 * x)


def zeroth_order(
    f: Callable[[Vector], float], x: Vector, basis: Basis, directions: range, epsilon: float
) -> Vector:
    """V g / K with forward differences g (Ferret, Theorem 3), shape (d,)."""
    loss_here, total = f(x), np.zeros(len(x))
    for k in directions:
        v = direction(basis, k, len(x))
        total += (f(x + epsilon * v) - loss_here) / epsilon * v
    return total / len(directions)


def over_seeds(name: str, tables: Sequence[dict[float, float]], number: int) -> Series:
    """Return a line of means over seeds with their deviation.

    Args:
        name: the line's.
        tables: y by x, of each seed.
        number: of its look.
    """
    values_by_x: dict[float, list[float]] = {x: [] for x in tables[0]}
    for table in tables:
        for x, values in values_by_x.items():
            values.append(table[x])
    points = [(x, fmean(values)) for x, values in values_by_x.items()]
    if len(tables) == 1:
        return Series(name, points, number=number)
    spread = {x: stdev(values) for x, values in values_by_x.items()}
    return Series(name, points, [(x, y - spread[x], y + spread[x]) for x, y in points], number)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of log y over log x, by least squares."""
    x, y = np.log([p[0] for p in points]), np.log([p[1] for p in points])
    return float(np.polyfit(x, y, 1)[0])
