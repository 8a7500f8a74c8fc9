"""CIFAR's original files, which are Python pickles.

Unpickling a file runs whatever it names, and takes as much memory as a number in it says. Here only what these files
need is known, and even that is not NumPy's own code but stand-ins that keep shape, type and bytes: a file that names
anything else is refused before anything of it runs, and one that asks for what is not in it before it is carried out.
"""

import io
import pickle
import pickletools
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedseed.errors import RecipeError
from fedseed.text import shown

FREE, BYTES_EACH = 100_000, 64  # instructions that any file may have, and bytes of it for each one more
_PUT = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GET = {"GET", "BINGET", "LONG_BINGET"}
_TUPLES = {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_MADE = {
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "EMPTY_LIST", "LIST", "EMPTY_DICT", "DICT", "GLOBAL", "STACK_GLOBAL", "REDUCE",
}  # fmt: skip
_PLAIN = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "NONE", "NEWTRUE", "NEWFALSE", "FLOAT", "BINFLOAT",
    "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD", "MARK", "PROTO", "FRAME", "STOP",
}  # fmt: skip
_NOTED = _MADE | _TUPLES
_KNOWN_CODES = _NOTED | _PLAIN


class _DType:
    """Stands for numpy.dtype: keeps its name."""

    def __init__(self, name: Any = "", *_: Any) -> None:
        self.name = _text(name) if isinstance(name, bytes | str) else ""

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like; nothing that bytes have."""


class _Array:
    """Stands for numpy.ndarray: keeps shape, type and bytes."""

    shape: tuple[int, ...] = ()
    data = b""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _DType) or dtype.name not in ("u1", "|u1", "uint8") or fortran:
            raise pickle.UnpicklingError("an array that is not of bytes in C order")
        if not isinstance(data, bytes) or not all(type(n) is int and n >= 0 for n in shape) or prod(shape) != len(data):
            raise pickle.UnpicklingError(f"an array of shape {shape} without its bytes")
        self.shape, self.data = tuple(shape), data

    def array(self) -> NDArray[np.uint8]:
        """The real array, read-only."""
        return np.frombuffer(self.data, dtype=np.uint8).reshape(self.shape)


class _Function:
    """Stands for a function: it can be called, and nothing about it can be changed by the file."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a function with a state")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Function(_reconstruct),
    ("numpy._core.multiarray", "_reconstruct"): _Function(_reconstruct),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
}


class _RefusedError(Exception):
    pass


class _Restricted(pickle.Unpickler):
    """Knows what is above, and how Python 3 writes bytes in Python 2's protocols: as a text that is encoded."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="bytes")
        self._left = len(data)  # characters to encode: each stands in the file once

    def _encode(self, text: str, encoding: str = "latin1") -> bytes:
        self._left -= len(text)
        if self._left < 0:
            raise pickle.UnpicklingError("a text that is used again and again")
        return text.encode(encoding) if encoding in ("latin1", "latin-1") else b""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _Function(self._encode)
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise _RefusedError(f"{module}.{name}") from None


def _check(data: bytes) -> None:
    """Look at a pickle's instructions without carrying them out.

    What an instruction asks for must be there: Python's reader takes memory for as many bytes, and as many places of
    its memory of objects, as a number in the file says. A tuple stands where it is made and nowhere else, or a key made
    of tuples of tuples would be hashed for ever.

    Raises:
        UnpicklingError: it is none of plain data, or asks for more than there is.
        ValueError: it is cut short.
    """
    most = FREE + len(data) // BYTES_EACH
    tuples: set[int] = set()
    known: set[int] = set()
    before = ""
    for number, (code, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
        name = code.name
        if number >= most:
            raise pickle.UnpicklingError(f"more than {most:,} instructions in {len(data):,} bytes")
        if name in _PUT:
            at = len(known) if argument is None else int(argument)  # MEMOIZE has no argument
            if at > number or before not in _NOTED:
                raise pickle.UnpicklingError("an object is noted where none is made")
            known.add(at)
            (tuples.add if before in _TUPLES else tuples.discard)(at)
        elif name in _GET:
            if int(argument or 0) in tuples:
                raise pickle.UnpicklingError("a tuple is used again")
        elif name not in _KNOWN_CODES:
            raise pickle.UnpicklingError(f"{name.lower()}: no instruction of these files")
        before = name


def named(value: object) -> str:
    """A value of a file for a message: plain ones as they are, others by their kind."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return "a number of many digits"
    plain = value is None or isinstance(value, bool | int | float | str | bytes)
    return shown(repr(value[:60] if isinstance(value, str | bytes) else value)) if plain else type(value).__name__


def read_batch(path: Path) -> Mapping[str, Any]:
    """A pickled dictionary of lists, texts, numbers and arrays of bytes; nothing else can be in it.

    Args:
        path: one of CIFAR's files.

    Returns:
        By key: arrays as uint8 arrays, everything else as it is; texts are bytes, keys are text.

    Raises:
        RecipeError: missing, damaged, or not such a file; nothing of it has run then.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecipeError(f"{path}: can't be read: {error.strerror}") from error
    try:
        _check(data)
        batch = _Restricted(data).load()
    except _RefusedError as refused:
        raise RecipeError(
            f"{path}: refused: it would call {refused}, which no CIFAR file does; get the files anew from "
            "www.cs.toronto.edu/~kriz/cifar.html"
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise RecipeError(f"{path}: damaged or cut short ({_first_line(error)}); get the file anew") from error
    if not isinstance(batch, dict):
        raise RecipeError(f"{path}: a dictionary is expected, not {type(batch).__name__}")
    return {_text(k): v.array() if isinstance(v, _Array) else v for k, v in batch.items() if isinstance(k, bytes | str)}


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
