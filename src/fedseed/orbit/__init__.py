"""The orbit: a base's digest and every step since. Base + orbit = model, exactly."""

from fedseed.orbit.file import Orbit
from fedseed.orbit.header import AdapterStart, Header
from fedseed.orbit.record import NO_DIGEST, Record
from fedseed.orbit.writer import OrbitWriter

__all__ = ["NO_DIGEST", "AdapterStart", "Header", "Orbit", "OrbitWriter", "Record"]
