"""The shared random stream, version 1: Philox4x32-10, addressed by counter.

Every number is a pure function of (seed, domain, direction index, block index). There is no state,
so any element can be computed anywhere, in any order, on any device, with the same bits.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC'11).
"""

from enum import IntEnum
from operator import index
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedseed.errors import RecipeError
from fedseed.text import show_text

STREAM_VERSION = 1

# Philox4x32 multipliers and Weyl increments (SC'11, Table 2 and Section 3.3).
MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85
ROUNDS = 10
FEW = 12  # blocks that take less time one by one
_LOW = 0xFFFFFFFF
SEEDS = 2**64
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]  # of a recipe


class Domain(IntEnum):
    """What a number is used for: the last counter word. No two uses share numbers."""

    DIRECTION = 0  # entries of normal, truncated_normal and rademacher directions
    SIGNS = 1  # the structured basis' one sign per element
    ROUND_SEED = 2  # the seed all clients of a round share
    CLIENT_SEED = 3  # the seed of one client in one round
    SAMPLING = 4  # which clients take part
    DATA_ORDER = 5  # the order in which a client sees its examples
    DROPOUT = 6  # seeds torch's own generator while a client trains
    PARTITION = 7  # who holds which example
    COIN = 8  # FeedSign's coin for ties and for projections of exactly zero
    ROUNDING = 9  # stochastic rounding of small steps
    ATTACK = 10  # what simulated Byzantine clients send
    ADAPTER = 16  # the weights an adapter starts from
    RATE = 17  # FedMeZO's random learning rates
    HEAD = 18  # the weights a new classifier head starts from
    LEFT = 19  # u of lowrank directions: a sign for each row of a matrix
    RIGHT = 20  # w of lowrank directions: a sign for each column
    BUCKETS = 21  # who is with whom where a rule makes means of a few clients' vectors
    SUBSPACE = 22  # the signs that span a random subspace of a matrix


Words = NDArray[np.uint32]


def philox4x32(
    counter: tuple[Any, Any, Any, Any], key: tuple[int, int]
) -> tuple[Any, Any, Any, Any]:
    """Ten rounds of Philox4x32 on counters.

    Args:
        counter: four words of 32 bits: integers, or uint64 arrays of one shape.
        key: two words.

    Returns:
        Four words of 32 bits: integers, or uint64 arrays: after a few rounds each word depends on
            all four.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product_0, product_1 = MULTIPLIER_0 * c0, MULTIPLIER_1 * c2  # 32 x 32 -> 64 bit, exact
        c0, c1 = (product_1 >> 32) ^ c1 ^ k0, product_1 & _LOW
        c2, c3 = (product_0 >> 32) ^ c3 ^ k1, product_0 & _LOW
        k0, k1 = (k0 + WEYL_0) & _LOW, (k1 + WEYL_1) & _LOW
    return c0, c1, c2, c3


def split_seed(seed: int) -> tuple[int, int]:
    """Return the Philox key of a 64-bit seed: (low word, high word).

    Raises:
        ValueError: the seed is not in [0, 2**64).
    """
    if not 0 <= seed < SEEDS:
        raise ValueError(f"seed = {seed}: a seed is an integer from 0 to 2**64 - 1")
    return seed & _LOW, seed >> 32


def check_seed(seed: int, name: str = "seed") -> int:
    """Check and returns a seed given in Python or on a command line.

    In a recipe, `Seed` checks it.

    Args:
        seed: the number.
        name: what an error calls it.

    Raises:
        RecipeError: it is no whole number of 64 bits.
    """
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= index(seed) < SEEDS:
        raise RecipeError(
            f"{name} = {show_text(seed)}: a whole number from 0 to 2**64 - 1 is expected"
        )
    return index(seed)


def block(seed: int, domain: int, direction: int, position: int) -> tuple[int, int, int, int]:
    """Return one Philox block as four numbers, the same as from `words`: for a single block NumPy
    would take thirty times as long.

    Args:
        seed: 64-bit seed (the key).
        domain: the use of the numbers.
        direction: direction index, 32 bits.
        position: index of the block; the 64 bits at its end count.
    """
    low, high = int(position) & _LOW, int(position) >> 32 & _LOW
    return philox4x32((low, high, int(direction), int(domain)), split_seed(int(seed)))


def words(seed: int, domain: int, direction: int, first_block: int, blocks: int) -> Words:
    """Consecutive Philox blocks of one direction.

    Args:
        seed: 64-bit seed (the key).
        domain: the use of the numbers (`Domain`).
        direction: direction index, 32 bits.
        first_block: index of the first block, 64 bits.
        blocks: how many.

    Returns:
        uint32 array of shape (blocks, 4).
    """
    if blocks <= FEW:
        blocks_of_words = [
            block(seed, domain, direction, int(first_block) + i) for i in range(blocks)
        ]
        return np.array(blocks_of_words, dtype=np.uint32).reshape(blocks, 4)
    numbers = np.uint64(first_block) + np.arange(blocks, dtype=np.uint64)
    counter = numbers & _LOW, numbers >> 32, int(direction), int(domain)
    return np.stack(philox4x32(counter, split_seed(seed)), axis=-1).astype(np.uint32)


def derive(seed: int, domain: int, position: int = 0, direction: int = 0) -> int:
    """Return a 64-bit number for one use: the seed of a round, of a client in a round, and so on.

    Args:
        seed: the run's seed.
        domain: what the number is for.
        position: 64-bit counter, for example the round.
        direction: 32-bit counter, for example the client's number.
    """
    low, high, _, _ = block(seed, domain, direction, position)
    return low | high << 32


def coins(seed: int, step: int, count: int) -> NDArray[np.int8]:
    """Return a step's coins, +1 or -1, at most 65,536; everybody knows them."""
    coin_words = words(seed, Domain.COIN, 0, step * (1 << 14), -(-count // 4)).reshape(-1)
    return np.where(coin_words[:count] & 1, 1, -1).astype(np.int8)


def rate_number(seed: int, number: int, client: int) -> float:
    """Return a client's number in a round, uniform on (-1, 1), by which FedMeZO's random learning
    rates differ.
    """
    return ((derive(seed, Domain.RATE, number, client) >> 11) + 0.5) * 2.0**-52 - 1.0


def uniform_integers(seed: int, domain: int, count: int, direction: int = 0) -> NDArray[np.uint64]:
    """Return `count` independent 64-bit integers."""
    rows = words(seed, domain, direction, 0, (count + 1) // 2)
    return rows.astype("<u4").view("<u8").reshape(-1)[:count].astype(np.uint64, copy=False)


def draws(seed: int, count: int) -> NDArray[np.uint64]:
    """Return 64-bit integers to choose something by."""
    return uniform_integers(seed, Domain.SAMPLING, count)


def permutation(seed: int, domain: int, count: int, direction: int = 0) -> NDArray[np.int64]:
    """Return a random order of 0..count-1: the ranks of `count` random 64-bit keys (ties keep
    their order).
    """
    return np.argsort(uniform_integers(seed, domain, count, direction), kind="stable")


def sample(seed: int, domain: int, population: int, count: int, direction: int) -> list[int]:
    """`count` different members of 0..population-1, in ascending order."""
    if not 0 <= count <= population:
        raise ValueError(f"can't take {count} of {population}")
    return sorted(int(i) for i in permutation(seed, domain, population, direction)[:count])
