"""fedseed's own generated instruction data with many task families, dealt to clients by family."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from fedseed.errors import RecipeError, did_you_mean
from fedseed.randomness import Domain, permutation
from fedseed.randomness.stream import Seed
from fedseed.tasks.base import Task
from fedseed.tasks.data import ClientData, Example, TaskData
from fedseed.tasks.dealt import numbered, take
from fedseed.tasks.families import GROUPS, Family, Instance, families, instances
from fedseed.tasks.partition import IID, Dirichlet, Quantity
from fedseed.tasks.prompts import question_prompt, short_prompt

_COUNTS = ", ".join(f"{len(families(group))} {group}" for group in GROUPS)


class InstructionsTask(Task):
    """Settings of the "instructions" task.

    Args:
        clients: number of clients. They get the train families in a random order, which depends on
            `seed`.
        families: names of the families to deal, from any group; default: all train families.
        prompt: form of the prompt: "short", which the base was trained with, or "question"
            ("Question: ...", "Answer:"), which it has never seen.
        families_per_client: number of families for each client (1: each client has one task).
        partition: deal the examples of these clients x families_per_client families in another way:
            {kind = "iid"}, {kind = "dirichlet", alpha = 0.5} by family, or {kind = "quantity"}. The
            evaluation sets stay the same.
        examples: number of training instances of each family.
        evaluation: number of held-out instances of each family that clients have; the run's main
            metrics.
        unseen: number of instances of each family that no client has and that the base has never
            seen as instructions.
        validation: number of further held-out instances of each family that clients have, for
            choosing settings.
        evaluate_on: "test", or "validation" while choosing settings (without the unseen families).
        seed: seed for drawing instances and dealing families. It is separate from the run's seed,
            so that runs with different seeds have the same data.
    """

    name: Literal["instructions"] = "instructions"
    about: ClassVar[str] = f"fedseed's own generated instruction families ({_COUNTS})"

    clients: PositiveInt = 20
    families_per_client: PositiveInt = 2
    partition: Annotated[IID | Dirichlet | Quantity, Field(discriminator="kind")] | None = None
    examples: PositiveInt = 200
    evaluation: PositiveInt = 5
    unseen: NonNegativeInt = 5
    validation: PositiveInt = 5
    evaluate_on: Literal["test", "validation"] = "test"
    seed: Seed = 0
    families: list[str] | None = None
    prompt: Literal["short", "question"] = "short"

    def client_names(self) -> list[str]:
        return numbered(self.clients)

    def load(self) -> TaskData:
        train = self._families()
        family_count = self.clients * self.families_per_client
        if family_count > len(train):
            raise RecipeError(
                f"task.clients = {self.clients} with families_per_client = "
                f"{self.families_per_client}: {family_count} families are needed, but there are "
                f"only {len(train)}"
            )
        dealt_families = [
            train[i] for i in permutation(self.seed, Domain.PARTITION, len(train))[:family_count]
        ]
        # test instances are drawn first, so that other settings do not change them
        begin = self.evaluation + self.validation
        try:
            instances_by_family = [
                instances(f, begin + self.examples, self.seed) for f in dealt_families
            ]
            unseen = [instances(f, self.unseen, self.seed) for f in families("heldout")]
        except ValueError as error:
            raise RecipeError(f"task: {error}") from error
        training = self._examples(part[begin:] for part in instances_by_family)
        validating = self._examples(part[self.evaluation : begin] for part in instances_by_family)
        testing = self._examples(part[: self.evaluation] for part in instances_by_family)
        labels = list(
            chain.from_iterable([family.name] * self.examples for family in dealt_families)
        )
        if self.partition is None:
            examples_each = self.families_per_client * self.examples
            dealt_out = [
                list(range(i * examples_each, (i + 1) * examples_each)) for i in range(self.clients)
            ]
        else:
            dealt_out = self.partition.deal(labels, self.clients, self.seed)
        clients = [
            ClientData(name, take(training, mine), take(labels, mine))
            for name, mine in zip(self.client_names(), dealt_out, strict=True)
        ]
        tests = {"": testing} | ({"unseen_": self._examples(unseen)} if self.unseen else {})
        return TaskData(
            clients, tests if self.evaluate_on == "test" else {"": validating}, validating
        )

    def _examples(self, parts: Iterable[Sequence[Instance]]) -> list[Example]:
        """Return instances as prompts and responses."""
        write_prompt = question_prompt
        if self.prompt == "short":
            write_prompt = short_prompt
        return [
            Example(write_prompt(one.instruction, one.input), one.output)
            for one in chain.from_iterable(parts)
        ]

    def _families(self) -> list[Family]:
        """Return the families to deal.

        Raises RecipeError if a name is not a family's or occurs twice.
        """
        if self.families is None:
            return families("train")
        families_by_name = {family.name: family for family in families()}
        for name in self.families:
            if name not in families_by_name or self.families.count(name) > 1:
                problem = "twice"
                if name not in families_by_name:
                    names = ", ".join(families_by_name)
                    problem = f"{did_you_mean(name, families_by_name)}choose among {names}"
                raise RecipeError(f"task.families: {name!r}: {problem}")
        return [families_by_name[name] for name in self.families]
