"""Adding values to single entries of a vector of weights: `fedseed.weights.change.Entries`."""

from bisect import bisect_right
from itertools import accumulate

import numpy as np
import torch

from fedseed.weights.change import Entries, Patch
from fedseed.weights.vector import Vector, check_scale, flat, write_back


def move_entries(vector: Vector, change: Entries) -> None:
    """w[i] = round(w[i] + scale * v[i]).

    Raises:
        ValueError: the scale or a value is not finite, an entry is not in the vector, or entries do not ascend; the
            weights are unchanged then.
    """
    check_scale(change.scale)
    at = 0
    for patch in change.patches:
        at = _check(patch, at, vector.layout.size)
    ends = list(accumulate(entry.size for entry in vector.layout.tensors))
    for patch in change.patches:
        values = patch.values * np.float32(change.scale)
        done = 0
        while done < len(values):
            first = patch.start + (done if patch.offsets is None else int(patch.offsets[done]))
            index = bisect_right(ends, first)  # the tensor that it lies in
            begin = ends[index] - vector.layout.tensors[index].size
            if patch.offsets is None:
                upto = min(len(values), done + ends[index] - first)
            else:
                upto = int(np.searchsorted(patch.offsets, ends[index] - patch.start))
            parameter = vector.parameters[index]
            elements, part = flat(parameter), torch.from_numpy(values[done:upto]).to(parameter.device)
            if patch.offsets is None:
                there = elements[first - begin : first - begin + upto - done]
                there.copy_(there.float() + part)
            else:
                which = torch.from_numpy(patch.offsets[done:upto].astype(np.int64) + (patch.start - begin))
                which = which.to(parameter.device)
                elements[which] = (elements[which].float() + part).to(elements.dtype)
            write_back(parameter, elements)
            done = upto


def _check(patch: Patch, least: int, size: int) -> int:
    """The first entry that may come after a patch. Raises ValueError."""
    if not np.isfinite(patch.values).all():
        raise ValueError("entries: a value is NaN or infinite; the weights are unchanged")
    if not len(patch.values):
        return least
    first, last = patch.start, patch.start + len(patch.values) - 1
    if patch.offsets is not None:
        if len(patch.offsets) != len(patch.values) or (np.diff(patch.offsets.astype(np.int64)) <= 0).any():
            raise ValueError("entries: one ascending offset for each value is needed; the weights are unchanged")
        first, last = patch.start + int(patch.offsets[0]), patch.start + int(patch.offsets[-1])
    if first < least or last >= size:
        raise ValueError(
            f"entries {first} to {last}: from {least} to {size - 1} is possible; the weights are unchanged"
        )
    return last + 1
