"""An orbit's header: the values that replay needs besides the steps."""

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from fedseed.errors import OrbitError
from fedseed.methods import REGISTRY, Method
from fedseed.methods.payload import State
from fedseed.models.adapters import Adapter, AnyAdapter
from fedseed.models.quantization import check_known
from fedseed.privacy.protection import read_method
from fedseed.randomness.stream import STREAM_VERSION
from fedseed.text import flat, show_text
from fedseed.weights.dense_digest import dense_digest
from fedseed.weights.layout import ITEM_BYTES, DigestKind, Layout

MAGIC = b"fedorbit"
FORMAT = 3
# format 2 wrote all settings, also defaults, and the key `rate` for a learning rate
READABLE = (2, 3)
START = struct.Struct("<8sHHI")
# The most bytes of JSON, and the most values, that a header may have for each of its compressed
# bytes, beyond a fixed allowance. Headers of real models have at most 30 and 3 (47,000 tensors, a
# block each). The memory for a header is thus bounded by its length; a header above these bounds is
# refused before anything is built from it.
_INFLATION, _FREE_TEXT, _MOST_TEXT = 64, 1 << 16, 1 << 25
_VALUES, _FREE_VALUES, _MOST_VALUES = 4, 1 << 12, 1 << 21
# bytes of text that is not pure ASCII: a single wide character makes a string in memory four times
# as large
_MOST_WIDE = 1 << 21
_LARGEST = 1 << 63  # numbers in a layout must be below this
_MOST_SIDES = 64
_SHOWN = 1000  # characters of a validation error that are shown
# characters of the settings of a method or an adapter
_MOST_SETTINGS = 1 << 16


# functions that read the header's plain values
_READ: dict[str, Callable[[Any], Any]] = {
    "base": str,
    "base_digest": str,
    "dtype": str,
    "seed": int,
    "first": int,
    "base_folder": str,
    "libraries": str,
    "digest_kind": str,
    "quantization": str,
    **dict.fromkeys(("classes", "trainable"), lambda texts: tuple(map(str, texts))),
}


@dataclass(frozen=True)
class AdapterStart:
    """The start of an adapter's run, besides the base."""

    # the adapter's settings, which give its first weights together with the run's seed
    settings: Adapter
    # hex digest of the trainable tensors before the first step
    digest: str


@dataclass(frozen=True)
class Header:
    """The values that replay needs besides the steps.

    Args:
        base: the base's name or folder, as the recipe gave it.
        base_digest: digest of the base (`weights.space.base_digest`).
        dtype: the dtype the base was loaded in.
        layout: the trainable tensors and blocks.
        method: the method with all its settings.
        seed: the run's seed.
        trainable: name patterns of the trainable parameters, None for all.
        first: number of the first step in the orbit; above 1 only in a compacted orbit.
        classes: names of the classes that an image classifier tells apart, in the order of its
            outputs; none: the base is not a classifier, or keeps its own head. With the seed they
            give a new head (`models.heads`).
        adapter: the adapter that is tuned in place of the model, None for none.
        digest_kind: how the base and the weights are hashed (`weights.digest`); "blake2b" is not
            written down.
        base_folder: the base's absolute path on the run's machine, if the recipe gave a relative
            path; "" is not written down.
        libraries: the version of transformers that named the base's tensors, such as "transformers
            5.0.0", for messages; "" (not known, or one of the project's own bases) is not written
            down.
        quantization: how the base was quantised as it was loaded (`models.quantization`); "", not
            at all, is not written down.
    """

    base: str
    base_digest: str
    dtype: str
    layout: Layout
    method: Method
    seed: int
    trainable: tuple[str, ...] | None = None
    first: int = 1
    classes: tuple[str, ...] = ()
    adapter: AdapterStart | None = None
    digest_kind: DigestKind = "blake2b"
    base_folder: str = ""
    libraries: str = ""
    quantization: str = ""

    def encode(self) -> bytes:
        """Return the header's bytes, without the link.

        Raises OrbitError: it has values that readers would refuse.
        """
        data: dict[str, Any] = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }
        data |= {"layout": self.layout.to_json(), "method": chosen_settings(self.method)}
        if self.adapter is not None:
            data["adapter"] = {
                "settings": chosen_settings(self.adapter.settings),
                "digest": self.adapter.digest,
            }
        text = json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
        packed = zlib.compress(text, 9)
        try:
            self.check()
        except ValueError as error:
            raise OrbitError(f"no orbit can be written: {error}") from error
        problem = _too_much(packed, text)
        if problem:
            raise OrbitError(f"no orbit can be written: its header has {problem}")
        return START.pack(MAGIC, FORMAT, STREAM_VERSION, len(packed)) + packed

    @classmethod
    def decode(cls, packed: bytes, format: int = FORMAT) -> "Header":
        """Return the header from its compressed JSON, for an orbit of this format.

        Raises OrbitError: not valid.
        """
        try:
            inflate = zlib.decompressobj()
            text = inflate.decompress(packed, _most_text(packed) + 1)
            if not inflate.eof:
                raise OrbitError(
                    f"orbit header: it is cut short, or more than {_INFLATION} times as long as "
                    "its compressed bytes"
                )
            problem = _too_much(packed, text)
            if problem:
                raise OrbitError(f"orbit header: {problem}")
            data: dict[str, Any] = json.loads(text)
            _check_sizes(data)
            name = data["method"]["name"]
            kind = REGISTRY.find(name)
            if kind is None and name in REGISTRY.broken():
                raise OrbitError(f"the orbit's method is {name!r}: {REGISTRY.unknown(name)}")
            if kind is None:
                raise OrbitError(
                    f"the orbit's method {name!r} is unknown here (known are "
                    f"{', '.join(REGISTRY.names())}): give the file that defines it with "
                    "--plugin, or install its package"
                )
            if format == 2:  # in which some settings had other names
                for table in (data["method"], data["method"].get("training")):
                    keeps_rate = table is data["method"] and "rate" in kind.model_fields
                    if isinstance(table, dict) and "rate" in table and not keeps_rate:
                        table["learning_rate"] = table.pop("rate")
            adapter = data.get("adapter")
            if adapter is not None:
                settings: Adapter = TypeAdapter[Adapter](AnyAdapter).validate_python(
                    adapter["settings"]
                )
                adapter = AdapterStart(settings, str(adapter["digest"]))
            plain = {
                name: convert(data[name])
                for name, convert in _READ.items()
                if data.get(name) is not None
            }
            layout, method = Layout.from_json(data["layout"]), read_method(kind, data["method"])
            header = cls(**plain, layout=layout, method=method, adapter=adapter)
            header.check()
            return header
        except (
            zlib.error,
            LookupError,
            TypeError,
            ValueError,
            ArithmeticError,
            AttributeError,
            RecursionError,
            ValidationError,
        ) as error:
            raise OrbitError(f"orbit header is not valid: {show_text(error, _SHOWN)}") from error

    def check(self) -> None:
        """Raise ValueError for values that fit the types but are not valid in an orbit."""
        if self.digest_kind not in get_args(DigestKind):
            kinds = ", ".join(get_args(DigestKind))
            raise ValueError(
                f"digests of kind {self.digest_kind!r}; this version of fedseed knows {kinds}"
            )
        if self.dtype not in ITEM_BYTES:
            raise ValueError(
                f"the base has dtype {show_text(self.dtype)}: one of {', '.join(ITEM_BYTES)} is "
                "expected"
            )
        check_known(self.quantization)
        unknown = {t.dtype for t in self.layout.tensors} - set(ITEM_BYTES)
        if unknown:
            raise ValueError(f"tensors of unknown dtype: {', '.join(sorted(unknown))}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed {self.seed}: a number from 0 to 2**64 - 1 is expected")
        if not 1 <= self.first < 1 << 32 or (self.first > 1 and not self.method.catch_up.may_drop):
            raise ValueError(
                f"the first step is {self.first}: {self.method.name} needs all steps from 1"
            )

    @property
    def about_base(self) -> dict[str, str]:
        """Return a description of the base and of its digest."""
        return {
            name: getattr(self, name) for name in ("base", "dtype", "base_digest", "digest_kind")
        }

    def hashed_alike(self, other_header: "Header") -> bool:
        """Return whether the digests of two headers are of one kind, and can be compared."""
        return self.digest_kind == other_header.digest_kind

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors, by name."""
        return {tensor.name: tensor.shape for tensor in self.layout.tensors}

    def versions_apart(self, other_header: "Header") -> str:
        """Return a note for messages, if another version of transformers may be the reason why two
        bases differ; otherwise "".
        """
        if self.libraries == other_header.libraries:
            return ""
        mine, yours = self._shapes(), other_header._shapes()
        if mine == yours:
            # an adapter has the same tensors on different bases
            return note_other_version(self.libraries, other_header.libraries)
        counts = [
            f"{one.libraries or 'a transformers that is not named'} makes {len(tensors):,} tensors"
            for one, tensors in ((self, mine), (other_header, yours))
        ]
        return (
            f"; of the same files {counts[0]}, {counts[1]}: names and shapes differ, so all sites "
            "need one version"
        )

    def digest_of(self, weights: bytes) -> str:
        """Return the digest of trained weights, given as the tensors' bytes in order."""
        return dense_digest(self.layout, weights, self.digest_kind)

    def of_recipe(self, method: Method, seed: int, digest: DigestKind) -> "Header":
        """Return a copy of the header with this base and these trainable patterns."""
        return replace(self, method=method, seed=seed, digest_kind=digest)

    def start(self) -> State:
        """Return the method's state before the first step.

        Raises OrbitError if the settings do not fit the layout.
        """
        try:
            return self.method.start(self.layout, self.seed)
        except ValueError as error:
            raise OrbitError(f"orbit header is not valid: {error}") from error

    def differences(self, other_header: "Header") -> list[str]:
        """Return a line for each difference, such as "method.rate: 0.1, 0.2".

        Bases are compared by their digests, not by their names. If the digests are of two kinds,
        the kind is the difference.
        """
        mine, yours = self._facts(), other_header._facts()
        if not self.hashed_alike(other_header):
            del mine["base_digest"], yours["base_digest"]
        keys = [key for key in {**mine, **yours} if mine.get(key, yours) != yours.get(key, mine)]
        return [f"{key}: {_describe_fact(mine, key)}, {_describe_fact(yours, key)}" for key in keys]

    def _facts(self) -> dict[str, Any]:
        left_out = {"base", "base_folder", "first", "libraries"}
        names = sorted(
            (field.name for field in fields(self)), key=lambda name: name != "digest_kind"
        )
        facts = {name: getattr(self, name) for name in names if name not in left_out}
        return flat({**facts, "method": self.method.model_dump()})


def note_other_version(here: str, there: str) -> str:
    """Return a note for messages about two bases that were loaded by different versions of
    transformers; "" if a version is not known or both are the same.

    Args:
        here: this side's `Header.libraries`.
        there: that of the run or the orbit.
    """
    if here == there or not here or not there:
        return ""
    return (
        f"; it is loaded by {here} here, and was by {there} there: two versions may make other "
        "tensors of the same files, so all sites need one version"
    )


def _describe_fact(facts: dict[str, Any], key: str) -> object:
    value = facts.get(key, "not there")
    if not isinstance(value, Layout):
        return value
    return (
        f"{value.size:,} parameters in {len(value.tensors)} tensors and {len(value.block_sizes)} "
        "blocks"
    )


def chosen_settings(settings: BaseModel) -> dict[str, Any]:
    """Return a method's name or an adapter's kind, and its settings other than the defaults.

    So a run's orbit stays the same when fedseed gets a new setting whose default is the earlier
    behaviour (tests/orbit/test_header.py). Settings that can't be read back without their defaults,
    such as tables whose kind is one of them, are returned whole.
    """
    name_or_kind = settings.model_dump(include={"name", "kind"})
    short = name_or_kind | settings.model_dump(exclude_defaults=True)
    try:
        if type(settings).model_validate(short) == settings:
            return short
        return settings.model_dump()
    except ValidationError:
        return settings.model_dump()


def _most_text(packed: bytes) -> int:
    return min(_FREE_TEXT + _INFLATION * len(packed), _MOST_TEXT)


def _too_much(packed: bytes, text: bytes) -> str | None:
    """Return a description of the part of a header that is too large, before the header is parsed;
    None if nothing is.
    """
    if len(text) > _most_text(packed):
        return f"{len(text):,} bytes of text in {len(packed):,} compressed ones"
    if len(text) > _MOST_WIDE and (b"\\u" in text or not text.isascii()):
        return (
            f"{len(text):,} bytes of text with characters beyond ASCII: at most {_MOST_WIDE:,} are "
            "allowed then"
        )
    values = sum(map(text.count, (b",", b"[", b"{", b":")))
    if values > min(_FREE_VALUES + _VALUES * len(packed), _MOST_VALUES):
        return f"{values:,} values in {len(packed):,} compressed bytes"
    return None


def _check_sizes(data: dict[str, Any]) -> None:
    """Raise ValueError for a layout whose numbers would take long to multiply, and for settings
    that are longer than any real ones.
    """

    def small(numbers: object) -> bool:
        return isinstance(numbers, list) and all(
            type(n) is int and 0 <= n < _LARGEST for n in numbers
        )

    for _, shape, _ in data["layout"]["tensors"]:
        if not small(shape) or len(shape) > _MOST_SIDES:
            raise ValueError(
                f"a tensor's shape must have at most {_MOST_SIDES} numbers, each "
                "from 0 to 2**63 - 1"
            )
    if not small(data["layout"]["boundaries"]):
        raise ValueError("block boundaries must be numbers from 0 to 2**63 - 1")
    for key in ("method", "adapter"):
        # an error has a line for each unknown setting
        if len(json.dumps(data.get(key))) > _MOST_SETTINGS:
            raise ValueError(f"{key}: more than {_MOST_SETTINGS:,} characters of settings")
