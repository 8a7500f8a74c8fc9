"""The contract of a method: the five functions that a round calls. They need no model.

    plan       coordinator: state -> the round's request to a client
    train      client:      plan + data -> update
    aggregate  coordinator: updates -> step
    change     anybody:     step -> the change of the weights, as data (`fedseed.weights.change`)
    advance    everybody:   state + step -> state of the next round

A method object holds the method's settings, checked and frozen. A run's memory is the state, which
depends only on the steps, so everybody with the orbit also has the state. The fields of a payload
declare how it is encoded (`fedseed.methods.payload`). A method does not itself combine answers,
round steps, use gradients, or wrap a client or its answers: it receives components for this.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fedseed.aggregation import AggregationRule
from fedseed.aggregation.base import Part, Parts, Past, Weighting, pad_vectors
from fedseed.hinting import Hinting
from fedseed.methods.payload import DecodeContext, Nothing, Payload, State, Summand
from fedseed.models.adapters import Adapter
from fedseed.training.protocol import Client
from fedseed.weights.change import Change
from fedseed.weights.layout import BlockRule, Layout


@dataclass(frozen=True)
class CatchUp:
    """The rule by which a client that missed rounds gets the model.

    Stores, logs and clients use only this rule, not the method.
    """

    # whether a step replaces all earlier ones, as whole weights do
    replaces: bool = False
    # whether an orbit can be replayed without its earlier steps, because the next plan carries the
    # model
    may_drop: bool = False

    def steps_to_download(self, current: int, last: int, changed: int) -> range:
        """Return the numbers of the steps to download.

        Args:
            current: the newest step that the client has; 0: it has only the base.
            last: the run's newest step.
            changed: the newest step that is not empty.
        """
        if self.replaces:
            if changed > current:
                return range(changed, changed + 1)
            return range(0)
        if self.may_drop:
            return range(0)
        return range(current + 1, last + 1)


EVERY_STEP, NEWEST_STEP, NEXT_PLAN = CatchUp(), CatchUp(replaces=True), CatchUp(may_drop=True)

# used in place of a client's number for one answer that replaces all answers
ALL = 0xFFFFFFFF


class Round(NamedTuple):
    """The round and the client that a plan is for."""

    number: int  # the round, from 1
    client: int  # the client's number
    clients: Sequence[int]  # all participants of the round


class Answer(NamedTuple):
    """One client's checked update and its weight c_i. The weights of a round add up to 1."""

    client: int
    weight: float
    update: Any


@dataclass(frozen=True)
class Answers(Sequence[Answer]):
    """A round's answers, in ascending order of clients; there may be none."""

    round: int  # the round's number
    answers: Sequence[Answer]
    rule: AggregationRule  # combines the clients' vectors into one
    past: Past = field(default_factory=Past)  # the rule's knowledge of earlier rounds

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: Any) -> Any:
        return self.answers[index]

    @property
    def updates(self) -> list[Any]:
        """Return only the updates."""
        return [answer.update for answer in self.answers]

    @property
    def weights(self) -> list[float]:
        """Return c_i of each answer."""
        return [answer.weight for answer in self.answers]

    def combine(self, vectors: Part) -> NDArray[np.float64]:
        """Combine one vector of each client by the rule.

        For the mean, this is sum_i c_i v_i in double precision. Shorter vectors are padded with
        zeros.

        Args:
            vectors: 1-D, one for each answer; empty if there are no answers.

        Returns:
            A vector as long as the longest one; without entries if there are no vectors.
        """
        if not vectors:
            return np.zeros(0)
        (outcome,) = self.combine_parts([vectors])
        return outcome

    def combine_parts(self, parts: Iterable[Part]) -> Iterator[NDArray[np.float64]]:
        """Yield the rule's result, as in `combine`, for vectors that are given in parts, such as
        blocks.

        The rule treats the parts as one vector, and may iterate over them more than once.
        """
        return self.rule.combine_parts(
            Parts(lambda: map(pad_vectors, parts)), self.weights, self.past
        )

    def tally(self, votes: Part) -> NDArray[np.float64]:
        """Return the rule's result for clients' votes, entry by entry.

        For a linear rule, this is the unweighted sum of the votes.
        """
        if self.rule.linear and votes:
            return np.sum(votes, axis=0, dtype=np.float64)
        return self.combine(votes)

    def accumulate(
        self,
        start: NDArray[Any],
        indices: Sequence[NDArray[np.integer[Any]]],
        values: Sequence[NDArray[Any]],
    ) -> NDArray[np.float64]:
        """Return a vector plus the rule's result for the clients' sparse vectors.

        Args:
            start: the vector, 1-D.
            indices: the positions of each client's entries. An entry whose position occurs twice
                counts twice.
            values: the entries at these positions.

        Returns:
            The sum in double precision, as long as `start`.
        """
        result = start.astype(np.float64)
        pairs = list(zip(indices, values, strict=True))
        if pairs and not self.rule.linear:
            return result + self.combine(
                [
                    np.bincount(positions, entries, len(start)).astype(np.float64)
                    for positions, entries in pairs
                ]
            )
        # sorted, because the bits of the sum depend on the order
        for (positions, entries), weight in zip(pairs, self.weights, strict=True):
            np.add.at(result, positions, weight * entries.astype(np.float64))
        return result


class Method(BaseModel, ABC, metaclass=Hinting):
    """The settings and functions of one method. Each subclass has its own file.

    Args:
        blocks: how the parameter vector is divided into blocks.
        weighting: the quantity to which a client's weight c_i is proportional.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    code: ClassVar[int]  # the method's number in a message's frame
    about: ClassVar[str]  # one line for `fedseed list methods`
    # the adapter that the method tunes if the recipe names none; other kinds are not possible
    adapter: ClassVar[Adapter | None] = None
    # whether clients need gradients; if not, they only measure losses, which may be of any kind
    needs_gradients: ClassVar[bool] = True
    # whether a round is one optimiser step. Then there are thousands of rounds, and they are logged
    # in groups
    stepwise: ClassVar[bool] = False

    blocks: BlockRule = "one"
    weighting: Weighting = "equal"

    def check(self, layout: Layout) -> None:
        """Check that the settings fit the trained weights.

        Raises:
            ValueError: they do not fit; the message names the keys.
        """
        dtypes = sorted({tensor.dtype for tensor in layout.tensors})
        for table, settings in (
            ("method", self),
            ("method.training", getattr(self, "training", None)),
        ):
            autocast = getattr(settings, "autocast", None)
            if autocast is not None and "float32" not in dtypes:
                raise ValueError(
                    f'{table}.autocast = "{autocast}": the weights are {" and ".join(dtypes)} '
                    'already; remove this key, or set model.dtype = "float32"'
                )

    def trained_numbers(self, layout: Layout) -> int | None:
        """Return how many float32 values a client trains instead of the weights.

        None if it trains the weights themselves.
        """
        return None

    def start(self, layout: Layout, seed: int) -> Any:
        """Return the state before the first round.

        Raises ValueError if the settings do not fit the layout.
        """
        return self.state_type(layout, seed)

    def plan(self, state: Any, round: Round) -> Payload:
        """Return the coordinator's request to a client.

        The default request has no content besides the round's number.
        """
        return Nothing()

    @abstractmethod
    def train(self, state: Any, plan: Any, client: Client) -> Payload:
        """Train, and return the client's answer. Raises NonFiniteError if it has nothing to
        send.
        """

    @abstractmethod
    def aggregate(self, state: Any, answers: Answers) -> Payload:
        """Return the step that follows from a round's answers."""

    @abstractmethod
    def change(self, state: Any, step: Any) -> Change:
        """Return the change of the weights. `state` is the state before the step."""

    def advance(self, state: Any, step: Any) -> Any:
        """Return the state after a step."""
        return state

    def remember(self, state: Any, answers: Answers) -> Any:
        """Return the coordinator's state with values that it has to remember from the answers.

        Steps do not contain these values; `aggregate` uses them.
        """
        return state

    state_type: ClassVar[type[State]] = State
    plan_type: ClassVar[type[Payload]] = Nothing
    update_type: ClassVar[type[Payload]]
    step_type: ClassVar[type[Payload]]

    # how a client gets the model after it has missed rounds
    catch_up: ClassVar[CatchUp] = EVERY_STEP
    # whether changes rebuild the weights from the base, which is then kept in memory
    from_base: ClassVar[bool] = False
    # whether changes rebuild the weights at each local step, not only once or twice in a round
    rebuilds_each_step: ClassVar[bool] = False
    # whether a client keeps anything but the weights from round to round (`Client.recall`,
    # `Client.keep`)
    remembers: ClassVar[bool] = False
    # whether clients return to the round's first weights by repeating all steps from the base, not
    # from a copy
    retakes_steps: ClassVar[bool] = False
    # whether a round's gradients are added up while they are computed, all in one process
    sums_gradients: ClassVar[bool] = False
    # whether the clients of a round get different plans
    personal_plans: ClassVar[bool] = False
    # whether clients of one process may share forward passes, because all measure along the same
    # directions
    shares_losses: ClassVar[bool] = False
    # why only the mean can combine clients' vectors; None: other rules can as well
    incomparable: ClassVar[str | None] = None
    # whether 16-bit weights are rounded stochastically where small steps would be lost
    keeps_small_steps: ClassVar[bool] = False

    @property
    def entrywise(self) -> bool:
        """Return whether messages, and so the client's memory, grow with the model."""
        return self.catch_up.replaces

    @property
    def settings_problem(self) -> str | None:
        """Return the reason why a new run can't have these settings; None if it can.

        Orbits of older runs with these settings can still be read.
        """
        return None

    @property
    def lasting_entries(self) -> bool:
        """Return whether an entry of clients' vectors means the same in every round.

        It does not if each round has new directions.
        """
        return self.catch_up.replaces

    @property
    def needs_each(self) -> str | None:
        """Return the reason why a step needs every single update.

        None if the sum of the updates' vectors is enough.
        """
        if not issubclass(self.update_type, Summand):
            return (
                "its steps are not sums of vectors of equal length, such as coefficients on "
                "shared directions"
            )
        return self.incomparable

    def unit(self, state: Any) -> float:
        """Return the number that represents an estimate or coefficient of 1 in an update."""
        return 1.0

    def decode_plan(self, state: Any, data: bytes) -> Any:
        """Return a plan from its payload. Raises MessageError if the payload is invalid."""
        return self.plan_type.decode(data, DecodeContext(self, state, "plan"))

    def decode_update(self, state: Any, number: int, data: bytes | memoryview) -> Any:
        """Return an update from its payload.

        Raises MessageError if it does not fit the plan of round `number`.
        """
        return self.update_type.decode(data, DecodeContext(self, state, "update", number))

    def decode_step(self, state: Any, data: bytes) -> Any:
        """Return a step from its payload. Raises MessageError if the payload is invalid."""
        return self.step_type.decode(data, DecodeContext(self, state, "step"))


def add_remedy(reason: str) -> str:
    """Return a reason why vectors can't be combined. If the seeds are the cause, add the setting
    that helps.
    """
    if reason.startswith("seeds"):
        return reason + '; set method.seeds = "shared"'
    return reason


def find_misfit(method: Method, rule: AggregationRule) -> str | None:
    """Return the reason why a run can't combine this method and this rule; None if it can."""
    if method.settings_problem is not None:
        return f"method.{method.settings_problem}"
    if (
        issubclass(method.update_type, Summand)
        and method.update_type.counted
        and method.weighting != "equal"
    ):
        return (
            f'method.weighting = "{method.weighting}": all votes have the same weight; set it to '
            '"equal"'
        )
    prefix = f'aggregation.name = "{rule.name}" does not fit {method.name}'
    if rule.compares and method.incomparable is not None:
        return f"{prefix}: {add_remedy(method.incomparable)}"
    if rule.needs_past and not method.lasting_entries:
        return (
            f"{prefix}: aggregation.{rule.needs_past} needs directions that are the same in every "
            "round; remove this key, or use a method with such directions (fedkseed, ferret with "
            'seeds = "fixed", or one that sends weights or gradients)'
        )
    return None
