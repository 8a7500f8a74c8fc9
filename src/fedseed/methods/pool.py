"""What travels in FedKSeed: the pool with its accumulator down, (candidate, projection) pairs up."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import MessageError
from fedseed.methods.payload import About, Array, Floats, Payload, Scalar
from fedseed.methods.sizes import largest
from fedseed.methods.summands import Summand, Vector
from fedseed.methods.zeroth import check_scalars

Uses = NDArray[np.uint32]


@dataclass(frozen=True)
class Pool(Payload):
    """The plan: one integer that names the candidate directions, the accumulator A, and for Pro the probabilities."""

    seed: Annotated[int, Scalar("u4")]
    accumulator: Annotated[Floats, Array("f4", "candidates")]
    probabilities: Annotated[Floats | None, Array("f4", "candidates", when="importance")]


@dataclass(frozen=True)
class Pairs(Summand):
    """An update: (candidate, rho) of each local step, n of them with a population of n. 8 bytes each."""

    projections: ClassVar[bool] = True

    indices: Annotated[Uses, Array("u4", "n")]
    scalars: Annotated[Floats, Array("f4", "n")]

    def check(self, about: About) -> None:
        """At most T n, candidates of the pool, possible scalars."""
        most, candidates = about.lookup("steps") * about.lookup("population"), about.lookup("candidates")
        if not 1 <= len(self.indices) <= most:
            raise MessageError(f"{8 * len(self.indices)} bytes of pairs: from 8 to {8 * most}, 8 for each")
        if int(self.indices.max()) >= candidates:
            raise MessageError(f"candidate {int(self.indices.max())}: the pool has {candidates}")
        check_scalars(self.scalars)

    def size(self, about: About) -> float:
        """That of the largest projection."""
        return largest(self.scalars)

    @classmethod
    def words(cls, about: About) -> int:
        """K."""
        return int(about.lookup("candidates"))

    def vector(self, about: About) -> Vector:
        """What they add to the accumulator: of each candidate the sum of its scalars."""
        sums = np.zeros(self.words(about))
        np.add.at(sums, self.indices, self.scalars.astype(np.float64))
        return sums

    @classmethod
    def of(cls, vector: Vector, about: About) -> "Pairs":
        """Every candidate once."""
        return cls(np.arange(len(vector), dtype=np.uint32), vector)  # type: ignore[arg-type]  # in full precision

    def with_vector(self, vector: NDArray[Any], about: About) -> "Pairs":
        """The largest of its entries: as many as a client may send."""
        most = about.lookup("steps") * about.lookup("population")
        chosen = np.sort(np.argsort(-np.abs(vector), kind="stable")[:most]).astype(np.uint32)
        return Pairs(chosen, vector[chosen].astype(np.float32))


@dataclass(frozen=True)
class Accumulated(Payload):
    """A step: the accumulator after the round; for Pro also each candidate's sum of |rho| and how often it was used."""

    accumulator: Annotated[Floats, Array("f4", "candidates")]
    sums: Annotated[Floats | None, Array("f4", "candidates", when="importance")] = None
    uses: Annotated[Uses | None, Array("u4", "candidates", when="importance")] = None

    def size(self, about: About) -> float:
        """That of what has been added: the largest sum of projections, with the weights multiplied in."""
        added = self.accumulator.astype(np.float64) - about.lookup("step").accumulator
        return largest(added) if added.any() else 0.0


def probabilities(step: Accumulated) -> Floats:
    """p = softmax(minmax(psi)), psi_j = mean |rho_j| (Eq. 13).

    A candidate that nobody has used yet has no psi: it counts as the mean of the others, not as zero.
    """
    assert step.sums is not None and step.uses is not None
    used = step.uses > 0
    normalised = np.zeros(len(used))
    if used.any():
        psi = step.sums[used].astype(np.float64) / step.uses[used]
        span = psi.max() - psi.min()
        inside = (psi - psi.min()) / span if span > 0 else np.zeros_like(psi)
        normalised[used] = inside
        normalised[~used] = inside.mean()
    weights = np.exp(normalised)
    return (weights / weights.sum()).astype(np.float32)
