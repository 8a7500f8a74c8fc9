"""Changes as data: how far they go, what is refused, and how they are undone."""

import numpy as np
import pytest
import torch

from fedseed import Basis, ParameterSpace
from fedseed.optimizers.rules import Rule
from fedseed.orbit.replay import Pending
from fedseed.weights.change import Add, Average, Optimize, Rebuild, Replace, Term, expected_norm
from fedseed.weights.layout import Layout, TensorEntry

LAYOUT = Layout((TensorEntry("w", (5000,), "float32"),), (0, 1000, 5000))
ONE = [Term(Basis("normal", 1), [0.5])]


def space(dtype=torch.float32):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3, bias=False)).to(dtype)
    net[0].weight.data = net[0].weight.data.t().contiguous().t()  # not in order in memory
    made = ParameterSpace(net)
    with torch.no_grad():
        made.parameters[0][0, 0] = -0.0  # adding nothing would lose this sign
    return made


# -- how far
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["normal", "truncated_normal", "rademacher", "hadamard"])
def test_the_expected_norm_is_how_far_the_weights_go(name):
    """The root mean square over 20 seeds, within 3%."""
    where = ParameterSpace(torch.nn.Linear(100, 50, bias=False), blocks=3)
    start, squares = where.snapshot(), []
    coefficients = [np.array([0.2, -0.1]), np.array([0.3]), np.array([0.05, 0.1, 0.1])]
    for seed in range(20):
        one, other = Basis(name, seed, size=16), Basis(name, seed + 99, size=16)
        change = Add([Term(one, coefficients), Term(other, [0.1])], 0.7)
        where.apply(change)
        squares.append(
            (
                expected_norm(change, where.layout) ** 2,
                float(np.square(where.difference(start)).sum()),
            )
        )
        where.restore(start)
    expected, measured = np.sqrt(np.mean(squares, axis=0))
    assert expected == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize(
    "change",
    [Rebuild(ONE), Optimize(ONE, Rule("adam", 1e-3)), Average([(1.0, [Add(ONE)])]), Replace(b"")],
)
def test_what_is_no_plain_sum_has_no_expected_norm(change):
    assert expected_norm(change, LAYOUT) is None


# -- what is refused
# ------------------------------------------------------------------------------------------------


def test_what_is_no_change_is_refused():
    for carry_out in (space().apply, Pending(space()).add):
        with pytest.raises(TypeError, match="is no change of the weights"):
            carry_out((ONE, 1.0))


BAD = [Term(Basis("normal", 1), [np.nan])]
REFUSED = {
    "add": (Add(BAD), "NaN or infinite"),
    "add-large": (Add([Term(Basis("normal"), [1e39])]), "NaN or infinite"),
    "add-scale": (Add(ONE, float("inf")), "scale"),
    "add-rounded": (Add(BAD, 1.0, (7, 1)), "NaN or infinite"),
    "bases": (
        Add([*ONE, Term(Basis("rademacher"), [0.5])]),
        "a sum has normal and rademacher directions",
    ),
    "blocks": (
        Add([Term(Basis("normal"), [[1.0], [1.0]])]),
        "2 arrays of coefficients for 1 blocks",
    ),
    "optimize": (Optimize(BAD, Rule("momentum", 0.1)), "NaN or infinite"),
    "optimize-past": (Optimize(ONE, Rule("adam", 0.1), None, [BAD]), "NaN or infinite"),
    "no-base": (Rebuild(ONE), "needs keep_base first"),
    "average": (
        Average([(0.5, [Add(ONE), Add(ONE)]), (0.5, [Add(ONE), Add(BAD)])]),
        "NaN or infinite",
    ),
    "average-rounded": (Average([(0.5, [Add(ONE)]), (0.5, [Add(ONE, 1.0, (7, 1))])]), "one by one"),
    "replace": (Replace(b"\0" * 4), "4 bytes for a space of"),
    "replace-nothing": (Replace(b""), "0 bytes for a space of"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:overflow")
def test_a_change_that_fails_leaves_the_weights(name):
    change, text = REFUSED[name]
    where = space(torch.bfloat16)
    before = where.digest()
    with pytest.raises(ValueError, match=text):
        where.apply(change)
    assert where.digest() == before


def test_a_step_that_is_refused_does_not_count():
    """Adam's averages, and how many steps they are of, are as before."""
    rule = Rule("adam", 1e-3)
    refused, other = space(), space()
    for where in (refused, other):
        where.apply(Optimize(ONE, rule))
    with pytest.raises(ValueError, match="NaN or infinite"):
        refused.apply(Optimize(BAD, rule))
    for where in (refused, other):
        where.apply(Optimize(ONE, rule))
    assert refused.digest() == other.digest()


def test_an_average_is_that_of_the_weights_of_its_branches():
    """Each branch from the same start, each change rounded in its turn.

    Summed in double precision, rounded once.
    """
    where, basis = space(torch.bfloat16), Basis("rademacher", 3)
    start = where.snapshot()
    branches = [
        (w, [Add([Term(basis, [0.03 * i], t)], -0.1) for t in range(4)])
        for i, w in ((1, 0.2), (5, 0.8))
    ]
    ends = []
    for _, changes in branches:
        where.restore(start)
        for change in changes:
            where.apply(change)
        ends.append(where.snapshot())
    where.restore(start)
    where.apply(Average(branches))
    for p, a, b in zip(where.parameters, *ends, strict=True):
        assert torch.equal(p.detach(), (0.2 * a.double() + 0.8 * b.double()).float().to(p.dtype))
    before = where.digest()
    where.apply(Average([]))
    assert where.digest() == before


# -- the way back
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_from_the_base_the_way_back_needs_no_copy(dtype):
    """Whatever happens to the weights meanwhile.

    A sum of zeros, too, may leave other bits than the base's: of -0.0.
    """
    where = space(dtype)
    assert where.way_back() is None  # no base
    where.keep_base()
    for rebuilt in (
        None,
        Rebuild([Term(Basis("hadamard", 2), [0.0, 0.0])]),
        Rebuild(ONE, -0.1),
        Rebuild(ONE, 0.2),
    ):
        if rebuilt is not None:
            where.apply(rebuilt)
        before = where.digest()
        go_back = where.way_back()
        where.apply(Rebuild(ONE, 7.0))
        where.way_back()()
        where.apply(Add(ONE))
        assert where.digest() != before
        go_back()
        assert where.digest() == before
        go_back()  # once more: still there
        assert where.digest() == before and where.way_back() is not None
    for change in (
        Add(ONE),
        Add(ONE, 1.0, (7, 1)),
        Average([(1.0, [Add(ONE)])]),
        Replace(where.dense()),
    ):
        where.apply(change)  # after any other change only a copy leads back
        assert where.way_back() is None
        where.restore_base()
        assert where.way_back() is not None
    where.apply_adds([Add(ONE)])
    assert where.way_back() is None
