"""The shared randomness: one stream, four bases, the same bits everywhere."""

from fedseed.randomness.basis import BASES, Basis
from fedseed.randomness.stream import STREAM_VERSION, Domain, derive, permutation, sample

__all__ = ["BASES", "STREAM_VERSION", "Basis", "Domain", "derive", "permutation", "sample"]
