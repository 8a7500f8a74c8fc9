"""The contract of a method: five functions that a round calls. They need no model.

    plan       coordinator: state -> the round's request to a client
    train      client:      plan + data -> update
    aggregate  coordinator: updates -> step
    change     anybody:     step -> the change of the weights, as data (`fedseed.weights.change`)
    advance    everybody:   state + step -> state of the next round

The object itself is the method's settings, checked and frozen; a run's memory is the state, which
is a function of the steps alone, so that the orbit's holder also has the state. A payload's
fields declare how it is encoded (`fedseed.methods.payload`). A method receives components that
combine answers, round steps, use gradients and wrap a client or its answers; it has no functions of
its own for that.
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

    Stores, logs and clients use this alone.
    """

    # a step replaces all before it, as whole weights do
    replaces: bool = False
    # an orbit replays without its earlier steps, as the next plan carries the model
    may_drop: bool = False

    def steps_to_download(self, current: int, last: int, changed: int) -> range:
        """Return the numbers of the steps to download.

        Args:
            current: the newest step that the client has; 0: it has the base alone.
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

# in place of a client's number: one answer that stands for all
ALL = 0xFFFFFFFF


class Round(NamedTuple):
    """The round and the client that a plan is for."""

    number: int  # the round, from 1
    client: int  # the client's number
    clients: Sequence[int]  # all that take part in the round


class Answer(NamedTuple):
    """One client's checked update, and its weight c_i; the weights of a round add up to 1."""

    client: int
    weight: float
    update: Any


@dataclass(frozen=True)
class Answers(Sequence[Answer]):
    """A round's answers, in ascending order of clients; there may be none."""

    round: int  # the round's number
    answers: Sequence[Answer]
    rule: AggregationRule  # how vectors of the clients become one
    past: Past = field(default_factory=Past)  # the rule's knowledge of earlier rounds

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: Any) -> Any:
        return self.answers[index]

    @property
    def updates(self) -> list[Any]:
        """Return the updates alone."""
        return [answer.update for answer in self.answers]

    @property
    def weights(self) -> list[float]:
        """Return c_i of each answer."""
        return [answer.weight for answer in self.answers]

    def combine(self, vectors: Part) -> NDArray[np.float64]:
        """Return the rule's result for one vector of each client.

        With the mean it is sum_i c_i v_i in double precision. Shorter vectors are padded with
        zeros.

        Args:
            vectors: 1-D, one for each answer; none: nobody answered.

        Returns:
            A vector as long as the longest one; no entries if there are no vectors.
        """
        if not vectors:
            return np.zeros(0)
        (outcome,) = self.combine_parts([vectors])
        return outcome

    def combine_parts(self, parts: Iterable[Part]) -> Iterator[NDArray[np.float64]]:
        """Yield the rule's result, as in `combine`, for vectors that come in parts such as blocks.

        The rule treats the parts as one vector, and may go through them again.
        """
        return self.rule.combine_parts(
            Parts(lambda: map(pad_vectors, parts)), self.weights, self.past
        )

    def tally(self, votes: Part) -> NDArray[np.float64]:
        """Return the rule's result for clients' votes, entry by entry.

        For a linear rule this is the unweighted sum of the votes.
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
            indices: the positions of each client's entries; one that occurs twice counts twice.
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
        # orbits depend on their order
        for (positions, entries), weight in zip(pairs, self.weights, strict=True):
            np.add.at(result, positions, weight * entries.astype(np.float64))
        return result


class Method(BaseModel, ABC, metaclass=Hinting):
    """Settings and the functions of one method. Subclasses stand in a file each.

    Args:
        blocks: how the parameter vector is cut into blocks.
        weighting: what a client's weight c_i is in proportion to.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    code: ClassVar[int]  # names the method in a message's frame
    about: ClassVar[str]  # one line for `fedseed list methods`
    # what it tunes if the recipe names no adapter; no other kind will do
    adapter: ClassVar[Adapter | None] = None
    # else its clients measure losses alone, which may be of any kind
    needs_gradients: ClassVar[bool] = True
    # a round is one optimiser step: there are thousands, logged in groups
    stepwise: ClassVar[bool] = False

    blocks: BlockRule = "one"
    weighting: Weighting = "equal"

    def check(self, layout: Layout) -> None:
        """Check that the settings fit the weights that train.

        Raises:
            ValueError: they do not; the message names the keys.
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
                    'already; leave it out, or set model.dtype = "float32"'
                )

    def trained_numbers(self, layout: Layout) -> int | None:
        """Return the number of float32 values that a client trains in place of the weights.

        None: it trains the weights.
        """
        return None

    def start(self, layout: Layout, seed: int) -> Any:
        """Return the state before the first round.

        Raises ValueError if the settings do not fit the layout.
        """
        return self.state_type(layout, seed)

    def plan(self, state: Any, round: Round) -> Payload:
        """Return the coordinator's request to a client.

        By default nothing but the round's number.
        """
        return Nothing()

    @abstractmethod
    def train(self, state: Any, plan: Any, client: Client) -> Payload:
        """Return a client's answer. Raises NonFiniteError if it has nothing to send."""

    @abstractmethod
    def aggregate(self, state: Any, answers: Answers) -> Payload:
        """Return the step that follows from a round's answers."""

    @abstractmethod
    def change(self, state: Any, step: Any) -> Change:
        """Return the change of the weights; `state` is the one before the step."""

    def advance(self, state: Any, step: Any) -> Any:
        """Return the state after a step."""
        return state

    def remember(self, state: Any, answers: Answers) -> Any:
        """Return the coordinator's state with the values that it keeps of the answers.

        No step carries these values; `aggregate` uses them.
        """
        return state

    state_type: ClassVar[type[State]] = State
    plan_type: ClassVar[type[Payload]] = Nothing
    update_type: ClassVar[type[Payload]]
    step_type: ClassVar[type[Payload]]

    # how a client that missed rounds gets the model
    catch_up: ClassVar[CatchUp] = EVERY_STEP
    # whether its changes rebuild the weights from the base, which is then kept
    from_base: ClassVar[bool] = False
    # whether they are rebuilt at each local step, not once or twice a round
    rebuilds_each_step: ClassVar[bool] = False
    # whether a client keeps more than the weights from round to round (`Client.recall`,
    # `Client.keep`)
    remembers: ClassVar[bool] = False
    # whether clients come back to the round's weights by all steps from the base, not from a copy
    retakes_steps: ClassVar[bool] = False
    # whether the gradients of a round are added up where they are computed, all in one process
    sums_gradients: ClassVar[bool] = False
    # whether clients of one round are asked for different things
    personal_plans: ClassVar[bool] = False
    # whether clients of one process may share forward passes: all look along the same directions
    shares_losses: ClassVar[bool] = False
    # why clients' vectors can't be combined by rules other than the mean; None: they can
    incomparable: ClassVar[str | None] = None
    # whether 16-bit weights are rounded stochastically where they would lose small steps
    keeps_small_steps: ClassVar[bool] = False

    @property
    def entrywise(self) -> bool:
        """Return whether messages grow with the model, and with them the client's memory."""
        return self.catch_up.replaces

    @property
    def settings_problem(self) -> str | None:
        """Return the reason why no run may begin with these settings; None if it may.

        Orbits of older runs with such settings can still be read.
        """
        return None

    @property
    def lasting_entries(self) -> bool:
        """Return whether an entry of clients' vectors means the same in every round.

        It does not where each round has new directions.
        """
        return self.catch_up.replaces

    @property
    def needs_each(self) -> str | None:
        """Return the reason why a step needs the update of each client.

        None if the sum of their vectors is enough.
        """
        if not issubclass(self.update_type, Summand):
            return (
                "its steps are no sums of vectors of one length, such as coefficients on "
                "shared directions"
            )
        return self.incomparable

    def unit(self, state: Any) -> float:
        """Return the number in an update that stands for an estimate or coefficient of 1."""
        return 1.0

    def decode_plan(self, state: Any, data: bytes) -> Any:
        """Return a plan from its payload. Raises MessageError if that is not valid."""
        return self.plan_type.decode(data, DecodeContext(self, state, "plan"))

    def decode_update(self, state: Any, number: int, data: bytes) -> Any:
        """Return an update from its payload.

        Raises MessageError if it is not what round `number` asked for.
        """
        return self.update_type.decode(data, DecodeContext(self, state, "update", number))

    def decode_step(self, state: Any, data: bytes) -> Any:
        """Return a step from its payload. Raises MessageError if that is not valid."""
        return self.step_type.decode(data, DecodeContext(self, state, "step"))


def add_remedy(reason: str) -> str:
    """Return a reason why vectors can't be combined, with the setting to change if seeds are it."""
    if reason.startswith("seeds"):
        return reason + '; set method.seeds = "shared"'
    return reason


def find_misfit(method: Method, rule: AggregationRule) -> str | None:
    """Return the reason why no run may begin with this method and this rule; None if one may."""
    if method.settings_problem is not None:
        return f"method.{method.settings_problem}"
    if (
        issubclass(method.update_type, Summand)
        and method.update_type.counted
        and method.weighting != "equal"
    ):
        return (
            f'method.weighting = "{method.weighting}": votes count the same, whoever casts '
            'them; set it to "equal"'
        )
    prefix = f'aggregation.name = "{rule.name}" does not fit {method.name}'
    if rule.compares and method.incomparable is not None:
        return f"{prefix}: {add_remedy(method.incomparable)}"
    if rule.needs_past and not method.lasting_entries:
        return (
            f"{prefix}: aggregation.{rule.needs_past} needs directions that are the same in every "
            'round; leave it out, or take such a method (fedkseed, ferret with seeds = "fixed", '
            "or one that sends weights or gradients)"
        )
    return None
