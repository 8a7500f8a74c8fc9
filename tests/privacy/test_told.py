"""What a private run tells: docs/trust.md lists it all, and none of it but the votes depends on a
client's data.
"""

import base64
import json
import re
import zlib
from collections import defaultdict

import numpy as np
import pytest

from fedseed import Federation, FeedSign, Orbit
from fedseed.cli.network import describe
from fedseed.errors import NonFiniteError
from fedseed.federation.coordinator.inquiry import Inquiry
from fedseed.federation.messages import FRAME_BYTES, Message
from fedseed.federation.protocol import Entry, read_header, read_silent, read_step
from fedseed.orbit.file import begin
from fedseed.orbit.header import START
from fedseed.privacy import PrivateScalars, PrivateSign, mechanism_of
from fedseed.privacy.settings import WITHHELD
from fedseed.recipe.settings import Recipe
from fedseed.reports.comparison import Compared, results_sheet
from fedseed.runs.joining import Loading
from fedseed.runs.network import coordinate
from fedseed.transport.base import Transport
from fedseed.transport.memory import Hub, MemoryClient
from support.heard import Ending
from support.parts import part_of
from support.tiers import mark
from support.together import Together
from support.told import CLIENTS, PAGE, contents, data, fields, in_files, listed, still
from support.zeroth_order import OBJECTIVE, model

SETTINGS = {
    "name": "feedsign",
    "epsilon": 0.5,
    "votes_per_round": 3,
    "learning_rate": 0.02,
    "batch": 8,
}
ROUNDS = 4
RECIPE = {
    "seed": 3,
    "rounds": ROUNDS,
    "method": SETTINGS,
    "evaluation": {"every": 2},
    "federation": {"joint": False, "dead_after": 30.0},
}


def federation(kind, method=None, **settings):
    defaults = {"rounds": ROUNDS, "seed": 3, "evaluate_every": 2, "joint": False}
    return Federation(
        model(), data(kind), method or FeedSign(**SETTINGS), OBJECTIVE, **{**defaults, **settings}
    )


def same_draws(patch):
    """Draws that do not depend on the votes, the same in each run: what else differs, differs by
    the data.
    """
    secret = np.random.default_rng(1)
    patch.setattr(
        PrivateSign, "draw", lambda self, sums: [int(secret.choice([-1, 1])) for _ in sums]
    )


# -- listening
# ------------------------------------------------------------------------------------------------


class Recorded(Transport):
    """A transport, and all that its ends are given to carry: (what, bytes)."""

    def __init__(self, inner, heard):
        self.inner, self.heard = inner, heard

    def _spied(self, act, at=None, name=None, answer=None):
        """What notes an argument, under a name or what another one says, and the answer under one
        of its own.
        """

        async def spied(*arguments):
            if at is not None:
                self.heard.append((name or arguments[1], bytes(arguments[at])))
            said = await act(*arguments)
            if answer is not None and said is not None:
                self.heard.append((answer, bytes(said)))
            return said

        return spied

    async def client(self, name, events):
        end = await self.inner.client(name, events)
        end.send, end.put = self._spied(end.send, 2), self._spied(end.put, 1, "object")
        end.ask = self._spied(end.ask, 2, answer="answer")
        return end

    async def coordinator(self, events):
        end = await self.inner.coordinator(events)
        end.broadcast, end.put = (
            self._spied(end.broadcast, 0, "broadcast"),
            self._spied(end.put, 1, "object"),
        )

        async def writer(*arguments, make=end.writer):
            made = await make(*arguments)
            made.append = self._spied(made.append, 0, "log")
            return made

        end.writer = writer
        return end

    async def watcher(self):
        end = await self.inner.watcher()
        end.status = self._spied(end.status, answer="status")
        return end


def over(way, kind, out, ask=False, restart=False, recipe=RECIPE):
    """A run with a process for each two clients; what was carried.

    `ask`: for the status, after each line of metrics. `restart`: the coordinator ends after round
    2, another goes on."""
    heard, checked = [], Recipe.model_validate(recipe)
    listening = Recorded(way, heard)
    clients = Together(checked, lambda: listening)
    pairs = [(f"client-{n}", f"client-{n + 1}") for n in range(0, CLIENTS, 2)]
    # not at once: by a global generator
    hosting = {names: federation(kind, checked.method) for names in pairs}
    for names in pairs:
        clients.host(names, lambda names=names: part_of(hosting[names], names))
    asked = Inquiry.ask

    async def with_status(self, line, *arguments):
        found = await asked(self, line, *arguments)
        end = await listening.watcher()
        await end.status(5)
        await end.close()
        return found

    with pytest.MonkeyPatch.context() as patch:
        if ask:
            patch.setattr(Inquiry, "ask", with_status)
        if restart:
            with pytest.raises(KeyboardInterrupt):
                coordinate(checked, "run", listening, out, progress=Ending(2))
        result = coordinate(checked, "run", listening, out)
    assert len(clients.wait()) == 1
    return heard, result


# -- what was told, by place and field
# -------------------------------------------------------------------------------


def header_fields(start):
    *_, size = START.unpack_from(start)
    return set(json.loads(zlib.decompress(start[START.size : START.size + size])))


def told(what, data):
    """Place and fields of a message.

    In canonical form, without what time and chance alone decide.
    """
    if what == "update" and data[:2] == b"FN":
        number, attempt, reason = read_silent(data)
        return "update, silent", {"round", "attempt", "reason"}, (number, attempt, reason)
    if what == "update":
        message = Message.decode(data)
        assert len(message.payload) == 1  # three votes in a byte: no room for anything else
        assert message.payload[0] < 8
        # not the votes, nor the checksum over them
        return "update", {"frame", "votes"}, data[: FRAME_BYTES - 4]
    if what == "log":
        entry = Entry.decode(data)
        if entry.kind == "H":
            about, header, _ = read_header(entry)
            start = begin(header)
            return (
                "log, header",
                {*fields(about.model_dump()), *header_fields(start)},
                (about.names, start),
            )
        if entry.kind == "T":
            _, message = read_step(entry)
            assert len(message) == FRAME_BYTES + 1
            return "log, step", {"link", "frame", "votes"}, entry.body
        names = {"S": {"session"}, "M": {"round", "digest"}, "E": set()}
        return f"log, {entry.kind}", names[entry.kind], b"" if entry.kind == "S" else entry.body
    if what == "broadcast":
        kind, body = data[:1], data[1:]
        if kind == b"A":
            return "question", set(fields(json.loads(body))), json.loads(body)
        return {
            b"C": ("call", {"epoch"}, None),
            b"P": ("plan", {"clients", "frame"}, body[-FRAME_BYTES:]),
        }[kind]
    about = json.loads(data)
    names = set(fields(about))
    if what == "hello":
        names |= {f"header.{name}" for name in header_fields(base64.b64decode(about["header"]))}
    return {"answer": "answer to hello"}.get(what, what), names, still(about)


def by_place(heard):
    return merged({place: names} for place, names, _ in (told(*one) for one in heard))


def merged(tables):
    """Fields by place of several such tables."""
    found = defaultdict(set)
    for table in tables:
        for place, names in table.items():
            found[place] |= names
    return found


def canonical(heard):
    return {
        (place, json.dumps(form, default=repr)) for place, _, form in (told(*one) for one in heard)
    }


def in_all_files(folder):
    """Fields by file, also of the log and the orbit."""
    found = in_files(folder)
    found["log.txt"] = {line.split()[1] for line in (folder / "log.txt").read_text().splitlines()}
    (path,) = folder.glob("*.orbit")
    assert {len(record.payload) for record in Orbit.open(path).records} == {1}
    found[path.name] = {*header_fields(path.read_bytes()), "round", "votes", "digest", "link"}
    return found


def unlisted(found):
    """What is told and not on the page."""
    page = listed()
    return {
        f"{place}: {name}"
        for place, names in found.items()
        for name in names - page.get(place, set())
    } | {place for place in found if place not in page}


# -- tests
# ------------------------------------------------------------------------------------------------


def test_a_simulation_writes_the_same_whatever_the_data(monkeypatch, tmp_path):
    """With the same draws nothing in its files differs: no loss, no count, no reason, no
    warning.
    """
    folders = {kind: tmp_path / kind for kind in ("plain", "odd")}
    for kind, folder in folders.items():
        same_draws(monkeypatch)
        notes = [f"{sum(map(len, data(kind)))} examples"]
        federation(kind, out=folder, recipe_text="rounds = 4", notes=notes).run()
    assert contents(folders["plain"]) == contents(folders["odd"])
    assert not unlisted(in_all_files(folders["odd"]))
    lines = [
        json.loads(line) for line in (folders["odd"] / "metrics.jsonl").read_text().splitlines()
    ]
    assert (
        lines[-1]["skipped"] == []
        and lines[-1]["train_loss"] is None
        and lines[-1]["skipped_steps"] == 0
    )
    assert "local" not in lines[-1]["seconds"]
    page = (folders["odd"] / "report.html").read_text()
    assert "feedsign" in page and "179 examples" not in page and "usable example" not in page


@pytest.fixture(scope="module")
def carried(tmp_path_factory):
    """Two runs over the transport in memory that differ in the clients' data only."""
    found = {}
    for kind in ("plain", "odd"):
        with pytest.MonkeyPatch.context() as patch:
            same_draws(patch)
            out = tmp_path_factory.mktemp(kind) / "run"
            found[kind] = over(Hub().transport("run"), kind, out, ask=True)[0], out
    return found


def test_messages_and_the_coordinators_files_are_the_same_whatever_the_data(carried):
    """All but the votes in updates: those the coordinator and the server's host see."""
    (plain, folder), (odd, other) = carried["plain"], carried["odd"]
    assert contents(folder) == contents(other)
    same = [
        canonical([one for one in heard if one[0] not in ("status", "answer")])
        for heard in (plain, odd)
    ]
    assert same[0] == same[1]
    votes = [{data for what, data in heard if what == "update"} for heard in (plain, odd)]
    assert votes[0] != votes[1]  # the comparison is of runs whose clients do differ


SCALARS = {
    "example": {"clip": 0.01, "noise": 1.0, "sampling": "poisson", "examples": 40},
    "client": {"clip": 1.0, "noise": 2.0},
}


@pytest.mark.long
@pytest.mark.parametrize("level", mark(SCALARS, lambda level: level == "client"))
def test_messages_with_scalars_are_the_same_whatever_the_data(level, monkeypatch, tmp_path):
    """With noisy sums that are: all messages, but the updates that a coordinator adds noise to.

    And a restart.
    """
    monkeypatch.setattr(
        PrivateScalars, "noisy_sum", lambda self, vectors, length: np.full(length, 1e-3)
    )
    method = {"name": "zo-fedsgd", "seeds": "shared", "learning_rate": 0.02, "batch": 8}
    recipe = {**RECIPE, "method": method, "privacy": {"level": level, **SCALARS[level]}}
    page, carried = merged([listed(), listed(PAGE.parent / "privacy.md")]), {}
    for kind in ("plain", "odd"):
        heard, result = over(
            Hub().transport("run"), kind, tmp_path / kind, True, kind == "odd", recipe
        )
        updates = {data for what, data in heard if what == "update"}
        assert len(updates) == ROUNDS * CLIENTS and {len(data) for data in updates} == {
            FRAME_BYTES + 4
        }
        steps = {data for what, data in heard if what == "log" and Entry.decode(data).kind == "T"}
        assert len(steps) == ROUNDS
        rest = [one for one in heard if one[0] != "update" and one[1] not in steps]
        assert all(names <= page[place] for place, names in by_place(rest).items())
        same = {one for one in canonical(rest) if one[0] not in ("status", "answer to hello")}
        carried[kind] = same, steps, updates
        spent = mechanism_of(Recipe.model_validate(recipe).method).spent
        assert (
            result.summary["privacy"] == spent(ROUNDS)
            and result.metrics[-1]["epsilon"] == spent(ROUNDS)["epsilon"]
        )
        statuses = [json.loads(data) for what, data in heard if what == "status"]
        assert [one["privacy"] for one in statuses] == [spent(number) for number in (0, 2, 4)]
        assert f"privacy  level {level}, adjacency" in "\n".join(describe(statuses[-1]))
    assert carried["plain"][:2] == carried["odd"][:2]
    assert (carried["plain"][2] == carried["odd"][2]) == (level == "example")


def test_the_page_lists_all_that_is_carried_in_memory_and_nothing_else(carried, tmp_path):
    """What stands on the page and is not seen here is named there as seen elsewhere."""
    heard, out = carried["odd"]
    found = by_place(heard)
    assert {
        "hello",
        "attach",
        "beat",
        "report",
        "update",
        "status",
        "plan",
        "log, step",
    } <= found.keys()
    assert not unlisted(found) and not unlisted(in_all_files(out))
    federation("odd", out=tmp_path / "run", recipe_text="rounds = 4").run()
    seen = merged([found, in_all_files(out), in_all_files(tmp_path / "run")])
    text = (
        PAGE.read_text(encoding="utf-8")
        .split("<!-- told: begin -->")[1]
        .split("<!-- told: end -->")[0]
    )
    rare = set(re.findall(r"`([^`]+)`", " ".join(re.findall(r"sometimes: ([^|]*)", text))))
    stale = {
        f"{place}: {name}"
        for place, names in listed().items()
        for name in names - seen[place] - rare
    }
    assert not stale and set(listed()) <= set(seen) | rare


# -- the account
# ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_no_report_changes_the_account(monkeypatch, tmp_path):
    """What clients say of rounds, votes, epsilon, examples: the coordinator counts its own steps,
    restarted too.
    """
    lie = {
        "round": 1,
        "rounds": 0,
        "votes": 0,
        "epsilon": 0.0,
        "privacy": {"epsilon": 0.0},
        "steps": 0,
    }
    send = MemoryClient.send

    async def lying(self, client, what, data):
        about = json.loads(data) if what == "report" else {}
        if about:
            spent = {"losses": 3.5, "counted": 1, "forward_passes": 0, "seconds": {"local": 2.0}}
            metrics = {name: value for name, value in lie.items() if name != "privacy"}
            for wrong in ({"metrics": metrics}, {"examples": -5}, {"privacy": lie}):  # refused
                await send(self, client, what, json.dumps({**about, **wrong}).encode())
            about = {**about, "metrics": {"votes": 0.0}, "ratio": 0.0, "spent": spent}
        await send(self, client, what, json.dumps(about).encode() if about else data)

    monkeypatch.setattr(MemoryClient, "send", lying)
    heard, result = over(Hub().transport("run"), "plain", tmp_path / "run", ask=True, restart=True)
    counted = PrivateSign(0.5, 3)
    assert result.summary["privacy"] == counted.spent(ROUNDS) and result.summary["rounds"] == ROUNDS
    statuses = [json.loads(data) for what, data in heard if what == "status"]
    assert [one["privacy"] for one in statuses] == [counted.counted(number) for number in (0, 2, 4)]
    assert (
        "privacy  epsilon per vote 0.5, votes 12, epsilon pure 6 (plain composition)"
        in describe(statuses[-1])
    )
    sheet = results_sheet("", [Compared("dp", [result.summary])])
    assert "Privacy spent by dp: epsilon per vote 0.5, votes 12" in sheet.note
    assert all(line.get("train_loss") is None for line in result.metrics)


# -- what a client does, whoever asks
# --------------------------------------------------------------------------------


def test_a_reason_is_not_told(monkeypatch):
    """Of a method that leaves it to the client to be silent: it is silent about why."""
    one = federation("odd")
    one.coordinator.open(1)

    def silent(self, state, plan, client):
        raise NonFiniteError("a reason")

    monkeypatch.setattr(FeedSign, "train", silent)
    answer = one.worker.train(one.coordinator.plan(1), 1, [])
    assert answer.message is None and answer.reason == WITHHELD


def test_evaluation_is_off_unless_the_recipe_allows_it(tmp_path):
    """A coordinator may ask for it.

    A client of a private run measures nothing, and opens nothing for it.
    """
    (tmp_path / "one.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 10)
    table = {**RECIPE, "task": {"name": "files", "path": str(tmp_path)}}
    private = Recipe.model_validate(table)
    assert Loading(private, ["one"])._evaluate_with(None)(None) == {}
    allowed = Recipe.model_validate({**table, "evaluation": {"disclose": True}})
    with pytest.raises(AttributeError):  # it begins to measure, with equipment that is none
        Loading(allowed, ["one"])._evaluate_with(None)(None)
    assert allowed.evaluates and not private.evaluates
    assert Recipe.model_validate({**table, "method": {"name": "feedsign"}}).evaluates
