"""Makes what a simulated Byzantine client sends in place of an honest update, or what it learns
from ("labels").

The protocol can't tell its messages from others. Some clients know only their own update; others
know all updates of their round and agree on a lie. With mu and sigma, the mean and the standard
deviation of each entry over the n - f honest clients' vectors x_i:

    alie           mu - z sigma sign(mu)          small enough to hide among honest ones, each entry
    against the mean
                   Baruch, Baruch, Goldberg: "A Little Is Enough", NeurIPS 2019, Section 3.2, which
                   takes either end
    inner-product  -epsilon mu                    the outcome's product with mu becomes negative
                   Xie, Koyejo, Gupta: "Fall of Empires", UAI 2019
    mimic          x_1                            one honest client counts f + 1 times
                   Karimireddy, He, Jaggi: "Byzantine-Robust Learning on Heterogeneous Datasets via
                   Bucketing", 2022
    largest        -s x_i, from its own update, with s as large as the coordinator's bounds accept
    claims         -x_i, and the client claims to have a thousand times as many examples as it has

A payload says which of its numbers a liar may change (`Payload.numbers`, `Payload.vector`).
"""

from dataclasses import replace
from math import sqrt
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, model_validator

from fedseed.methods import Method
from fedseed.methods.payload import DecodeContext, Payload
from fedseed.randomness import Domain, permutation
from fedseed.randomness.stream import words
from fedseed.tasks.data import (
    Choice,
    ClientData,
    Cloze,
    Example,
    Picture,
    Preference,
    Score,
)

AttackKind = Literal[
    "sign",
    "random",
    "noise",
    "multiplier",
    "labels",
    "alie",
    "inner-product",
    "mimic",
    "largest",
    "claims",
]
Floats = NDArray[np.float32]
Vectors = NDArray[np.float64]
OMNISCIENT: frozenset[AttackKind] = frozenset({"alie", "inner-product", "mimic"})
# only in simulations: over a network no client knows enough
SIMULATED: frozenset[AttackKind] = OMNISCIENT | {"largest", "claims"}
SINGLE: frozenset[AttackKind] = frozenset(get_args(AttackKind)) - SIMULATED - {"labels"}
# the kinds that have a strength
TUNED: frozenset[AttackKind] = frozenset({"alie", "inner-product", "claims"})
Z = 1.5  # strength of "alie" by default
CLAIMED = 1000.0  # by how much a client multiplies its number of examples
RANDOM_PROJECTION = 100.0  # standard deviation of made-up projections
# standard deviation of made-up coefficients, weights and gradients, in multiples of their root mean
# square
RANDOM_TIMES = 10.0


def false_scalars(
    kind: AttackKind,
    honest: Floats,
    drawn: NDArray[np.uint32],
    deviation: float = RANDOM_PROJECTION,
) -> Floats:
    """Returns projections as a Byzantine client sends them.

    "random" and "noise" draw from N(0, deviation^2), which by default is far above honest
    projections on language models, as nobody checks an attacker's amplitude. "multiplier" imitates
    honest clients with very uneven data (FeedSign, Appendix H, for Fig. 2).

    Args:
        kind: "sign", "random", "noise" or "multiplier" (`AttackSettings`).
        honest: the projections.
        drawn: random words, two for each projection.
        deviation: the standard deviation of made-up numbers.
    """
    if kind == "sign":
        return -honest
    standard = _normal(drawn, len(honest))
    if kind == "multiplier":
        return (honest * (1 + standard)).astype(np.float32)
    normal = (deviation * standard).astype(np.float32)
    return normal if kind == "random" else honest + normal


def false_signs(
    kind: AttackKind, honest: NDArray[np.int8], drawn: NDArray[np.uint32]
) -> NDArray[np.int8]:
    """Returns reversed votes, coin tosses, or the signs of multiplied projections, as
    `false_scalars` does for projections.

    A vote whose projection is multiplied by 1 + N(0, 1) is reversed where that is negative, in 16%
    of cases.
    """
    if kind == "multiplier":
        return np.where(1 + _normal(drawn, len(honest)) < 0, -honest, honest).astype(np.int8)
    tosses = np.where(drawn[: len(honest)] & 1, 1, -1).astype(np.int8)
    return -honest if kind == "sign" else tosses


def _normal(drawn: NDArray[np.uint32], count: int) -> NDArray[np.float64]:
    """Returns `count` numbers of N(0, 1) from twice as many random words."""
    uniform = (drawn[: 2 * count].astype(np.float64) + 0.5) / 2.0**32
    radius, angle = np.sqrt(-2 * np.log(uniform[:count])), 2 * np.pi * uniform[count:]
    return radius * np.cos(angle)


def alone(honest: Any, kind: AttackKind, seed: int, client: int, context: DecodeContext) -> Any:
    """Return the message of a Byzantine client that knows only its own update.

    Args:
        honest: the client's honest update.
        kind: one of `SINGLE`.
        seed: the run's seed, which with round and client decides what is drawn.
        client: the client's number.
        context: the context for decoding the update.
    """
    numbers, unit = honest.numbers(context), context.unit
    drawn = words(seed, Domain.ATTACK, client, context.round << 20, -(-len(numbers) // 2)).reshape(
        -1
    )
    if numbers.dtype == np.int8:
        return honest.with_numbers(false_signs(kind, numbers, drawn), context)
    if not honest.projections:
        deviation = RANDOM_TIMES * sqrt(float(np.square(numbers, dtype=np.float64).mean()))
        return honest.with_numbers(false_scalars(kind, numbers, drawn, deviation), context)
    projections = (numbers / np.float64(unit)).astype(np.float32)
    return honest.with_numbers(
        (unit * false_scalars(kind, projections, drawn)).astype(np.float32), context
    )


def attack_problem(method: Method, kind: AttackKind) -> str | None:
    """Return the reason why an attack can't be simulated for a method; None if it can."""
    if kind == "labels":
        return None
    said = f'attack.kind = "{kind}" is not simulated for {method.name}'
    update: Any = method.update_type
    if kind in OMNISCIENT and method.incomparable is not None:
        return f"{said}: liars compare honest updates, and {method.incomparable}"
    if update.vector is not Payload.vector or (
        kind in SINGLE and update.numbers is not Payload.numbers
    ):
        return None
    return (
        f'{said}: nobody has said what such a client sends; "labels" is simulated for every method'
    )


def little_is_enough(honest: Vectors, z: float | None) -> Vectors:
    """Returns ALIE's vector, (d,).

    Args:
        honest: the honest clients' vectors, (n - f, d).
        z: how many standard deviations from the mean; None: 1.5.
    """
    mean = honest.mean(axis=0)
    return mean - (Z if z is None else z) * honest.std(axis=0) * np.sign(mean)


def inner_product(honest: Vectors, liars: int, epsilon: float | None) -> Vectors:
    """Returns inner-product manipulation's vector, (d,).

    Args:
        honest: the honest clients' vectors, (n - f, d).
        liars: f.
        epsilon: how many times the honest mean; None: 2 (n - f) / f, with which the mean of all is
            reversed.
    """
    epsilon = 2 * len(honest) / max(1, liars) if epsilon is None else epsilon
    return -epsilon * honest.mean(axis=0)


def flip_labels(client: ClientData, seed: int, number: int, classes: int = 0) -> ClientData:
    """Returns the client's examples, each with the response (or target) of another example.

    In a `Choice` or `Cloze` the next option becomes the right one, in a `Picture` the next class,
    because another example often has the same one; in a `Preference` the rejected answer becomes
    the chosen one.

    Args:
        client: an honest client of `Example`s, `Choice`s, `Cloze`s, `Picture`s, `Preference`s,
            `Score`s or (input, target) pairs.
        seed: the run's seed.
        number: the client's number.
        classes: how many classes of `Picture`s there are.
    """
    order = permutation(seed, Domain.ATTACK, len(client.examples), number)
    # a cycle through a random order: no example keeps its own response
    giver = {int(order[i]): client.examples[int(order[i - 1])] for i in range(len(order))}
    return ClientData(
        client.name, [_with_target(own, giver[i], classes) for i, own in enumerate(client.examples)]
    )


def _with_target(mine: Any, given: Any, classes: int) -> Any:
    if isinstance(mine, Example):
        return mine.answered_as(given)
    if isinstance(mine, Preference):
        return mine.swapped()
    if isinstance(mine, Score):
        return replace(mine, value=given.value)
    if isinstance(mine, Choice):
        return replace(mine, gold=(mine.gold + 1) % len(mine.options), right=())
    if isinstance(mine, Cloze):
        return replace(mine, gold=(mine.gold + 1) % len(mine.words))
    return (
        replace(mine, label=(mine.label + 1) % classes)
        if isinstance(mine, Picture)
        else (mine[0], given[1])
    )


class AttackSettings(BaseModel):
    """Says what Byzantine clients do and how many there are.

    Args:
        kind: "sign" reverses what a client sends, "random" replaces it by something unrelated,
            "noise" adds to it; "multiplier" multiplies each projection by 1 + N(0, 1) (a vote is
            reversed where that is negative), as FeedSign's Fig. 2 does to all clients; "labels"
            flips the labels that it trains on. In simulations only: "alie" (a little against the
            honest mean, as much as honest clients differ), "inner-product" (a multiple of the
            honest mean, reversed), "mimic" (what one honest client sends), "largest" (reversed, and
            as large as `[bounds]` accept), "claims" (reversed, and a thousand times the examples).
        clients: how many clients are Byzantine: those with the highest numbers.
        strength: how many standard deviations "alie" goes (1.5), how many times the honest mean
            "inner-product" is (as many as reverse the mean of all), how many times its examples
            "claims" says that it has (1000).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    kind: AttackKind
    clients: PositiveInt
    strength: PositiveFloat | None = None

    @model_validator(mode="after")
    def _only_some_kinds_have_a_strength(self) -> "AttackSettings":
        if self.strength is not None and self.kind not in TUNED:
            raise ValueError(
                f'strength: kind = "{self.kind}" has none; "alie", "inner-product" and "claims" '
                "have"
            )
        return self
