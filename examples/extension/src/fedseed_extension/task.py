"""Sums of two numbers: each client holds those that begin with a number of its own."""

from random import Random
from typing import ClassVar, Literal

from pydantic import PositiveInt

from fedseed.tasks.base import Task
from fedseed.tasks.data import ClientData, Example, TaskData


class Sums(Task):
    """The task's settings.

    Args:
        clients: how many; client i holds sums that begin with i + 1.
        examples: of each client.
        evaluation: held-out sums, of all clients' kinds.
    """

    name: Literal["sums"] = "sums"
    about: ClassVar[str] = "sums of two numbers; each client's begin with a number of its own"

    clients: PositiveInt = 4
    examples: PositiveInt = 40
    evaluation: PositiveInt = 10

    def load(self) -> TaskData:
        """The same sums on every call."""
        random = Random(7)

        def sums(first: int, count: int) -> list[Example]:
            return [
                Example(f"{first} + {b} =", f" {first + b}")
                for b in random.choices(range(1, 100), k=count)
            ]

        clients = [
            ClientData(f"client-{i}", sums(i + 1, self.examples)) for i in range(self.clients)
        ]
        held_out = [
            example for i in range(self.clients) for example in sums(i + 1, self.evaluation)
        ]
        return TaskData(clients, {"": held_out}, scores=("exact_match",))
