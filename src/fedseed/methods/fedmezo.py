"""FedMeZO: MeZO's steps at each client, averaged as FedAvg does; with learning rates of the clients' own.

Ling, Chen, Yao, Li, Shen: "On the Convergence of Zeroth-Order Federated Tuning for Large Language Models", KDD 2024
(LoRA); FedKSeed's and Ferret's papers compare with it on all parameters.

    rho_t = [l(w_i + mu z_t; x) - l(w_i - mu z_t; x)] / 2 mu,  w_i <- w_i - eta_i rho_t z_t    H times, from w
    w     <- sum_i c_i w_i
    eta_i  = eta_0 (1 + alpha Phi_i)                                                          Eq. 15

Phi_i in [-1, 1] is a signal of client i minus the mean, over the largest absolute difference from it (all equal: 0).

The round can travel as tensors (the weights w_i, as published) or as pairs: the direction's seed, which the run's seed,
the round and the client's number decide, and the scalar eta_i rho_t, which is sent. Anybody then takes the clients'
steps again: combine = "exact" as the clients did, one after the other, to the bits of the tensors' average; "sum" all
at once,

    w <- w - sum_i c_i sum_t eta_i rho_{i,t} z_{i,t}

rounded once: one pass over the weights, the same up to the rounding of the 2 m H steps it leaves out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fedseed.errors import MessageError, NonFiniteError
from fedseed.methods.base import Attack, Client, Contribution, Floats, Nothing, Payload, Weighting
from fedseed.methods.fedavg import Averaged, FedAvgState, read_weights, to_floats
from fedseed.methods.payload import Reader, f32_bytes, u32_bytes
from fedseed.methods.zeroth import ZerothOrder, check_scalars, corrupt_scalars
from fedseed.randomness import Domain, derive
from fedseed.weights.layout import ITEM_BYTES, Layout

if TYPE_CHECKING:
    from fedseed.weights.space import ParameterSpace

LOSSES = 5  # rounds that the mean training loss goes back
Personal = Literal["constant", "random", "loss", "loss-5", "update"]


def phi(signals: Mapping[int, float], client: int) -> float:
    """Phi_i: a client's signal minus the mean, over the largest absolute difference from the mean.

    Args:
        signals: what is known of the round's clients.
        client: whose; one without a signal has 0.

    Returns:
        A number from -1 to 1; 0 where all are equal.
    """
    if client not in signals:
        return 0.0
    mean = fmean(signals.values())
    largest = max(abs(value - mean) for value in signals.values())
    return (signals[client] - mean) / largest if largest > 0 else 0.0


@dataclass(frozen=True)
class Signals:
    """What is known of clients from the rounds they took part in.

    Args:
        losses: mean training losses of the last rounds, at most LOSSES, the newest last.
        distances: |Delta_i - mean Delta| of the last round.
    """

    losses: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    distances: Mapping[int, float] = field(default_factory=dict)

    def after(self, losses: Mapping[int, float], distances: Mapping[int, float]) -> "Signals":
        """With what a round has shown."""
        longer = {c: (*self.losses.get(c, ()), loss)[-LOSSES:] for c, loss in losses.items()}
        return Signals({**self.losses, **longer}, {**self.distances, **distances})

    def of(self, kind: Personal, clients: Sequence[int]) -> dict[int, float]:
        """The signal of one kind of those of the clients that have it."""
        if kind == "update":
            return {c: self.distances[c] for c in clients if c in self.distances}
        known = {c: self.losses[c] for c in clients if c in self.losses}
        return {c: losses[-1] if kind == "loss" else fmean(losses) for c, losses in known.items()}


@dataclass(frozen=True)
class Rate:
    """A plan: the client's learning rate."""

    rate: float

    def encode(self) -> bytes:
        """4 bytes."""
        return f32_bytes(np.array([self.rate]))


@dataclass(frozen=True)
class Tuned:
    """An update as tensors.

    Args:
        data: the client's weights.
        loss: its mean training loss, if the rates follow the losses.
    """

    data: bytes
    loss: float | None

    def encode(self) -> bytes:
        """The loss (f32) if any, then the tensors' bytes."""
        return _loss_bytes(self.loss) + self.data


@dataclass(frozen=True)
class Trace:
    """An update as pairs: eta_i rho_t of each local step (0: skipped). The directions follow from round and client.

    Args:
        scalars: float32, shape (H,).
        loss: the client's mean training loss, if the rates follow the losses.
    """

    scalars: Floats
    loss: float | None

    def encode(self) -> bytes:
        """The loss (f32) if any, then the scalars (f32 each)."""
        return _loss_bytes(self.loss) + f32_bytes(self.scalars)


@dataclass(frozen=True)
class Branch:
    """One client's part of a step.

    Args:
        client: its number, which names its directions.
        share: c_i.
        trace: what it sent.
    """

    client: int
    share: float
    trace: Trace


@dataclass(frozen=True)
class Branches:
    """A step as pairs: the clients' traces side by side, in ascending order of clients; none: nobody answered."""

    branches: tuple[Branch, ...]

    def encode(self) -> bytes:
        """For each client: number (u32), share (f64), its update's bytes."""
        return b"".join(
            u32_bytes(np.array([b.client])) + np.float64(b.share).astype("<f8").tobytes() + b.trace.encode()
            for b in self.branches
        )


@dataclass(frozen=True)
class FedMeZOState(FedAvgState):
    """How many rounds are done, and the signals. With tensors only the coordinator has these."""

    done: int = 0
    signals: Signals = field(default_factory=Signals)


class FedMeZO(Averaged, ZerothOrder):
    """FedMeZO's settings.

    Args (besides those of `ZerothOrder` and `Averaged`):
        steps: H, local steps a round.
        rate: eta_0.
        travel: "pairs" (4 bytes a local step) or "tensors" (as published).
        combine: with pairs, "sum" (one pass, one rounding) or "exact" (the bits of the tensors' average; every client's
            steps are taken again one by one, with two more copies of the weights in memory).
        personal: whether clients have rates of their own, and which signal decides them: "loss" (last round's training
            loss), "loss-5" (its mean over five rounds), "update" (how far the client's last change was from the mean
            change), "random" (uniform, each round anew), "constant".
        alpha: how far rates go from eta_0: from 1 - alpha to 1 + alpha times.
    """

    name: Literal["fedmezo"] = "fedmezo"
    code: ClassVar[int] = 8
    about: ClassVar[str] = "MeZO's steps at each client, averaged; as tensors or pairs; rates per client (KDD 2024)"
    trains_in_place: ClassVar[bool] = True

    steps: PositiveInt = 30
    rate: PositiveFloat = 1e-5
    scale: PositiveFloat = 1e-3
    batch: PositiveInt = 1
    weighting: Weighting = "examples"
    small_steps: Literal["nearest", "stochastic"] = "nearest"
    travel: Literal["pairs", "tensors"] = "pairs"
    combine: Literal["sum", "exact"] = "sum"
    personal: Personal = "constant"
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.5

    @model_validator(mode="after")
    def _pairs_are_averaged(self) -> "FedMeZO":
        if self.travel == "pairs":
            if self.server != "average" or self.global_rate != 1.0:
                raise ValueError('server and global_rate need travel = "tensors": with pairs nobody holds the average')
            if self.small_steps == "stochastic":
                raise ValueError(
                    'small_steps = "stochastic" needs travel = "tensors"; combine = "sum" loses no small steps either'
                )
        return self

    @property
    def dense(self) -> bool:
        """Whether steps are whole weights."""
        return self.travel == "tensors"

    @property
    def personal_plans(self) -> bool:
        """Where clients have rates of their own."""
        return self.personal != "constant"

    @property
    def _losses_travel(self) -> bool:
        return self.personal in ("loss", "loss-5")

    def start(self, layout: Layout, seed: int) -> FedMeZOState:
        """The state before the first round."""
        return FedMeZOState(layout, seed)

    # -- plan ----------------------------------------------------------------------------------------------------------

    def plan(self, state: FedMeZOState, number: int) -> Payload:
        """Nothing, where all clients have the same rate."""
        return Nothing()

    def plan_for(self, state: FedMeZOState, number: int, client: int, clients: Sequence[int]) -> Payload:
        """The client's rate (Eq. 15)."""
        if self.personal == "constant":
            return Nothing()
        return Rate(self.rate_of(state, number, client, clients))

    def rate_of(self, state: FedMeZOState, number: int, client: int, clients: Sequence[int]) -> float:
        """eta_i, rounded to single precision as it is sent."""
        if self.personal == "random":
            drawn = derive(state.seed, Domain.RATE, number, client)
            at = ((drawn >> 11) + 0.5) * 2.0**-52 - 1.0
        else:
            at = phi(state.signals.of(self.personal, clients), client)
        return float(np.float32(self.rate * (1 + self.alpha * at)))

    def decode_plan(self, state: FedMeZOState, data: bytes) -> Nothing | Rate:
        """A plan from its payload."""
        if self.personal == "constant":
            nothing: Nothing = super().decode_plan(state, data)
            return nothing
        reader = Reader(data)
        plan = Rate(self._check_rate(float(reader.f32s(1)[0])))
        reader.end()
        return plan

    def _check_rate(self, rate: float) -> float:
        low, high = self.rate * (1 - self.alpha), self.rate * (1 + self.alpha)
        if not low * (1 - 1e-6) <= rate <= high * (1 + 1e-6):
            raise MessageError(f"a rate of {rate:.3g}: from {low:.3g} to {high:.3g} is possible")
        return rate

    # -- train ---------------------------------------------------------------------------------------------------------

    def train(self, state: FedMeZOState, plan: Nothing | Rate, client: Client) -> Tuned | Trace:
        """H steps along directions of the client's own seed; a step without a usable loss is left out."""
        from fedseed.weights.space import Term

        seed = derive(state.seed, Domain.CLIENT_SEED, client.round, client.number)
        basis = self.directions(seed)
        rate = plan.rate if isinstance(plan, Rate) else self.rate
        scalars = np.zeros(self.steps, dtype=np.float32)
        losses: list[float] = []
        reason = ""
        for t, items in zip(range(self.steps), client.batches(self.batch), strict=False):
            try:
                plus = client.perturbed_loss(basis, t, self.scale, items)
                minus = client.perturbed_loss(basis, t, -self.scale, items)
                rho = self._quotient(plus, minus, 2 * self.scale)
            except NonFiniteError as error:
                reason = str(error)
                client.skip(reason)
                continue
            losses.append((plus + minus) / 2)
            scalars[t] = rate * rho
            if scalars[t]:
                rounding = (seed, t) if self.small_steps == "stochastic" else None
                client.space.add_terms([Term(basis, scalars[t : t + 1], t)], scale=-1.0, rounding=rounding)
        if not losses:
            raise NonFiniteError(f"no local step was usable: {reason}")
        loss = float(np.float32(fmean(losses))) if self._losses_travel else None
        return Trace(scalars, loss) if self.travel == "pairs" else Tuned(client.space.dense(), loss)

    # -- aggregate, apply ----------------------------------------------------------------------------------------------

    def remember(self, state: FedMeZOState, number: int, contributions: Sequence[Contribution]) -> FedMeZOState:
        """With tensors: the signals, which the step does not carry."""
        state = super().remember(state, number, contributions)
        if self.travel == "pairs" or self.personal in ("constant", "random"):
            return state
        losses = {c.client: c.update.loss for c in contributions} if self._losses_travel else {}
        distances = self._distances_of_tensors(state, contributions) if self.personal == "update" else {}
        return replace(state, signals=state.signals.after(losses, distances))

    def _distances_of_tensors(self, state: FedMeZOState, contributions: Sequence[Contribution]) -> dict[int, float]:
        """|Delta_i - mean Delta| = |w_i - mean w|."""
        squares = dict.fromkeys((c.client for c in contributions), 0.0)
        position = 0
        for entry, mean in zip(state.layout.tensors, self.mean(state, contributions), strict=True):
            size = entry.size * ITEM_BYTES[entry.dtype]
            for client, _, update in contributions:
                own = to_floats(update.data[position : position + size], entry.dtype).astype(np.float64)
                squares[client] += float(np.square(own - mean).sum())
            position += size
        return {client: square**0.5 for client, square in squares.items()}

    def _distances_of_pairs(self, state: FedMeZOState, branches: Sequence[Branch]) -> dict[int, float]:
        """The same from the pairs alone, where no weights are.

        Random directions are orthogonal up to 1 / sqrt(d), and |z|^2 = d times the entries' variance, so that
        |Delta_i|^2 = |eta_i rho_i|^2 |z|^2 and
        |Delta_i - sum_j c_j Delta_j|^2 = (1 - c_i)^2 |Delta_i|^2 + sum_{j != i} c_j^2 |Delta_j|^2.
        """
        size = state.layout.size * self.directions(0).variance(state.layout.size)
        squares = [size * float(np.square(b.trace.scalars.astype(np.float64)).sum()) for b in branches]
        total = sum(b.share**2 * square for b, square in zip(branches, squares, strict=True))
        return {
            b.client: max(0.0, total + ((1 - b.share) ** 2 - b.share**2) * square) ** 0.5
            for b, square in zip(branches, squares, strict=True)
        }

    def advance(self, state: FedMeZOState, step: Any) -> FedMeZOState:  # type: ignore[override]
        """Count the round; with tensors remember the weights, with pairs the signals."""
        state = replace(state, done=state.done + 1)
        if self.travel == "tensors":
            return replace(state, weights=step) if step.data else state
        losses = {b.client: b.trace.loss for b in step.branches} if self._losses_travel else {}
        distances = self._distances_of_pairs(state, step.branches) if self.personal == "update" else {}
        return replace(state, signals=state.signals.after(losses, distances))

    def keep(self, state: FedMeZOState) -> dict[str, NDArray[Any]]:
        """With tensors: the server optimiser's averages and the signals."""
        losses, distances = state.signals.losses, state.signals.distances
        signals = {
            "loss_clients": np.array([c for c, past in losses.items() for _ in past], dtype=np.int64),
            "losses": np.array([loss for past in losses.values() for loss in past], dtype=np.float64),
            "distance_clients": np.array(list(distances), dtype=np.int64),
            "distances": np.array(list(distances.values()), dtype=np.float64),
        }
        return {**super().keep(state), **{name: array for name, array in signals.items() if len(array)}}

    def restore(self, state: FedMeZOState, kept: Mapping[str, NDArray[Any]]) -> FedMeZOState:
        """The inverse of `keep`."""
        state = super().restore(state, kept)
        losses: dict[int, tuple[float, ...]] = {}
        if "losses" in kept:
            for client, loss in zip(kept["loss_clients"].tolist(), kept["losses"].tolist(), strict=True):
                losses[client] = (*losses.get(client, ()), loss)
        distances: dict[int, float] = {}
        if "distances" in kept:
            distances = dict(zip(kept["distance_clients"].tolist(), kept["distances"].tolist(), strict=True))
        return replace(state, signals=Signals(losses, distances))

    def aggregate(self, state: FedMeZOState, number: int, contributions: Sequence[Contribution]) -> Any:
        """The average of the weights; or the pairs side by side."""
        if self.travel == "tensors":
            return super().aggregate(state, number, contributions)
        return Branches(tuple(Branch(client, share, update) for client, share, update in contributions))

    def apply(self, state: FedMeZOState, step: Any, space: "ParameterSpace") -> None:
        """The weights' average; or the clients' steps taken again."""
        if self.travel == "tensors":
            super().apply(state, step, space)
            return
        from fedseed.weights.space import Term

        if not step.branches:
            return
        number = state.done + 1
        seeds = [derive(state.seed, Domain.CLIENT_SEED, number, b.client) for b in step.branches]
        both = [(b, self.directions(seed)) for b, seed in zip(step.branches, seeds, strict=True)]
        if self.combine == "exact":
            space.average_steps(
                [
                    (b.share, [([Term(basis, [c], t)], -1.0) for t, c in enumerate(b.trace.scalars) if c])
                    for b, basis in both
                ]
            )
        else:
            shared = [(basis, (b.share * b.trace.scalars.astype(np.float64)).astype(np.float32)) for b, basis in both]
            space.add_terms([Term(basis, part) for basis, part in shared], scale=-1.0)

    # -- messages ------------------------------------------------------------------------------------------------------

    def decode_update(self, state: FedMeZOState, number: int, data: bytes) -> Tuned | Trace:
        """Tensors, or H scalars, with a loss if the rates follow the losses; finite and possible."""
        reader = Reader(data)
        if self.travel == "pairs":
            trace = self._read_trace(reader)
            reader.end()
            return trace
        loss = self._read_loss(reader)
        return Tuned(read_weights(state.layout, reader.take(reader.left)).data, loss)

    def decode_step(self, state: FedMeZOState, data: bytes) -> Any:
        """A step from its payload."""
        if self.travel == "tensors":
            return super().decode_step(state, data)
        reader = Reader(data)
        branches: list[Branch] = []
        while reader.left:
            client = int(reader.u32s(1)[0])
            share = float(np.frombuffer(reader.take(8), dtype="<f8")[0])
            if not 0 <= share <= 1:
                raise MessageError(f"client {client} has a share of {share}: from 0 to 1")
            if branches and client <= branches[-1].client:
                raise MessageError(f"client {client} stands after client {branches[-1].client}")
            branches.append(Branch(client, share, self._read_trace(reader)))
        return Branches(tuple(branches))

    def _read_loss(self, reader: Reader) -> float | None:
        return float(reader.f32s(1)[0]) if self._losses_travel else None

    def _read_trace(self, reader: Reader) -> Trace:
        loss = self._read_loss(reader)
        scalars = reader.f32s(self.steps)
        check_scalars((scalars / np.float64(self.rate * (1 + self.alpha))).astype(np.float32))
        return Trace(scalars, loss)

    def corrupt(self, state: FedMeZOState, update: Any, kind: Attack, drawn: NDArray[np.uint32]) -> Payload:
        """With pairs: other scalars on the same directions."""
        if not isinstance(update, Trace):
            return super().corrupt(state, update, kind, drawn)
        rho = (update.scalars / np.float64(self.rate)).astype(np.float32)
        return Trace((self.rate * corrupt_scalars(rho, kind, drawn)).astype(np.float32), update.loss)


def _loss_bytes(loss: float | None) -> bytes:
    return b"" if loss is None else f32_bytes(np.array([loss]))
