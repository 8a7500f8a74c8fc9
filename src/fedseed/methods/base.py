"""What a method is: plan, train, aggregate, apply; the coordinator's part needs neither a model nor torch.

    plan       coordinator: state -> what this round asks of clients
    train      client:      plan + data -> update
    aggregate  coordinator: updates -> step, scalars only
    apply      anyone with the model: step -> new weights
    advance    everyone:    state + step -> state of the next round

The object itself is the method's settings, checked and frozen; a run's memory is the state, which is a function of
the steps alone, so that whoever holds the orbit holds the state.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from fedseed.errors import MessageError
from fedseed.models.adapters import Adapter
from fedseed.randomness import Basis
from fedseed.renaming import Renamed
from fedseed.training.settings import LocalTraining
from fedseed.weights.layout import BlockRule, Layout

if TYPE_CHECKING:  # the client side hands these in; nothing here imports torch
    from fedseed.weights.space import ParameterSpace

Floats = NDArray[np.float32]
Weighting = Literal["equal", "examples"]
Attack = Literal["sign", "random", "noise", "labels"]
CatchUp = Literal["steps", "newest", "plan"]


class Payload(Protocol):
    """The content of a plan, an update or a step."""

    def encode(self) -> bytes:
        """The exact payload bytes."""
        ...


@dataclass(frozen=True)
class State:
    """What a run's next round depends on besides the weights.

    Args:
        layout: the parameter space.
        seed: the run's seed.
    """

    layout: Layout
    seed: int


@dataclass(frozen=True)
class Nothing:
    """A plan without content: the round's number is in the frame."""

    def encode(self) -> bytes:
        """No bytes."""
        return b""


class Contribution(NamedTuple):
    """One client's checked answer: its number, its share c_i (the shares of a round add up to 1) and its update."""

    client: int
    share: float
    update: Any


class Client(Protocol):
    """What a method may ask of a client while it trains. The weights are put back afterwards."""

    number: int
    round: int
    space: "ParameterSpace"

    def first_order(self, training: LocalTraining) -> None:
        """Train the weights in place. Raises NonFiniteError if a loss is not finite."""
        ...

    def gradient(self, batch: int | None, micro_batch: int) -> tuple[bytes, int]:
        """The gradient of the mean loss over one batch (None: all examples) as bytes; and how many terms that has."""
        ...

    def change_norms(self) -> NDArray[np.float64]:
        """|w_start - w_now| for each block."""
        ...

    def project_change(self, basis: Basis, counts: Sequence[int]) -> list[Floats]:
        """V^T (w_start - w_now), counts[l] directions for block l."""
        ...

    def project_gradients(self, training: LocalTraining, basis: Basis, counts: Sequence[int]) -> list[Floats]:
        """Train with plain SGD; the same products, summed up gradient by gradient. Raises NonFiniteError."""
        ...

    def batches(self, size: int) -> Iterator[list[Any]]:
        """Endless batches of the client's examples, in an order that (seed, round, client) decides."""
        ...

    def loss(self, items: Sequence[Any]) -> float:
        """The mean loss over all terms of `items` at the weights as they are; one forward pass."""
        ...

    def perturbed_loss(self, basis: Basis, k: int, scale: float, items: Sequence[Any]) -> float:
        """The same at w + scale * direction(k)."""
        ...

    def skip(self, reason: str) -> None:
        """Count a local step that was not usable."""
        ...

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Count the time spent inside under this name."""
        ...


class Method(Renamed, ABC):
    """Settings and the four parts of one method. Subclasses stand in a file each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    code: ClassVar[int]  # names the method in a message's frame
    about: ClassVar[str]  # one line for `fedseed list methods`
    adapter: ClassVar[Adapter | None] = None  # what it tunes if the recipe names no adapter; no other kind will do
    plan_carries_model: ClassVar[bool] = False  # clients need no steps: the plan tells them the model
    trains_in_place: ClassVar[bool] = True  # `train` changes the weights (they are put back)
    stepwise: ClassVar[bool] = False  # a round is one optimiser step: there are thousands, logged in groups

    @property
    def dense(self) -> bool:
        """Whether steps carry whole weights, so that the newest one replaces all before it."""
        return False

    @property
    def catch_up(self) -> CatchUp:
        """How whoever missed rounds gets the model: by every step, the newest step, or the next plan alone."""
        if self.plan_carries_model:
            return "plan"
        return "newest" if self.dense else "steps"

    @property
    def personal_plans(self) -> bool:
        """Whether clients of one round are asked for different things."""
        return False

    def figures(self, state: Any) -> dict[str, NDArray[Any]]:
        """What of the state a person would like to see at the end of a run: 1-D arrays by name."""
        return {}

    @property
    def adds_gradients(self) -> bool:
        """Whether an update is a gradient, so that a worker's clients may add theirs up in place, for one message."""
        return False

    @property
    def spills_start(self) -> bool:
        """Whether the weights a client starts from are kept in a file while it trains, not in memory."""
        return False

    @property
    def looks_together(self) -> bool:
        """Whether clients of a round look at the same perturbed weights, on one batch each."""
        return False

    blocks: BlockRule = "one"
    weighting: Weighting = "equal"

    def start(self, layout: Layout, seed: int) -> State:
        """The state before the first round."""
        return State(layout, seed)

    def advance(self, state: State, step: Any) -> State:
        """The state after a step."""
        return state

    @abstractmethod
    def plan(self, state: Any, number: int) -> Payload:
        """What the coordinator asks for in round `number`."""

    def plan_for(self, state: Any, number: int, client: int, clients: Sequence[int]) -> Payload:
        """What the coordinator asks of one client of the round; by default the same of all.

        Args:
            state: the coordinator's state.
            number: the round.
            client: the client's number.
            clients: all that take part in the round.
        """
        return self.plan(state, number)

    @abstractmethod
    def train(self, state: Any, plan: Any, client: Client) -> Payload:
        """What a client answers."""

    @abstractmethod
    def aggregate(self, state: Any, number: int, contributions: Sequence[Contribution]) -> Payload:
        """The step that follows from a round's answers, in ascending order of clients; there may be none."""

    def remember(self, state: Any, number: int, contributions: Sequence[Contribution]) -> Any:
        """The coordinator's state with what it keeps of a round's answers and no step carries; `aggregate` gets it.

        Only methods with whole weights as steps need this; `keep` and `restore` take it over a restart.
        """
        return state

    def keep(self, state: Any) -> "dict[str, NDArray[Any]]":
        """What `remember` has put into the state, as arrays by name."""
        return {}

    def restore(self, state: Any, kept: "Mapping[str, NDArray[Any]]") -> Any:
        """The state with what `keep` returned. Raises LookupError or ValueError if it does not fit."""
        return state

    @abstractmethod
    def apply(self, state: Any, step: Any, space: "ParameterSpace") -> None:
        """Change the weights; `state` is the one before the step."""

    @property
    def from_base(self) -> bool:
        """Whether `apply` rebuilds the weights from the base (`ParameterSpace.keep_base` comes first then)."""
        return False

    def put_back(self, state: Any, space: "ParameterSpace") -> None:
        """Undo training in place by building the weights of `state` anew: for methods that work `from_base`.

        Of the others, which need a copy to go back to, the client keeps one.
        """
        raise NotImplementedError(f"{self.name} trains in place and has a base, but does not say how to go back to it")

    @abstractmethod
    def decode_plan(self, state: Any, data: bytes) -> Any:
        """A plan from its payload. Raises MessageError."""

    @abstractmethod
    def decode_update(self, state: Any, number: int, data: bytes) -> Any:
        """An update from its payload, checked against what round `number` asked for. Raises MessageError."""

    @abstractmethod
    def decode_step(self, state: Any, data: bytes) -> Any:
        """A step from its payload. Raises MessageError."""

    def corrupt(self, state: Any, update: Any, kind: "Attack", drawn: NDArray[np.uint32]) -> Payload:
        """What a Byzantine client sends in place of `update` (simulation).

        Args:
            state: the run's state.
            update: the honest update.
            kind: "sign" reverses it, "random" replaces it by something unrelated, "noise" adds to it.
            drawn: random words.

        Raises:
            ValueError: this method has no such attack.
        """
        raise ValueError(f"attack {kind!r} is not simulated for {self.name}")

    def privacy(self, rounds: int) -> dict[str, float] | None:
        """Privacy spent in `rounds` rounds, None where a method promises none."""
        return None

    def pack(self, payloads: Sequence[bytes]) -> bytes:
        """Steps of equal, non-zero length, for an orbit, in as few bytes as can be."""
        return b"".join(payloads)

    def unpack(self, data: bytes, count: int) -> list[bytes]:
        """The inverse of `pack` for `count` steps. Raises MessageError."""
        if count < 1 or len(data) % count:
            raise MessageError(f"{len(data)} bytes can't be {count} steps of equal length")
        each = len(data) // count
        return [data[i * each : (i + 1) * each] for i in range(count)]

    def step_norm(self, state: Any, step: Any) -> float | None:
        """The expected Euclidean norm of a step, from its scalars alone; None where that can't be known."""
        return None
