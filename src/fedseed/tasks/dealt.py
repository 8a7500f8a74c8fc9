"""Tasks whose training examples a partition deals to clients, by labels in the data."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import Field, PositiveInt

from fedseed.errors import RecipeError
from fedseed.randomness.stream import Seed
from fedseed.tasks.base import Task
from fedseed.tasks.data import ClientData, TaskData, span, who_holds
from fedseed.tasks.partition import IID, AnyPartition, ByField

Share = Annotated[float, Field(ge=0, lt=1)]
Row = TypeVar("Row")


class Labelled(NamedTuple):
    """An example, and the label that a partition may use ("" if the data has none)."""

    example: Any
    label: str = ""


class DealtTask(Task):
    """Settings that these tasks have in common.

    A task declares how it splits its data, and which fields a partition may use.

    Args:
        clients: number of clients; None: the papers' number, or one for each value of
            `partition.field`.
        partition: how training examples are dealt to clients.
        evaluate_on: "test", or "validation" while choosing settings.
        seed: seed for drawing and dealing examples. It is separate from the run's seed, so that
            runs with different seeds have the same data.
    """

    fields: ClassVar[tuple[str, ...]] = ("label",)  # names that partition.field may have
    default_clients: ClassVar[int] = 5  # as in FeedSign's experiments
    scores: ClassVar[tuple[str, ...]] = TaskData.scores  # metrics of generated answers

    clients: PositiveInt | None = None
    partition: AnyPartition = IID()
    evaluate_on: Literal["test", "validation"] = "test"
    seed: Seed = 0

    @abstractmethod
    def parts(self) -> tuple[Sequence[Labelled], TaskData]:
        """Return the examples to deal to clients, and the other data, with the test sets as
        `evaluation`.

        Raises the errors of `load`.
        """

    def validation_sets(self, validation: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
        """Return the sets of validation examples that a run reports on, by prefix of the metrics'
        names.
        """
        return {"": validation}

    @property
    def dealing_seed(self) -> int:
        """Return the seed that draws the partition."""
        return self.seed

    def dealt_by(self, field: str) -> bool:
        """Return whether the partition uses this field of the data."""
        return isinstance(self.partition, ByField) and self.partition.field == field

    def client_names(self) -> list[str] | None:
        return names_dealt(self.partition, self.clients, self.default_clients)

    def load(self) -> TaskData:
        if isinstance(self.partition, ByField) and self.partition.field not in self.fields:
            known_fields = (
                " and ".join(f'"{field}"' for field in self.fields) or "no fields for a partition"
            )
            raise RecipeError(
                f'task.partition.field = "{self.partition.field}": "{self.name}" has {known_fields}'
            )
        if self.evaluate_on == "validation" and not getattr(self, "validation", 1):
            raise RecipeError(
                'task.evaluate_on = "validation": task.validation = 0 leaves no examples for it'
            )
        rows, data = self.parts()
        clients = deal_clients(
            rows, self.partition, self.clients, self.default_clients, self.dealing_seed
        )
        holdings = who_holds(
            [len(client.examples) for client in clients], "picture" if data.classes else "example"
        )
        if data.classes:
            kinds = [_count_labels(client) for client in clients]
            holdings += f" of {span(kinds, 'class', 'classes')}"
        notes = (*data.notes, f"{holdings} ({self.partition.kind})")
        if self.evaluate_on == "test":
            sets = data.evaluation
        else:
            sets = self.validation_sets(data.validation)
        return replace(data, clients=clients, evaluation=sets, notes=notes, scores=self.scores)


def pick(rows: Sequence[Row], numbers: Iterable[int]) -> list[Row]:
    """Return the rows with these numbers, in the rows' order."""
    return [rows[number] for number in sorted(numbers)]


def take(values: Sequence[Row], numbers: Iterable[int]) -> list[Row]:
    """Return the values with these numbers, in the numbers' order."""
    return [values[number] for number in numbers]


def share_of(share: float, count: int) -> int:
    """Return the size of a share of `count` examples: at least one, unless the share is 0."""
    if share:
        return max(1, round(share * count))
    return 0


def numbered(count: int) -> list[str]:
    """Return names for clients without names."""
    digits = max(2, len(str(count)))
    return [f"client-{number:0{digits}d}" for number in range(1, count + 1)]


def names_dealt(partition: AnyPartition, clients: int | None, default: int) -> list[str] | None:
    """Return the clients' names that `deal_clients` will use.

    None if they are the values of a field, which only the data has.
    """
    if isinstance(partition, ByField):
        return None
    return numbered(clients or default)


def deal_clients(
    rows: Sequence[Labelled], partition: AnyPartition, clients: int | None, default: int, seed: int
) -> list[ClientData]:
    """Deal examples to clients, and return the clients with their examples and labels.

    Args:
        rows: the examples with their labels.
        partition: how to deal them.
        clients: number of clients; None: `default`, or one for each value of the partition's field.
        default: number of clients if `clients` is None and the partition does not use a field.
        seed: the partition's seed.

    Raises:
        RecipeError: no such partition is possible.
    """
    labels = [row.label for row in rows]
    if isinstance(partition, ByField):
        parts = partition.deal(labels, clients, seed)
        labels_held = [dict.fromkeys(take(labels, mine)) for mine in parts]
        names = numbered(len(parts))
        if all(len(held) == 1 for held in labels_held):
            names = [next(iter(held)) for held in labels_held]
    else:
        parts = partition.deal(labels, clients or default, seed)
        names = numbered(len(parts))
    examples = [row.example for row in rows]
    clients_data = []
    for name, mine in zip(names, parts, strict=True):
        labels_of_client: Sequence[str] = ()
        if any(labels):
            labels_of_client = take(labels, mine)
        clients_data.append(ClientData(name, take(examples, mine), labels_of_client))
    return clients_data


def _count_labels(client: ClientData) -> int:
    return len({picture.label for picture in client.examples})
