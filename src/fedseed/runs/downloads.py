"""What a client that takes part in a round downloads besides the plan: the steps it has missed."""

from array import array
from collections.abc import Sequence

from fedseed.methods import Method
from fedseed.methods.content import NUMBERS, Content

COLUMNS = ("bytes", *NUMBERS)


class Downloads:
    """Counts what is in the payloads of steps that clients catch up on.

    Args:
        method: the method.
        clients: how many clients there are.
    """

    def __init__(self, method: Method, clients: int) -> None:
        self._method = method
        self._has = [0] * clients  # how many steps each client has received
        # contents of all steps up to and with each, a column for each of a content's numbers: there may be millions
        self._totals = {name: array("q", [0]) for name in COLUMNS}
        self._found: tuple[tuple[int, int, int], Content] | None = None  # what was looked up last: many ask the same
        self.changed = 0  # number of the newest step that is not empty

    def of(self, client: int) -> Content:
        """What brings a client up to date, which it is then."""
        has, last = self._has[client], len(self._totals["bytes"]) - 1
        self._has[client] = last
        steps = self._method.catch_up.needs(has, last, self.changed)
        return self._between(steps.start - 1, steps.stop - 1) if steps else Content()

    def _between(self, first: int, last: int) -> Content:
        asked = (first, last, len(self._totals["bytes"]))
        if self._found is None or self._found[0] != asked:
            between = {name: column[last] - column[first] for name, column in self._totals.items()}
            self._found = asked, Content(**between)
        return self._found[1]

    def add(self, step: Content) -> None:
        """There is a new step."""
        for name, column in self._totals.items():
            column.append(column[-1] + getattr(step, name))
        if step.bytes:
            self.changed = len(self._totals["bytes"]) - 1

    def received(self, client: int, steps: int) -> None:
        """A client has the first so many steps: it took part in an earlier session."""
        self._has[client] = max(self._has[client], steps)


def restored(method: Method, steps: Sequence[Content], picked: Sequence[Sequence[int]], clients: int) -> Downloads:
    """The count after rounds of an earlier session.

    Args:
        method: the method.
        steps: what each round's step held.
        picked: the clients that took part in each round.
        clients: how many clients there are.
    """
    downloads = Downloads(method, clients)
    for number, (step, members) in enumerate(zip(steps, picked, strict=True)):
        for client in members:
            downloads.received(client, number)
        downloads.add(step)
    return downloads
