"""Makes directions from a seed, by the rule that a basis names."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedseed.randomness import entries, kernels
from fedseed.randomness.kernels.reference import Spec
from fedseed.randomness.matrices import Matrices
from fedseed.randomness.stream import split_seed

BASES = {
    "normal": "N(0, 1) entries: FedKSeed, FeedSign and MeZO as published",
    "truncated_normal": "N(0, 1) cut to [-1/sqrt(d_l), 1/sqrt(d_l)]: Ferret as published",
    "rademacher": "+1 or -1, one random bit an entry: same mean and covariance as normal, less "
    "work",
    "hadamard": "rows of a Hadamard matrix under random signs: all directions together cost as "
    "much as one",
    "lowrank": "outer products of signs on each matrix: a pass over a batch can look along many "
    "directions",
}
MAX_SIZE = 1 << 20
MAX_DIRECTIONS = 1 << 32
MAX_RANK = 64


@dataclass(frozen=True)
class Basis:
    """Names a family of pseudo-random directions.

    A direction is made of the seed and its index, and never stored.

    An entry depends only on (seed, direction index, element index): not on tensors, tiling, device,
    threads or dtype. With "lowrank" it depends on the tensors' shapes, too.

    Args:
        name: "normal", "truncated_normal", "rademacher", "hadamard" or "lowrank".
        seed: 64-bit seed.
        size: for "hadamard", how many directions there are; it fixes B, the smallest power of two
            >= size. Index k means row k mod B of the basis with number k div B, which has signs of
            its own. Other bases ignore it.
        rank: for "lowrank", r: on each matrix a direction is sum_j u_j w_j^T / sqrt(r) over j < r,
            where u_j and w_j are random signs; on tensors of one dimension it is one of
            "rademacher". Other bases ignore it.

    Raises:
        ValueError: the name is unknown, or the seed, size or rank is out of range.
    """

    name: str
    seed: int = 0
    size: int = 4096
    rank: int = 1

    def __post_init__(self) -> None:
        if self.name not in BASES:
            raise ValueError(f"basis = {self.name!r}: choose one of {', '.join(BASES)}")
        split_seed(self.seed)
        if not 1 <= self.size <= MAX_SIZE:
            raise ValueError(f"size = {self.size}: from 1 to {MAX_SIZE}")
        if not 1 <= self.rank <= MAX_RANK:
            raise ValueError(f"rank = {self.rank}: from 1 to {MAX_RANK}")

    @property
    def tile(self) -> int:
        """Return B, the size of the Hadamard matrix, a power of two (1 for the other bases)."""
        if self.name == "hadamard":
            return 1 << (self.size - 1).bit_length()
        return 1

    @property
    def spec(self) -> Spec:
        """Return the basis as the kernels take it.

        Raises ValueError for "lowrank": see `spec_on`.
        """
        return self.spec_on(None)

    def spec_on(self, matrices: Matrices | None) -> Spec:
        """Return the basis as the kernels take it, on a vector with these matrices.

        Raises:
            ValueError: the basis is "lowrank", and `matrices` is None.
        """
        if self.name != "lowrank":
            return Spec(self.name, self.seed, self.tile)
        if matrices is None:
            raise ValueError("lowrank needs the tensors' shapes: `matrices`")
        return Spec(self.name, self.seed, self.tile, self.rank, matrices)

    def variance(self, length: int) -> float:
        """Return rho, the variance of an entry in a block of `length` parameters (1 but for
        "truncated_normal").
        """
        if self.name == "truncated_normal":
            return entries.variance(length)
        return 1.0

    def direction(
        self,
        k: int,
        start: int,
        stop: int,
        length: int | None = None,
        matrices: Matrices | None = None,
    ) -> NDArray[np.float32]:
        """Compute elements start..stop of direction k.

        Args:
            k: direction index, from 0 to 2**32 - 1.
            start: index of the first element in the parameter vector.
            stop: one past the last.
            length: size of the block that the elements belong to; "truncated_normal" needs it.
            matrices: where the vector's matrices lie; "lowrank" needs it.

        Returns:
            float32 array of shape (stop - start,).

        Raises:
            ValueError: an index is out of range, or `length` or `matrices` is missing.
        """
        if not 0 <= k < MAX_DIRECTIONS:
            raise ValueError(f"k = {k}: a direction index is from 0 to 2**32 - 1")
        if not 0 <= start <= stop:
            raise ValueError(f"elements {start}..{stop}: 0 <= start <= stop is needed")
        if length is None and self.name == "truncated_normal":
            raise ValueError("truncated_normal needs length, the block's number of parameters")
        return kernels.current().direction(self.spec_on(matrices), k, start, stop, length or stop)
