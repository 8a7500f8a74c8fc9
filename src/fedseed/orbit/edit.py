"""Make new orbits from old ones, and compare two orbits. The old file is never changed."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from fedseed.errors import OrbitError
from fedseed.orbit.file import Orbit, begin, read_file, scan, write_orbit
from fedseed.orbit.record import NO_DIGEST, Record, pack_records


def rollback(path: Path, last_step: int, destination: Path) -> Orbit:
    """Write the steps up to number `last_step` into a new file `destination`, even if later ones
    are damaged.

    Returns that orbit.

    It is not marked as complete, so a run may continue it. Raises OrbitError: there is no step
    `last_step`, or `destination` exists.
    """
    _must_not_exist(destination)
    orbit, damage = scan(read_file(path), str(path))
    if damage is not None and last_step > orbit.last:
        raise OrbitError(f"{damage.text}; steps up to {orbit.last} can be saved")
    orbit.check_upto(last_step)
    write_orbit(destination, orbit.start, pack_records(orbit.header.method, orbit.steps(last_step)))
    return Orbit.open(destination)


def compact(path: Path, destination: Path) -> Orbit:
    """Write only the last step into a new file `destination`, for a method whose newest step
    replaces all others.

    Returns that orbit, which can only be replayed to its last step. Raises OrbitError: the method
    needs all its steps, the orbit has none, or `destination` exists.
    """
    _must_not_exist(destination)
    orbit = Orbit.open(path)
    method = orbit.header.method
    if not method.catch_up.may_drop:
        raise OrbitError(
            f"{path}: {method.name} needs all its steps, so the orbit can't be compacted"
        )
    if not orbit.parts:
        raise OrbitError(f"{path}: the orbit has no steps")
    last = orbit.records[-1]
    write_orbit(destination, begin(replace(orbit.header, first=last.round)), [last])
    return Orbit.open(destination)


def differences(a: Orbit, b: Orbit) -> list[str]:
    """Return a line for each difference between two orbits.

    The list is empty if base, settings and steps are the same.
    """
    lines = a.header.differences(b.header)
    first = max(a.header.first, b.header.first)
    if a.header.first != b.header.first:
        lines.append(f"one orbit is compacted: steps are compared from {first} on")
    alike = a.header.hashed_alike(b.header)
    for x, y in zip_longest(_steps_from(a, first), _steps_from(b, first)):
        if x is None or y is None:
            shorter, longer = sorted((a.last, b.last))
            lines.append(
                f"the steps are the same up to step {shorter}, where one orbit ends; the other "
                f"goes on to step {longer}"
            )
            break
        if x.payload != y.payload:
            lines.append(f"step {x.round} is the first difference")
            break
        if alike and x.digest != y.digest and NO_DIGEST not in (x.digest, y.digest):
            lines.append(f"the weights differ after step {x.round}, though the steps are the same")
            break
    return lines


def _steps_from(orbit: Orbit, first: int) -> Iterator[Record]:
    """Yield an orbit's steps from number `first` on."""
    return (step for step in orbit.steps() if step.round >= first)


def _must_not_exist(path: Path) -> None:
    if path.exists():
        raise OrbitError(f"{path} exists: choose another file")
