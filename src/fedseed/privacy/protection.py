"""Wraps a method where data are protected: clients' measurements and updates, and the coordinator's
combination.

    examples   a client's estimates are bounded for each example, and get noise before they are sent
    clients    a client's update is bounded; the coordinator gets the noisy mean in place of single
               answers
    votes      the coordinator gets a private draw in place of the votes (DP-FeedSign); a client
               always votes

Methods need no code for this. A protection uses `Payload.vector` and `with_vector`, `Method.unit`,
and whether clients' vectors can be compared (`Method.incomparable`).
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
from fedseed.methods.payload import DecodeContext, Payload, State, Summand
from fedseed.methods.zeroth import Projection, ZerothOrder
from fedseed.privacy.draws import private_batches
from fedseed.privacy.scalars import PrivateScalars, shorten
from fedseed.privacy.settings import Level, PrivacySettings
from fedseed.privacy.sign import PrivateSign
from fedseed.randomness import Basis, Domain, derive
from fedseed.training.protocol import Client

_NO_SUM = (
    "noise is added to the sum of what clients send, but with clients' own directions there "
    "is no sum"
)


class Required(NamedTuple):
    """The values that a setting must have if data are protected, in every method with this
    setting.
    """

    key: str
    values: tuple[Any, ...]  # allowed values
    reason: str  # why other values are not allowed
    level: Level | None = None  # the level of privacy at which this is required; None: both
    unless: str | None = None  # another key; methods with this key are exempt


_TRAVEL = Required("travel", ("pairs",), "whole weights have no bound")
_REQUIRED = (
    Required("weighting", ("equal",), "it would reveal a client's number of examples"),
    # without shared directions each vector needs its own noise
    Required("seeds", ("shared", "fixed"), _NO_SUM, "client", unless="travel"),
    Required(
        "allocation",
        ("size", "uniform", "previous"),
        "the number of coefficients would reveal something about the data",
        "client",
    ),
    Required(
        "scalars",
        ("float32", "byte"),
        "noise is added to sums, but signs are not added up",
        "client",
    ),
    Required(
        "importance",
        (False,),
        "probabilities would be computed from what each client sends",
        "client",
    ),
    Required(
        "personal", ("constant", "random", "update"), "it would reveal training losses", "example"
    ),
    Required(
        "personal",
        ("constant",),
        "the bound on what clients send assumes a constant rate",
        "client",
    ),
    Required("population", (1,), "parts of a batch do not have their own account", "example"),
    Required(
        "normalize",
        ("none",),
        "one example would change the values computed from other examples' losses",
        "example",
    ),
    Required(
        "autocast",
        (None,),
        "in a 16-bit pass one example changes how other examples' losses are rounded",
        "example",
    ),
    Required("clip", (None,), "skipping a step would depend on all examples", "example"),
)


def vote_epsilon(method: Method) -> float | None:
    """Return epsilon of each vote, if clients' votes are drawn privately (DP-FeedSign).

    None if the method has no such draw.
    """
    return getattr(method, "epsilon", None) if _counts_votes(method) else None


def protects(method: Method) -> frozenset[Level]:
    """Return the levels at which `[privacy]` can protect a method's data."""
    kind = method.update_type
    levels: set[Level] = {"example"} if kind.projections else set()
    if issubclass(kind, Summand) and not kind.counted:
        levels.add("client")
    return frozenset(levels)


def unprotected(method: Method, settings: PrivacySettings) -> str | None:
    """Return the reason why these settings can't protect a method's data; None if they can."""
    epsilon = vote_epsilon(method)
    if epsilon is not None:
        return (
            f"method.epsilon = {epsilon:g} is DP-FeedSign, which has its own account: leave out "
            "[privacy]"
        )
    if _counts_votes(method):
        return (
            "[privacy] is for scalars, but votes are bits: set method.epsilon instead, which is "
            "DP-FeedSign"
        )
    problem = _unmet_requirement(method, settings.level, (_TRAVEL,))
    if problem is not None:
        return problem
    if settings.level not in protects(method):
        protected_levels = ", ".join(f'"{level}"' for level in sorted(protects(method)))
        ability = "has no private mechanism for what it sends"
        if protected_levels:
            ability = f"protects only {protected_levels}"
        return f'privacy.level = "{settings.level}": {method.name} {ability}'
    batch: int = getattr(method, "batch", 1)
    if settings.examples is not None and batch > settings.examples:
        return (
            f"privacy.examples = {settings.examples}: must not be less than a batch, which has "
            f"{batch} (method.batch)"
        )
    return _unmet_requirement(method, settings.level, _REQUIRED)


def _unmet_requirement(method: Method, level: Level, required: Sequence[Required]) -> str | None:
    """Describe the first setting without an allowed value; None if all are allowed."""
    for key, values, reason, required_level, unless in required:
        if required_level not in (None, level):
            continue
        is_exempt = unless is not None and hasattr(method, unless)
        if is_exempt or getattr(method, key, values[0]) in values:
            continue
        allowed = "nothing"
        if None not in values:
            allowed = " or ".join(map(json.dumps, values))
        value = json.dumps(getattr(method, key))
        return (
            f'method.{key} = {value} with privacy.level = "{level}": {reason}; set it to {allowed}'
        )
    return None


def _counts_votes(method: Method) -> bool:
    return issubclass(method.update_type, Summand) and method.update_type.counted


class Private(Method, ABC):
    """A method with a recipe's `[privacy]`, which becomes part of the method's settings in orbits.

    Created by `protect`.
    """

    kind: ClassVar[type[Method]]  # the class of the method without it
    private: PrivacySettings = Field(json_schema_extra={"internal": True})

    def __reduce__(self) -> Any:
        return protect, (_plain(self), self.private)


@cache
def _make_private_class(kind: type[Method]) -> type[Private]:
    """Return the class of a method with `[privacy]`."""
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


def protect(method: Method, settings: PrivacySettings) -> Method:
    """Return a method with a recipe's `[privacy]`.

    Raises:
        ValueError: these settings can't protect its data; the message names the keys.
    """
    method = _plain(method)
    problem = unprotected(method, settings)
    if problem is not None:
        if settings.level not in protects(method):
            kinds: list[Any] = [entry.thing for entry in REGISTRY.entries()]
            methods = [kind.model_construct() for kind in kinds]
            names = [usable.name for usable in methods if settings.level in protects(usable)]
            problem = f"{problem}; methods that can: {', '.join(names)}"
        raise ValueError(problem)
    values = {name: getattr(method, name) for name in method.__class__.model_fields}
    private_class = _make_private_class(method.__class__)
    return private_class.model_construct(**{**values, "private": settings})


def check_dtypes(method: Method, dtypes: Iterable[str]) -> None:
    """Refuse to protect examples if passes are so imprecise that one example changes others'
    losses.

    Args:
        method: the run's method.
        dtypes: dtypes of everything that the model computes with, including weights that are not
            tuned.

    Raises ValueError if they are imprecise.
    """
    private = settings_of(method)
    low_precision = sorted({"bfloat16", "float16", "int8"}.intersection(dtypes))
    if low_precision and private is not None and private.level == "example":
        raise ValueError(
            f'privacy.level = "example" with {low_precision[0]} weights: in such a pass one '
            "example changes how other examples' losses are rounded, which epsilon does not "
            "include; load the model in float32, without an adapter on 8 or 16 bits"
        )


def read_method(kind: type[Method], settings: dict[str, Any]) -> Method:
    """Return a method from the settings in an orbit.

    Raises ValueError, including pydantic's, if they are invalid.
    """
    method = kind.model_validate(
        {key: value for key, value in settings.items() if key != "private"}
    )
    private = settings.get("private")
    return method if private is None else protect(method, PrivacySettings.model_validate(private))


def settings_of(method: Method) -> PrivacySettings | None:
    """Return a method's `[privacy]`; None if it has none."""
    return method.private if isinstance(method, Private) else None


def mechanism_of(method: Method) -> PrivateScalars | PrivateSign | None:
    """Return the mechanism that makes a run of a method private; None if there is none.

    A private run reveals nothing else that depends on a client's data (docs/trust.md): no losses,
    counts, reasons or times of clients' work. The mechanism's account uses only what the
    coordinator has counted itself.
    """
    protection = protection_of(method)
    return None if protection is None else protection.mechanism


def protection_of(method: Method) -> "Protection | None":
    """Return the wrapper of a method's client and answers; None if there is none."""
    settings, epsilon = settings_of(method), vote_epsilon(method)
    if epsilon is not None:
        nowhere: Any = None  # not needed, because the number of votes depends only on the settings
        votes = summand(method).words(DecodeContext(method, nowhere, "update"))
        return ProtectedVotes(method, PrivateSign(epsilon, votes))
    if settings is None:
        return None
    if settings.level == "client":
        return ProtectedClients(method, PrivateScalars(settings))
    size: Any = method  # a method whose clients make estimates has batches
    return ProtectedExamples(
        method, PrivateScalars(settings, getattr(method, "steps", 1), size.batch)
    )


def find_misfit(method: Method, rule: AggregationRule, per_round: int | None = None) -> str | None:
    """Return the reason why a rule can't combine a method's answers; None if it can.

    Args:
        method: the method, private or not.
        rule: the rule.
        per_round: clients in a round; None: not known yet.
    """
    settings, epsilon = settings_of(method), vote_epsilon(method)
    rule_text = f'aggregation.name = "{rule.name}"'
    problem = base.find_misfit(method, rule)
    if problem is not None:
        return problem
    if settings is not None and settings.level == "client" and type(rule) is not Mean:
        return (
            f'{rule_text} with privacy.level = "client": it is not known how far one client can '
            'move its result, so the size of the noise can\'t be computed; use "mean", or '
            'privacy.level = "example"'
        )
    if epsilon is not None and rule.compares:
        return (
            f"{rule_text} does not fit {method.name}: epsilon = {epsilon:g}: the private draw "
            "uses the sum of all votes with equal weights"
        )
    shortage = None if per_round is None else rule.shortage(per_round)
    if shortage is not None:
        return (
            f"{shortage} clients in a round (federation.per_round): use more clients, or fewer "
            "liars"
        )
    return None


@dataclass(frozen=True)
class Protection(ABC):
    """Wraps a method's access to its clients' data."""

    method: Method
    mechanism: Any  # makes numbers private, and has the account
    # whether each client must compute alone, even if clients could share passes
    alone: ClassVar[bool] = False
    # whether each client's update is bounded, so that one client's update does not affect another's
    bounds: ClassVar[bool] = False
    # whether an answer is already private when it leaves its client, which then has an account
    by_client: ClassVar[bool] = False

    @abstractmethod
    def train(self, state: State, plan: Any, client: Client) -> Payload:
        """Return a client's update, as `Method.train` does.

        Raises NonFiniteError, but only if sending nothing reveals nothing.
        """

    def combine(self, state: State, answers: Answers, client_count: int) -> Answers:
        """Return the answers that the method gets instead of a round's answers.

        Args:
            state: the state before the step.
            answers: the clients' answers.
            client_count: number of clients that were asked, whether or not they answered.
        """
        return answers


class ProtectedExamples(Protection):
    """Each client bounds every example's effect on its losses, and adds noise to the sum that it
    sends.
    """

    alone = True
    by_client = True

    def train(self, state: State, plan: Any, client: Client) -> Payload:
        return self.method.train(state, plan, _Measuring(client, self.mechanism))


class ProtectedClients(Protection):
    """Clients' updates are bounded, and the coordinator adds noise to their sum.

    If clients have their own directions there is no sum, and each vector gets its own noise.
    """

    bounds = True

    def train(self, state: State, plan: Any, client: Client) -> Payload:
        """Return the update, at most `clip` long.

        Without usable losses the update is zero, because sending nothing would reveal this.
        """
        context, kind = (
            DecodeContext(self.method, state, "update", client.round),
            summand(self.method),
        )
        update = kind.from_vector(np.zeros(kind.words(context)), context)
        with suppress(NonFiniteError):
            update = self.method.train(state, plan, client)  # type: ignore[assignment]
        bounded_vector = shorten(
            update.vector(context) / context.unit, self.mechanism.settings.clip
        )
        return update.with_vector(context.unit * bounded_vector, context)

    def combine(self, state: State, answers: Answers, client_count: int) -> Answers:
        """Return one answer in place of all answers: the noisy mean of the bounded vectors."""
        context, kind = (
            DecodeContext(self.method, state, "update", answers.round),
            summand(self.method),
        )

        def add_noise(updates: Sequence[Any], client_count: int) -> Any:
            return context.unit * self.mechanism.mean(
                [update.vector(context) / context.unit for update in updates], client_count
            )

        if self.method.incomparable is not None:
            noisy_answers = (
                Answer(client, weight, update.with_vector(add_noise([update], 1), context))
                for client, weight, update in answers
            )
            return replace(answers, answers=tuple(noisy_answers))
        if not answers:
            return answers
        return _replace_answers(
            answers, kind.from_vector(add_noise(answers.updates, client_count), context)
        )


class ProtectedVotes(Protection):
    """Votes reach the coordinator unchanged, and its draw is private (FeedSign, Eq. 21)."""

    def train(self, state: State, plan: Any, client: Client) -> Payload:
        return self.method.train(state, plan, _Voting(client))

    def combine(self, state: State, answers: Answers, client_count: int) -> Answers:
        """Return one vote in place of all votes, drawn from the sum of equally weighted votes."""
        if not answers:
            return answers
        context = DecodeContext(self.method, state, "update", answers.round)
        sums = np.sum([update.vector(context) for update in answers.updates], axis=0)
        votes = np.array(self.mechanism.draw(sums), dtype=np.float64)
        return _replace_answers(answers, summand(self.method).from_vector(votes, context))


def _replace_answers(answers: Answers, update: Payload) -> Answers:
    return replace(answers, answers=(Answer(ALL, 1.0, update),))


def summand(method: Method) -> type[Summand]:
    """Return the type of a method's updates, which must be summable."""
    assert issubclass(method.update_type, Summand)
    return method.update_type


class _Wrapped:
    """Delegates to a client, except where a subclass adds privacy."""

    def __init__(self, client: Client) -> None:
        self.inner: Any = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Voting(_Wrapped):
    """A client that always votes: a direction without usable losses counts as 0."""

    def batches(self, size: int) -> Iterator[list[Any]]:
        """Yield the client's batches; empty ones if it has no example."""
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

    B is the recipe's batch, because that is public, and not the number of drawn examples.
    """

    def __init__(self, client: Client, mechanism: PrivateScalars) -> None:
        super().__init__(client)
        self.mechanism = mechanism

    def batches(self, size: int) -> Iterator[list[Any]]:
        """Yield batches drawn according to `[privacy]`; they may be smaller than usual or empty."""
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
        """Return one noisy vector, without losses.

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
