"""What a seed in a recipe may be: the key of the stream, 64 bits."""

from typing import Annotated

from pydantic import Field

SEEDS = 2**64
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]
