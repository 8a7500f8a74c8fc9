"""Sums of two numbers. Each client has sums that begin with its own number."""

from random import Random
from typing import ClassVar, Literal

from pydantic import PositiveInt

from fedseed.tasks.base import Task
from fedseed.tasks.data import ClientData, Example, TaskData


class Sums(Task):
    """The task's settings.

    Args:
        clients: the number of clients; client i has sums that begin with i + 1.
        examples: the number of examples of each client.
        evaluation: the number of held-out sums that begin with each client's number.
    """

    name: Literal["sums"] = "sums"
    about: ClassVar[str] = "sums of two numbers; each client's begin with its own number"

    clients: PositiveInt = 4
    examples: PositiveInt = 40
    evaluation: PositiveInt = 10

    def load(self) -> TaskData:
        """Return the clients' examples and the held-out ones, the same on every call."""
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
