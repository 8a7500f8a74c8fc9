"""Reviews in a small closed vocabulary: offline classification that the base "words" can nearly do.

With MeZO's form of prompt (the review, a few words, then a word for each class), the base is right
half of the time although it knows the answers. So training has to teach only the form of the
question. Reviews have nouns of four topics, with qualities that please or displease:

    soup very tasty , waiter rude and spoon round .

A review's feeling is the sign of the sum of its qualities: +1 for a pleasing one, -1 for a
displeasing one, 0 for a neutral one; "very" doubles the number, and "not" changes its sign. A
review's topic is that of most of its nouns. Both are known when a review is generated, so no
labelling is needed.
"""

import random
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import chain, cycle
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator

from fedseed.randomness import Domain, permutation
from fedseed.tasks.data import NextWord, TaskData
from fedseed.tasks.dealt import DealtTask, Labelled

_WORDS = tomllib.loads(
    resources.files(__package__).joinpath("review_words.toml").read_text(encoding="utf-8")
)
TOPICS: Mapping[str, Sequence[str]] = _WORDS["topics"]
GOOD, BAD, PLAIN = _WORDS["good"], _WORDS["bad"], _WORDS["plain"]
JOINTS = (",", "and", "but")
NOUNS = tuple(chain.from_iterable(TOPICS.values()))


@dataclass(frozen=True)
class Review:
    """A review with its topic and feeling."""

    text: str  # ends with a full stop
    topic: int  # index in `TOPICS`
    good: bool  # whether its feeling is positive


def write_review(rng: random.Random) -> Review:
    """Return a review of three clauses, with at least two nouns of one topic and a feeling that is
    not neutral.
    """
    names = list(TOPICS)
    while True:
        topic, is_positive = rng.randrange(len(TOPICS)), rng.random() < 0.5
        nouns = rng.sample(TOPICS[names[topic]], 3)
        # in half of the reviews one noun is from another topic
        if rng.random() < 0.5:
            other_topic = rng.choice([name for number, name in enumerate(names) if number != topic])
            nouns[rng.randrange(3)] = rng.choice(TOPICS[other_topic])
        words, values = zip(*(_quality(rng, is_positive) for _ in nouns), strict=True)
        if sum(values) and (sum(values) > 0) == is_positive:
            first, second, third = (
                f"{noun} {word}" for noun, word in zip(nouns, words, strict=True)
            )
            return Review(
                f"{first} {rng.choice(JOINTS)} {second} {rng.choice(JOINTS)} {third} .",
                topic,
                is_positive,
            )


def _quality(rng: random.Random, is_positive: bool) -> tuple[str, int]:
    """Return the words about a noun, and the number that they add to the review's feeling."""
    chance = rng.random()
    if chance < 0.2:
        return rng.choice(PLAIN), 0
    pleases = is_positive if chance < 0.75 else not is_positive
    value, turned = (1 if pleases else -1), rng.random()
    if turned < 0.2:  # "not rude" pleases
        return f"not {rng.choice(BAD if pleases else GOOD)}", value
    word = rng.choice(GOOD if pleases else BAD)
    if turned < 0.4:
        return (f"very {word}", 2 * value)
    return (word, value)


def reviews(seed: int | str, count: int) -> list[Review]:
    """Return `count` reviews with different texts.

    A longer list with the same seed begins with the shorter one.
    """
    rng = random.Random(f"fedseed-reviews/{seed}")
    reviews_by_text: dict[str, Review] = {}
    while len(reviews_by_text) < count:
        review = write_review(rng)
        reviews_by_text.setdefault(review.text, review)
    return list(reviews_by_text.values())


FamilyName = Literal["feeling", "topic"]


@dataclass(frozen=True)
class ReviewFamily:
    """A question about reviews, with its classes."""

    prompt: str  # text between a review and the answer
    # a word for each class, with a leading space
    options: tuple[str, ...]
    gold: Callable[[Review], int]  # the number of a review's right class

    def example(self, review: Review) -> NextWord:
        """Return a review with a question about it."""
        return NextWord(
            review.text + self.prompt, self.options, self.gold(review), text=review.text
        )


FAMILIES: dict[FamilyName, ReviewFamily] = {
    "feeling": ReviewFamily(" it was", (" terrible", " great"), lambda review: int(review.good)),
    "topic": ReviewFamily(
        " in the", tuple(f" {topic}" for topic in TOPICS), lambda review: review.topic
    ),
}


class WordsTask(DealtTask):
    """Settings of the "words" task: those of `DealtTask`, and the questions.

    Partitions use the right word as label.

    Args:
        families: the questions: "feeling" (two words), "topic" (four words). Each review gets one
            question. A partition with field = "family" gives each client one question, and one with
            field = "label" gives each client one right word.
        examples: number of training examples of all clients together.
        validation: number of further examples, for choosing settings.
        evaluation: number of examples to evaluate on; metrics are for all families and for each.
        scrambled: shuffle the training answers among the reviews of a family, as a control.
    """

    name: Literal["words"] = "words"
    about: ClassVar[str] = (
        'reviews in a small closed vocabulary, which the base "words" can half classify; offline'
    )
    fields: ClassVar[tuple[str, ...]] = ("label", "family")

    families: list[FamilyName] = Field(["feeling", "topic"], min_length=1)
    examples: PositiveInt = 1000
    validation: PositiveInt = 300
    evaluation: PositiveInt = 500
    scrambled: bool = False

    @field_validator("families")
    @classmethod
    def _each_once(cls, names: list[FamilyName]) -> list[FamilyName]:
        if len(set(names)) < len(names):
            raise ValueError(f"a family occurs twice: {', '.join(names)}")
        return names

    def parts(self) -> tuple[Sequence[Labelled], TaskData]:
        """Test and validation reviews do not depend on `examples`."""
        sizes = self.evaluation, self.validation, self.examples
        rows = [
            (name, FAMILIES[name].example(review))  # the families take turns
            for name, review in zip(
                cycle(self.families), reviews(self.seed, sum(sizes)), strict=False
            )
        ]
        test, validation, train = (
            rows[: sizes[0]],
            rows[sizes[0] : sizes[0] + sizes[1]],
            rows[sizes[0] + sizes[1] :],
        )
        notes = [
            f"{len(train):,} training, {len(validation):,} validation and {len(test):,} test "
            "reviews"
        ]
        if self.scrambled:
            train = self._scrambled(train)
            notes.append("training answers are shuffled, as a control")
        by_family = self.dealt_by("family")
        labelled = [
            Labelled(one, name if by_family else one.options[one.gold].strip())
            for name, one in train
        ]
        tests = self.validation_sets([one for _, one in test])
        return labelled, TaskData((), tests, [one for _, one in validation], tuple(notes))

    def validation_sets(self, validation: Sequence[NextWord]) -> dict[str, Sequence[NextWord]]:
        """Return all examples, and also those of each family if there are several."""
        sets = {"": validation}
        for name in self.families if len(self.families) > 1 else ():
            sets[f"{name}_"] = [one for one in validation if one.options == FAMILIES[name].options]
        return {prefix: examples for prefix, examples in sets.items() if examples}

    def _scrambled(
        self, rows: Sequence[tuple[FamilyName, NextWord]]
    ) -> list[tuple[FamilyName, NextWord]]:
        """Return the reviews with their answers shuffled within each family."""
        changed = list(rows)
        for number, family in enumerate(self.families):
            places = [place for place, (name, _) in enumerate(rows) if name == family]
            for place, swapped in zip(
                places, permutation(self.seed, Domain.PARTITION, len(places), number), strict=True
            ):
                changed[place] = family, replace(rows[place][1], gold=rows[places[swapped]][1].gold)
        return changed
