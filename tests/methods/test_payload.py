"""The codec of all messages: every kind of field comes back, and nothing that is not right is
read.
"""

import struct
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Annotated

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedseed import FeedSign, MeZO
from fedseed.errors import MessageError
from fedseed.methods import payload as wire
from fedseed.randomness import Domain, derive
from fedseed.weights.layout import Layout, TensorEntry

LAYOUT = Layout((TensorEntry("a", (2,), "float32"), TensorEntry("b", (3,), "bfloat16")), (0, 2, 5))
DATA = struct.pack("<2f3H", 1.0, -2.0, 0x3F80, 0xC000, 0x0000)
METHOD = SimpleNamespace(
    name="test", count=3, most=4, zero=0, yes=True, no=False, unit=lambda state: 0.5
)
NOBODY = ("update", "plan")


def about(kind="update", **settings):
    """What the payloads here are read against: a method's settings, a state with two blocks."""
    state = SimpleNamespace(blocks=2, layout=LAYOUT)
    return wire.DecodeContext(SimpleNamespace(**{**vars(METHOD), **settings}), state, kind, 1)


def same(a, b):
    """Whether two payloads are equal, arrays by their dtypes and elements."""
    assert type(a) is type(b)
    for name, _ in wire.field_codecs(type(a)):
        mine, other = getattr(a, name), getattr(b, name)
        if isinstance(mine, wire.Payload):
            same(mine, other)
        elif isinstance(mine, tuple):
            assert len(mine) == len(other)
            for x, y in zip(mine, other, strict=True):
                same(x, y) if isinstance(x, wire.Payload) else np.testing.assert_array_equal(
                    x, y, strict=True
                )
        elif isinstance(mine, np.ndarray):
            np.testing.assert_array_equal(mine, other, strict=True)
        else:
            assert mine == other and type(mine) is type(other)


@dataclass(frozen=True)
class Numbers(wire.Payload):
    small: Annotated[int, wire.Scalar("u4")]
    large: Annotated[int, wire.Scalar("u8")]
    single: Annotated[float, wire.Scalar("f4")]
    double: Annotated[float, wire.Scalar("f8")]
    there: Annotated[float | None, wire.Scalar("f4", condition="yes")]
    not_there: Annotated[float | None, wire.Scalar("f4", condition="no")] = None


@dataclass(frozen=True)
class Arrays(wire.Payload):
    fixed: Annotated[NDArray[np.uint32], wire.Array("u4", 2)]
    by_setting: Annotated[wire.Floats, wire.Array("f4", "count")]
    not_there: Annotated[wire.Floats | None, wire.Array("f4", "n", condition="no")]
    indices: Annotated[NDArray[np.uint32], wire.Array("u4", "n")]
    scalars: Annotated[NDArray[np.float64], wire.Array("f8", "n", condition="yes")]
    none: Annotated[wire.Floats, wire.Array("f8", "zero")] = ()


@dataclass(frozen=True)
class Signs(wire.Summand):
    signs: Annotated[NDArray[np.int8], wire.Bits("count")]


@dataclass(frozen=True)
class Estimates(wire.Scalars):
    seed: Annotated[int, wire.Scalar("u8")] = 1
    place: Annotated[int, wire.Scalar("u4")] = 2
    scalars: Annotated[wire.Floats, wire.Array("f4", "count", multiplier="most")] = ()

    def numbers(self, about):
        return super().numbers(about)[: about.method.most]


@dataclass(frozen=True)
class Blocks(wire.Payload):
    blocks: Annotated[tuple[wire.Floats, ...], wire.Ragged("most")]


@dataclass(frozen=True)
class Whole(wire.Payload):
    data: Annotated[bytes, wire.Tensors()]


@dataclass(frozen=True)
class Optional(wire.Payload):
    scalars: Annotated[wire.Floats, wire.Array("f4", "count", optional=True)]


@dataclass(frozen=True)
class Inner(wire.Payload):
    number: Annotated[int, wire.Scalar("u4")]
    blocks: Annotated[tuple[wire.Floats, ...], wire.Ragged("most")]

    def check(self, about):
        if self.number > 9:
            raise MessageError(f"{self.number} is not a digit")


@dataclass(frozen=True)
class Outer(wire.Payload):
    in_updates: Annotated[float | None, wire.Scalar("f4", payload_kind="update")]
    parts: Annotated[tuple[Inner, ...], wire.Many(Inner)]


@dataclass(frozen=True)
class Halved(wire.Payload):
    """Numbers whose length another number says."""

    length: Annotated[int, wire.Scalar("u4")]
    halves: Annotated[wire.Floats, wire.Halves(lambda reader: reader.fields_read["length"])]


u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


def arrays(elements, dtype, least=0, most=6):
    return st.lists(elements, min_size=least, max_size=most).map(
        lambda values: np.array(values, dtype=dtype)
    )


# -- there and back
# ------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([1, -1]), min_size=1, max_size=40))
def test_signs_take_a_bit_each(values):
    payload = Signs(np.array(values, dtype=np.int8))
    data = payload.encode()
    assert len(data) == -(-len(values) // 8)
    bits = [(data[i // 8] >> i % 8) & 1 for i in range(8 * len(data))]  # lowest first
    assert bits == [int(v > 0) for v in values] + [0] * (-len(values) % 8)
    same(Signs.decode(data, about(count=len(values))), payload)


@pytest.mark.parametrize("kind", [Signs, Whole, Optional])
def test_only_a_step_may_be_empty(kind):
    """Nobody answered: no elements, whatever the settings say."""
    payload = kind.decode(b"", about("step"))
    assert (
        payload.encode() == b""
        and len(getattr(payload, wire.field_codecs(kind)[0][0])) == payload.size(about("step")) == 0
    )
    assert payload.content(9) == wire.Content()
    for what in NOBODY:
        with pytest.raises(MessageError):
            kind.decode(b"", about(what))


HALVES = [
    1 + 2**-8,
    1 + 3 * 2**-8,
    1 + 2**-11,
    1 + 3 * 2**-11,
    -1 - 2**-8,
    1 + 2**-8 + 2**-20,
    1 + 2**-9,
    1.5,
]


@given(
    st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-6e4, max_value=6e4),
        min_size=1,
    )
)
@example(HALVES)  # of the last place, in bfloat16 and in float16: to the even neighbour
def test_numbers_are_rounded_as_torch_does(values):
    array = np.array(values, dtype=np.float32)
    for dtype in ("float32", "bfloat16", "float16"):
        expected = torch.from_numpy(array).to(getattr(torch, dtype))
        data = wire.from_floats(array, dtype)
        assert data == expected.view(torch.uint8).numpy().tobytes()
        np.testing.assert_array_equal(wire.to_floats(data, dtype), expected.float().numpy())


# -- what is refused
# ------------------------------------------------------------------------------------------------

NUMBERS = Numbers(1, 2, 0.5, 0.25, 3.0)
ARRAYS = Arrays(np.zeros(2), np.zeros(3), None, np.zeros(2), np.zeros(2))
BLOCKS = Blocks((np.ones(2), np.ones(4)))
INNER = Inner(9, BLOCKS.blocks)
EXAMPLES = [
    NUMBERS,
    ARRAYS,
    Signs(np.array([1, -1, 1])),
    BLOCKS,
    Whole(DATA),
    Optional(np.ones(3)),
    INNER,
    wire.Nothing(),
    Outer(None, (INNER, INNER)),
    Halved(2, np.array([1.5, -3])),
]


@pytest.mark.parametrize("payload", EXAMPLES, ids=lambda payload: type(payload).__name__)
@pytest.mark.parametrize("kind", ["plan", "update", "step"])
def test_other_lengths_are_refused(payload, kind):
    if isinstance(payload, Outer):
        payload = replace(payload, in_updates=0.5 if kind == "update" else None)
    data = payload.encode()
    same(
        type(payload).decode(type(payload).decode(data, about(kind)).encode(), about(kind)),
        type(payload).decode(data, about(kind)),
    )
    # fewer of the entries that share
    whole = {8 + 12, 8 + 12 + 12} if isinstance(payload, Arrays) else set()
    if isinstance(payload, Outer):
        whole = {0, len(INNER.encode())} if kind != "update" else {4, 4 + len(INNER.encode())}
    if kind == "step" and isinstance(payload, Signs | Whole | Optional):
        whole = {0}
    for length in set(range(len(data))) - whole:
        with pytest.raises(MessageError):
            type(payload).decode(data[:length], about(kind))
    with pytest.raises(MessageError):
        type(payload).decode(data + b"\1", about(kind))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused(bad):
    cases = [
        *(Numbers(**{**vars(NUMBERS), name: bad}) for name in ("single", "double", "there")),
        Arrays(np.zeros(2), np.array([0, bad, 0]), None, np.zeros(2), np.zeros(2)),
        Arrays(np.zeros(2), np.zeros(3), None, np.zeros(2), np.array([0, bad])),
        Blocks((np.ones(2), np.array([1, bad]))),
        Optional(np.array([bad, 1, 1])),
        Outer(0.5, (INNER, Inner(1, (np.array([bad]), np.ones(1))))),
        Outer(bad, ()),
    ]
    for payload in cases:
        with pytest.raises(MessageError, match=rf"is {bad}, but numbers must be finite"):
            type(payload).decode(payload.encode(), about())
    with pytest.raises(MessageError, match="value 1 of 3 is"):
        Arrays.decode(cases[3].encode(), about())
    single = struct.pack("<f", bad)
    with pytest.raises(MessageError, match="tensor a has a value that is NaN or infinite"):
        Whole.decode(DATA[:4] + single + DATA[8:], about())
    with pytest.raises(MessageError, match="tensor b has"):
        Whole.decode(DATA[:12] + single[2:] + DATA[14:], about())


def test_what_errors_say():
    many = Blocks((np.ones(2), np.ones(5)))
    with pytest.raises(MessageError, match="block 1 has 5 coefficients, but only 4 are allowed"):
        Blocks.decode(many.encode(), about())
    with pytest.raises(
        MessageError, match="payload too short: 16 bytes needed at byte 16, but only 15 are left"
    ):
        Blocks.decode(BLOCKS.encode()[:-1], about())
    with pytest.raises(MessageError, match="payload too long: 2 bytes left over"):
        Blocks.decode(BLOCKS.encode() + b"\0\0", about())
    # a forged count asks for no memory
    with pytest.raises(MessageError, match="block 0 has 4294967295"):
        Blocks.decode(b"\xff" * 8, about())
    with pytest.raises(MessageError, match="a padding bit is set after 3 numbers of 1 bits"):
        Signs.decode(b"\x0f", about())
    with pytest.raises(MessageError, match="13 bytes of weights, but the model has 14"):
        Whole.decode(DATA[:-1], about())
    with pytest.raises(MessageError, match="12 is not a digit"):  # the check of what lies inside
        Outer.decode(Outer(0.5, (Inner(12, BLOCKS.blocks),)).encode(), about())
    silent = dataclass(type("Silent", (wire.Payload,), {"__annotations__": {"number": int}}))
    with pytest.raises(TypeError, match=r"Silent\.number: annotate it with its encoding"):
        wire.field_codecs(silent)


@given(st.binary(max_size=60), st.sampled_from(["plan", "update", "step"]))
def test_whatever_is_read_is_written_alike(data, kind):
    """Any bytes are refused, or they are the bytes of what was read."""
    for payload in EXAMPLES:
        try:
            found = type(payload).decode(data, about(kind))
        except MessageError:
            continue
        assert found.encode() == data


# -- updates that add up
# -----------------------------------------------------------------------------------------------


def test_updates_that_add_up_are_vectors_as_long_for_every_client():
    here, update = about(), Estimates(7, 8, np.float32([1, -3]))
    assert (Estimates.words(here), Estimates.words(about(count=None)), Signs.words(here)) == (
        12,
        4,
        3,
    )
    assert (
        update.vector(here).tolist() == [1, -3] + [0] * 10
        and update.vector(here).dtype == np.float64
    )
    same(update.with_vector(np.array([0.0, 5]), here), Estimates(7, 8, np.float32([0, 5])))
    assert vars(Estimates.from_vector("a vector", here)) == {
        "seed": 1,
        "place": 2,
        "scalars": "a vector",
    }
    signs = Signs(np.int8([1, -1, 1, -1]))
    same(signs.with_numbers(np.array([0, 0, -2, 1]), here), Signs(np.int8([1, -1, -1, 1])))


def test_numbers_are_the_vector_where_a_payload_does_not_say():
    own = type(
        "Own", (wire.Payload,), dict.fromkeys(("vector", "with_vector"), lambda self, *given: given)
    )()
    assert own.numbers("about") == ("about",) and own.with_numbers(1, "about") == (1, "about")


def test_estimates_are_as_large_as_they_are_in_the_methods_unit():
    """Half of an estimate travels: 5e5 stands for the 1e6 that may be."""
    most = np.float32([-1.5, -5e5, 0])
    assert Estimates(1, 2, most[:1]).size(about()) == 3 and Estimates().size(about()) == 0
    for scalars, kind in ((most, "update"), ((), "update"), (2 * most, "step")):
        Estimates(1, 2, scalars).check(about(kind))
    with pytest.raises(MessageError, match=r"scalar 1 is -1e\+06, but at most 1e\+06 is accepted"):
        Estimates(1, 2, np.nextafter(most, np.float32(-np.inf))).check(about())


def test_seeds_are_the_runs_and_the_rounds():
    state = wire.State(LAYOUT, 5)
    assert state.round_seed() == derive(5, Domain.ROUND_SEED, 0) != state.round_seed(1)
    assert state.client_seed(2, 3) == derive(5, Domain.CLIENT_SEED, 2, 3)


# -- many steps in a record
# --------------------------------------------------------------------------------------------


@given(st.integers(1, 20), st.data())
def test_packed_signs_take_a_bit_each_without_padding(votes, data):
    method = FeedSign(votes_per_round=votes)
    steps = data.draw(
        st.lists(st.lists(st.sampled_from([1, -1]), min_size=votes, max_size=votes), min_size=1)
    )
    payloads = [method.step_type(np.array(step, dtype=np.int8)).encode() for step in steps]
    packed = wire.pack(method, payloads)
    assert len(packed) == -(-votes * len(steps) // 8)
    assert wire.unpack(method, packed, len(steps)) == payloads


@given(st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=9))
def test_other_steps_are_packed_one_after_the_other(payloads):
    method = MeZO(estimates=2)
    packed = wire.pack(method, payloads)
    assert packed == b"".join(payloads) and wire.unpack(method, packed, len(payloads)) == payloads


def test_records_that_can_not_be_unpacked():
    three = FeedSign(votes_per_round=3)
    for method, data, count, text in (
        (MeZO(), b"1234567", 0, "7 bytes can't be 0 steps of equal length"),
        (MeZO(), b"1234567", 2, "7 bytes can't be 2 steps of equal length"),
        (FeedSign(), b"\1\1", 3, "too long"),
        (FeedSign(), b"\x0f", 3, "a padding bit is set"),
        (three, b"\x7f", 2, "after 6 numbers"),
    ):
        with pytest.raises(MessageError, match=text):
            wire.check_pack(method, data, count)
    wire.check_pack(three, b"\x3f", 2)
    for count in (1, 7):
        wire.check_pack(MeZO(), b"1234567", count)
