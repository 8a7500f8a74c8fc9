"""The orbit: a base's digest and every step since. Base + orbit = model, exactly."""

from fedseed.orbit.file import Header, Orbit, OrbitWriter, Record

__all__ = ["Header", "Orbit", "OrbitWriter", "Record"]
