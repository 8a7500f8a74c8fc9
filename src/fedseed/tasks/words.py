"""Reviews in a closed world of words: offline classification that the base "words" can nearly do.

Asked as MeZO asks (the review, a few words, then a word for each class), the base is right half of the time, though it
knows the answers: what is to be learnt is how it is asked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator

from fedseed.errors import RecipeError
from fedseed.randomness import Domain, permutation
from fedseed.randomness.seed import Seed
from fedseed.tasks.base import Task
from fedseed.tasks.data import NextWord, TaskData, who_holds
from fedseed.tasks.instruction_data import Labelled, deal_clients, names_dealt
from fedseed.tasks.partition import IID, AnyPartition, ByField
from fedseed.tasks.review_text import TOPICS, Review, reviews

CLIENTS = 5  # as in FeedSign's experiments
FIELDS = ("label", "family")
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


class WordsTask(Task):
    """Settings of the "words" task.

    Args:
        families: what is asked: "feeling" (two words), "topic" (four). Each review is asked about once.
        clients: data holders; None: 5, or as many as `partition.field` has values.
        partition: how training examples are dealt; its labels are the right words. {kind = "field", field = "family"}
            gives a family to each client, field = "label" a word.
        examples: training examples of all clients together.
        validation: further ones, to choose settings on.
        evaluation: examples that the run reports on, of all families and of each.
        evaluate_on: "test", or "validation" while choosing settings.
        scrambled: training answers go to other reviews of the family, at random (a control).
        seed: writes and deals reviews; apart from the run's seed, so that runs share their data.
    """

    name: Literal["words"] = "words"
    about: ClassVar[str] = 'reviews in a closed world of words: the base "words" half knows the answers, offline'

    families: list[FamilyName] = Field(["feeling", "topic"], min_length=1)
    clients: PositiveInt | None = None
    partition: AnyPartition = IID()
    examples: PositiveInt = 1000
    validation: PositiveInt = 300
    evaluation: PositiveInt = 500
    evaluate_on: Literal["test", "validation"] = "test"
    scrambled: bool = False
    seed: Seed = 0

    @field_validator("families")
    @classmethod
    def _each_once(cls, names: list[FamilyName]) -> list[FamilyName]:
        if len(set(names)) < len(names):
            raise ValueError(f"a family stands there twice: {', '.join(names)}")
        return names

    def client_names(self) -> list[str] | None:
        """By their numbers, or the values of a field."""
        return names_dealt(self.partition, self.clients, CLIENTS)

    def load(self) -> TaskData:
        """The clients' examples and the evaluation sets; test and validation reviews do not depend on `examples`.

        Raises:
            RecipeError: the examples can't be dealt as asked.
        """
        if isinstance(self.partition, ByField) and self.partition.field not in FIELDS:
            raise RecipeError(f'task.partition.field = "{self.partition.field}": there is {", ".join(FIELDS)}')
        sizes = self.evaluation, self.validation, self.examples
        rows = self._asked(reviews(self.seed, sum(sizes)))
        test, validation, train = rows[: sizes[0]], rows[sizes[0] : sizes[0] + sizes[1]], rows[sizes[0] + sizes[1] :]
        if self.scrambled:
            train = self._scrambled(train)
        by_family = isinstance(self.partition, ByField) and self.partition.field == "family"
        labelled = [Labelled(one, name if by_family else one.options[one.gold].strip()) for name, one in train]
        clients = deal_clients(labelled, self.partition, self.clients, CLIENTS, self.seed)
        chosen = validation if self.evaluate_on == "validation" else test
        sets = {"": [one for _, one in chosen]}
        if len(self.families) > 1:
            sets |= {f"{family}_": [one for name, one in chosen if name == family] for family in self.families}
        notes = (
            f"{len(train):,} training, {len(validation):,} validation and {len(test):,} test reviews",
            f"{who_holds([len(client.examples) for client in clients])} ({self.partition.kind})",
            *(("training answers are scrambled: a control",) if self.scrambled else ()),
        )
        return TaskData(clients, {k: v for k, v in sets.items() if v}, [one for _, one in validation], notes)

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
