"""The common part of zeroth-order methods: the settings of the estimate, the estimate itself, and
the loop of local steps.

    two-point   rho = [l(w + eps z; x) - l(w - eps z; x)] / (2 eps)    SPSA; MeZO, FedKSeed Eq. 3,
                                                                       FeedSign Eq. 1
    one-point   rho = [l(w + eps z; x) - l(w; x)] / eps                forward difference; FedZO
    clipped     min(max(rho, -C), C)                                   QZO: "Fine-tuning Quantized
                                                                       Neural Networks with
                                                                       Zeroth-order Optimization",
                                                                       ICLR 2026

`normalize` makes losses comparable: it removes the scale from what a client measured in one step.

    none        no change
    z-score     (l - mean) / deviation, over the losses of the step; all 0 if all are equal
    ranks       the rank among them, from -1/2 to 1/2; equal losses share a rank; all 0 if all are
                equal

All losses that a client measures in a step are normalised together: both sides of each direction.
With one direction, only the sign of the difference is left, times a constant, as in FeedSign. In a
population each direction has its own examples, so each pair is centred first: the difficulty of a
part of the batch does not depend on the direction.

A population measures along many directions in one pass over a batch, each on its own part of the
batch:

    rho_j = [l(w + eps z_j; X_j) - l(w - eps z_j; X_j)] / (2 eps),  j = 1..n
    g     = (1 / n) sum_j rho_j z_j,  X = X_1 + ... + X_n in equal parts

With one direction for a batch, the noise of g is about d |mean g_i|^2 for any batch size. With one
direction for each of n parts, it is (d / n) mean |g_j|^2, where g_j are the parts' gradients. So a
population helps if the gradients of the parts agree, and it costs the same two passes over the
batch. Evaluating rows at different weights is from Sarkar et al., "Evolution Strategies at the
Hyperscale", arXiv 2511.16652. With "lowrank" directions it takes one pass
(`fedseed.weights.perturbed_rows`), and with others one pass for each part, over this part only.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite, nan
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fedseed.errors import NonFiniteError
from fedseed.methods.base import Method
from fedseed.optimizers.schedule import Schedule, factor_of
from fedseed.randomness import Basis
from fedseed.randomness.basis import MAX_RANK, MAX_SIZE
from fedseed.training.protocol import Client
from fedseed.training.settings import Autocast
from fedseed.weights.change import Add, Change, Floats, Term

MAX_DIRECTIONS = 1 << 16  # the most directions of one step
Normalisation = Literal["none", "z-score", "ranks"]
BasisName = Literal["normal", "truncated_normal", "rademacher", "hadamard", "lowrank"]


def normalise(
    losses: Sequence[float] | NDArray[np.floating[Any]], normalisation: Normalisation
) -> NDArray[np.float64]:
    """Normalise the losses of one population (finite, shape (n,)), and return them in the same
    order.
    """
    unscaled = np.asarray(losses, dtype=np.float64)
    if normalisation == "none" or not len(unscaled):
        return unscaled
    if normalisation == "z-score":
        centred = unscaled - unscaled.mean()
        deviation = centred.std()
        # if all losses are equal, the rest left by rounding must not count as a deviation
        alike = deviation <= 1e-12 * float(np.abs(unscaled).max())
        if alike:
            return np.zeros_like(centred)
        return centred / deviation
    values, place, count = np.unique(unscaled, return_inverse=True, return_counts=True)
    if len(values) == 1:
        return np.zeros_like(unscaled)
    highest = np.cumsum(count) - 1  # rank of each distinct value
    return np.asarray(
        (highest - (count - 1) / 2)[place] / (len(unscaled) - 1) - 0.5, dtype=np.float64
    )


class Projection(NamedTuple):
    """The measurement along one direction, from two losses."""

    # the estimate, rounded to single precision as it will be sent
    rho: float
    loss: float  # the mean of the two losses

    @property
    def usable(self) -> bool:
        """Return whether the measurement succeeded. It may fail for some parts of a population."""
        return isfinite(self.loss)


class ZerothOrder(Method):
    """Settings of every zeroth-order method.

    Args:
        basis: the kind of directions. "normal" is published; "rademacher" tunes equally well at
            lower cost.
        basis_size: for "hadamard": the number of directions of one basis (B is the next power of
            two).
        basis_rank: for "lowrank": the number of outer products of signs that make up a direction,
            on each matrix.
        learning_rate: eta, the rate of a step.
        scale: eps, the size of the perturbation (mu in FeedSign's paper).
        batch: number of examples for an estimate.
        clip: loss guard: skip a step whose two losses differ by more than this.
        clip_projection: cut projections to at most this size (the clipped directional derivative of
            QZO, for the scales of a quantised base). None: no cut.
        normalize: how to normalise the losses that a client measures in one step, so that clients'
            scales do not matter: "none", "z-score" or "ranks" (`fedseed.methods.zeroth`). It needs
            its own learning rate. With one direction in a step, only the sign of the difference is
            left.
        small_steps: what to do with changes far below a 16-bit weight's last place. "nearest":
            rounding loses them (harmless in float32). "stochastic": they are rounded up or down by
            the shared stream, correct on average. "from-base": coefficients are added up in
            float32, and each step rebuilds the weights from the base (one pass with "hadamard";
            with other bases the cost grows with every step). Methods that send weights round their
            average in the same way.
        autocast: 16-bit dtype for forward passes with float32 weights: "bfloat16" or "float16".
        schedule: schedule of the learning rate over the rounds; None: it is constant.
    """

    needs_gradients: ClassVar[bool] = False

    basis: BasisName = "rademacher"
    basis_size: Annotated[int, Field(ge=1, le=MAX_SIZE)] = 4096
    basis_rank: Annotated[int, Field(ge=1, le=MAX_RANK)] = 1
    learning_rate: PositiveFloat
    scale: PositiveFloat = 1e-3
    batch: PositiveInt = 1
    clip: PositiveFloat | None = None
    clip_projection: PositiveFloat | None = None
    normalize: Normalisation = "none"
    small_steps: Literal["nearest", "stochastic", "from-base"] = "nearest"
    autocast: Autocast | None = None
    schedule: Schedule | None = None

    @property
    def keeps_small_steps(self) -> bool:  # type: ignore[override]
        return self.small_steps == "stochastic"

    @property
    def from_base(self) -> bool:  # type: ignore[override]
        return self.small_steps == "from-base"

    @property
    def rebuilds_each_step(self) -> bool:  # type: ignore[override]
        return self.small_steps == "from-base"

    def directions(self, seed: int) -> Basis:
        """Return the basis of a seed."""
        return Basis(self.basis, seed, self.basis_size, self.basis_rank)

    def factor(self, number: int) -> float:
        """Return the factor by which a round multiplies the learning rate."""
        return factor_of(self.schedule, number)

    def rounding(self, seed: int, step: int) -> tuple[int, int] | None:
        """Return the numbers of the shared stream for rounding a step
        (`fedseed.weights.change.Add`); None for rounding to nearest.
        """
        if self.small_steps == "stochastic":
            return (seed, step)
        return None

    def local_step(self, terms: Sequence[Term], number: int, seed: int, step: int) -> Change:
        """Return the change w <- w - eta (sum of the terms) with the rate of a round, rounded
        according to `rounding`.
        """
        return Add(terms, -self.learning_rate * self.factor(number), self.rounding(seed, step))

    def two_point(self, client: Client, basis: Basis, k: int, items: Sequence[Any]) -> Projection:
        """Return the two-point estimate along direction k.

        Raises NonFiniteError if the losses are not usable.
        """
        return cast(Projection, client.estimates(self, basis, [k], items)[0])

    def measure_projections(
        self,
        client: Client,
        basis: Basis,
        along: Sequence[int],
        items: Sequence[Any],
        one_sided: bool,
    ) -> list[Projection]:
        """Measure the estimates along some directions with the client's losses.

        This does the work of `Client.estimates`.

        In a population (n > 1), an unusable estimate is 0 with a loss of NaN, and is counted as
        skipped.

        Args:
            client: the client.
            basis: the basis of the directions.
            along: the directions' indices. In a population their number is a multiple of n, and one
                pass measures along n of them.
            items: a batch; in a population it has n equal parts.
            one_sided: make one-point estimates, with one additional pass for all of them together;
                if false, make two-point estimates.

        Raises:
            NonFiniteError: no estimate of a population is usable, or, without a population, one of
                the estimates is not.
        """
        n: int = getattr(self, "population", 1)
        width = self.scale if one_sided else 2 * self.scale
        plus: list[list[float]] = []
        minus: list[list[float]] = []
        with client.autocast(self.autocast):
            for group in (along[start : start + n] for start in range(0, len(along), n)):
                plus.append(client.population_losses(basis, group, self.scale, items))
                if not one_sided:
                    minus.append(client.population_losses(basis, group, -self.scale, items))
            if one_sided:
                minus = [client.population_losses(basis, along[:n], 0.0, items)]
        if n == 1:
            return self.quotients([loss for (loss,) in plus], [loss for (loss,) in minus], width)
        pairs = zip(plus, minus * (len(plus) // len(minus)), strict=True)
        projections: list[Projection] = []
        for plus_losses, minus_losses in pairs:
            projections += self._usable(client, plus_losses, minus_losses, width)
        return projections

    def _usable(
        self, client: Client, plus: Sequence[float], minus: Sequence[float], width: float
    ) -> list[Projection]:
        """Return the quotients of a population.

        A quotient is 0 with a loss of NaN if its two losses are unusable.
        """
        problems = list(map(self.problem, plus, minus))
        usable = [number for number, problem in enumerate(problems) if problem is None]
        if not usable:
            raise NonFiniteError(
                f"none of {len(problems)} parts of the batch was usable: {problems[-1]}"
            )
        for problem in filter(None, problems):
            client.skip(problem)
        measured = iter(
            self.quotients([plus[i] for i in usable], [minus[i] for i in usable], width, apart=True)
        )
        return [next(measured) if problem is None else Projection(0.0, nan) for problem in problems]

    def quotients(
        self, plus: Sequence[float], minus: Sequence[float], width: float, apart: bool = False
    ) -> list[Projection]:
        """Return (plus - minus) / width. `minus` has one loss for each of `plus`, or one for all.

        `apart`: each pair has different examples, so only the difference of its two losses counts.
        """
        minus_of_each = list(minus) * (len(plus) // len(minus))
        problem = next(filter(None, map(self.problem, plus, minus_of_each)), None)
        if problem:
            raise NonFiniteError(problem)
        compared = [*plus, *minus]
        if apart and self.normalize != "none":
            gaps = np.array(plus) - np.array(minus_of_each)
            compared = [*gaps, *-gaps]
        scaled = normalise(compared, self.normalize)
        projections = (scaled[: len(plus)] - scaled[len(plus) :]) / width
        if self.clip_projection is not None:
            projections = np.clip(projections, -self.clip_projection, self.clip_projection)
        return [
            Projection(float(np.float32(projection)), (loss_above + loss_below) / 2)
            for projection, loss_above, loss_below in zip(
                projections.tolist(), plus, minus_of_each, strict=True
            )
        ]

    def problem(self, plus: float, minus: float) -> str | None:
        """Return the reason why two losses can't be used, for example because of the loss guard.

        None if they can be used.
        """
        difference = plus - minus
        if not np.isfinite(difference):
            return f"loss is {plus} and {minus} on the two sides of a perturbation"
        if self.clip is not None and abs(difference) > self.clip:
            return (
                f"losses differ by {abs(difference):.3g}, but the loss guard allows only "
                f"{self.clip}"
            )
        return None

    def local_steps(
        self, client: Client, basis: Basis, draws: Iterable[Sequence[int]], one_sided: bool = False
    ) -> Iterator[tuple[Sequence[int], list[Projection]]]:
        """Yield the indices and estimates of each local step, measured at the weights at that time.

        A step with unusable losses is counted and left out. Raises NonFiniteError at the end if no
        step was usable. `draws` has the indices of each step's directions; `one_sided` means
        forward differences.
        """
        usable, reason = False, ""
        for along, items in zip(draws, client.batches(self.batch), strict=False):
            try:
                projections = client.estimates(self, basis, along, items, one_sided)
            except NonFiniteError as error:
                reason = str(error)
                client.skip(reason)
                continue
            usable = True
            yield along, projections
        if not usable:
            raise NonFiniteError(f"no local step was usable: {reason}")


class Population(ZerothOrder):
    """Settings of methods that can measure along many directions with the passes of one.

    Besides the arguments of `ZerothOrder`:

    Args:
        population: n, the number of directions of an estimate, each on a part with `batch` / n
            examples; two passes over the batch in total. With basis = "lowrank" all parts share a
            pass; with other bases each part has its own passes.
    """

    population: Annotated[int, Field(ge=1, le=MAX_DIRECTIONS)] = 1

    @model_validator(mode="after")
    def _parts_are_equal(self) -> "Population":
        if self.batch % self.population:
            raise ValueError(
                f"population = {self.population} does not divide batch = {self.batch}: each "
                "direction needs an equal part of the batch"
            )
        return self


def mixing_shares(projections: Sequence[Projection]) -> Floats:
    """Return rho_j / n of each of n estimates, float32, shape (n,)."""
    return np.array(
        [projection.rho / len(projections) for projection in projections], dtype=np.float32
    )
