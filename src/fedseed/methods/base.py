"""What a method is: five functions that a round takes, none of which needs a model.

    plan       coordinator: state -> what this round asks of a client
    train      client:      plan + data -> update
    aggregate  coordinator: updates -> step
    change     anybody:     step -> what becomes of the weights, as data (`fedseed.weights.change`)
    advance    everybody:   state + step -> state of the next round

The object itself is the method's settings, checked and frozen; a run's memory is the state, which is a function of
the steps alone, so that whoever holds the orbit holds the state. Payloads say by their fields how they travel
(`fedseed.methods.payload`). How answers are combined, how a step is rounded, what a gradient becomes, what wraps
a client or its answers: components that a method is given, not functions of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fedseed.aggregation import AggregationRule
from fedseed.aggregation.base import Part, Past, spread
from fedseed.aggregation.weighting import Weighting
from fedseed.methods.client import Client
from fedseed.methods.payload import About, Nothing, Payload, State
from fedseed.methods.summands import Summand
from fedseed.models.adapters import Adapter
from fedseed.weights.change import Change
from fedseed.weights.layout import BlockRule, Layout


class CatchUp(ABC):
    """How somebody who missed rounds gets the model: which steps they need. Stores, logs and clients ask it alone."""

    replaces: ClassVar[bool] = False  # whether a step replaces all before it, as whole weights do
    may_drop: ClassVar[bool] = False  # whether an orbit replays without its earlier steps

    @abstractmethod
    def needs(self, has: int, last: int, changed: int) -> range:
        """Returns the numbers of the steps that somebody still downloads.

        Args:
            has: the last step that they have.
            last: the newest step.
            changed: the newest step that is not empty.
        """


class EveryStep(CatchUp):
    """Each step adds to those before it."""

    def needs(self, has: int, last: int, changed: int) -> range:
        return range(has + 1, last + 1)


class NewestStep(CatchUp):
    """A step is whole weights: the newest replaces all before it."""

    replaces = True

    def needs(self, has: int, last: int, changed: int) -> range:
        return range(changed, changed + 1) if changed > has else range(0)


class NextPlan(CatchUp):
    """The next plan carries the model, so nothing has to be downloaded."""

    may_drop = True

    def needs(self, has: int, last: int, changed: int) -> range:
        return range(0)


ALL = 0xFFFFFFFF  # in place of a client's number: one answer that stands for all


class Round(NamedTuple):
    """Whom a plan is for.

    Args:
        number: the round, from 1.
        client: the client's number.
        clients: all that take part in the round.
    """

    number: int
    client: int
    clients: Sequence[int]


class Answer(NamedTuple):
    """One client's checked update, and its weight c_i; the weights of a round add up to 1."""

    client: int
    weight: float
    update: Any


@dataclass(frozen=True)
class Answers(Sequence[Answer]):
    """A round's answers, in ascending order of clients; there may be none.

    Args:
        round: the round's number.
        answers: the answers.
        rule: how vectors of the clients become one.
        past: what else the rule may know.
    """

    round: int
    answers: Sequence[Answer]
    rule: AggregationRule
    past: Past = field(default_factory=Past)

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: Any) -> Any:
        return self.answers[index]

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.answers)

    @property
    def updates(self) -> list[Any]:
        """The updates alone."""
        return [answer.update for answer in self.answers]

    @property
    def weights(self) -> list[float]:
        """c_i of each."""
        return [answer.weight for answer in self.answers]

    def combine(self, vectors: Part) -> NDArray[np.float64]:
        """One vector from one of each client, by the rule: with the mean, sum_i c_i v_i in double precision.

        Shorter vectors are filled up with zeros.
        """
        (outcome,) = self.combine_parts([vectors])
        return outcome

    def combine_parts(self, parts: Iterable[Part]) -> Iterator[NDArray[np.float64]]:
        """The same of vectors that are made of parts, such as blocks or tensors: the rule sees them as one.

        Args:
            parts: the same entries of each client's vector; gone through more than once.
        """
        return self.rule.combine_parts(_Padded(parts), self.weights, self.past)

    def tally(self, votes: Part) -> NDArray[np.float64]:
        """What the rule makes of clients' votes, entry by entry; the mean counts each the same: it is their sum."""
        return np.sum(votes, axis=0, dtype=np.float64) if self.rule.linear else self.combine(votes)

    def accumulate(
        self,
        total: NDArray[np.floating[Any]],
        indices: Sequence[NDArray[np.integer[Any]]],
        values: Sequence[NDArray[np.floating[Any]]],
    ) -> NDArray[np.float64]:
        """`total` and what the rule makes of sparse vectors (`AggregationRule.accumulate`)."""
        if self.rule.linear or not values:
            return self.rule.accumulate(total, indices, values, self.weights)
        return total.astype(np.float64) + self.combine(spread(len(total), indices, values))


class _Padded(Iterable[Part]):
    """Parts in which shorter vectors are filled up with zeros."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[Part]:
        for part in self._parts:
            longest = max(map(len, part))
            yield [np.pad(v, (0, longest - len(v))) if len(v) < longest else v for v in part]


class Method(BaseModel, ABC):
    """Settings and the functions of one method. Subclasses stand in a file each.

    Args:
        blocks: how the parameter vector is cut into blocks.
        weighting: what a client's weight c_i is in proportion to.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    code: ClassVar[int]  # names the method in a message's frame
    about: ClassVar[str]  # one line for `fedseed list methods`
    adapter: ClassVar[Adapter | None] = None  # what it tunes if the recipe names no adapter; no other kind will do
    needs_gradients: ClassVar[bool] = True  # else its clients measure losses alone, which may be of any kind
    stepwise: ClassVar[bool] = False  # a round is one optimiser step: there are thousands, logged in groups

    blocks: BlockRule = "one"
    weighting: Weighting = "equal"

    def check(self, layout: Layout) -> None:
        """Whether the settings fit the weights that train. Raises ValueError, which names the keys."""

    # -- the contract ----------------------------------------------------------------------------------------------

    def start(self, layout: Layout, seed: int) -> State:
        """The state before the first round. Raises ValueError if the settings do not fit the layout."""
        return State(layout, seed)

    def plan(self, state: Any, round: Round) -> Payload:
        """What the coordinator asks of a client: by default nothing but the round's number."""
        return Nothing()

    @abstractmethod
    def train(self, state: Any, plan: Any, client: Client) -> Payload:
        """What a client answers. Raises NonFiniteError if it has nothing to send."""

    @abstractmethod
    def aggregate(self, state: Any, answers: Answers) -> Payload:
        """The step that follows from a round's answers."""

    @abstractmethod
    def change(self, state: Any, step: Any) -> Change:
        """What becomes of the weights; `state` is the one before the step."""

    def advance(self, state: Any, step: Any) -> Any:
        """The state after a step."""
        return state

    def remember(self, state: Any, answers: Answers) -> Any:
        """The coordinator's state with what it keeps of the answers and no step carries; `aggregate` gets it."""
        return state

    # -- what it declares ------------------------------------------------------------------------------------------

    plan_type: ClassVar[type[Payload]] = Nothing
    update_type: ClassVar[type[Payload]]
    step_type: ClassVar[type[Payload]]

    @property
    def catch_up(self) -> CatchUp:
        """How somebody who missed rounds gets the model."""
        return EveryStep()

    @property
    def from_base(self) -> bool:
        """Whether its changes rebuild the weights from the base, which is kept then."""
        return False

    @property
    def rebuilds_often(self) -> bool:
        """Whether weights are rebuilt from the base at every local step, not only where a round begins and ends."""
        return False

    @property
    def remembers(self) -> bool:
        """Whether a client keeps something from round to round besides the weights (`Client.recall`, `Client.keep`)."""
        return False

    @property
    def entrywise(self) -> bool:
        """Whether messages, and what a client needs to make them, are in proportion to the model."""
        return self.catch_up.replaces

    @property
    def personal_plans(self) -> bool:
        """Whether clients of one round are asked for different things."""
        return False

    @property
    def together(self) -> Literal["losses", "gradients"] | None:
        """What several clients of one process may compute in one go: losses along common directions, gradients."""
        return None

    @property
    def incomparable(self) -> str | None:
        """Why clients' vectors can't be combined by rules other than the mean; None: they can."""
        return None

    @property
    def lasting_entries(self) -> bool:
        """Whether an entry of clients' vectors means the same in every round; not where directions are new."""
        return self.catch_up.replaces

    @property
    def unsummable(self) -> str | None:
        """Why the sum of clients' vectors can't stand for all of them; None: it can (`fedseed.methods.summands`)."""
        if not issubclass(self.update_type, Summand):
            return "its steps are no sums of vectors of one length, such as coefficients on shared directions"
        return self.incomparable

    @property
    def keeps_small_steps(self) -> bool:
        """Whether 16-bit weights are rounded stochastically where they would lose small steps."""
        return False

    def figures(self, state: Any) -> dict[str, NDArray[Any]]:
        """What of the state a person would like to see at the end of a run: 1-D arrays by name."""
        return {}

    # -- messages, by the declared types ----------------------------------------------------------------------------

    def decode_plan(self, state: Any, data: bytes) -> Any:
        """A plan from its payload. Raises MessageError."""
        return self.plan_type.decode(data, About(self, state, "plan"))

    def decode_update(self, state: Any, number: int, data: bytes) -> Any:
        """An update from its payload, checked against what round `number` asked for. Raises MessageError."""
        return self.update_type.decode(data, About(self, state, "update", number))

    def decode_step(self, state: Any, data: bytes) -> Any:
        """A step from its payload. Raises MessageError."""
        return self.step_type.decode(data, About(self, state, "step"))


def with_remedy(reason: str) -> str:
    """Why clients' vectors can't be combined, and what to set where seeds are the reason."""
    return reason + '; set method.seeds = "shared"' * reason.startswith("seeds")


def misfit(method: Method, rule: AggregationRule) -> str | None:
    """Why a rule can't combine a method's answers; None: it can."""
    said = f'aggregation.name = "{rule.name}" does not fit {method.name}'
    if rule.compares and method.incomparable is not None:
        return f"{said}: {with_remedy(method.incomparable)}"
    if rule.needs_past and not method.lasting_entries:
        return (
            f"{said}: aggregation.{rule.needs_past} needs directions that are the same in every round; leave it out, "
            'or take such a method (fedkseed, ferret with seeds = "fixed", or one that sends weights or gradients)'
        )
    return None


def too_few(rule: AggregationRule, per_round: int) -> str | None:
    """Why a rule can't do with so many clients a round; None: it can."""
    if problem := rule.shortage(per_round):
        return f"{problem} clients in a round (federation.per_round): take more of them, or fewer liars"
    return None
