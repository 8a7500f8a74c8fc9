"""What the run is about is what most clients say, whoever comes first.

And base weights are theirs.
"""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedseed import FedAvg, ParameterSpace
from fedseed.errors import RecipeError
from fedseed.federation.control import Attach
from fedseed.federation.coordinator.session import RESEND_SECONDS
from fedseed.orbit import Header
from fedseed.weights.dense_digest import dense_digest
from fedseed.weights.layout import Layout, TensorEntry
from support.reception import LAYOUT
from support.reception import Talk as Reception

pytestmark = pytest.mark.usefixtures("without_pictures")

NAMES = ("a", "b", "c", "d", "e")
OTHER = Layout((TensorEntry("v", (2, 4), "float32"),), (0, 8))
HONEST = Header("small", "ab" * 16, "float32", LAYOUT, FedAvg(), 0)
WEIGHTS = np.arange(16, dtype="<f4").tobytes()
BEGINS = dense_digest(LAYOUT, WEIGHTS, "blake2b")
LIES = {
    "base": {"header": replace(HONEST, base_digest="cd" * 16)},
    "layout": {"header": replace(HONEST, layout=OTHER)},
    "weights": {"begins": "ef" * 16},
    "dtype": {"header": replace(HONEST, dtype="bfloat16")},
}


class Talk(Reception):
    """A coordinator that waits for its clients."""

    method = FedAvg()

    def __init__(self, names=NAMES, **settings):
        super().__init__(names=names, **settings)

    async def __aenter__(self):
        await self.start()
        self.assembling = asyncio.create_task(self.reception.assemble())
        return self

    async def __aexit__(self, *_):
        self.assembling.cancel()

    async def hello(self, name, begins=BEGINS, names=None, **more):
        self.reception.attach(name, Attach(client=name, host=name, examples=3))
        return await super().hello(
            names or [name], not names, attach=False, host=name, begins=begins, **more
        )


@pytest.mark.parametrize("lie", LIES)
async def test_a_minority_that_comes_first_decides_nothing(lie):
    async with Talk(deadline=0.2) as one:
        for liar in "ab":
            assert "refused" not in await one.hello(liar, **LIES[lie])
        assert one.reception.header is None
        for honest in "cde":
            assert "refused" not in await one.hello(honest)
        assert one.reception.header == HONEST and one.base.digest == BEGINS
        counts = one.rejected.counts()
        assert set(counts) == {"a", "b"}
        assert all(
            "(3 of 5 clients agree)" in reason for reasons in counts.values() for reason in reasons
        )
        assert "refused" in await one.hello("a", **LIES[lie])
        told = {name: await one.hello(name) for name in "cde"}
        assert [name for name in told if told[name].get("bring") == "weights"] == ["c"]
        await one.hello("c", weights=WEIGHTS)
        await one.assembling  # without the two, once they have had the time to mend it
        assert one.base.hand_over() == WEIGHTS
        assert one.roster.present() == {2, 3, 4} and one.roster.required_clients(None) == 3


@pytest.mark.parametrize("lie", LIES)
async def test_one_against_one_is_an_error_that_says_what_to_name(lie):
    async with Talk(("a", "b")) as one:
        await one.hello("a", **LIES[lie])
        await one.hello("b")
        with pytest.raises(
            RecipeError, match=r"1 \(a\): base .*; 1 \(b\): base .*federation.base_digest"
        ) as found:
            await one.assembling
        assert BEGINS in str(found.value) and HONEST.base_digest in str(found.value)


async def test_who_disagrees_is_told_why_there_is_no_run():
    """Both sides hear of both versions, in the answer to the next hello."""
    headers = {
        "a": replace(HONEST, base_digest="cd" * 16, libraries="transformers 4.56.2"),
        "b": replace(HONEST, libraries="transformers 5.24.0"),
    }
    async with Talk(("a", "b")) as one:
        for name, header in headers.items():
            assert "refused" not in await one.hello(name, header=header)
        for name, header in headers.items():
            refused = (await one.hello(name, header=header))["refused"]
            assert "transformers 4.56.2" in refused and "transformers 5.24.0" in refused
            assert "all sites need one version" in refused
        with pytest.raises(RecipeError, match="there is no majority"):
            await asyncio.wait_for(one.assembling, RESEND_SECONDS / 2)  # for all have been told


@pytest.mark.parametrize("pins", [{"base_digest": HONEST.base_digest}, {"weights_digest": BEGINS}])
async def test_what_the_recipe_names_is_asked_of_everybody(pins):
    async with Talk(("a", "b"), deadline=0.2, **pins) as one:
        refused = await one.hello("a", **LIES["base" if "base_digest" in pins else "weights"])
        assert "another base" in refused["refused"] or "other first weights" in refused["refused"]
        silent = await one.hello("a", begins=None)  # or any weights would do
        assert silent["refused"] == "it does not say which weights it begins with"
        await one.hello("b")
        assert one.reception.header is None  # the other may still mend it
        assert "refused" not in await one.hello("a")
        assert one.reception.header == HONEST and one.base.digest == BEGINS


async def test_base_weights_are_asked_for_and_checked():
    async with Talk(("a", "b", "c")) as one:
        assert "bring" not in await one.hello("a", weights=WEIGHTS)  # before anybody asks
        await one.hello("b")
        assert one.rejected.counts() == {
            "a": {("base weights that this process was not asked for"): 1}
        }
        assert one.base.digest == BEGINS and (await one.hello("c"))["bring"] == "weights"
        await one.hello("b", weights=WEIGHTS[::-1])  # another was asked
        assert one.rejected.counts()["b"] == {"base weights that this process was not asked for": 1}
        await one.hello("c", weights=WEIGHTS[::-1])
        while "c" not in one.rejected.counts():
            await asyncio.sleep(0.001)
        assert [reason[:28] for reason in one.rejected.counts()["c"]] == [
            "base weights with the digest"
        ]
        assert "bring" not in await one.hello("c")  # it is not asked again
        assert (await one.hello("a"))["bring"] == "weights"
        await one.hello("a", weights=WEIGHTS)
        await one.assembling
        assert one.base.hand_over() == WEIGHTS


async def test_who_there_is_is_one_opinion_where_nobody_knows():
    async with Talk(()) as one:
        await one.hello("a", names=["a", "x", "y", "z", "u"])
        assert one.roster.names == []
        for name in "bcd":
            await one.hello(name, names=list(NAMES))
        assert one.roster.names == list(NAMES) and set(one.rejected.counts()) == {"a"}


@pytest.mark.parametrize("kind", ["blake2b", "blake2b-tree"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_coordinators_digest_is_the_spaces(kind, dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(600, 700), torch.nn.Linear(700, 3), torch.nn.LayerNorm(3)
    ).to(dtype)
    space = ParameterSpace(model, digest_kind=kind)
    assert dense_digest(space.layout, space.dense(), kind) == space.digest()
