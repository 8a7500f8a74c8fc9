"""Reviews in a closed world of words: offline classification that the base "words" can nearly do.

Asked as MeZO asks (the review, a few words, then a word for each class), the base is right half of the time, though it
knows the answers: what is to be learnt is how it is asked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator

from fedseed.randomness import Domain, permutation
from fedseed.tasks.data import NextWord
from fedseed.tasks.dealt import DealtTask, Labelled, Parts
from fedseed.tasks.review_text import TOPICS, Review, reviews

FamilyName = Literal["feeling", "topic"]


@dataclass(frozen=True)
class ReviewFamily:
    """A question about reviews.

    Args:
        prompt: what stands between a review and the answer.
        options: a word for each class, with the space before it.
        gold: the number of a review's right one.
    """

    prompt: str
    options: tuple[str, ...]
    gold: Callable[[Review], int]

    def example(self, review: Review) -> NextWord:
        """A review, asked about."""
        return NextWord(review.text + self.prompt, self.options, self.gold(review), text=review.text)


FAMILIES: dict[FamilyName, ReviewFamily] = {
    "feeling": ReviewFamily(" it was", (" terrible", " great"), lambda review: int(review.good)),
    "topic": ReviewFamily(" in the", tuple(f" {topic}" for topic in TOPICS), lambda review: review.topic),
}


class WordsTask(DealtTask):
    """Settings of the "words" task: those of `DealtTask`, and what is asked. A partition's labels are the right words.

    Args:
        families: what is asked: "feeling" (two words), "topic" (four). Each review is asked about once. A partition by
            field = "family" gives one to each client, field = "label" a word.
        examples: training examples of all clients together.
        validation: further ones, to choose settings on.
        evaluation: examples that the run reports on, of all families and of each.
        scrambled: training answers go to other reviews of the family, at random (a control).
    """

    name: Literal["words"] = "words"
    about: ClassVar[str] = 'reviews in a closed world of words: the base "words" half knows the answers, offline'
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
            raise ValueError(f"a family stands there twice: {', '.join(names)}")
        return names

    def parts(self) -> Parts:
        """Test and validation reviews do not depend on `examples`."""
        sizes = self.evaluation, self.validation, self.examples
        rows = self._asked(reviews(self.seed, sum(sizes)))
        test, validation, train = rows[: sizes[0]], rows[sizes[0] : sizes[0] + sizes[1]], rows[sizes[0] + sizes[1] :]
        if self.scrambled:
            train = self._scrambled(train)
        by_family = self.dealt_by("family")
        labelled = [Labelled(one, name if by_family else one.options[one.gold].strip()) for name, one in train]
        notes = [f"{len(train):,} training, {len(validation):,} validation and {len(test):,} test reviews"]
        if self.scrambled:
            notes.append("training answers are scrambled: a control")
        sets = self._sets(validation)
        return Parts(labelled, sets[""], self._sets(test), notes, validation_sets=sets)

    def _sets(self, rows: Sequence[tuple[FamilyName, NextWord]]) -> dict[str, list[NextWord]]:
        """Returns all rows, and those of each family if there are several."""
        sets = {"": [one for _, one in rows]}
        if len(self.families) > 1:
            sets |= {f"{family}_": [one for name, one in rows if name == family] for family in self.families}
        return {prefix: found for prefix, found in sets.items() if found}

    def _asked(self, texts: Sequence[Review]) -> list[tuple[FamilyName, NextWord]]:
        """Each review with a question, of the families in turn."""
        names = [self.families[number % len(self.families)] for number in range(len(texts))]
        return [(name, FAMILIES[name].example(review)) for name, review in zip(names, texts, strict=True)]

    def _scrambled(self, rows: Sequence[tuple[FamilyName, NextWord]]) -> list[tuple[FamilyName, NextWord]]:
        """The same reviews and the same answers, but whose is whose is drawn within each family."""
        changed = list(rows)
        for number, family in enumerate(self.families):
            places = [place for place, (name, _) in enumerate(rows) if name == family]
            for place, other in zip(places, permutation(self.seed, Domain.PARTITION, len(places), number), strict=True):
                changed[place] = family, replace(rows[place][1], gold=rows[places[other]][1].gold)
        return changed
