"""What of a report is refused, under which name, and that what is left can be added up and written down."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseed.errors import MessageError
from fedseed.federation.control import LINE_FIELDS, MOST_EXAMPLES, Report, averaged, read
from fedseed.federation.cost import MOST_COUNT, Cost
from fedseed.reports.results import RoundLine

DIGEST = "ab" * 16
SPENT = {"seconds": {"local": 1.5, "rebuild": 0.25}, "forward_passes": 12, "losses": 7.5, "counted": 3}
GOOD = {"at": 3, "epoch": "x", "round": 3, "digest": DIGEST, "spent": SPENT, "ratio": 0.5,
        "metrics": {"loss": 2.0, "validation_loss": 1, "mine: f1 @ 5": math.nan}, "by_client": None,
        "seconds": 0.5}  # fmt: skip


def report(**changes):
    """A report, as it comes over the wire."""
    return read(Report, json.dumps({**GOOD, **changes}).encode())


def test_a_report_as_clients_send_it():
    found = report()
    assert found.spent == Cost(**SPENT) and found.ratio == 0.5 and found.round == 3 and found.seconds == 0.5
    assert found.metrics.keys() == GOOD["metrics"].keys() and math.isnan(found.metrics["mine: f1 @ 5"])
    assert report(metrics=None, ratio=None).metrics is None
    assert report(ratio=math.nan).ratio is None  # the weights are NaN: the run has diverged
    figures = {"a": {"held_out": 3.0, "loss": math.inf}}
    assert report(by_client=figures).by_client == figures
    assert type(report(by_client=figures).by_client["a"]["held_out"]) is int
    sent = Report(at=3, epoch="x", round=3, digest=DIGEST, spent=Cost(**SPENT), ratio=None, metrics=None)
    assert (
        sent.encode() == json.dumps({**GOOD, "ratio": None, "metrics": None}).encode().split(b', "by_client"')[0] + b"}"
    )


LONG = 10**400
BAD = {
    "counted of 400 digits": ({"spent": {**SPENT, "counted": LONG}}, "spent: counted: "),
    "losses that are NaN": ({"spent": {"losses": math.nan, "counted": 1}}, "spent: nan is no sum of 1 losses"),
    "one more lost than can be": ({"spent": {"losses": 1.01e39, "counted": 1}}, "no sum of 1 losses"),
    "more moved than there are": ({"spent": {"moved_weights": 2, "movable_weights": 1}}, "more weights have moved"),
    "the coordinator's seconds": ({"spent": {"seconds": {"aggregation": 1.0}}}, "no phase of a client's work"),
    "one phase too many": ({"spent": {"seconds": {f"a{i}": 1.0 for i in range(33)}}}, "seconds: .* at most 32 items"),
    "a negative ratio": ({"ratio": -1.0}, "ratio: -1 is below 0"),
    "metrics with a round": ({"metrics": {"round": 999999}}, "metrics: round: .*a field of the line itself"),
    "a metric that is true": ({"metrics": {"loss": True}}, "metrics: loss: "),
    "one metric too many": ({"metrics": {f"a{i}": 1.0 for i in range(101)}}, "metrics: .* at most 100 items"),
    "a name of 101 letters": ({"metrics": {"a" * 101: 1.0}}, "no name of at most 100"),
    "a round beyond all": ({"round": 2**32}, "round: "),
    "a digest with an escape": ({"digest": "\x1b" * 32}, "digest: "),
    "seconds below -1": ({"seconds": -1.5}, "seconds: "),
    "a field that nobody knows": ({"epsilon": 0.1}, "epsilon: Extra inputs"),
    "figures of 400 digits": ({"by_client": {"a": {"held_out": LONG}}}, "by_client: a: held_out: |inf examples"),
    "figures of many examples": ({"by_client": {"a": {"held_out": MOST_EXAMPLES + 1}}}, "a: 1e\\+09 examples"),
    "figures of half an example": ({"by_client": {"a": {"held_out": 1.5}}}, "by_client: a: 1.5 examples"),
    "figures of nothing": ({"by_client": {"a": {"loss": 1.0}}}, "without a number of examples"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_is_named(name):
    changes, text = BAD[name]
    with pytest.raises(MessageError, match=text) as error:
        report(**changes)
    assert len(str(error.value)) < 200 and str(error.value).isprintable()


PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([LONG, -LONG, MOST_COUNT, 0, -1, DIGEST, ""]),
    st.floats(), st.text(max_size=20), st.sampled_from(sorted(LINE_FIELDS)),
)  # fmt: skip
KEYS = st.sampled_from([*GOOD, *SPENT, *LINE_FIELDS, "loss", "local", "held_out", "a", "moved_weights"]) | st.text(
    max_size=5
)
ANY = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4))
TABLES = st.dictionaries(KEYS, ANY, max_size=4)


@given(st.dictionaries(st.sampled_from(list(GOOD)), ANY | TABLES, max_size=3), TABLES)
@settings(deadline=None, max_examples=50)
def test_any_report_is_refused_or_can_be_added_up(changes, spent):
    """Whatever it says; what is let through is written and read again, also the sum of three hundred of it."""
    try:
        found = report(**{"spent": {**SPENT, **spent}, **changes})
    except MessageError:
        return
    assert not LINE_FIELDS & (found.metrics or {}).keys()
    total = Cost()
    for _ in range(300):
        total.add(found.spent)
    line = RoundLine(1, metrics=dict(found.metrics or {}))
    total.tell(line)
    json.loads(json.dumps([line.to_json(), averaged(found.by_client or {})]))
    assert line.train_loss is None or math.isfinite(line.train_loss)


def test_each_client_weighs_by_the_examples_that_a_figure_is_of():
    found = averaged({
        "a": {"held_out": 1, "validation": 3, "loss": 2.0, "validation_loss": 1.0},
        "b": {"held_out": 3, "validation": 1, "loss": 1.0, "validation_loss": 5.0, "accuracy": 50.0},
        "c": {"held_out": 0},
    })  # fmt: skip
    assert found == {"loss": 1.25, "validation_loss": 2.0, "accuracy": 50.0}
    assert averaged({}) == {} == averaged({"c": {"held_out": 0}})
