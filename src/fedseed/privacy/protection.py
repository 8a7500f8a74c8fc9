"""Wraps a method where data are protected: what clients measure, what they send, what the
coordinator combines.

    examples   the client's estimates are bounded for each example, and get noise before they are
    sent
    clients    what a client sends is bounded; the coordinator gets the noisy mean in place of
    single answers
    votes      the coordinator gets a private draw in place of the votes (DP-FeedSign); a client
    always votes

No method knows of it. What a protection sees of an update is `Payload.vector` and `with_vector`,
`Method.unit`, and whether clients' vectors can be compared (`Method.incomparable`).
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import nan
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from fedseed.aggregation import AggregationRule, Mean
from fedseed.errors import NonFiniteError
from fedseed.methods import REGISTRY, base
from fedseed.methods.base import ALL, Answer, Answers, Method
from fedseed.methods.payload import About, Payload, State, Summand
from fedseed.methods.zeroth import Projection, ZerothOrder
from fedseed.privacy.draws import private_batches
from fedseed.privacy.scalars import PrivateScalars, bounded
from fedseed.privacy.settings import Level, PrivacySettings
from fedseed.privacy.sign import PrivateSign
from fedseed.randomness import Basis, Domain, derive
from fedseed.training.protocol import Client

_NO_SUM = (
    "noise goes to the sum of what clients send, and along directions of their own there is none"
)


class Required(NamedTuple):
    """Says what a setting must be where data are protected, of any method that has it."""

    key: str
    values: tuple[Any, ...]  # that it may have
    reason: str  # why no others
    level: Level | None = None  # where; None: at both
    unless: str | None = None  # another key: methods that have it need not


_TRAVEL = Required("travel", ("pairs",), "whole weights have no bound")
_REQUIRED = (
    Required("weighting", ("equal",), "how many examples a client has would be told"),
    # there each one gets noise of its own
    Required("seeds", ("shared", "fixed"), _NO_SUM, "client", unless="travel"),
    Required(
        "allocation",
        ("size", "uniform", "previous"),
        "how many coefficients it sends would tell",
        "client",
    ),
    Required(
        "scalars",
        ("float32", "byte"),
        "noise is added to sums, and signs are no summands",
        "client",
    ),
    Required(
        "importance", (False,), "probabilities would be made of what each client sends", "client"
    ),
    Required(
        "personal", ("constant", "random", "update"), "training losses would be told", "example"
    ),
    Required("personal", ("constant",), "what clients send is bounded at one rate", "client"),
    Required("population", (1,), "parts of a batch have no account of their own", "example"),
    Required("normalize", ("none",), "an example would move what others' losses become", "example"),
    Required(
        "autocast",
        (None,),
        "in a 16-bit pass one example moves what others' losses are rounded to",
        "example",
    ),
    Required("clip", (None,), "whether a step is skipped would depend on all examples", "example"),
)


def vote_epsilon(method: Method) -> float | None:
    """Return epsilon of each vote of a method whose clients vote (DP-FeedSign).

    None: no vote is drawn.
    """
    return getattr(method, "epsilon", None) if _counts_votes(method) else None


def protects(method: Method) -> frozenset[Level]:
    """Return what `[privacy]` can protect: single examples of estimates, clients whose vectors a
    step adds up.
    """
    kind = method.update_type
    found: set[Level] = {"example"} if kind.projections else set()
    if issubclass(kind, Summand) and not kind.counted:
        found.add("client")
    return frozenset(found)


def unprotected(method: Method, settings: PrivacySettings) -> str | None:
    """Return why these settings can't protect a method's data; None: they can."""
    if (epsilon := vote_epsilon(method)) is not None:
        return (
            f"method.epsilon = {epsilon:g} is DP-FeedSign, with an account of its own: leave "
            "out [privacy]"
        )
    if _counts_votes(method):
        return (
            "[privacy] is for scalars, and votes are bits: set method.epsilon, which is "
            "DP-FeedSign, in its place"
        )
    if problem := _wanting(method, settings.level, (_TRAVEL,)):
        return problem
    if settings.level not in protects(method):
        can = ", ".join(f'"{level}"' for level in sorted(protects(method)))
        return f'privacy.level = "{settings.level}": {method.name} ' + (
            f"protects {can} alone" if can else "has no private mechanism for what it sends"
        )
    batch: int = getattr(method, "batch", 1)
    if settings.examples is not None and batch > settings.examples:
        return f"privacy.examples = {settings.examples}: a batch has {batch} (method.batch)"
    return _wanting(method, settings.level, _REQUIRED)


def _wanting(method: Method, at: Level, required: Sequence[Required]) -> str | None:
    for key, values, reason, level, unless in required:
        fits = getattr(method, key, values[0]) in values or (
            unless is not None and hasattr(method, unless)
        )
        if level in (None, at) and not fits:
            allowed = " or ".join(map(json.dumps, values)) if None not in values else "nothing"
            value = json.dumps(getattr(method, key))
            return (
                f'method.{key} = {value} with privacy.level = "{at}": {reason}; set it to {allowed}'
            )
    return None


def _counts_votes(method: Method) -> bool:
    return issubclass(method.update_type, Summand) and method.update_type.counted


class Private(Method, ABC):
    """A method with a recipe's `[privacy]`, which orbits keep among its settings.

    `protected` makes one.
    """

    kind: ClassVar[type[Method]]  # the class of the method without it
    private: PrivacySettings = Field(json_schema_extra={"internal": True})

    def __reduce__(self) -> Any:
        return protected, (_plain(self), self.private)


@cache
def _private(kind: type[Method]) -> type[Private]:
    """Return the kind of method that has `[privacy]`, too."""
    return type(
        kind.__name__,
        (Private, kind),
        {"__module__": kind.__module__, "__doc__": kind.__doc__, "kind": kind},
    )


def _plain(method: Method) -> Method:
    """Return the method without `[privacy]`."""
    if not isinstance(method, Private):
        return method
    return method.kind.model_construct(
        **{name: getattr(method, name) for name in method.kind.model_fields}
    )


def protected(method: Method, settings: PrivacySettings) -> Method:
    """Return a method with a recipe's `[privacy]`.

    Raises:
        ValueError: these settings can't protect its data; names the keys.
    """
    method = _plain(method)
    if problem := unprotected(method, settings):
        if settings.level not in protects(method):
            kinds: list[Any] = [entry.thing for entry in REGISTRY.entries()]
            usual = (kind.model_construct() for kind in kinds)
            others = (other.name for other in usual if settings.level in protects(other))
            problem = f"{problem}; {', '.join(others)} can"
        raise ValueError(problem)
    values = {name: getattr(method, name) for name in method.__class__.model_fields}
    return _private(method.__class__).model_construct(**{**values, "private": settings})


def check_dtypes(method: Method, dtypes: Iterable[str]) -> None:
    """Refuse to protect examples in passes where one moves what others' losses become.

    Raises ValueError.

    Args:
        method: of the run.
        dtypes: of all that the model computes with, what is not tuned included.
    """
    private, short = (
        settings_of(method),
        sorted({"bfloat16", "float16", "int8"}.intersection(dtypes)),
    )
    if short and private is not None and private.level == "example":
        raise ValueError(
            f'privacy.level = "example" with {short[0]} weights: in such a pass one example moves '
            "what others' losses "
            "are rounded to, which no epsilon counts; load the model in float32, with no adapter "
            "over 8 or 16 bits"
        )


def read_method(kind: type[Method], settings: dict[str, Any]) -> Method:
    """Return a method from the settings that an orbit has of it.

    Raises ValueError, pydantic's included.
    """
    method = kind.model_validate(
        {key: value for key, value in settings.items() if key != "private"}
    )
    private = settings.get("private")
    return method if private is None else protected(method, PrivacySettings.model_validate(private))


def settings_of(method: Method) -> PrivacySettings | None:
    """Return the `[privacy]` that a method was given; None: none."""
    return method.private if isinstance(method, Private) else None


def mechanism_of(method: Method) -> PrivateScalars | PrivateSign | None:
    """Return what makes a run of a method private, and keeps its account; None: nothing does.

    Of a run that has one nothing else is told that depends on a client's data (docs/trust.md): no
    losses, no counts, no reasons, no seconds of clients' work. Its account is of what the
    coordinator has counted itself.
    """
    protection = protection_of(method)
    return None if protection is None else protection.mechanism


def protection_of(method: Method) -> "Protection | None":
    """Return what wraps a method's client and its answers; None: nothing does."""
    settings, epsilon = settings_of(method), vote_epsilon(method)
    if epsilon is not None:
        nowhere: Any = None  # how many votes there are depends on the settings alone
        votes = summand(method).words(About(method, nowhere, "update"))
        return ProtectedVotes(method, PrivateSign(epsilon, votes))
    if settings is None:
        return None
    if settings.level == "client":
        return ProtectedClients(method, PrivateScalars(settings))
    size: Any = method  # has batches: its clients make estimates
    return ProtectedExamples(
        method, PrivateScalars(settings, getattr(method, "steps", 1), size.batch)
    )


def misfit(method: Method, rule: AggregationRule, per_round: int | None = None) -> str | None:
    """Return why a rule can't combine a method's answers, private or not, of so many clients.

    None if it can.
    """
    settings, epsilon = settings_of(method), vote_epsilon(method)
    said = f'aggregation.name = "{rule.name}"'
    if problem := base.misfit(method, rule):
        return problem
    if settings is not None and settings.level == "client" and type(rule) is not Mean:
        return (
            f'{said} with privacy.level = "client": how far one client moves its result is not '
            "known, so noise has no "
            'measure; take "mean", or privacy.level = "example"'
        )
    if epsilon is not None and rule.compares:
        return (
            f"{said} does not fit {method.name}: epsilon = {epsilon:g}: the private draw is made "
            "of the sum of all votes, each counting the same"
        )
    if per_round is not None and (problem := rule.shortage(per_round)):
        return (
            f"{problem} clients in a round (federation.per_round): take more of them, or fewer "
            "liars"
        )
    return None


@dataclass(frozen=True)
class Protection(ABC):
    """Stands between a method and its clients' data."""

    method: Method  # the method
    mechanism: Any  # makes numbers private, and keeps the account
    # whether each client must compute alone, even where clients could do so in one go
    alone: ClassVar[bool] = False
    # whether it bounds each client's update: then no client decides of another's
    bounds: ClassVar[bool] = False
    # whether what leaves a client is private already, so that each client keeps an account
    by_client: ClassVar[bool] = False

    @abstractmethod
    def train(self, state: State, plan: Any, client: Client) -> Payload:
        """Return what a client answers, for `Method.train`.

        Raises NonFiniteError where silence tells nothing.
        """

    def combined(self, state: State, answers: Answers, asked: int) -> Answers:
        """Return what the method is given in place of a round's answers.

        Args:
            state: the one before the step.
            answers: of the clients.
            asked: how many clients were asked, whoever has answered.
        """
        return answers


class ProtectedExamples(Protection):
    """Each client bounds what an example does to its losses, and adds noise to the sum before it
    sends.
    """

    alone = True
    by_client = True

    def train(self, state: State, plan: Any, client: Client) -> Payload:
        return self.method.train(state, plan, _Measuring(client, self.mechanism))


class ProtectedClients(Protection):
    """What clients send is bounded, and the coordinator adds noise to its sum.

    Where clients' vectors are along directions of their own there is no sum: each one gets noise of
    its own.
    """

    bounds = True

    def train(self, state: State, plan: Any, client: Client) -> Payload:
        """Return the update at most `clip` long.

        One of zeros where nothing was usable, for silence would tell.
        """
        about, kind = About(self.method, state, "update", client.round), summand(self.method)
        update = kind.of(np.zeros(kind.words(about)), about)
        with suppress(NonFiniteError):
            update = self.method.train(state, plan, client)  # type: ignore[assignment]
        within = bounded(update.vector(about) / about.unit, self.mechanism.settings.clip)
        return update.with_vector(about.unit * within, about)

    def combined(self, state: State, answers: Answers, asked: int) -> Answers:
        """Return one answer that stands for all: the noisy mean of the bounded vectors."""
        about, kind = About(self.method, state, "update", answers.round), summand(self.method)

        def noisy(updates: Sequence[Any], asked: int) -> Any:
            return about.unit * self.mechanism.mean(
                [update.vector(about) / about.unit for update in updates], asked
            )

        if self.method.incomparable is not None:
            own = (
                Answer(client, c, one.with_vector(noisy([one], 1), about))
                for client, c, one in answers
            )
            return replace(answers, answers=tuple(own))
        return (
            _instead(answers, kind.of(noisy(answers.updates, asked), about)) if answers else answers
        )


class ProtectedVotes(Protection):
    """Votes reach the coordinator as they are, and its draw is what is private (FeedSign, Eq.
    21).
    """

    def train(self, state: State, plan: Any, client: Client) -> Payload:
        return self.method.train(state, plan, _Voting(client))

    def combined(self, state: State, answers: Answers, asked: int) -> Answers:
        """Return one vote that stands for all: drawn by the sum of the votes, each counting the
        same.
        """
        if not answers:
            return answers
        about = About(self.method, state, "update", answers.round)
        sums = np.sum([update.vector(about) for update in answers.updates], axis=0)
        drawn = np.array(self.mechanism.draw(sums), dtype=np.float64)
        return _instead(answers, summand(self.method).of(drawn, about))


def _instead(answers: Answers, update: Payload) -> Answers:
    return replace(answers, answers=(Answer(ALL, 1.0, update),))


def summand(method: Method) -> type[Summand]:
    """Return what a method's updates are, which can be added up."""
    assert issubclass(method.update_type, Summand)
    return method.update_type


class _Wrapped:
    """Passes everything on to a client but what a subclass makes private."""

    def __init__(self, client: Client) -> None:
        self.inner: Any = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Voting(_Wrapped):
    """A client that has something to say in any case: a direction whose losses are not usable
    counts as one of 0.
    """

    def batches(self, size: int) -> Iterator[list[Any]]:
        """Yield the client's batches; empty ones where it has no example."""
        with suppress(NonFiniteError):
            yield from self.inner.batches(size)
        while True:
            yield []

    def estimates(
        self,
        method: ZerothOrder,
        basis: Basis,
        along: Sequence[int],
        items: Sequence[Any],
        one_sided: bool = False,
    ) -> list[Projection]:
        with suppress(NonFiniteError):
            if items:
                return list(self.inner.estimates(method, basis, along, items, one_sided))
        return [Projection(0.0, nan)] * len(along)


class _Measuring(_Wrapped):
    """A client whose estimates are private.

        d_ij  = l(w + eps z_j; x_i) - l(w - eps z_j; x_i)      of example i along direction j, over
        its own terms
        rho_j = [sum_i d_ij + noise] / (2 eps B)                each (d_i1, ..., d_in) at most
        `clip` long

    B is the recipe's batch, however many examples were drawn: that is nobody's secret.
    """

    def __init__(self, client: Client, mechanism: PrivateScalars) -> None:
        super().__init__(client)
        self.mechanism = mechanism

    def batches(self, size: int) -> Iterator[list[Any]]:
        """Yield batches as `[privacy]` has them drawn, no example twice in one.

        They may be smaller, or empty.
        """
        inner = self.inner
        order = derive(inner.seed, Domain.DATA_ORDER, inner.round, inner.number)
        return private_batches(inner.items, size, self.mechanism.settings, order)

    def estimates(
        self,
        method: ZerothOrder,
        basis: Basis,
        along: Sequence[int],
        items: Sequence[Any],
        one_sided: bool = False,
    ) -> list[Projection]:
        """Return one noisy vector, and no losses.

        An example whose loss is not finite counts as unchanged.
        """
        client, scale = self.inner, method.scale
        with client.autocast(method.autocast):
            plus = [client.example_losses(basis, k, scale, items) for k in along]
            if one_sided:
                minus = [client.example_losses(basis, 0, 0.0, items)] * len(along)
            else:
                minus = [client.example_losses(basis, k, -scale, items) for k in along]
        with np.errstate(invalid="ignore"):
            differences = np.array(plus, dtype=np.float64) - np.array(minus, dtype=np.float64)
        width = (scale if one_sided else 2 * scale) * method.batch
        rho = self.mechanism.noisy_sum(list(differences.T), len(along)) / width
        return [Projection(value, 0.0) for value in rho.astype(np.float32).tolist()]
