"""Reconstruction from the methods' own messages: exact with enough numbers, at chance with few,
worse for a batch.
"""

import csv
import json
from functools import cache

import numpy as np
import pytest
import torch

from fedseed.objectives.classification import Images
from fedseed.recipe.reading import read_recipe
from fedseed.tasks.data import Picture
from fedseed_papers.audits import reconstruct
from fedseed_papers.audits.reconstruct import Attack, settings_for
from support.command import fedseed, well
from support.page import Page

SIDE, CLASSES = 4, 3
SIZE = CLASSES * (SIDE * SIDE + 1)  # d = 51


class Plain:
    """An image processor that only divides by 255."""

    def __call__(self, images, return_tensors, input_data_format):
        return {
            "pixel_values": torch.stack(
                [torch.from_numpy(i / 255.0).permute(2, 0, 1) for i in images]
            )
        }


def pictures(count, seed=1):
    drawn = np.random.default_rng(seed)
    shape = (SIDE, SIDE, 1)
    return [
        Picture(drawn.integers(0, 256, shape).astype(np.uint8), int(drawn.integers(CLASSES)))
        for _ in range(count)
    ]


@cache
def attack(steps):
    """On a softmax layer on the pixels: what it has learnt from one picture is the picture."""
    layer = reconstruct.PixelLayer(SIDE * SIDE, CLASSES, 0)
    return Attack(layer, Images(Plain()), CLASSES, pictures(100), steps=steps)


def attempt(name, count, batch=1, example=0, steps=1):
    """Without a search for the picture if it has one step."""
    settings = settings_for(read_recipe("digits-feedsign"), name, count, batch)
    return attack(steps).attempt(settings, pictures(100)[example : example + batch], example)


@pytest.mark.parametrize("name", ["ferret", "fedkseed", "fedsgd", "fedavg"])
def test_enough_numbers_are_the_picture(name):
    """K >= d: linear inversion finds gradient, label and the layer's input.

    Matching the picture.
    """
    found = attempt(name, 4 * SIZE, steps=300)
    assert found.gradient_error < 1e-2 and found.input_error < 1e-2 and found.label_right
    assert found.identified == 1 and found.error < 0.1 and found.labels_right == 1


def test_linear_inversion_gets_what_the_directions_span():
    """A random K-dimensional space holds K / d of a vector's square."""
    for count in (8, 16, 32):
        errors = [attempt("ferret", count, example=i).gradient_error ** 2 for i in range(4)]
        assert np.mean(errors) == pytest.approx(1 - count / SIZE, abs=0.2)


def test_votes_give_the_gradients_direction():
    cosines = [attempt("feedsign", count).gradient_cosine for count in (4, 1024)]
    assert cosines[0] < 0.6 and cosines[1] > 0.9


@pytest.mark.long
def test_a_batch_hides_its_pictures():
    alone, several = (attempt("fedsgd", 0, batch, steps=300) for batch in (1, 8))
    assert alone.identified == 1 and several.error > 5 * alone.error and several.label_right is None


# -- the command
# ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_command_writes_a_page_and_the_numbers(tmp_path):
    """A whole gradient of a layer on the pixels is the picture, in closed form.

    Four numbers of it are nothing.
    """
    out = tmp_path / "audit"
    options = [
        "--linear",
        "--methods",
        "ferret,fedsgd",
        "--numbers",
        4,
        "--examples",
        1,
        "--batches",
        2,
        "--steps",
        2,
        "--out",
        out,
        "--json",
    ]
    shown = well("audit", "reconstruct", "digits-feedsign", *options)
    attempts = {(a["method"], a["batch"]): a for a in json.loads(shown.stdout)["attempts"]}
    whole, few = attempts["fedsgd", 1], attempts["ferret", 1]
    assert whole["gradient_cosine"] > 0.999 and whole["input_error"] < 0.01 and whole["label_right"]
    assert few["count"] == 4 and abs(few["gradient_cosine"]) < 0.2 and not few["identified"]
    rows = list(csv.DictReader((out / "attempts.csv").open()))
    assert [(r["method"], int(r["batch"])) for r in rows] == list(attempts) and len(
        {b for _, b in attempts}
    ) == 2
    page = Page((out / "page.html").read_text())
    said = " ".join(page.said)
    assert "What does a message of Ferret give away?" in said and "not by this attack" in said
    assert all(r.startswith("data:") for r in page.refers)
    assert (out / "reconstructed.png").read_bytes().startswith(b"\x89PNG")
    anew = [*options, "--out", tmp_path / "other"]
    for changed, why in (
        (options, "holds an audit"),
        ([*anew, "--numbers", "4,x"], "--numbers 4,x: write"),
        ([*anew, "--methods", "mail"], "mail"),
    ):
        again = fedseed("audit", "reconstruct", "digits-feedsign", *changed)
        assert again.returncode in (1, 2) and why in again.stderr
