"""Means of clients' own figures."""

from fedseed.federation.held_out import averaged


def test_each_client_weighs_by_the_examples_that_a_figure_is_of():
    found = averaged({
        "a": {"held_out": 1, "validation": 3, "loss": 2.0, "validation_loss": 1.0},
        "b": {"held_out": 3, "validation": 1, "loss": 1.0, "validation_loss": 5.0, "accuracy": 50.0},
        "c": {"held_out": 0},
    })  # fmt: skip
    assert found == {"loss": 1.25, "validation_loss": 2.0, "accuracy": 50.0}
    assert averaged({}) == {} == averaged({"c": {"held_out": 0}})
