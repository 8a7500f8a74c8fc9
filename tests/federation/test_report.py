"""What of a report is refused, under which name, and that what is left can be added up and written
down.
"""

import json
import math

import pytest

from fedseed.errors import MessageError
from fedseed.federation.control import (
    MOST_EXAMPLES,
    MOST_PARTS,
    Report,
    average_metrics,
    parse_control,
)
from fedseed.federation.cost import Cost

DIGEST = "ab" * 16
SPENT = {
    "seconds": {"local": 1.5, "rebuild": 0.25},
    "forward_passes": 12,
    "losses": 7.5,
    "counted": 3,
}
GOOD = {
    "at": 3,
    "epoch": "x",
    "round": 3,
    "digest": DIGEST,
    "spent": SPENT,
    "ratio": 0.5,
    "metrics": {"loss": 2.0, "validation_loss": 1, "mine: f1 @ 5": math.nan},
    "by_client": None,
    "seconds": 0.5,
}


def report(**changes):
    """A report, as it comes over the wire."""
    return parse_control(Report, json.dumps({**GOOD, **changes}).encode())


def test_a_report_as_clients_send_it():
    found = report()
    assert (
        found.spent == Cost(**SPENT)
        and found.ratio == 0.5
        and found.round == 3
        and found.seconds == 0.5
    )
    assert found.metrics.keys() == GOOD["metrics"].keys() and math.isnan(
        found.metrics["mine: f1 @ 5"]
    )
    assert report(metrics=None, ratio=None).metrics is None and report(ratio=0.0).ratio == 0
    assert report(ratio=math.nan).ratio is None  # the weights are NaN: the run has diverged
    figures = {"a": {"held_out": 3.0, "loss": math.inf}, "b": {"held_out": MOST_EXAMPLES}}
    assert report(by_client=figures).by_client == figures
    assert type(report(by_client=figures).by_client["a"]["held_out"]) is int
    sent = Report(
        at=3, epoch="x", round=3, digest=DIGEST, spent=Cost(**SPENT), ratio=None, metrics=None
    )
    said = json.dumps({**GOOD, "ratio": None, "metrics": None})
    assert sent.encode().decode() == said.partition(', "by_client"')[0] + "}"


LONG = 10**400
BAD = {
    "counted of 400 digits": ({"spent": {**SPENT, "counted": LONG}}, "spent: counted: "),
    "losses that are NaN": (
        {"spent": {"losses": math.nan, "counted": 1}},
        "spent: nan can't be the sum of 1 losses",
    ),
    "one more lost than can be": (
        {"spent": {"losses": 1.01e39, "counted": 1}},
        "can't be the sum of 1 losses",
    ),
    "more moved than there are": (
        {"spent": {"moved_weights": 2, "movable_weights": 1}},
        "more weights moved",
    ),
    "the coordinator's seconds": (
        {"spent": {"seconds": {"aggregation": 1.0}}},
        "not a phase of a client's work",
    ),
    "one phase too many": (
        {"spent": {"seconds": {f"a{i}": 1.0 for i in range(33)}}},
        "seconds: .* at most 32 items",
    ),
    "a negative ratio": ({"ratio": -1.0}, "ratio: -1 is below 0"),
    "metrics with a round": (
        {"metrics": {"round": 999999}},
        "metrics: round: .*a reserved name",
    ),
    "a metric that is true": ({"metrics": {"loss": True}}, "metrics: loss: "),
    "one metric too many": (
        {"metrics": {f"a{i}": 1.0 for i in range(101)}},
        "metrics: .* at most 100 items",
    ),
    "a name of 101 letters": ({"metrics": {"a" * 101: 1.0}}, "not a name of at most 100"),
    "a round beyond all": ({"round": 2**32}, "round: "),
    "a digest with an escape": ({"digest": "\x1b" * 32}, "digest: "),
    "seconds below -1": ({"seconds": -1.5}, "seconds: "),
    "a field that nobody knows": ({"epsilon": 0.1}, "epsilon: Extra inputs"),
    "figures of 400 digits": (
        {"by_client": {"a": {"held_out": LONG}}},
        "by_client: a: held_out: |inf examples",
    ),
    "figures of many examples": (
        {"by_client": {"a": {"held_out": MOST_EXAMPLES + 1}}},
        "a: 1e\\+09 examples",
    ),
    "figures of half an example": (
        {"by_client": {"a": {"held_out": 1.5}}},
        "by_client: a: 1.5 examples",
    ),
    "figures of nothing": ({"by_client": {"a": {"loss": 1.0}}}, "without a number of examples"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_is_named(name):
    changes, text = BAD[name]
    with pytest.raises(MessageError, match=text) as error:
        report(**changes)
    assert len(str(error.value)) < 200 and str(error.value).isprintable()


def test_each_client_weighs_by_the_examples_that_a_figure_is_of():
    found = average_metrics(
        {
            "a": {"held_out": 1, "validation": 3, "loss": 2.0, "validation_loss": 1.0},
            "b": {
                "held_out": 3,
                "validation": 1,
                "loss": 1.0,
                "validation_loss": 5.0,
                "accuracy": 50.0,
            },
            "c": {"held_out": 0},
            "d": {"held_out": 0, "validation_loss": 9.0},
        }
    )
    assert found == {"loss": 1.25, "validation_loss": 2.0, "accuracy": 50.0}
    assert average_metrics({}) == {} == average_metrics({"c": {"held_out": 0}})


def test_a_message_of_more_parts_than_are_read_is_refused():
    most = b"[" + b"," * (MOST_PARTS - 2)
    with pytest.raises(MessageError, match=f"about {MOST_PARTS + 1:,} values"):
        parse_control(Report, most + b",")
    with pytest.raises(MessageError, match="expected value"):
        parse_control(Report, most)
