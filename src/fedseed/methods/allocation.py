"""How many directions each block of Ferret's gets: K_l.

norm      K_l = max(2, floor(K |Delta_l| / max |Delta|))    as in the paper's experiments
sqrt      K_l in proportion to sqrt(|Delta_l| / rho_l)      Prop. 2
previous  as sqrt, with |Delta_l| estimated from the last step, which everybody knows, so that all clients agree
uniform, size
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Allocation = Literal["norm", "sqrt", "uniform", "size", "previous"]


def allocate(
    rule: Allocation,
    total: int,
    sizes: Sequence[int],
    rho: NDArray[np.floating],
    norms: NDArray[np.floating] | None = None,
    previous: Sequence[Sequence[NDArray[np.float32]]] | None = None,
) -> Counts:
    """K_l for each block.

    Args:
        rule: the rule. Where it looks at something that is not known, it is "size".
        total: K. For "norm" the count of the block with the largest update, otherwise the sum.
        sizes: d_l of each block.
        rho: variance of the directions' entries in each block.
        norms: |Delta_l| of the client's update, for "norm" and "sqrt".
        previous: of each part of the last step, gamma_l of each block, for "previous".
    """
    if rule == "norm" and norms is not None:
        largest = norms.max()
        relative = norms / largest if largest > 0 else np.zeros_like(norms)
        return np.maximum(2, np.floor(total * relative)).astype(np.int64)
    if rule == "sqrt" and norms is not None:
        return proportional(total, np.sqrt(norms / rho))  # Prop. 2
    if rule == "uniform":
        return proportional(total, np.ones(len(sizes)))
    if rule == "previous" and previous is not None:
        return proportional(total, np.sqrt(estimated_norms(previous, rho) / rho))
    return proportional(total, np.array(sizes, dtype=np.float64))


def estimated_norms(parts: Sequence[Sequence[NDArray[np.float32]]], rho: NDArray[np.floating]) -> NDArray[np.floating]:
    """|Delta_l| of a step from its scalars: E |gamma_l|^2 = |Delta_l|^2 / (rho_l K_l) for each part.

    Args:
        parts: of each part of the step, gamma_l of each block.
        rho: variance of the directions' entries in each block.
    """
    squares = [[rho_l * len(g) * float(np.dot(g, g)) for rho_l, g in zip(rho, gammas, strict=True)] for gammas in parts]
    return np.sqrt(np.sum(squares, axis=0))


def proportional(total: int, shares: NDArray[np.floating]) -> Counts:
    """Whole numbers that add up to `total`, at least 1 each, otherwise in proportion to the shares.

    A block whose quota is below 1 gets 1, and the others divide the rest; what rounding down leaves goes to the
    largest remainders (ties: the first block).
    """
    blocks = len(shares)
    if total < blocks:
        raise ValueError(f"{total} directions for {blocks} blocks: at least one each is needed")
    if not (np.isfinite(shares).all() and shares.sum() > 0):
        shares = np.ones(blocks)
    quotas = np.ones(blocks)
    large = np.ones(blocks, dtype=bool)
    while large.any():
        left = total - (blocks - int(large.sum()))
        weight = shares[large].sum()
        quotas[large] = left * (shares[large] / weight)
        small = large & (quotas < 1)
        if not small.any():
            break
        quotas[small] = 1
        large &= ~small
    counts = np.floor(quotas).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(-(quotas - counts), kind="stable")[:missing]] += 1
    return counts
