"""Questions about the weights: whom they wait for, how long, and whose answer is believed.

The clock is the test's.
"""

import asyncio
import json
from math import inf

import pytest

from fedseed.errors import MessageError, NetworkError
from fedseed.federation.coordinator import inquiry
from fedseed.federation.coordinator.inquiry import Inquiry
from fedseed.federation.coordinator.membership import Roster
from fedseed.federation.coordinator.session import CoordinatorSettings, Rejected, Session
from fedseed.orbit import NO_DIGEST
from fedseed.reports.results import RoundLine
from support.heard import Heard

RIGHT, WRONG = "ab" * 16, "cd" * 16
DEADLINE = 600.0


class Ask:
    """An inquiry among scripted hosts: each is told the question, and says what its script makes of
    it.

    Args:
        hosts: for each host a function of (question, seconds that have passed) that returns a
            report's fields, or None.
        speaks_for: the clients of hosts that have others than themselves.
        settings: of the coordinator.
    """

    def __init__(self, hosts, speaks_for=None, **settings):
        self.hosts, self.now, self.asked, self.refused = hosts, 0.0, [], []
        self.heard = Heard()
        settings = CoordinatorSettings(
            dead_after=1e9, **{"deadline": DEADLINE, "patience": inf, **settings}
        )
        self.session = Session(
            self, settings, self.heard, Rejected(self.heard, "run"), "epoch", clock=lambda: self.now
        )
        self.session.pause = self.pause
        speaks_for = {host: [host] for host in hosts} | (speaks_for or {})
        self.roster = Roster(1e9, [client for host in hosts for client in speaks_for[host]])
        for host in hosts:
            self.roster.hello(host, 0)
            for client in speaks_for[host]:
                self.roster.attach(client, host)
        self.inquiry = Inquiry(self.session, self.roster)
        self.question, self.turns = None, 0

    resend_seconds = 2.0

    async def broadcast(self, data, to=None):
        self.question = json.loads(data[1:])
        self.asked.append((self.now, self.question["evaluate"]))

    async def pause(self, seconds):
        """Time passes, and whoever has an answer to the newest question gives it."""
        self.now += seconds
        self.turns += 1
        assert self.turns < 200_000, "it waits for ever"
        for host, script in self.hosts.items():
            said = script(self.question, self.now) if self.question else None
            if said is not None:
                self.say(host, said)

    def say(self, host, said):
        about = {
            "at": 0,
            "epoch": "epoch",
            "round": 2,
            "digest": RIGHT,
            "spent": {},
            "ratio": 0.5,
            "metrics": None,
        }
        try:
            self.inquiry.take(host, "report", json.dumps({**about, **said}).encode())
        except MessageError as error:
            self.refused.append((host, str(error)))

    def ask(self, evaluate=True, digest=True):
        """Ask about round 2; the line, and how long it took."""
        line, began, self.question = RoundLine(2), self.now, None
        asyncio.run(self.inquiry.ask(line, evaluate, digest))
        assert line.round == 2 and self.inquiry.awaited == set()
        return line.to_json(), self.now - began


def honest(question, now):
    host = question["evaluate"]
    return {
        "metrics": None if host is None else {"loss": 1.0},
        "spent": {"losses": 2.0, "counted": 1},
    }


def only_if_asked(name):
    return lambda question, now: honest(
        question if question["evaluate"] == name else {"evaluate": None}, now
    )


def mute(question, now):
    return None


def test_the_next_evaluates_if_the_first_does_not():
    """It costs one deadline, once: from then on the others are asked first, until it has
    evaluated.
    """
    lazy = {"metrics": None}
    one = Ask({"a": lambda question, now: lazy, "b": only_if_asked("b"), "c": only_if_asked("c")})
    line, took = one.ask()
    assert line["loss"] == 1.0 and DEADLINE < took < DEADLINE + 5
    assert one.heard.warnings == [f"round 2: a did not evaluate within {DEADLINE:g} s: asking b"]
    for _ in range(3):
        line, took = one.ask()
        assert line["loss"] == 1.0 and took < 5
    assert [host for _, host in one.asked[-3:]] == ["b"] * 3
    one.say("a", {"metrics": {"loss": 9.0}})  # late, but it does evaluate
    one.hosts["a"] = only_if_asked("a")
    assert one.ask()[1] < 5 and one.asked[-1][1] == "a"


def just_in_time(question, now):
    """Reports when the deadline, as it were, is about to be over."""
    return honest(question, now) if now % DEADLINE > DEADLINE - 5 else None


@pytest.mark.parametrize("evaluate", [False, True])
def test_who_reports_just_before_each_deadline_does_not_hold_the_others_up(evaluate):
    """Nor who evaluates so late: another is tried, and is faster."""
    script = (
        just_in_time
        if not evaluate
        else lambda question, now: (
            just_in_time(question, now) if question["evaluate"] == "a" else {"metrics": None}
        )
    )
    one = Ask({"a": script, **{name: only_if_asked(name) for name in "bcd"}}, patience=30.0)
    for _ in range(10):
        one.ask(evaluate)
    assert one.now < DEADLINE + 20 if evaluate else one.now < 100
    assert evaluate or one.inquiry.stragglers.list_slow() == ["a"]
    assert one.asked[-1][1] == ("b" if evaluate else None)


@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize(
    ("hosts", "liars"), [("ab", "a"), ("ab", "b"), ("abcd", "ab"), ("abcd", "cd"), ("abcde", "ac")]
)
def test_deadlines_shorter_than_the_patience_bound_nothing_less(hosts, liars, evaluate):
    """Who reports at the edge of a short deadline, each time, takes the patience and no more: also
    the one that evaluates, where nobody else has and there is nothing to compare with.
    """
    deadline, patience, began = 3.0, 20.0, 0.0

    def script(name):
        seconds = deadline - 0.3 if name in liars else 0.2

        def report(question, now):
            return only_if_asked(name)(question, now) if now >= began + seconds else None

        return report

    one = Ask({name: script(name) for name in hosts}, deadline=deadline, patience=patience)
    for _ in range(40):
        began = one.now
        one.ask(evaluate)
    # what the others take, the patience with each liar twice (as one that reports and one that
    # evaluates), and a few deadlines until that is seen
    alone, most = 40 * 0.25, 2 * patience * len(liars) + 4 * deadline
    assert one.now < alone + most
    began = one.now
    assert one.ask(evaluate)[1] < 1.0  # and from now on nothing


def test_an_evaluation_does_not_take_the_time_that_others_take_to_report():
    """`a` evaluates at once each time, and stays who evaluates, however late `b` reports."""

    def slow(question, now):
        return {"metrics": None} if now % DEADLINE > 20.0 else None

    one = Ask({"a": only_if_asked("a"), "b": slow, "c": only_if_asked("c")}, patience=30.0)
    for number in range(3):
        one.now = number * DEADLINE
        one.ask()
    assert {host for _, host in one.asked} == {"a"}


def test_whoever_never_reports_is_waited_for_once():
    one = Ask({"a": mute, "b": only_if_asked("b"), "c": only_if_asked("c")})
    line, took = one.ask()
    assert line["processes"] == 2 and DEADLINE < took < 2 * DEADLINE + 5
    assert any("a did not evaluate" in text for text in one.heard.warnings)
    assert one.ask()[1] < 5
    one.say("a", {})  # it reports again, so it is waited for again, in its time
    assert one.ask(evaluate=False)[1] < 5
    one.say("a", {})
    one.now += 4 * DEADLINE
    assert one.ask(evaluate=False)[1] > DEADLINE
    assert (
        one.heard.warnings[-1]
        == f"round 2: no report from a within {DEADLINE:g} s: it will not be asked for 2402 s"
    )
    assert one.ask(evaluate=False)[1] < 5


def test_an_evaluation_that_is_refused_is_no_reason_to_wait():
    """The line's own fields stay what they are, and an evaluation has what the run looks at."""
    measured = {
        "a": {"loss": 0.0, "round": 1},
        "b": {"loss": 0.0},
        "c": {"loss": 1.0, "validation_loss": 1.5},
    }
    scripts = {
        name: lambda question, now, found=found: {"metrics": found}
        for name, found in measured.items()
    }
    one = Ask(scripts, measures=("validation_loss",))
    line, took = one.ask()
    assert took < 10 and line["loss"] == 1.0 and line["validation_loss"] == 1.5
    assert set(one.refused) == {
        ("a", "report: metrics: round: [key]: a reserved name, which a metric can't have"),
        ("b", "report: an evaluation without validation_loss"),
    }
    assert len(one.asked) < 6  # nobody is asked faster the faster it answers


@pytest.mark.parametrize("metrics", [{}, None])
@pytest.mark.parametrize("hosts", ["a", "abc"])
@pytest.mark.parametrize("resend", [2.0, float("inf")], ids=["nats", "flower"])
def test_hosts_that_answer_and_never_evaluate_end_the_run(metrics, hosts, resend):
    one = Ask({name: lambda question, now: {"metrics": metrics} for name in hosts})
    one.resend_seconds = resend
    with pytest.raises(NetworkError, match="but none has sent a usable evaluation"):
        one.ask()
    assert 3 * DEADLINE < one.now < (3 + len(hosts)) * DEADLINE and len(one.asked) > 1
    if metrics is not None:
        assert {host for host, _ in one.refused} == set(hosts)


def test_what_nobody_asked_for_is_not_believed():
    """Though it has the weights of most, and who is asked has others."""
    unasked = {name: lambda question, now: {"metrics": {"loss": 0.0}} for name in "bc"}
    one = Ask({"a": lambda question, now: {**honest(question, now), "digest": WRONG}, **unasked})
    assert one.ask()[0]["loss"] == 1.0


def says(digest):
    return lambda question, now: {"digest": digest}


def test_the_digest_is_that_of_most_clients():
    one = Ask({"a": says(WRONG), "b": says(WRONG), "c": says(RIGHT)}, {"c": ["c", "d", "e"]})
    line, _ = one.ask(evaluate=False)
    assert line["weights_digest"] == RIGHT and one.inquiry.drifted == {"a", "b"}


@pytest.mark.parametrize("liar", [WRONG, NO_DIGEST])
def test_one_of_two_can_t_say_which_weights_are_right(liar):
    one = Ask({"a": says(liar), "b": says(RIGHT)})
    line, _ = one.ask(evaluate=False)
    told = [text for text in one.heard.warnings if "no digest has a majority of clients" in text]
    assert line["weights_digest"] == (None if liar == WRONG else RIGHT) and len(told) == (
        liar == WRONG
    )
    assert not one.inquiry.drifted


def test_costs_are_added_up_and_a_liar_can_t_make_them_crash():
    most = {"forward_passes": 10**15, "losses": 1e53, "counted": 10**15, "seconds": {"local": 1e9}}
    one = Ask(
        {name: lambda question, now: {"spent": most, "ratio": 1e300} for name in "ab"}
        | {"c": honest}
    )
    line, _ = one.ask(evaluate=False)
    assert line["forward_passes"] == 2 * 10**15 and line["seconds"]["local"] == 2e9
    assert json.loads(json.dumps(line)) == line and line["train_loss"] < 1e39


def test_phases_are_few_over_a_whole_run(monkeypatch):
    monkeypatch.setattr(inquiry, "MOST_PHASES", 3)
    one = Ask({"a": mute})
    for names in (["local", "projection", "a", "b"], ["a", "c"], ["d"], ["rebuild", "b"]):
        one.say("a", {"spent": {"seconds": dict.fromkeys(names, 1.0)}})
    assert one.refused == [("a", "report: spent: seconds: more than 3 phases in total")]
