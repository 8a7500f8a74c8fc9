"""Refusals are counted in bounded memory, and an answer about the status is small, whatever clients
have sent.
"""

import asyncio
import json

import pytest

from fedseed.errors import NetworkError
from fedseed.federation.coordinator import session as rejected
from fedseed.federation.coordinator.network import NetworkCoordinator, status_answer
from fedseed.federation.coordinator.session import CoordinatorSettings, Rejected
from fedseed.methods import FeedSign
from fedseed.reports.progress import Progress
from fedseed.transport.memory import Hub
from support.heard import Heard


def test_all_are_counted_in_bounded_memory_and_the_first_are_told(monkeypatch):
    monkeypatch.setattr(rejected, "MOST_SENDERS", 20)
    heard = Heard()
    counted = Rejected(heard, "run")
    for reason in range(80):
        for _ in range(2):
            counted.add("mallory", f"reason {reason}")
    assert (
        len(heard.warnings) == rejected.MOST_SHOWN + 1
        and "fedseed status run" in heard.warnings[-1]
    )
    assert heard.warnings[0] == "a message of mallory is refused: reason 0"
    for sender in range(100):
        counted.add(f"sender {sender}", "garbage")
    counts = counted.counts()
    assert counts["mallory"]["reason 0"] == 2 and counts["mallory"]["others"] == 2 * (
        80 - rejected.MOST_REASONS
    )
    assert len(counts) <= 21 and counts["others"] == {"garbage": 81}
    assert counted.since() == 260 == sum(sum(reasons.values()) for reasons in counts.values())
    assert counted.since() == 0


def test_what_is_kept_is_short_and_a_terminal_can_show_it():
    heard = Heard()
    counted = Rejected(heard, "run")
    counted.add(
        "m\x1b[31mallory" + "y" * 1000,
        "not JSON:\r\n\x1b]0;owned\x07 \u202egnp.exe \ud800" + "x" * 900_000,
    )
    ((sender, reasons),) = counted.counts().items()
    ((reason, count),) = reasons.items()
    assert count == 1 and len(sender) <= 100 and len(reason) <= 200
    assert reason.startswith("not JSON: \\x1b]0;owned\\x07 \\u202egnp.exe \\ud800xxx")
    assert all(c.isprintable() for text in (sender, reason, *heard.warnings) for c in text)


def test_many_senders_of_many_reasons_fit_into_an_answer():
    """Those that have not come up for longest are forgotten first, in number and not in sum."""
    counted = Rejected(Progress(), "run")
    for reason in range(40):
        for sender in range(300):
            counted.add(f"client-{sender}", f"{reason} " + "\U0001f600" * 10_000)
            counted.add("honest", "has answered round 3 already")
    counts = counted.counts()
    assert sum(sum(reasons.values()) for reasons in counts.values()) == 2 * 40 * 300
    assert sum(len(reasons) for reasons in counts.values()) <= rejected.MOST_REMEMBERED + len(
        counts
    )
    assert counts["honest"] == {"has answered round 3 already": 40 * 300}
    assert counts["client-0"]["others"] >= 39 and len(json.dumps(counts)) < 1 << 20


MOST = 256 * 1024


def status(**more):
    return {
        "run": "x",
        "round": 3,
        "began": 1.5,
        "away": [],
        "last": {"loss": 0.5, "by": None},
        "refusals": {},
        **more,
    }


def test_a_small_status_is_said_whole():
    about = status(refusals={"a": {"bad": 3, "worse": 1}}, away=["b"], behind={"a": 3})
    assert json.loads(status_answer(about, MOST)) == about


@pytest.mark.parametrize(
    "refusals",
    [
        {"a": {"x" * 900_000 + str(n): 1 for n in range(60)}},
        {f"{n}{'é' * 1000}": {"r": 2} for n in range(3000)},
        {f"client-{n}": {"\x1b" * 300 + str(m): 1 for m in range(50)} for n in range(40)},
    ],
)
def test_refusals_are_shortened_and_all_counted(refusals):
    answer = status_answer(status(refusals=refusals), MOST)
    about = json.loads(answer)
    assert len(answer) <= MOST and (about["round"], about["last"]) == (3, {"loss": 0.5, "by": None})
    counted = sum(sum(reasons.values()) for reasons in about["refusals"].values())
    assert counted == sum(sum(reasons.values()) for reasons in refusals.values())


def test_a_client_that_can_not_be_answered_is_named_once_and_not_at_each_hello(monkeypatch):
    """As on a server with too little storage for the client's objects: it asks again and again."""
    heard = Heard()

    async def talk():
        end = await Hub().transport("run").coordinator()
        coordinator = NetworkCoordinator(
            end, "run", FeedSign(), 0, 1, CoordinatorSettings(names=("north", "south")), heard
        )

        async def fail(sender, message):
            raise NetworkError(f"the object store of {sender} can't be made")

        monkeypatch.setattr(coordinator.reception, "hello", fail)
        for _ in range(50):
            for name in ("north", "south"):
                hello = {"host": name, "header": "", "names": [name], "at": 0}
                assert await coordinator.receive(name, "hello", json.dumps(hello).encode()) is None

    asyncio.run(talk())
    assert heard.warnings == [
        f"{name} can't be answered now: the object store of {name} can't be made"
        for name in ("north", "south")
    ]
