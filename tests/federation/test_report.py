"""What of a report is refused, under which name, and that what is left can be added up and written down."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseed.errors import MessageError
from fedseed.federation.cost import Cost
from fedseed.federation.held_out import averaged, read_figures
from fedseed.federation.protocol import read_json
from fedseed.federation.report import (
    LINE_FIELDS,
    MOST_COUNT,
    MOST_EXAMPLES,
    MOST_LOSS,
    MOST_SECONDS,
    Phases,
    read_report,
)
from fedseed.reports.results import RoundLine

DIGEST = "ab" * 16
SPENT = {"seconds": {"local": 1.5, "rebuild": 0.25}, "forward_passes": 12, "losses": 7.5, "counted": 3}
GOOD = {"at": 3, "epoch": "x", "round": 3, "digest": DIGEST, "spent": SPENT, "ratio": 0.5,
        "metrics": {"loss": 2.0, "validation_loss": 1, "mine: f1 @ 5": math.nan}, "by_client": None,
        "seconds": 0.5}  # fmt: skip


def by_client(data):
    return {client: read_figures(figures) for client, figures in data.items()}


def read(**changes):
    """A report, as it comes over the wire."""
    return read_report(read_json(json.dumps({**GOOD, **changes}).encode()), by_client)


def test_a_report_as_clients_send_it():
    found = read()
    assert found.spent == Cost(**SPENT) and found.ratio == 0.5 and found.round == 3 and found.seconds == 0.5
    assert found.metrics.keys() == GOOD["metrics"].keys() and math.isnan(found.metrics["mine: f1 @ 5"])
    assert read(metrics=None, ratio=None, seconds=None).metrics is None
    assert read(ratio=math.nan).ratio is None  # the weights are NaN: the run has diverged
    figures = {"a": {"held_out": 3, "loss": math.inf}}
    assert read(by_client=figures).by_client == figures


def test_what_is_just_within_the_bounds_is_read():
    found = read(round=0, ratio=0, seconds=-1.0, spent={}, metrics={f"{i}": 2**999 for i in range(100)})
    assert (found.round, found.ratio, found.seconds, found.spent) == (0, 0.0, -1.0, Cost())
    assert len(found.metrics) == 100 and found.metrics["7"] == 2.0**999
    spent = {"seconds": {"x" * i: MOST_SECONDS for i in range(69, 101)}, "losses": -3 * MOST_LOSS, "counted": 3,
             "forward_passes": MOST_COUNT, "moved_weights": 7, "movable_weights": 7}  # fmt: skip
    found = read(round=2**32 - 1, ratio=math.inf, seconds=None, spent=spent, metrics={})
    assert found.spent == Cost(**spent) and found.round == 2**32 - 1
    assert found.ratio is None and found.seconds == 0.0 and found.metrics == {}


LONG = 10**400
MANY = 10**4299  # the longest that Python reads; the sum of two of them can't be written
BAD = {
    "counted of 400 digits": ({"spent": {**SPENT, "counted": LONG}}, "spent: counted: a number of about 401 digits"),
    "passes of 4300 digits": ({"spent": {"forward_passes": MANY}}, "spent: forward_passes: a number of about 4,300"),
    "a negative count": ({"spent": {"skipped_steps": -1}}, "spent: skipped_steps: -1"),
    "a count with a fraction": ({"spent": {"backward_passes": 1.5}}, "backward_passes is no whole number"),
    "losses of 1e308": ({"spent": {"losses": 1e308, "counted": 1}}, "losses: 1e\\+308 is no sum of 1 losses"),
    "losses that are NaN": ({"spent": {"losses": math.nan, "counted": 1}}, "losses: nan"),
    "losses that are infinite": ({"spent": {"losses": -math.inf, "counted": 9}}, "losses: -inf"),
    "losses of nothing": ({"spent": {"losses": 1.0}}, "no sum of 0 losses"),
    "losses of 400 digits": ({"spent": {"losses": LONG, "counted": 1}}, "losses: a number of about 401 digits"),
    "another field of costs": ({"spent": {"round": 1}}, "spent: a field 'round'"),
    "no costs": ({"spent": None}, "spent is no table"),
    "more moved than there are": ({"spent": {"moved_weights": 2, "movable_weights": 1}}, "more weights have moved"),
    "the coordinator's seconds": ({"spent": {"seconds": {"aggregation": 1.0}}}, "'aggregation' is no phase"),
    "seconds of the whole run": ({"spent": {"seconds": {"total": 1.0}}}, "'total' is no phase"),
    "seconds that are NaN": ({"spent": {"seconds": {"local": math.nan}}}, "seconds: local: nan"),
    "seconds that are a table": ({"spent": {"seconds": {"local": {}}}}, "local is no number"),
    "many phases": ({"spent": {"seconds": {f"a{i}": 1.0 for i in range(99)}}}, "no table of at most 32 phases"),
    "a ratio that is a text": ({"ratio": "x"}, "ratio is no number"),
    "a negative ratio": ({"ratio": -1.0}, "ratio: -1"),
    "metrics with seconds": ({"metrics": {"seconds": 1.0}}, "seconds is a field of the line itself"),
    "metrics with rounds": ({"metrics": {"loss": 1.0, "rounds": 0}}, "rounds is a field of the line itself"),
    "metrics with a round": ({"metrics": {"round": 999999}}, "round is a field of the line itself"),
    "metrics that are texts": ({"metrics": {"loss": "1.0"}}, "metrics: loss is no number"),
    "metrics of 400 digits": ({"metrics": {"loss": LONG}}, "more than a float can hold"),
    "metrics without end": ({"metrics": {f"a{i}": 1.0 for i in range(200)}}, "no table of at most 100"),
    "a name with an escape": ({"metrics": {"\x1b[2Jloss": 1.0}}, "'\\\\x1b\\[2Jloss' is no name of a metric"),
    "a name that is long": ({"metrics": {"a" * 1000: 1.0}}, "aaa.*is no name of a metric"),
    "metrics that are a list": ({"metrics": [1]}, "no table"),
    "a round beyond all": ({"round": 2**32}, "round: 4294967296"),
    "a round of 20 digits": ({"round": 10**19}, "round: 10000000000000000000 is not from 0 to 4,294,967,295"),
    "a round of 21 digits": ({"round": 10**20}, "round: a number of about 21 digits is not"),
    "one metric too many": ({"metrics": {f"a{i}": 1.0 for i in range(101)}}, "no table of at most 100"),
    "one phase too many": ({"spent": {"seconds": {f"a{i}": 1.0 for i in range(33)}}}, "at most 32 phases"),
    "a metric without a name": ({"metrics": {"": 1.0}}, "'' is no name of a metric"),
    "a name of 101 letters": ({"metrics": {"a" * 101: 1.0}}, "is no name of a metric"),
    "a metric of 1001 bits": ({"metrics": {"loss": 2**1000}}, "more than a float can hold"),
    "a number for metrics": ({"metrics": 5}, "no table"),
    "seconds that are a number": ({"spent": {"seconds": 5}}, "no table of at most 32 phases"),
    "seconds below -1": ({"seconds": -1.5}, "seconds: -1.5"),
    "a metric that is true": ({"metrics": {"loss": True}}, "metrics: loss is no number"),
    "one more lost than can be": ({"spent": {"losses": 1.01e39, "counted": 1}}, "no sum of 1 losses"),
    "a round that is true": ({"round": True}, "round is no whole number"),
    "no round": ({"round": None}, "round is no whole number"),
    "a short digest": ({"digest": "ab"}, "digest is not 32"),
    "a digest with an escape": ({"digest": "\x1b" * 32}, "digest is not 32"),
    "no digest": ({"digest": None}, "digest is not 32"),
    "an evaluation of infinite length": ({"seconds": math.inf}, "seconds: inf"),
    "a field that nobody knows": ({"epsilon": 0.1}, "a field 'epsilon'"),
    "figures that are a list": ({"by_client": []}, "by_client is no table"),
    "figures with a round": ({"by_client": {"a": {"held_out": 1, "round": 1}}}, "round is a field of the line itself"),
    "figures of 400 digits": ({"by_client": {"a": {"held_out": LONG}}}, "a number of about 401 digits examples"),
    "figures of many examples": ({"by_client": {"a": {"held_out": MOST_EXAMPLES + 1}}}, "1000000001 examples"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_is_named(name):
    changes, text = BAD[name]
    with pytest.raises(MessageError, match=text) as error:
        read(**changes)
    assert len(str(error.value)) < 200


def test_phases_are_few_over_a_whole_run():
    phases = Phases(3)
    phases.check(["local", "projection", "a", "b"])
    phases.check(["a", "c"])
    with pytest.raises(MessageError, match="more than 3 phases in all"):
        phases.check(["d"])
    phases.check(["rebuild", "b"])


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
@settings(deadline=None, max_examples=120)
def test_any_report_is_refused_or_can_be_added_up(changes, spent):
    """Whatever it says; what is let through is written and read again, also the sum of three hundred of it."""
    try:
        found = read(**{"spent": {**SPENT, **spent}, **changes})
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
