"""Tasks of pictures: splitting off a validation set and dealing the rest to clients by class."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from pydantic import NonNegativeInt, PositiveInt

from fedseed.errors import RecipeError
from fedseed.randomness import Domain, permutation
from fedseed.tasks.data import Picture
from fedseed.tasks.dealt import DealtTask, Labelled, Parts

TRAIN, TEST = 0, 1  # separate the permutations of the two parts


class PictureTask(DealtTask):
    """Settings that all picture tasks share: those of `DealtTask`, and how many pictures are taken.

    Args:
        examples: training pictures of all clients together; None: all that `validation` leaves.
        validation: pictures of the train part that no client gets, to choose settings on.
        evaluation: pictures of the test part that the run reports on; None: all of them.
    """

    fields: ClassVar[tuple[str, ...]] = ("class",)

    examples: PositiveInt | None = None
    validation: NonNegativeInt = 0
    evaluation: PositiveInt | None = None

    @abstractmethod
    def read(self) -> tuple[Sequence[Labelled], Sequence[Picture], tuple[str, ...]]:
        """Returns the train part with what the partition goes by, the test part, and the classes' names.

        Raises:
            RecipeError: a file is missing or malformed.
        """

    def parts(self) -> Parts:
        train, test, classes = self.read()
        order = permutation(self.seed, Domain.PARTITION, len(train), TRAIN).tolist()
        wanted = len(order) if self.examples is None else self.validation + self.examples
        if wanted > len(order) or self.validation >= wanted:
            raise RecipeError(
                f"task.examples = {self.examples or 'all'} and task.validation = {self.validation}: "
                f"the train part has {len(order):,} pictures"
            )
        held = [train[i] for i in sorted(order[self.validation : wanted])]
        validation = [train[i].example for i in order[: self.validation]]
        drawn = permutation(self.seed, Domain.PARTITION, len(test), TEST)[: self.evaluation].tolist()
        evaluation = [test[i] for i in sorted(drawn)]
        about = (
            f"{len(held):,} training and {len(validation):,} validation pictures of {len(order):,} in the train part, "
            f"{len(evaluation):,} test pictures of {len(test):,}, {len(classes)} classes"
        )
        return Parts(held, validation, {"": evaluation}, [about], classes)
