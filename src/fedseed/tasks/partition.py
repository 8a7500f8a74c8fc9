"""Partitions decide which client gets which example.

The same seed gives the same partition on any machine.

Dirichlet: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", 2019. Each label's examples are divided in proportions drawn from
Dirichlet(alpha, ..., alpha). Drawing the proportions and then dealing each example by them is
equivalent to Polya's urn: the next example goes to client i with probability (alpha + i's examples
of this label) / (N alpha + all clients' examples of this label). The urn needs only whole numbers,
so the result does not depend on a library's gamma sampler or on rounding.
"""

from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

from fedseed.errors import RecipeError
from fedseed.hinting import Hinting
from fedseed.randomness import Domain, derive, permutation
from fedseed.randomness.stream import uniform_integers

# how often the partition is drawn until every client has its minimum
ATTEMPTS = 1000
Partition = list[list[int]]


class _Partitioner(BaseModel, metaclass=Hinting):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def deal(self, labels: Sequence[Hashable], clients: int, seed: int) -> Partition:
        """Return the indices of each client's examples, ascending.

        Args:
            labels: each example's label.
            clients: number of clients.
            seed: seed of the partition.

        Raises:
            RecipeError: no such partition is possible.
        """
        raise NotImplementedError


class IID(_Partitioner):
    """Deals examples in random order, as evenly as possible."""

    kind: Literal["iid"] = "iid"

    def deal(self, labels: Sequence[Hashable], clients: int, seed: int) -> Partition:
        _enough(len(labels), clients, 1)
        order = permutation(seed, Domain.PARTITION, len(labels)).tolist()
        return [sorted(order[i::clients]) for i in range(clients)]


class Dirichlet(_Partitioner):
    """Divides each label's examples in proportions drawn from Dirichlet(alpha).

    A small alpha gives each client few labels.

    Args:
        alpha: concentration; large values approach IID.
        minimum: least number of examples of each client; the whole partition is drawn again until
            all have it.
    """

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: PositiveFloat = 0.5
    minimum: NonNegativeInt = 1

    def deal(self, labels: Sequence[Hashable], clients: int, seed: int) -> Partition:
        _enough(len(labels), clients, self.minimum)
        by_label: dict[Hashable, list[int]] = {}  # in the order of first appearance
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
            f"labels, the smallest client never had more than {fewest} examples; raise alpha, or "
            "lower minimum or the number of clients"
        )

    def _urn(self, count: int, clients: int, stream: int) -> list[int]:
        """Return, for each of `count` examples of one label in order, the client that gets it."""
        # a client begins with p balls in the urn and adds q for each of its examples
        p, q = Fraction(str(self.alpha)).as_integer_ratio()
        owners: list[int] = []
        for number, word in enumerate(uniform_integers(stream, Domain.PARTITION, count).tolist()):
            # the drawn ball is one of the N p first ones, or it belongs to an earlier example and
            # goes to that example's client
            ball = word * (clients * p + number * q) >> 64
            owners.append(ball // p if ball < clients * p else owners[(ball - clients * p) // q])
        return owners


class Quantity(_Partitioner):
    """Gives clients different sizes and similar labels: all examples are dealt in the same
    proportions, drawn once from Dirichlet(alpha).

    Args:
        alpha: concentration of the sizes; with small values a few clients hold nearly everything.
        minimum: least number of examples of each client.
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
    """Makes a client for each value of a field, such as a language, a category or a task.

    The number of clients follows from the data.

    If there are fewer clients than values, values are merged: from the most frequent to the rarest,
    each value goes to the client with the fewest examples so far. (FedMeZO's meta splitter deals
    eight categories to three clients; the paper does not say which go together.)

    Args:
        field: the field's name in the data.
    """

    kind: Literal["field"] = "field"
    field: str

    def deal(self, labels: Sequence[Hashable], clients: int | None, seed: int) -> Partition:
        """Deal the examples, clients in the order of the values. `clients`: None, or at most the
        number of values.
        """
        values = sorted({str(label) for label in labels})
        if clients is not None and clients > len(values):
            raise RecipeError(
                f'task.clients = {clients}: task.partition.field = "{self.field}" has '
                f"{len(values)} values "
                f"({', '.join(values[:12])}{', ...' if len(values) > 12 else ''}), each for one "
                "client; leave out task.clients, or lower it"
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
            f"task.clients = {clients}: {examples:,} examples are not enough for {minimum} each"
        )
