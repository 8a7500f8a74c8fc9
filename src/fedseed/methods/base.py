"""What a method is: five functions that a round takes, none of which needs a model.

    plan       coordinator: state -> what this round asks of a client
    train      client:      plan + data -> update
    aggregate  coordinator: updates -> step
    change     anybody:     step -> what becomes of the weights, as data (`fedseed.weights.change`)
    advance    everybody:   state + step -> state of the next round

The object itself is the method's settings, checked and frozen; a run's memory is the state, which is a function of
the steps alone, so that whoever holds the orbit holds the state. Payloads say by their fields how they travel
(`fedseed.methods.payload`). How answers are combined, how a step is rounded, what a gradient becomes, how privacy is
accounted for: components that a method is given, not functions of its own.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedseed.aggregation import AggregationRule, Mean
from fedseed.aggregation.base import Part, Past, spread
from fedseed.aggregation.weighting import Weighting
from fedseed.methods.catch_up import CatchUp, EveryStep
from fedseed.methods.client import Client
from fedseed.methods.payload import About, Nothing, Payload, State
from fedseed.methods.summands import Summand
from fedseed.models.adapters import Adapter
from fedseed.privacy import Level, Mechanism, Noise, PrivacySettings, PrivateScalars, Required
from fedseed.weights.change import Change
from fedseed.weights.layout import BlockRule, Layout


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
        noise: the mechanism that bounds the vectors and adds noise to their sum; None: there is none.
        asked: how many clients were asked, whoever has answered.
    """

    round: int
    answers: Sequence[Answer]
    rule: AggregationRule
    past: Past = field(default_factory=Past)
    noise: Noise | None = None
    asked: int = 0

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

        Shorter vectors are filled up with zeros. With `noise`, the noisy mean of bounded vectors.
        """
        (outcome,) = self.combine_parts([vectors])
        return outcome

    def combine_parts(self, parts: Iterable[Part]) -> Iterator[NDArray[np.float64]]:
        """The same of vectors that are made of parts, such as blocks or tensors: the rule sees them as one.

        Args:
            parts: the same entries of each client's vector; gone through more than once.
        """
        padded = _Padded(parts)
        if self.noise is None:
            return self.rule.combine_parts(padded, self.weights, self.past)
        each = list(padded)  # it bounds all of a client's parts as one
        joined = [np.concatenate(vectors) for vectors in zip(*each, strict=True)]
        return iter(np.split(self.noise.mean(joined, self.asked), np.cumsum([len(part[0]) for part in each])[:-1]))

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


class Odds(Protocol):
    """How likely a method's steps are, which audits by the orbit go by."""

    @property
    def batch(self) -> int:
        """Examples that an answer is made of, drawn once a round."""
        ...

    def log_chance(self, state: Any, answers: Answers, step: Any) -> float:
        """log P(this step follows from these answers); of one that can't follow, very low."""
        ...


class Method(BaseModel, ABC):
    """Settings and the functions of one method. Subclasses stand in a file each.

    Args:
        blocks: how the parameter vector is cut into blocks.
        weighting: what a client's weight c_i is in proportion to.
        private: a recipe's `[privacy]`, which stands there and not among a method's keys.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    code: ClassVar[int]  # names the method in a message's frame
    about: ClassVar[str]  # one line for `fedseed list methods`
    adapter: ClassVar[Adapter | None] = None  # what it tunes if the recipe names no adapter; no other kind will do
    needs_gradients: ClassVar[bool] = True  # else its clients measure losses alone, which may be of any kind
    stepwise: ClassVar[bool] = False  # a round is one optimiser step: there are thousands, logged in groups

    protects: ClassVar[frozenset[Level]] = frozenset()  # what `[privacy]` may protect
    private_needs: ClassVar[tuple[Required, ...]] = (
        Required("weighting", ("equal",), "how many examples a client has would be told"),
    )

    blocks: BlockRule = "one"
    weighting: Weighting = "equal"
    private: PrivacySettings | None = Field(None, json_schema_extra={"internal": True})

    @model_validator(mode="after")
    def _is_protected(self) -> Self:
        if self.private is not None and (problem := self.unprotected(self.private)):
            raise ValueError(problem)
        return self

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
        """Why secure sums can't add up clients' updates; None: they can (`fedseed.methods.summands`)."""
        if not issubclass(self.update_type, Summand):
            return "its steps are no sums of vectors of one length, such as coefficients on shared directions"
        return self.incomparable

    @property
    def keeps_small_steps(self) -> bool:
        """Whether 16-bit weights are rounded stochastically where they would lose small steps."""
        return False

    @property
    def privacy(self) -> Mechanism | None:
        """The mechanism that makes its steps private.

        Of a run that has one nothing else is told that depends on a client's data (docs/trust.md): no losses, no
        counts, no reasons, no seconds of clients' work; `train` should answer whatever the data is.
        """
        if self.private is None:
            return None
        return PrivateScalars(self.private, *(self.releases if self.level == "example" else (1, 1)))

    @property
    def level(self) -> Level | None:
        """What `[privacy]` protects; None: there is none."""
        return None if self.private is None else self.private.level

    @property
    def releases(self) -> tuple[int, int]:
        """How many noisy vectors a client's turn gives away where examples are protected, and of how many each is."""
        return 1, 1

    @classmethod
    def requirements(cls) -> Iterator[Required]:
        """What its settings must be where data are protected, its parents' included."""
        for parent in cls.__mro__:
            yield from vars(parent).get("private_needs", ())

    def unprotected(self, settings: PrivacySettings) -> str | None:
        """Why these settings can't protect this method's data; None: they can."""
        if settings.level not in self.protects:
            can = ", ".join(f'"{level}"' for level in sorted(self.protects))
            return f'privacy.level = "{settings.level}": {self.name} ' + (
                f"protects {can} alone" if can else "has no private mechanism for what it sends"
            )
        for key, values, reason, level in self.requirements():
            value = getattr(self, key)
            if level in (None, settings.level) and value not in values:
                allowed = " or ".join(map(json.dumps, values)) if None not in values else "nothing"
                return (
                    f'method.{key} = {json.dumps(value)} with privacy.level = "{settings.level}": {reason}; set it to '
                    f"{allowed}"
                )
        return None

    @property
    def odds(self) -> "Odds | None":
        """How likely its steps are; None: it is not known."""
        return None

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
    if method.level == "client" and type(rule) is not Mean:
        return (
            f'aggregation.name = "{rule.name}" with privacy.level = "client": how far one client moves its result is '
            'not known, so noise has no measure; take "mean", or privacy.level = "example"'
        )
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
