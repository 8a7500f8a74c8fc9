"""Means of clients' own figures, and what of a report is refused."""

import pytest

from fedseed.errors import MessageError
from fedseed.federation.held_out import averaged, read_figures


def test_each_client_weighs_by_the_examples_that_a_figure_is_of():
    found = averaged({
        "a": {"held_out": 1, "validation": 3, "loss": 2.0, "validation_loss": 1.0},
        "b": {"held_out": 3, "validation": 1, "loss": 1.0, "validation_loss": 5.0, "accuracy": 50.0},
        "c": {"held_out": 0},
    })  # fmt: skip
    assert found == {"loss": 1.25, "validation_loss": 2.0, "accuracy": 50.0}
    assert averaged({}) == {} == averaged({"c": {"held_out": 0}})


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([1], "no table"),
        ({"held_out": 1, "loss": "low"}, "'loss' is no number"),
        ({"held_out": True}, "'held_out' is no number"),
        ({"held_out": -1}, "-1 examples"),
        ({"held_out": 1.5}, "1.5 examples"),
        ({"held_out": float("inf")}, "inf examples"),
        ({"loss": 1.0}, "without a number of examples"),
        ({str(i): i for i in range(200)}, "no table"),
    ],
)
def test_figures_that_are_refused(data, text):
    with pytest.raises(MessageError, match=text):
        read_figures(data)


def test_figures_as_they_are_reported():
    assert read_figures({"held_out": 4.0, "loss": 1}) == {"held_out": 4, "loss": 1.0}
