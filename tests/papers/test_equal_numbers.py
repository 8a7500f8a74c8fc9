"""Lines of a sweep that differ in allocation or blocks send equal numbers, whatever a client's
change is.
"""

import numpy as np
import pytest

from fedseed.experiments.sweeps import read_sweep
from fedseed.methods import Ferret
from fedseed.models.loading import outline
from fedseed.recipe.packaged import packaged_sweeps
from fedseed.recipe.reading import read_recipe
from fedseed.weights.layout import Layout, TensorEntry, cut

DATAJUICER = "datajuicer/LLaMA-1B-dj-refine-150B"


def llama_shapes(layers, width, inner, vocabulary):
    """The tensors of a LLaMA with untied embeddings, in the order of its file."""
    yield vocabulary, width
    for _ in range(layers):
        yield from [(width, width)] * 4
        yield from [(inner, width), (inner, width), (width, inner)]
        yield from [(width,), (width,)]
    yield (width,)
    yield vocabulary, width


def shapes_of(base):
    if base == DATAJUICER:
        return list(llama_shapes(24, 2048, 5504, 32_000))
    return [tuple(p.shape) for p in outline(base).parameters()]


def ferret_lines(name):
    """Each scenario's Ferret lines: label, method and base."""
    sweep = read_sweep(packaged_sweeps()[name])
    lines = {scenario.name: [] for scenario in sweep.scenarios}
    for scenario, run in sweep.lines():
        settings = [*sweep.set, *scenario.set, *run.set, *scenario.also.get(run.label, ())]
        recipe = read_recipe(run.recipe, settings)
        if isinstance(recipe.method, Ferret):
            lines[scenario.name].append((run.label, recipe.method, recipe.model.base))
    return lines


def varying():
    """The blocks of lines that differ in allocation or blocks, of all sweeps."""
    for name in packaged_sweeps():
        for scenario, lines in ferret_lines(name).items():
            if len({(method.allocation, method.blocks) for _, method, _ in lines}) > 1:
                yield pytest.param(name, lines, id=f"{name}-{scenario}")


VARYING = list(varying())


def profiles(blocks):
    """Norms of the blocks' changes: alike, by chance, and all of it in one block."""
    random = np.random.default_rng(1)
    yield np.ones(blocks)
    yield random.lognormal(sigma=1.0, size=blocks)
    yield random.lognormal(sigma=4.0, size=blocks)
    yield np.eye(blocks)[0] + 1e-9


def bits_sent(method, shapes):
    """How many bits of coefficients a client sends, for each of the profiles.

    Coefficients in a bit have a magnitude of 32 bits for each block.
    """
    entries = tuple(TensorEntry(str(i), s, "float32") for i, s in enumerate(shapes))
    layout = Layout(entries, cut([e.size for e in entries], method.blocks))
    state, blocks = method.start(layout, 1), len(layout.block_sizes)
    counts = {int(method.allocate(state, norms).sum()) for norms in profiles(blocks)}
    if method.scalars == "bit":
        return {count + 32 * blocks for count in counts}
    return {32 * count for count in counts}


def test_the_sweeps_that_vary_allocation_or_blocks_are_looked_at():
    names = {param.values[0] for param in VARYING}
    assert {
        "published-ferret-allocation",
        "published-ferret-blocks",
        "small-ferret-allocation",
        "small-ferret-blocks",
        "ferret-steps",
    } <= names


@pytest.mark.parametrize(("name", "lines"), VARYING)
def test_each_line_sends_equal_numbers_whatever_the_change_is(name, lines):
    sent = {label: bits_sent(method, shapes_of(base)) for label, method, base in lines}
    assert len(set().union(*sent.values())) == 1, sent


def test_the_published_rule_sends_what_the_data_decide():
    """Why a comparison of allocations needs the fixed total: the published rule sends 586 numbers
    at least with the paper's K = 200, and thousands where blocks change alike.
    """
    shapes = shapes_of(DATAJUICER)
    counts = bits_sent(Ferret(directions=200, blocks="packed", allocation="norm"), shapes)
    assert min(counts) == 32 * 586 and max(counts) == 32 * 200 * 194
    fixed = Ferret(directions=3900, blocks="packed", allocation="norm", fixed_total=True)
    assert bits_sent(fixed, shapes) == {32 * 3900}
