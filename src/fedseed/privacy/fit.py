"""Which methods `[privacy]` can protect, and with which settings."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedseed.aggregation import AggregationRule, Mean
from fedseed.methods.base import Method
from fedseed.methods.summands import Summand
from fedseed.privacy.settings import Level, PrivacySettings

_NO_SUM = "noise goes to the sum of what clients send, and along directions of their own there is none"


class Required(NamedTuple):
    """What a setting must be where data are protected, of any method that has it.

    Args:
        key: of the method.
        values: it may have.
        reason: why no others.
        level: where; None: at both.
        unless: another key; methods that have it need not.
    """

    key: str
    values: tuple[Any, ...]
    reason: str
    level: Level | None = None
    unless: str | None = None


_TRAVEL = Required("travel", ("pairs",), "whole weights have no bound")
_REQUIRED = (
    Required("weighting", ("equal",), "how many examples a client has would be told"),
    Required("seeds", ("shared", "fixed"), _NO_SUM, "client", unless="travel"),  # there each one gets noise of its own
    Required("allocation", ("size", "uniform", "previous"), "how many coefficients it sends would tell", "client"),
    Required("scalars", ("float32", "byte"), "noise is added to sums, and signs are no summands", "client"),
    Required("importance", (False,), "probabilities would be made of what each client sends", "client"),
    Required("personal", ("constant", "random", "update"), "training losses would be told", "example"),
    Required("personal", ("constant",), "what clients send is bounded at one rate", "client"),
    Required("population", (1,), "parts of a batch have no account of their own", "example"),
    Required("normalize", ("none",), "an example would move what others' losses become", "example"),
    Required("clip", (None,), "whether a step is skipped would depend on all examples", "example"),
)


def vote_epsilon(method: Method) -> float | None:
    """Epsilon of each vote, of a method whose clients vote (DP-FeedSign); None: votes are settled without a draw."""
    return getattr(method, "epsilon", None) if _counts_votes(method) else None


def protects(method: Method) -> frozenset[Level]:
    """What `[privacy]` can protect: single examples of estimates, clients whose vectors a step adds up."""
    kind = method.update_type
    found: set[Level] = {"example"} if kind.projections else set()
    if issubclass(kind, Summand) and not kind.counted:
        found.add("client")
    return frozenset(found)


def unprotected(method: Method, settings: PrivacySettings) -> str | None:
    """Why these settings can't protect a method's data; None: they can."""
    if (epsilon := vote_epsilon(method)) is not None:
        return f"method.epsilon = {epsilon:g} is DP-FeedSign, with an account of its own: leave out [privacy]"
    if _counts_votes(method):
        return "[privacy] is for scalars, and votes are bits: set method.epsilon, which is DP-FeedSign, in its place"
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
        fits = getattr(method, key, values[0]) in values or (unless is not None and hasattr(method, unless))
        if level in (None, at) and not fits:
            allowed = " or ".join(map(json.dumps, values)) if None not in values else "nothing"
            value = json.dumps(getattr(method, key))
            return f'method.{key} = {value} with privacy.level = "{at}": {reason}; set it to {allowed}'
    return None


def _counts_votes(method: Method) -> bool:
    return issubclass(method.update_type, Summand) and method.update_type.counted


def misfit(method: Method, level: Level | None, rule: AggregationRule) -> str | None:
    """Why a rule can't combine the answers of a private method; None: it can."""
    said, epsilon = f'aggregation.name = "{rule.name}"', vote_epsilon(method)
    if level == "client" and type(rule) is not Mean:
        return (
            f'{said} with privacy.level = "client": how far one client moves its result is not known, so noise has no '
            'measure; take "mean", or privacy.level = "example"'
        )
    if epsilon is not None and rule.compares:
        return (
            f"{said} does not fit {method.name}: epsilon = {epsilon:g}: the private draw is made of the sum of all "
            "votes, each counting the same"
        )
    return None
