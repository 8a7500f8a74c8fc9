"""Ferret's coefficients in a bit each: what is kept of them, how they travel, and that the method
learns with them.
"""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedseed import Ferret
from fedseed.errors import MessageError
from fedseed.methods.ferret import BitCoefficients, BitStep
from fedseed.methods.payload import Content, RaggedBits, magnitude
from fedseed.weights.layout import Layout, TensorEntry
from support.rounds import answers

LAYOUT = Layout((TensorEntry("w", (1100,), "float32"),), (0, 300, 1100))
METHOD = Ferret(directions=11, allocation="size", seeds="shared", scalars="bit")
STATE = METHOD.start(LAYOUT, 1)
SEED = METHOD.round_seed(STATE, 1)
BLOCK = arrays(np.float32, st.integers(1, 40), elements=st.floats(-(2.0**99), 2.0**99, width=32))


def one_bit(gamma):
    return np.where(gamma >= 0, magnitude(gamma), -magnitude(gamma))


@given(BLOCK)
def test_signs_times_a_magnitude_stay_as_they_are_to_the_last_bit(gamma):
    once = one_bit(gamma)
    assert once.dtype == np.float32 and len(set(np.abs(once).tolist())) <= 1
    np.testing.assert_array_equal(one_bit(once), once)
    if magnitude(gamma) > 1e-30:  # nothing is lost along gamma itself
        doubles = gamma.astype(np.float64)
        assert once.astype(np.float64) @ doubles == pytest.approx(doubles @ doubles, rel=1e-6)


def update(method=METHOD, scale=1.0):
    rng = np.random.default_rng(0)
    counts = method.allocate(method.start(LAYOUT, 1)).tolist()
    sent = method.update_type(
        SEED, tuple(scale * rng.normal(size=k).astype(np.float32) for k in counts)
    )
    return method.decode_update(method.start(LAYOUT, 1), 1, sent.encode())


def test_magnitudes_and_bytes_by_hand():
    """Zeros stay zeros and count as positive.

    Three blocks, whose bits follow one another without a gap.
    """
    assert one_bit(np.float32([3, -1, 0])).tolist() == [2.5, -2.5, 2.5]
    assert (
        one_bit(np.float32([-0.25, -0.75])).tolist() == [-0.625, -0.625]
        and magnitude(np.float32([-1])) == 1
    )
    assert RaggedBits("most").count_content([np.ones(3), np.ones(2)], 0) == Content(
        scalars=2, bits=5
    )
    assert one_bit(np.zeros(2, dtype=np.float32)).tolist() == [0, 0] == [magnitude(np.zeros(0)), 0]
    layout = Layout((TensorEntry("w", (60,), "float32"),), (0, 20, 40, 60))
    state = METHOD.start(layout, 1)
    # no bit of the first is padding
    for lengths, bits in (((8, 3, 5), b"\xff\xf8"), ((8, 3, 7), b"\xff\xf8\x01")):
        signs = (
            np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")[: sum(lengths)]
            * 2.0
            - 1
        )
        blocks = np.split(np.float32(signs), np.cumsum(lengths)[:-1])
        sent = tuple(np.float32(s) * block for s, block in zip((0, 0.5, 2), blocks, strict=True))
        data = SEED.to_bytes(8, "little") + np.array(lengths, dtype="<u4").tobytes()
        data += np.array([0, 0.5, 2], dtype="<f4").tobytes() + bits
        assert BitCoefficients(SEED, (np.abs(sent[0]), *sent[1:])).encode() == data
        back = METHOD.decode_update(state, 1, data)
        assert [gamma.tolist() for gamma in back.gammas] == [gamma.tolist() for gamma in sent]


def test_what_no_client_can_have_made_is_refused():
    data = update().encode()
    negative = data[:16] + np.array([-1.0], dtype="<f4").tobytes() + data[20:]
    infinite = data[:16] + np.array([np.inf], dtype="<f4").tobytes() + data[20:]
    more = data[:8] + np.array([12, 8], dtype="<u4").tobytes() + data[16:]
    for wrong, text in (
        (negative, "the magnitude of block 0 is negative"),
        (infinite, "inf"),
        (
            data[:-1] + bytes([data[-1] | 0x80]),
            "a padding bit is set after 11 numbers of 1 bits",
        ),
        (more, "block 0 has 12 coefficients, but only 11 are allowed"),
    ):
        with pytest.raises(MessageError, match=text):
            METHOD.decode_update(STATE, 1, wrong)


@pytest.mark.parametrize("seeds", ["shared", "per-client"])
def test_a_step_is_the_weighted_sum_and_in_bits_itself(seeds):
    method = METHOD.model_copy(update={"seeds": seeds})
    one, other = update(), update(scale=-3.0)
    step = method.aggregate(STATE, answers(1, [(0, 0.25, one), (1, 0.75, other)]))
    assert type(method.decode_step(STATE, step.encode())) is BitStep
    if seeds == "shared":
        assert len(step.encode()) == len(one.encode())
        pairs = zip(one.gammas, other.gammas, strict=True)
        expected = [[one_bit((0.25 * a + 0.75 * b).astype(np.float32)) for a, b in pairs]]
    else:
        expected = [
            [np.float32(0.25) * a for a in one.gammas],
            [np.float32(0.75) * b for b in other.gammas],
        ]
    back = method.decode_step(STATE, step.encode())
    for part, gammas in zip(back.parts, expected, strict=True):
        for mine, right in zip(part.gammas, gammas, strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-6)
    nobody = method.aggregate(STATE, answers(1, []))
    assert method.decode_step(STATE, nobody.encode()) == BitStep(())


def test_bits_are_off_for_a_change_of_few_entries_and_hardly_for_one_of_many():
    """However many directions: all sign vectors z, q(Delta z) z in the mean. docs/choosing.md says
    so.
    """

    def off(delta):
        z = np.array(list(product([-1.0, 1.0], repeat=len(delta))))
        found = one_bit((z @ delta).astype(np.float32)) @ z / len(z)
        return np.linalg.norm(found - delta) / np.linalg.norm(delta)

    assert 0.5 < off(np.array([3.0, 2.0, 0.5])) < 0.7 and 0.5 < off(np.array([4.0, 2.0, 1.0])) < 0.7
    many = np.random.default_rng(1).normal(size=14)
    assert off(many) < 0.2 and off(np.ones(14)) < 1e-6
