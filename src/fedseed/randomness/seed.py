"""What a seed in a recipe may be: the key of the stream, 64 bits."""

from operator import index
from typing import Annotated

from pydantic import Field

from fedseed.errors import RecipeError
from fedseed.text import shown

SEEDS = 2**64
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]


def check_seed(seed: int, where: str = "seed") -> int:
    """A seed that is given in Python or on a command line; in a recipe, `Seed` checks it.

    Args:
        seed: the number.
        where: what an error calls it.

    Raises:
        RecipeError: it is no whole number of 64 bits.
    """
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= index(seed) < SEEDS:
        raise RecipeError(f"{where} = {shown(seed)}: a whole number from 0 to 2**64 - 1 is expected")
    return index(seed)
