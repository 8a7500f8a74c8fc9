"""Makes new orbits of old ones, and compares two. The old file is never changed."""

from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from fedseed.errors import OrbitError
from fedseed.orbit.file import Orbit, begin, read, scan, write_orbit
from fedseed.orbit.record import NO_DIGEST, packed


def rollback(path: Path, to: int, out: Path) -> Orbit:
    """Write the steps up to number `to` into a new file `out`, even if later ones are damaged.

    Returns that orbit.

    It is not complete, so a run may go on from it. Raises OrbitError: there is no step `to`, or
    `out` exists.
    """
    _must_not_exist(out)
    orbit, damage = scan(read(path), str(path))
    if damage is not None and to > orbit.last:
        raise OrbitError(f"{damage.text}; steps up to {orbit.last} can be saved")
    orbit.check_upto(to)
    write_orbit(out, orbit.start, packed(orbit.header.method, orbit.steps(to)))
    return Orbit.open(out)


def compact(path: Path, out: Path) -> Orbit:
    """Write the last step alone into a new file `out`, of a method whose newest step replaces all
    others.

    Returns that orbit, which replays to its last step only. Raises OrbitError: the method needs all
    its steps, the orbit has none, or `out` exists.
    """
    _must_not_exist(out)
    orbit = Orbit.open(path)
    method = orbit.header.method
    if not method.catch_up.may_drop:
        raise OrbitError(f"{path}: every step of {method.name} counts, so none can be left out")
    if not orbit.parts:
        raise OrbitError(f"{path}: the orbit has no steps")
    last = orbit.records[-1]
    write_orbit(out, begin(replace(orbit.header, first=last.round)), [last])
    return Orbit.open(out)


def differences(a: Orbit, b: Orbit) -> list[str]:
    """Return a line for each difference between two orbits.

    The list is empty if base, settings and steps are the same.
    """
    lines = a.header.differences(b.header)
    first = max(a.header.first, b.header.first)
    if a.header.first != b.header.first:
        lines.append(f"one is compacted: steps are compared from {first} on")
    alike = a.header.hashed_alike(b.header)
    for x, y in zip_longest(
        *((step for step in one.steps() if step.round >= first) for one in (a, b))
    ):
        if x is None or y is None:
            shorter, longer = sorted((a.last, b.last))
            lines.append(
                f"the same up to step {shorter}, where one ends; the other goes on to step {longer}"
            )
            break
        if x.payload != y.payload:
            lines.append(f"step {x.round} is the first that differs")
            break
        if alike and x.digest != y.digest and NO_DIGEST not in (x.digest, y.digest):
            lines.append(f"the weights differ after step {x.round}, the steps do not")
            break
    return lines


def _must_not_exist(out: Path) -> None:
    if out.exists():
        raise OrbitError(f"{out} exists: choose another file")
