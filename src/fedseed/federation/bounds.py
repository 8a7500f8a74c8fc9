"""Decides which updates count beside the others of a round, and which steps are taken.

    an update   larger than any honest one (LARGEST), or more than `proportion` times the median of
    its round: refused
    a claim     of examples, or of terms of a loss, more than `claims` times the median: refused
    with the update
    a step      not finite, farther than the weights' dtype goes, or more than `proportion` times as
    large as the median
                of the last WINDOW steps: not taken, and nothing is remembered of its answers

Payloads say how large they are (`Payload.size`). The median is the lower one of those that are not
zero, so that any minority may lie in either direction. It takes FEW sizes at least: fewer can't
outvote a liar. Where all updates of a round are too large, nobody can say that it is one client's
doing: none is refused, and the step is not taken. So a run that diverges goes on to its end.

Everything here follows from the round's answers and the steps before, so a coordinator that is
started again decides as the first one did. Free of torch.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, log10
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedseed.methods.payload import LARGEST
from fedseed.weights.change import (
    Add,
    AddFactors,
    Change,
    Entries,
    Optimize,
    Rebuild,
    expected_norm,
)
from fedseed.weights.layout import Layout

FEW = 3  # sizes that a median needs
WINDOW = 16  # steps that the next one is compared with
HIGHEST = {"float16": 65504.0}  # what a weight can hold, where that is less than LARGEST


class Bounds(BaseModel):
    """How far from the others a client, or a step, may be.

    The defaults are far outside of what honest clients send.

    Args:
        proportion: an update this many times as large as the median of its round is refused (of
            three answers or more), a step this many times as large as the median of the last 16 is
            not taken; "off": neither.
        claims: where clients weigh by their examples or terms: one that says it has this many times
            the median of its round is refused; "off": it is not. A client that claims less takes
            its weight: a lower value bounds that, and method.weighting = "equal" makes such claims
            worth nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    proportion: Annotated[float, Field(gt=1)] | Literal["off"] = 1e3
    claims: Annotated[float, Field(gt=1)] | Literal["off"] = 1e4

    def outliers(self, sizes: Mapping[int, float], claims: Mapping[int, int]) -> dict[int, str]:
        """Return the clients whose updates are out of all proportion, and why.

        Args:
            sizes: of each client's update; 0: it says nothing.
            claims: what each says that decides its weight; empty: nothing does.
        """
        huge = f"larger than {LARGEST:.0e}, which no honest update is"
        found = {client: huge for client, size in sizes.items() if not size <= LARGEST}
        if found and len(found) == len(sizes):
            return {}
        sizes = {client: size for client, size in sizes.items() if client not in found}
        for client in _beyond(self.claims, claims):
            found[client] = (
                f"it claims more than {self.claims:g} times the examples or terms of others "
                "(bounds.claims)"
            )
        for client in _beyond(self.proportion, sizes):
            times = (
                f"{10 ** int(log10(sizes[client] / lower_median(sizes.values()))):.0e} times "
                "the median"
            )
            found[client] = (
                f"out of all proportion: {times} of its round (bounds.proportion = "
                f"{self.proportion:g})"
            )
        return found


@dataclass
class LastSteps:
    """Remembers how large the last steps were."""

    bounds: Bounds  # how much larger the next may be
    _sizes: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def problem(self, size: float) -> str | None:
        """Return why a step of this size is not taken; None: it is."""
        if not size <= LARGEST:
            return (
                f"it is out of all proportion: {size:.3g}, and no honest one is above {LARGEST:.0e}"
            )
        if len(self._sizes) < FEW or self.bounds.proportion == "off":
            return None
        usual = lower_median(self._sizes)
        if size <= self.bounds.proportion * usual:
            return None
        before = f"the last {len(self._sizes)} were about {usual:.3g}"
        return f"it is out of all proportion: {size:.3g}, where {before} (bounds.proportion)"

    def take(self, size: float) -> None:
        """Remember the size of a step that was taken; an empty step has none."""
        if size > 0:
            self._sizes.append(size)

    @property
    def sizes(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the sizes that are remembered, the newest last."""
        return np.array(self._sizes, dtype=np.float64)

    def load(self, sizes: Iterable[float]) -> None:
        """Take sizes up as `sizes` gave them. Raises ValueError."""
        found = [float(size) for size in sizes]
        if not all(isfinite(size) and size > 0 for size in found):
            raise ValueError("the size of a step is a number above 0")
        self._sizes = deque(found, WINDOW)


def too_far(change: Change, layout: Layout) -> str | None:
    """Return why a sum of directions or entries can't be added to the weights.

    None: it can, or it is no such sum.
    """
    most = min(HIGHEST.get(entry.dtype, LARGEST) for entry in layout.tensors)
    if isinstance(change, Entries):
        farthest = max(
            (float(np.abs(patch.values).max(initial=0)) for patch in change.patches), default=0.0
        )
        what, far = "a weight by", abs(change.scale) * farthest
    elif isinstance(change, AddFactors):
        norm = expected_norm(change, layout)
        assert norm is not None
        what, far = "every weight by about", norm / layout.size**0.5
    elif isinstance(change, Add | Rebuild | Optimize) and change.terms:
        scale = change.rule.rate if isinstance(change, Optimize) else change.scale
        norm = expected_norm(Add(change.terms, scale), layout)
        assert norm is not None
        what, far = "every weight by about", norm / layout.size**0.5
    else:
        return None
    return None if far <= most else f"it would move {what} {far:.3g}: at most {most:g} is possible"


def _beyond(factor: float | Literal["off"], values: Mapping[int, float]) -> list[int]:
    """Return whose value is more than `factor` times the median."""
    if factor == "off" or sum(value > 0 for value in values.values()) < FEW:
        return []
    most = factor * lower_median(values.values())
    return [key for key, value in values.items() if value > most]


def lower_median(values: Iterable[float]) -> float:
    """Return the lower median of those above zero."""
    ordered = sorted(value for value in values if value > 0)
    return ordered[(len(ordered) - 1) // 2]
