"""Tasks of pictures: splitting off a validation set and dealing the rest to clients by a partition over the class."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from fedseed.errors import RecipeError
from fedseed.randomness import Domain, permutation
from fedseed.randomness.seed import Seed
from fedseed.tasks.base import Task
from fedseed.tasks.data import ClientData, Picture, TaskData, span, who_holds
from fedseed.tasks.partition import IID, AnyPartition, ByField

TRAIN, TEST = 0, 1  # separate the permutations of the two parts
DEFAULT_CLIENTS = 5


@dataclass(frozen=True)
class Labelled:
    """Pictures of one part of a data set.

    Args:
        pictures: with their classes.
        fields: what else `partition.field` may name: a value for each picture.
    """

    pictures: Sequence[Picture]
    fields: dict[str, Sequence[str]]


class PictureTask(Task):
    """Settings that all picture tasks share.

    Args:
        clients: data holders; None: 5, or as many as `partition.field` has values.
        partition: how the training pictures are dealt: "iid", "dirichlet" over the class, "quantity", or "field" with
            field = "class" (or another that the data set has).
        examples: training pictures of all clients together; None: all that `validation` leaves.
        validation: pictures of the train part that no client gets, to choose settings on.
        evaluation: pictures of the test part that the run reports on; None: all of them.
        evaluate_on: "test", or "validation" while choosing settings.
        seed: draws and deals pictures; apart from the run's seed, so that runs share their data.
    """

    clients: PositiveInt | None = None
    partition: AnyPartition = IID()
    examples: PositiveInt | None = None
    validation: NonNegativeInt = 0
    evaluation: PositiveInt | None = None
    evaluate_on: Literal["test", "validation"] = "test"
    seed: Seed = 0

    fields: ClassVar[tuple[str, ...]] = ("class",)  # what partition.field may name

    @abstractmethod
    def read(self) -> tuple[Labelled, Labelled, tuple[str, ...]]:
        """The train part, the test part, and the classes' names.

        Raises:
            RecipeError: a file is missing or malformed.
        """

    def client_names(self) -> list[str] | None:
        """By their numbers; how many values a field has only the data says."""
        return None if isinstance(self.partition, ByField) else _names(self.clients or DEFAULT_CLIENTS)

    def load(self) -> TaskData:
        """The clients' pictures, and the evaluation set.

        Raises:
            RecipeError: a file is missing or malformed, or there are too few pictures.
        """
        if isinstance(self.partition, ByField) and self.partition.field not in self.fields:
            raise RecipeError(
                f'task.partition.field = "{self.partition.field}": these pictures have {" and ".join(self.fields)}'
            )
        if self.evaluate_on == "validation" and not self.validation:
            raise RecipeError('task.evaluate_on = "validation": task.validation = 0 keeps no picture for it')
        train, test, classes = self.read()
        order = permutation(self.seed, Domain.PARTITION, len(train.pictures), TRAIN).tolist()
        wanted = len(order) if self.examples is None else self.validation + self.examples
        if wanted > len(order) or self.validation >= wanted:
            raise RecipeError(
                f"task.examples = {self.examples or 'all'} and task.validation = {self.validation}: "
                f"the train part has {len(order):,} pictures"
            )
        validation = [train.pictures[i] for i in order[: self.validation]]
        held = sorted(order[self.validation : wanted])
        evaluation = [
            test.pictures[i]
            for i in sorted(
                permutation(self.seed, Domain.PARTITION, len(test.pictures), TEST)[: self.evaluation].tolist()
            )
        ]
        dealt = self._deal(train, held, classes)
        clients = [
            ClientData(name, [train.pictures[held[i]] for i in mine])
            for name, mine in zip(_names(len(dealt)), dealt, strict=True)
        ]
        sizes = [len(client.examples) for client in clients]
        kinds = [len({p.label for p in c.examples}) for c in clients]
        notes = (
            f"{len(held):,} training and {len(validation):,} validation pictures of {len(order):,} in the train part, "
            f"{len(evaluation):,} test pictures of {len(test.pictures):,}, {len(classes)} classes",
            f"{who_holds(sizes, 'picture')} of {span(kinds, 'class', 'classes')} ({self.partition.kind})",
        )
        chosen = validation if self.evaluate_on == "validation" else evaluation
        return TaskData(clients, {"": chosen}, validation, notes, classes=classes)

    def _deal(self, train: Labelled, held: Sequence[int], classes: Sequence[str]) -> list[list[int]]:
        labels = [train.pictures[i].label for i in held]
        if isinstance(self.partition, ByField):
            if self.partition.field == "class":
                return self.partition.deal([classes[label] for label in labels], self.clients, self.seed)
            values = train.fields[self.partition.field]
            return self.partition.deal([values[i] for i in held], self.clients, self.seed)
        return self.partition.deal(labels, self.clients or DEFAULT_CLIENTS, self.seed)


def _names(count: int) -> list[str]:
    return [f"client-{number:02d}" for number in range(1, count + 1)]
