"""What a client that takes part in a round downloads besides the plan: the steps it has missed."""

from collections.abc import Sequence

from fedseed.methods import Method


class Downloads:
    """Counts the payload bytes of steps that clients catch up on.

    Args:
        method: the method. If its plans carry the model, clients need no steps; of a dense one they need the newest.
        clients: how many clients there are.
    """

    def __init__(self, method: Method, clients: int) -> None:
        self._method = method
        self._has = [0] * clients  # how many steps each client has received
        self._totals = [0]  # payload bytes of all steps up to and with each
        self.changed = 0  # number of the newest step that is not empty

    def of(self, client: int) -> int:
        """Bytes that bring a client up to date, which it is then."""
        has, self._has[client] = self._has[client], len(self._totals) - 1
        if self._method.catch_up == "plan":
            return 0
        if self._method.catch_up == "newest":
            return self._totals[self.changed] - self._totals[self.changed - 1] if self.changed > has else 0
        return self._totals[-1] - self._totals[has]

    def add(self, size: int) -> None:
        """There is a new step, of so many bytes."""
        self._totals.append(self._totals[-1] + size)
        if size:
            self.changed = len(self._totals) - 1

    def received(self, client: int, steps: int) -> None:
        """A client has the first so many steps: it took part in an earlier session."""
        self._has[client] = max(self._has[client], steps)


def restored(method: Method, sizes: Sequence[int], picked: Sequence[Sequence[int]], clients: int) -> Downloads:
    """The count after rounds of an earlier session.

    Args:
        method: the method.
        sizes: payload bytes of each round's step.
        picked: the clients that took part in each round.
        clients: how many clients there are.
    """
    downloads = Downloads(method, clients)
    for number, (size, members) in enumerate(zip(sizes, picked, strict=True)):
        for client in members:
            downloads.received(client, number)
        downloads.add(size)
    return downloads
