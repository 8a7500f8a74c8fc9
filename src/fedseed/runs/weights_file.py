"""`model.safetensors` of a run whose steps are whole weights: written and read here alone. Free of torch.

The file holds the trained tensors, which any model can load, and in its metadata what the run is and where it stands.
Where a coordinator remembers more than the weights (a server optimiser's averages), its arrays stand beside them.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseed.durable import replacing
from fedseed.errors import OrbitError
from fedseed.federation.coordinator import SIZES
from fedseed.orbit import NO_DIGEST, Header
from fedseed.orbit.file import begin, scan
from fedseed.weights.layout import ITEM_BYTES

KEPT = "coordinator."  # the names of a coordinator's arrays begin so
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_NAMES = {short: name for name, short in _DTYPES.items()}


@dataclass(frozen=True)
class Weights:
    """What the file holds.

    Args:
        header: what the run is.
        round: the last round that counts.
        changed: the last round whose step was not empty.
        data: the trained tensors' bytes, one after the other, in the layout's order.
        digest: the weights' hex digest.
        kept: what the coordinator remembers besides the weights, as arrays by name.
    """

    header: Header
    round: int
    changed: int
    data: bytes
    digest: str = NO_DIGEST
    kept: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def write_weights(path: Path, weights: Weights) -> None:
    """Write the file in place of an older one; it is on disk when this returns.

    Raises:
        StorageError: it can't be written; the older one is still there.
    """
    layout, kept = weights.header.layout, {n: np.ascontiguousarray(a) for n, a in weights.kept.items() if n != SIZES}
    parts = [(e.name, e.dtype, e.shape, e.size * ITEM_BYTES[e.dtype]) for e in layout.tensors]
    parts += [(KEPT + name, array.dtype.name, array.shape, array.nbytes) for name, array in kept.items()]
    digest = weights.digest if weights.digest != NO_DIGEST else weights.header.digest_of(weights.data)
    about: dict[str, Any] = {
        "round": weights.round, "changed": weights.changed, "digest": digest,
        "sizes": [float(size) for size in weights.kept.get(SIZES, ())],
        "header": base64.b64encode(begin(weights.header)).decode(),
    }  # fmt: skip
    table: dict[str, Any] = {"__metadata__": {"format": "pt", "fedseed": json.dumps(about)}}
    position = 0
    for name, dtype, shape, size in parts:
        offsets = [position, position + size]
        table[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": offsets}
        position += size
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(weights.data)
        for array in kept.values():
            file.write(array.data)


def read_weights(path: Path) -> Weights:
    """The inverse of `write_weights`.

    Raises:
        OrbitError: it can't be read, is damaged, or is no such file.
    """
    try:
        data = memoryview(path.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        table = json.loads(bytes(data[8:start]))
        said = table.pop("__metadata__", {}).get("fedseed")
        if said is None:
            raise ValueError("it does not say which run it is of")
        about = json.loads(said)
        header = scan(base64.b64decode(about["header"]), str(path))[0].header
        found = {name: _part(data[start:], part) for name, part in table.items()}
        tensors = [found[entry.name] for entry in header.layout.tensors]
        if any(len(t) != e.size * ITEM_BYTES[e.dtype] for t, e in zip(tensors, header.layout.tensors, strict=True)):
            raise ValueError("a tensor of another size")
        weights = b"".join(tensors)
        kept = {
            name.removeprefix(KEPT): np.frombuffer(found[name], np.dtype(_NAMES[part["dtype"]])).reshape(part["shape"])
            for name, part in table.items()
            if name.startswith(KEPT)
        }
        kept[SIZES] = np.array(about["sizes"], dtype=np.float64)
        number, changed, digest = int(about["round"]), int(about["changed"]), str(about["digest"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise OrbitError(f"{path}: not the weights of a run, or damaged: {error}") from error
    if header.digest_of(weights) != digest:
        raise OrbitError(f"{path}: the weights' digest differs from the one written with them")
    return Weights(header, number, changed, weights, digest, kept)


def _part(data: memoryview, about: Mapping[str, Any]) -> memoryview:
    first, last = about["data_offsets"]
    if not 0 <= first <= last <= len(data):
        raise ValueError("it is cut short")
    return data[first:last]
