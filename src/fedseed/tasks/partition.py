"""Partitions: which client holds which example.

The same seed gives the same partition on any machine.

Dirichlet: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", 2019. Each label's examples are shared out by proportions drawn from
Dirichlet(alpha, ..., alpha). Drawing the proportions and then dealing each example by them is the
same as Polya's urn: the next example goes to client i with probability (alpha + what i has of this
label) / (N alpha + what all have). The urn needs only whole numbers, so no library's gamma sampler
and no rounding decides who holds what.
"""

from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

from fedseed.errors import RecipeError
from fedseed.hinting import Hinting
from fedseed.randomness import Domain, derive, permutation
from fedseed.randomness.stream import uniform_integers

# draws of a partition until every client has its minimum
ATTEMPTS = 1000
Partition = list[list[int]]


class _Partitioner(BaseModel, metaclass=Hinting):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def deal(self, labels: Sequence[Hashable], clients: int, seed: int) -> Partition:
        """Indices of each client's examples, ascending.

        Args:
            labels: each example's.
            clients: how many.
            seed: draws the partition.

        Raises:
            RecipeError: the partition is not possible.
        """
        raise NotImplementedError


class IID(_Partitioner):
    """Examples dealt in random order, as evenly as can be."""

    kind: Literal["iid"] = "iid"

    def deal(self, labels: Sequence[Hashable], clients: int, seed: int) -> Partition:
        _enough(len(labels), clients, 1)
        order = permutation(seed, Domain.PARTITION, len(labels)).tolist()
        return [sorted(order[i::clients]) for i in range(clients)]


class Dirichlet(_Partitioner):
    """Each label's examples shared out by proportions from Dirichlet(alpha).

    Small alpha: few labels a client.

    Args:
        alpha: concentration; large values approach IID.
        minimum: every client has at least so many examples; the whole partition is drawn anew until
            it is so.
    """

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: PositiveFloat = 0.5
    minimum: NonNegativeInt = 1

    def deal(self, labels: Sequence[Hashable], clients: int, seed: int) -> Partition:
        _enough(len(labels), clients, self.minimum)
        by_label: dict[Hashable, list[int]] = {}  # in the order of their first appearance
        for index, label in enumerate(labels):
            by_label.setdefault(label, []).append(index)
        groups = list(by_label.values())
        fewest = 0
        for attempt in range(ATTEMPTS):
            parts: Partition = [[] for _ in range(clients)]
            for number, indices in enumerate(groups):
                stream = derive(seed, Domain.PARTITION, attempt, number)
                for index, client in zip(
                    indices, self._urn(len(indices), clients, stream), strict=True
                ):
                    parts[client].append(index)
            smallest = min(len(mine) for mine in parts)
            if smallest >= self.minimum:
                return [sorted(mine) for mine in parts]
            fewest = max(fewest, smallest)
        raise RecipeError(
            f"task.partition.minimum = {self.minimum}: in {ATTEMPTS:,} draws with alpha = "
            f"{self.alpha} for {clients} clients and {len(labels):,} examples of {len(groups)} "
            f"labels, the smallest client never had more than {fewest}; raise alpha, or lower "
            "minimum or the number of clients"
        )

    def _urn(self, count: int, clients: int, stream: int) -> list[int]:
        """Return the client that gets each of `count` examples of one label, in the examples'
        order.
        """
        # a client begins with p balls and gets q with each example
        p, q = Fraction(str(self.alpha)).as_integer_ratio()
        owners: list[int] = []
        for number, word in enumerate(uniform_integers(stream, Domain.PARTITION, count).tolist()):
            # a draw is a ball: one of the N p first, or one that came with an earlier example and
            # goes where that went
            ball = word * (clients * p + number * q) >> 64
            owners.append(ball // p if ball < clients * p else owners[(ball - clients * p) // q])
        return owners


class Quantity(_Partitioner):
    """Labels as in the whole, sizes apart: the example goes to a client by one draw of
    Dirichlet(alpha) for all.

    Args:
        alpha: concentration of the sizes; small values: a few clients hold nearly everything.
        minimum: every client has at least so many examples.
    """

    kind: Literal["quantity"] = "quantity"
    alpha: PositiveFloat = 1.0
    minimum: NonNegativeInt = 1

    def deal(self, labels: Sequence[Hashable], clients: int, seed: int) -> Partition:
        order = permutation(seed, Domain.PARTITION, len(labels)).tolist()
        sizes = Dirichlet(alpha=self.alpha, minimum=self.minimum).deal(
            [0] * len(labels), clients, seed
        )
        return [sorted(map(order.__getitem__, mine)) for mine in sizes]


class ByField(_Partitioner):
    """A client for each value of a field: a language, a category, a task.

    The number of clients follows.

    With fewer clients than values, values are merged: from the most frequent to the rarest each
    goes to the client with the fewest examples so far. (FedMeZO's meta splitter deals eight
    categories to three clients; its paper does not say which go together.)

    Args:
        field: the field's name in the data.
    """

    kind: Literal["field"] = "field"
    field: str

    def deal(self, labels: Sequence[Hashable], clients: int | None, seed: int) -> Partition:
        """As elsewhere, in the order of the values; `clients`: None, or at most their number."""
        values = sorted({str(label) for label in labels})
        if clients is not None and clients > len(values):
            raise RecipeError(
                f'task.clients = {clients}: task.partition.field = "{self.field}" has '
                f"{len(values)} values "
                f"({', '.join(values[:12])}{', ...' if len(values) > 12 else ''}), each for one "
                "client; leave task.clients out, or take fewer"
            )
        indices: dict[str, list[int]] = {value: [] for value in values}
        for i, label in enumerate(labels):
            indices[str(label)].append(i)
        parts = list(indices.values())
        if clients is None or clients == len(values):
            return parts
        merged: list[list[int]] = [[] for _ in range(clients)]
        for mine in sorted(parts, key=len, reverse=True):
            min(merged, key=len).extend(mine)
        return [sorted(mine) for mine in merged]


AnyPartition = Annotated[IID | Dirichlet | Quantity | ByField, Field(discriminator="kind")]


def _enough(examples: int, clients: PositiveInt, minimum: int) -> None:
    if clients * minimum > examples:
        raise RecipeError(
            f"task.clients = {clients}: {examples:,} examples are not enough for at least "
            f"{minimum} each"
        )
