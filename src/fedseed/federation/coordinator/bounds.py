"""Decides which updates of a round count, and which steps are applied.

    an update   is refused if it is larger than any honest one (LARGEST), or more than `proportion`
                times the median of its round
    a claim     is refused, with its update, if it is more than `claims` times the median number of
                examples, or of terms of a loss
    a step      is not applied, and its answers are forgotten, if it is not finite, exceeds the
                range of the weights' dtype, or is more than `proportion` times the median of the
                last WINDOW steps

Payloads report their size (`Payload.size`). The median is the lower median of the sizes above zero,
so a minority can't move it far in either direction. It needs MIN_SIZES sizes, because fewer can't
outvote a liar. If all updates of a round are too large, none is refused, because no single client
may be the cause; instead the step is not applied. So a diverging run still reaches its end.

All decisions depend only on the round's answers and the earlier steps, so a restarted coordinator
decides like the first one. This module does not import torch.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, log10
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedseed.hinting import Hinting
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

MIN_SIZES = 3  # least number of sizes for a median
WINDOW = 16  # number of steps that the next one is compared with
HIGHEST = {"float16": 65504.0}  # largest weight of a dtype, if it is below LARGEST


class Bounds(BaseModel, metaclass=Hinting):
    """How far a client's update, or a step, may be from the others.

    The defaults are far beyond the range of honest clients.

    Args:
        proportion: an update is refused if its size is this many times the median of its round
            (with at least three answers); a step is not applied if its size is this many times the
            median of the last 16 steps. "off": no such limits.
        claims: if clients are weighted by their examples or terms, a client that claims this many
            times the median of its round is refused; "off": never. False claims below the limit
            still take weight from other clients. A lower value limits this, and method.weighting =
            "equal" makes such claims useless.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    proportion: Annotated[float, Field(gt=1)] | Literal["off"] = 1e3
    claims: Annotated[float, Field(gt=1)] | Literal["off"] = 1e4

    def outliers(self, sizes: Mapping[int, float], claims: Mapping[int, int]) -> dict[int, str]:
        """Return the clients whose updates are out of proportion, with the reasons.

        Args:
            sizes: size of each client's update; 0: the update has no size.
            claims: the number that each client's weight depends on; empty: weights do not depend on
                claims.
        """
        huge = f"larger than {LARGEST:.0e}, more than any honest update"
        reasons = {client: huge for client, size in sizes.items() if not size <= LARGEST}
        if reasons and len(reasons) == len(sizes):
            return {}
        sizes = {client: size for client, size in sizes.items() if client not in reasons}
        for client in _beyond(self.claims, claims):
            reasons[client] = (
                f"it claims more than {self.claims:g} times the examples or terms of others "
                "(bounds.claims)"
            )
        for client in _beyond(self.proportion, sizes):
            ratio = sizes[client] / lower_median(sizes.values())
            multiple = f"{10 ** int(log10(ratio)):.0e} times the median"
            reasons[client] = (
                f"out of all proportion: {multiple} of its round (bounds.proportion = "
                f"{self.proportion:g})"
            )
        return reasons


@dataclass
class LastSteps:
    """Remembers the sizes of the last steps, to judge the next one."""

    bounds: Bounds  # limits for the next step
    _sizes: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def problem(self, size: float) -> str | None:
        """Return the reason why a step of this size is not applied; None if it is."""
        if not size <= LARGEST:
            return (
                f"it is out of all proportion: {size:.3g}, but honest steps stay below "
                f"{LARGEST:.0e}"
            )
        if len(self._sizes) < MIN_SIZES or self.bounds.proportion == "off":
            return None
        usual = lower_median(self._sizes)
        if size <= self.bounds.proportion * usual:
            return None
        recent = f"the last {len(self._sizes)} were about {usual:.3g}"
        return f"it is out of all proportion: {size:.3g}, but {recent} (bounds.proportion)"

    def take(self, size: float) -> None:
        """Remember the size of an applied step; an empty step has none."""
        if size > 0:
            self._sizes.append(size)

    @property
    def sizes(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the remembered sizes, the newest last."""
        return np.array(self._sizes, dtype=np.float64)

    def load(self, sizes: Iterable[float]) -> None:
        """Restore sizes that `sizes` returned. Raises ValueError if one of them is invalid."""
        loaded = [float(size) for size in sizes]
        if not all(isfinite(size) and size > 0 for size in loaded):
            raise ValueError("the size of a step must be a number above 0")
        self._sizes = deque(loaded, WINDOW)


def too_far(change: Change, layout: Layout) -> str | None:
    """Return the reason why a change can't be added to the weights.

    None if it can, or if the change is not a sum of directions or entries.
    """
    highest = min(HIGHEST.get(entry.dtype, LARGEST) for entry in layout.tensors)
    if isinstance(change, Entries):
        farthest = max(
            (float(np.abs(patch.values).max(initial=0)) for patch in change.patches), default=0.0
        )
        effect, distance = "a weight by", abs(change.scale) * farthest
    elif isinstance(change, AddFactors):
        norm = expected_norm(change, layout)
        assert norm is not None
        effect, distance = "every weight by about", norm / layout.size**0.5
    elif isinstance(change, Add | Rebuild | Optimize) and change.terms:
        scale = change.rule.rate if isinstance(change, Optimize) else change.scale
        norm = expected_norm(Add(change.terms, scale), layout)
        assert norm is not None
        effect, distance = "every weight by about", norm / layout.size**0.5
    else:
        return None
    if distance <= highest:
        return None
    return f"it would move {effect} {distance:.3g}, but the largest possible weight is {highest:g}"


def _beyond(factor: float | Literal["off"], values: Mapping[int, float]) -> list[int]:
    """Return the clients whose value is more than `factor` times the median."""
    if factor == "off" or sum(value > 0 for value in values.values()) < MIN_SIZES:
        return []
    limit = factor * lower_median(values.values())
    return [key for key, value in values.items() if value > limit]


def lower_median(values: Iterable[float]) -> float:
    """Return the lower median of the values above zero."""
    ordered = sorted(value for value in values if value > 0)
    return ordered[(len(ordered) - 1) // 2]
