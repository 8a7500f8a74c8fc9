"""Rounds in which somebody is there and never answers. The clock is the test's."""

import asyncio
from math import inf

import pytest

from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.coordinator.membership import Roster
from fedseed.federation.coordinator.rounds import Rounds
from fedseed.federation.coordinator.session import CoordinatorSettings, Rejected, Session
from fedseed.federation.messages import Message, MessageKind
from fedseed.federation.protocol import read_plan
from fedseed.methods import FeedSign, ZOFedSGD
from fedseed.privacy import PrivacySettings, protect
from fedseed.transport.memory import MemoryEnd
from support.heard import Heard
from support.reception import LAYOUT

DEADLINE = 600.0
METHOD = FeedSign()


class Answering:
    """Rounds whose plans are answered by scripts, a moment after they are sent.

    Args:
        clients: for each client a function of the round that returns whether it answers; "late":
            after the round.
        method: the run's.
        payload: of each answer.
        away: a client that comes after ten looks.
        settings: of the coordinator.
    """

    largest = MemoryEnd.largest

    def __init__(self, clients, per_round, method=METHOD, payload=b"\x01", away=None, **settings):
        self.method, self.payload, self.away = method, payload, away
        self.clients, self.now, self.heard, self.late = clients, 0.0, Heard(), []
        settings = CoordinatorSettings(
            dead_after=1e9, deadline=DEADLINE, **{"patience": inf, **settings}
        )
        self.session = Session(
            self, settings, self.heard, Rejected(self.heard, "run"), "epoch", clock=lambda: self.now
        )
        self.session.pause = self.pause
        self.roster = Roster(1e9, list(clients))
        for name in clients:
            if name != away:
                self.come(name)
        self.coordinator = Coordinator(method, LAYOUT, 7, [1] * len(clients), per_round)
        self.rounds = Rounds(self.session, self.roster, self.coordinator, 1000)
        self.rounds.grace = 0.0
        self.turns = 0

    def come(self, name):
        self.roster.hello(name, 0)
        self.roster.attach(name, name)

    resend_seconds = 2.0

    async def broadcast(self, data, to=None):
        self.plan = Message.decode(read_plan(data[1:])[1])

    async def drop(self, owner, name):
        pass

    def answer(self, client, number):
        update = Message(
            MessageKind.UPDATE, self.method.code, number, client, self.payload, self.plan.attempt
        ).encode()
        self.rounds.take(list(self.clients)[client], update)

    async def pause(self, seconds):
        self.now += 40 * seconds
        self.turns += 1
        assert self.turns < 100_000, "it waits for ever"
        if self.turns == 10 and self.away is not None:
            self.come(self.away)
        if self.rounds.open is None:
            return
        for client in sorted(self.rounds.open.missing):
            if list(self.clients.values())[client](self.plan.round):
                self.answer(client, self.plan.round)

    def round(self, number):
        """One round: who took part, and how long it took."""
        began = self.now
        gathered = asyncio.run(self.rounds.gather(number))
        self.coordinator.close()
        self.skipped = gathered.skipped
        return [list(self.clients)[client] for client in gathered.clients], self.now - began


yes, no = (lambda number: True), (lambda number: False)


def test_whoever_never_answers_costs_less_and_less():
    one = Answering({"a": no, "b": yes, "c": yes, "d": yes}, 3, minimum=2)
    costs = [one.round(number) for number in range(1, 401)]
    waited = [number for number, (who, took) in enumerate(costs, 1) if took >= DEADLINE]
    assert all(("a" in who) == (took >= DEADLINE) for who, took in costs)
    assert all(len(who) == 3 for who, took in costs)  # another takes its place
    assert len(waited) == 3 and one.now < 3 * (DEADLINE + 10) + 400 * 10
    said = [text for text in one.heard.warnings if "not be asked" in text]
    assert said[0] == (
        f"round {waited[0]}: no answer of a that counts has come within 600 s: it will not be "
        "asked for 1200 s"
    )
    assert [text.rsplit(" for ", 1)[1] for text in said] == ["1200 s", "2400 s", "4800 s"]


def test_who_answers_just_before_each_deadline_takes_no_more_time_than_the_others():
    began = {}
    late = lambda number: one.now >= began.setdefault(number, one.now) + DEADLINE - 20  # noqa: E731
    one = Answering({"a": late, "b": yes, "c": yes, "d": yes}, 4, patience=30.0)
    for number in range(1, 101):
        one.round(number)
    assert one.now < 2 * 100 * 10  # what the others take alone, each round 10 s
    assert one.rounds.stragglers.list_slow() == [0]
    said = [text for text in one.heard.warnings if "not be asked" in text]
    assert said[0] == (
        "round 1: no answer of a that counts has come within 130 s: it will not be asked for 260 s"
    )


def test_who_is_the_last_of_each_round_by_far_is_left_out_when_that_adds_up():
    """No round waits for it for as long as the patience is; three do."""
    began = {}
    last = lambda number: one.now >= began.setdefault(number, one.now) + 130  # noqa: E731
    one = Answering({"a": last, "b": yes, "c": yes, "d": yes}, 4, patience=200.0)
    rounds = [one.round(number)[0] for number in range(1, 101)]
    assert [len(clients) for clients in rounds[:4]] == [4, 4, 3, 3] and one.now < 2 * 100 * 10
    assert one.rounds.stragglers.list_slow() == [0]


@pytest.mark.parametrize("more", [{"patience": 1e6}, {"minimum": 2}])
def test_one_that_is_slow_by_right_is_waited_for(more):
    """Where the settings say so, or where it is needed."""
    one = Answering({"a": lambda number: one.now % 500 > 480, "b": yes}, 2, **more)
    assert all(one.round(number)[0] == ["a", "b"] for number in range(1, 10)) and one.now > 4000


def test_machines_that_stall_in_turns_hold_nobody_up():
    """Each of them is ten times as slow as the others now and then, as on a busy machine."""
    stalls = {}

    def turn(mine):
        return lambda number: (
            number % 4 != mine or stalls.setdefault(number, one.now) + 90 <= one.now
        )

    one = Answering({name: turn(at) for at, name in enumerate("abcd")}, 4, patience=30.0)
    assert all(len(one.round(number)[0]) == 4 for number in range(1, 201))


def test_one_that_answers_again_is_as_any_other():
    one = Answering({"a": lambda number: number != 1, "b": yes}, 2)
    assert one.round(1) == (["a", "b"], DEADLINE) and one.skipped == [(0, "no answer within 600 s")]
    assert one.round(2)[0] == ["b"]
    one.now += 2 * DEADLINE
    assert one.round(3) == (["a", "b"], 10.0) == one.round(4)


def test_one_whose_answers_are_refused_is_left_out_too():
    one = Answering({"a": no, "b": yes}, 2)
    pause = one.session.pause

    async def nonsense(seconds):
        one.rounds.take("a", b"nonsense" * 5)
        await pause(seconds)

    one.session.pause = nonsense
    assert one.round(1) == (["a", "b"], DEADLINE) and one.round(2)[0] == ["b"]


def test_who_is_needed_is_asked_all_the_same():
    one = Answering({"a": lambda number: number != 1 or one.now > 1000, "b": yes}, 2, minimum=2)
    assert one.round(1)[0] == ["a", "b"] and 1000 < one.now < 1050
    assert one.rounds.repeated == 1


def test_under_privacy_nobody_takes_the_place_of_one_that_is_away():
    """A round whose one client is away waits for it; others go on.

    So no client has more turns than are counted.
    """
    method = protect(ZOFedSGD(seeds="shared"), PrivacySettings(level="client", clip=1.0, noise=1.0))
    run = Answering({"a": yes, "b": yes}, 1, method, b"\0" * 4, away="b")
    asked = [run.coordinator.sample_clients(number) for number in range(1, 9)]
    assert {0} in map(set, asked) and {1} in map(set, asked)
    taken = [run.round(number)[0] for number in range(1, 9)]
    assert taken == [["ab"[client] for client in clients] for clients in asked] and run.turns >= 10
    assert run.coordinator.counted == max(sum(c == [n] for c in asked) for n in (0, 1))
