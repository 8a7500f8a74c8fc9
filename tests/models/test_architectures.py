"""Model types of transformers through everything: a few always, a sample of 25 in the slow tier."""

import sys
from pathlib import Path

import numba
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import architectures
import tiny_bases

ALWAYS = [
    ("causal", "gpt2"),
    ("seq2seq", "m2m_100"),
    ("seq2seq", "encoder-decoder"),
    ("seq2seq", "switch_transformers"),  # its forward pass casts a router
    ("seq2seq", "nllb-moe"),  # experts in a dictionary
    ("classification", "mobilebert"),
    ("classification", "t5gemma2"),  # a classifier that encodes and decodes
]
SAMPLE = 25


def drawn():
    """Return the types of the sample, of each kind by its share."""
    kinds = list(tiny_bases.KINDS)
    return architectures.sample(SAMPLE / sum(len(tiny_bases.types_of(k)) for k in kinds), kinds, [])


@pytest.mark.long
@pytest.mark.parametrize(("kind", "name"), ALWAYS)
def test_a_type_works(kind, name):
    found = architectures.examine_apart(kind, name, 600)
    assert found["verdict"] == "works", found["why"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), drawn())
def test_a_drawn_type_works_or_is_refused(kind, name):
    found = architectures.examine_apart(kind, name, 600)
    assert found["verdict"] != "fails", found["why"]
    if found["verdict"] == "not built":
        pytest.skip(found["why"])
    if found["verdict"] == "refused":
        assert found["why"].startswith(("model.base", "task.name", "exports:")), found["why"]


@pytest.mark.long
def test_a_type_is_examined_where_numba_has_used_its_threads():
    @numba.njit(parallel=True)
    def total(numbers):
        result = 0.0
        for index in numba.prange(numbers.size):
            result += numbers[index]
        return result

    assert total(np.ones(1000)) == 1000
    # this type's base is large enough for the kernels to use threads in the new process too
    found = architectures.examine_apart("causal", "gemma4_unified_text", 600)
    assert found["verdict"] == "works", found["why"]


def test_the_table_counts_what_was_tried():
    rows = [
        {"kind": "causal", "type": "a", "verdict": "works", "why": "", "versions": "v"},
        {
            "kind": "causal",
            "type": "b",
            "verdict": "refused",
            "why": "for | reasons",
            "versions": "v",
        },
        {"kind": "masked", "type": "c", "verdict": "fails", "why": "loads: x", "versions": "v"},
        {"kind": "masked", "type": "d", "verdict": "not built", "why": "y", "versions": "v"},
    ]
    page = architectures.table(rows, {"causal": 5, "masked": 2})
    assert "| causal | 5 | 2 | 2 | 1 | 1 | 0 | 0 |" in page
    assert "| masked | 2 | 2 | 1 | 0 | 0 | 1 | 1 |" in page
    # what stands in the page is known, and told from what is tried now
    kept = architectures.read_page(page, "v")
    named = {(row["kind"], row["type"]): row for row in kept}
    assert len(kept) == len(rows) and all(row["earlier"] for row in kept)
    for row in rows:
        assert named[row["kind"], row["type"]] == {**row, "earlier": True}
    assert architectures.read_page(page, "other versions") == []
    kept_masked = [row for row in kept if row["kind"] == "masked"]
    again = architectures.table([*rows[:2], *kept_masked], {"causal": 5, "masked": 2})
    assert "Not tried again with the present code:\n\n**causal**: none.\n" in again
    assert again.endswith("**masked**: c, d.\n") and "earlier call" not in page
    assert {row["type"] for row in architectures.read_page(again, "v")} == {"a", "b", "c", "d"}
    assert "The sweep is not whole yet: 3 types were not reached." in page
    assert "not whole" not in architectures.table(rows, {"causal": 2, "masked": 2})
    assert "| b (causal) | for \\| reasons |" in page and "| c (masked) | loads: x |" in page


def test_the_sample_is_drawn_once():
    assert len(drawn()) == SAMPLE and drawn() == drawn() and len(set(drawn())) == SAMPLE
