"""What tasks made from a data set of instructions share: finding it, holding examples out, dealing the rest."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from fedseed.errors import RecipeError
from fedseed.randomness import Domain, permutation
from fedseed.randomness.seed import Seed
from fedseed.tasks.base import Task
from fedseed.tasks.data import ClientData, TaskData, who_holds
from fedseed.tasks.files import Record, read_records
from fedseed.tasks.hub import hub_rows
from fedseed.tasks.partition import IID, AnyPartition, ByField

HELD_OUT = 1  # separates the draw of held-out examples from that of a partition
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Labelled:
    """An example and the label it may be dealt by ("" if the data has none)."""

    example: Any
    label: str = ""


class InstructionData(Task):
    """Settings that these tasks share. A data set adds its name, where its rows are, and what a row becomes.

    Args:
        path: the data set's file, a folder with it, or its name on the Hugging Face hub.
        clients: data holders; None: as many as the papers have, or as `partition.field` has values.
        partition: how training examples are dealt to clients.
        examples: training examples of all clients together, drawn at random; None: all that are not held out.
        held_out: share of the examples that the run reports on; without effect if the data set has a test part.
        evaluation: at most so many held-out examples are evaluated on; None: all.
        validation: share of the other examples that no client gets, to choose settings on.
        evaluate_on: "test", or "validation" while choosing settings.
        seed: draws and deals examples; apart from the run's seed, so that runs share their data.
    """

    hint: ClassVar[str]  # what `path` may be and where the data set comes from
    fields: ClassVar[tuple[str, ...]] = ()  # what partition.field may name
    default_clients: ClassVar[int] = 3
    scores: ClassVar[tuple[str, ...]] = ("rouge_l",)

    path: str
    clients: PositiveInt | None = None
    partition: AnyPartition = IID()
    examples: PositiveInt | None = None
    held_out: Share = 0.1
    evaluation: PositiveInt | None = None
    validation: Share = 0.02
    evaluate_on: Literal["test", "validation"] = "test"
    seed: Seed = 0

    def client_names(self) -> list[str] | None:
        """By their numbers, or the values of a field."""
        return names_dealt(self.partition, self.clients, self.default_clients)

    @abstractmethod
    def read(self) -> tuple[list[Labelled], list[Labelled] | None, list[str]]:
        """The examples, those of a test part (None: there is none, `held_out` applies), and lines for the notes.

        Raises:
            RecipeError: the data can't be had or is malformed.
        """

    def load(self) -> TaskData:
        """The clients' examples and the evaluation set.

        Raises:
            RecipeError: the data can't be had or is malformed, or does not fit the settings.
        """
        if isinstance(self.partition, ByField) and self.partition.field not in self.fields:
            known = f"there is {', '.join(self.fields)}" if self.fields else "this data set has no field to deal by"
            raise RecipeError(f'task.partition.field = "{self.partition.field}": {known}')
        if self.evaluate_on == "validation" and not self.validation:
            raise RecipeError('task.evaluate_on = "validation": task.validation = 0 keeps no example for it')
        rows, test, notes = self.read()
        order = permutation(self.seed, Domain.PARTITION, len(rows), HELD_OUT).tolist()
        if test is None:
            count = share_of(self.held_out, len(rows))
            test, order = [rows[i] for i in sorted(order[:count])], order[count:]
        count = share_of(self.validation, len(order))
        validation = [rows[i].example for i in sorted(order[:count])]
        held = [rows[i] for i in sorted(order[count:][: self.examples])]
        if not held or not test or (self.evaluate_on == "validation" and not validation):
            raise RecipeError(
                f'task.path = "{self.path}": too few examples: {len(held):,} for training, {len(validation):,} for '
                f"validation, {len(test):,} held out"
            )
        drawn = permutation(self.seed, Domain.PARTITION, len(test), HELD_OUT)[: self.evaluation]
        evaluation = [test[i].example for i in sorted(drawn.tolist())]
        notes.append(
            f"{len(held):,} training, {len(validation):,} validation and {len(evaluation):,} held-out examples"
        )
        clients = deal_clients(held, self.partition, self.clients, self.default_clients, self.seed)
        sizes = [len(client.examples) for client in clients]
        notes.append(f"{who_holds(sizes)} ({self.partition.kind})")
        chosen = validation if self.evaluate_on == "validation" else evaluation
        return TaskData(clients, {"": chosen}, validation, tuple(notes), self.scores)

    def rows(self, names: Sequence[str], split: str = "train", config: str | None = None) -> list[Record]:
        """The rows of the data set, or of one part of it.

        Args:
            names: what its file may be called in a folder.
            split: what the part is called on the hub.
            config: the data set's configuration on the hub, if it has some.

        Raises:
            RecipeError: they can't be found or read.
        """
        place = Path(self.path).expanduser()
        if place.is_file():
            return read_records(place)
        for name in names:
            if (place / name).is_file():
                return read_records(place / name)
        if place.is_dir() and not any(place.rglob("*.parquet")):
            raise RecipeError(f'task.path = "{self.path}": the folder has no {" or ".join(names)}; {self.hint}')
        return hub_rows(self.path, split, config, self.hint)


def share_of(share: float, count: int) -> int:
    """How many of `count` a share is: one at least, unless it is nothing."""
    return max(1, round(share * count)) if share else 0


def without_empty(rows: Sequence[Labelled]) -> tuple[list[Labelled], str]:
    """The rows that have a response, and a line about them."""
    kept = [row for row in rows if row.example.response.strip()]
    return kept, f"{len(rows) - len(kept):,} of {len(rows):,} examples left out (no response)"


def numbered(count: int) -> list[str]:
    """Names of clients that have none of their own."""
    digits = max(2, len(str(count)))
    return [f"client-{number:0{digits}d}" for number in range(1, count + 1)]


def names_dealt(partition: AnyPartition, clients: int | None, default: int) -> list[str] | None:
    """The names that `deal_clients` will give; None: a field's values, which only the data says."""
    return None if isinstance(partition, ByField) else numbered(clients or default)


def deal_clients(
    rows: Sequence[Labelled], partition: AnyPartition, clients: int | None, default: int, seed: int
) -> list[ClientData]:
    """Clients with their examples and labels.

    Args:
        rows: what is dealt.
        partition: how.
        clients: how many; None: `default`, or as many as a field has values.
        default: how many where nothing says it.
        seed: draws the partition.

    Raises:
        RecipeError: the partition is not possible.
    """
    labels = [row.label for row in rows]
    if isinstance(partition, ByField):
        dealt = partition.deal(labels, clients, seed)
        held = [dict.fromkeys(labels[i] for i in mine) for mine in dealt]
        names = [next(iter(h)) for h in held] if all(len(h) == 1 for h in held) else numbered(len(dealt))
    else:
        dealt = partition.deal(labels, clients or default, seed)
        names = numbered(len(dealt))
    known = any(labels)
    return [
        ClientData(name, [rows[i].example for i in mine], [labels[i] for i in mine] if known else ())
        for name, mine in zip(names, dealt, strict=True)
    ]
