"""A closed world of short reviews: nouns of four topics, qualities that please or displease, and what is said of them.

    soup very tasty , waiter rude and spoon round .

A review's feeling is the sign of what its qualities add up to: +1 for one that pleases, -1 for one that does not, 0 for
one that does neither; "very" doubles it, "not" turns it round. Its topic is that of most of its nouns. Both are known
when a review is written, so nobody has to label anything.
"""

import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

_WORDS = tomllib.loads(resources.files(__package__).joinpath("review_words.toml").read_text(encoding="utf-8"))
TOPICS: Mapping[str, Sequence[str]] = _WORDS["topics"]
GOOD, BAD, PLAIN = _WORDS["good"], _WORDS["bad"], _WORDS["plain"]
JOINTS = (",", "and", "but")
FEELINGS = ("bad", "good")
NOUNS = tuple(noun for nouns in TOPICS.values() for noun in nouns)


@dataclass(frozen=True)
class Review:
    """A review, and what is true of it.

    Args:
        text: ends with a full stop.
        topic: a number, in the order of `TOPICS`.
        good: whether its feeling is a good one.
    """

    text: str
    topic: int
    good: bool


def write_review(rng: random.Random) -> Review:
    """A review of three clauses about two or three nouns of one topic, whose qualities lean to one side."""
    while True:
        topic, wanted = rng.randrange(len(TOPICS)), rng.random() < 0.5
        nouns = _nouns(rng, topic)
        clauses, total = [], 0
        for noun in nouns:
            words, value = _quality(rng, wanted)
            clauses.append(f"{noun} {words}")
            total += value
        if total and (total > 0) == wanted:
            first, second = rng.choice(JOINTS), rng.choice(JOINTS)
            return Review(f"{clauses[0]} {first} {clauses[1]} {second} {clauses[2]} .", topic, wanted)


def _nouns(rng: random.Random, topic: int) -> list[str]:
    """Three nouns; one in two reviews strays from its topic with one of them."""
    names = list(TOPICS)
    nouns = rng.sample(TOPICS[names[topic]], 3)
    if rng.random() < 0.5:
        other = rng.choice([name for number, name in enumerate(names) if number != topic])
        nouns[rng.randrange(3)] = rng.choice(TOPICS[other])
    return nouns


def _quality(rng: random.Random, wanted: bool) -> tuple[str, int]:
    """The words about a noun, and what they add to the review's feeling."""
    drawn = rng.random()
    if drawn < 0.2:
        return rng.choice(PLAIN), 0
    pleases = wanted if drawn < 0.75 else not wanted
    turned = rng.random()
    if turned < 0.2:  # "not rude" pleases
        return f"not {rng.choice(BAD if pleases else GOOD)}", 1 if pleases else -1
    word = rng.choice(GOOD if pleases else BAD)
    value = 1 if pleases else -1
    return (f"very {word}", 2 * value) if turned < 0.4 else (word, value)


def reviews(seed: int | str, count: int, leave_out: Sequence[Review] = ()) -> list[Review]:
    """So many reviews with different texts; a longer list of the same seed begins with a shorter one.

    Args:
        seed: of the sequence.
        count: how many.
        leave_out: reviews whose texts are not to be among them.
    """
    rng = random.Random(f"fedseed-reviews/{seed}")
    found: dict[str, Review] = {}
    avoided = {review.text for review in leave_out}
    while len(found) < count:
        review = write_review(rng)
        if review.text not in avoided:
            found.setdefault(review.text, review)
    return list(found.values())
