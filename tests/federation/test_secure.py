"""Secure sums over a transport: as in one process, whoever goes, and whatever a coordinator
forgets.
"""

import asyncio
import json
import re
from functools import partial
from itertools import cycle, pairwise
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedseed.errors import FedseedError, MessageError
from fedseed.federation.client import secure
from fedseed.federation.client.answers import Responder
from fedseed.federation.coordinator.secure import SecureCoordinator
from fedseed.federation.messages import FRAME_BYTES
from fedseed.federation.protocol import SAID, plan_message
from fedseed.privacy.secure import LostError
from fedseed.privacy.secure.messages import Phase, Terms
from fedseed.privacy.secure.settings import identity_text
from fedseed.recipe.settings import Recipe
from fedseed.reports.progress import Progress
from fedseed.runs.network import coordinate
from fedseed.transport.memory import Hub, MemoryClient
from support.heard import Ending, Heard
from support.network import federation_of, in_process, repeats, until
from support.parts import part_of
from support.problem import Problem
from support.secure import ABSURD, Liar, in_the_clear
from support.tiers import mark
from support.together import Together

pytestmark = pytest.mark.usefixtures("quickly")

TRAINING = {"learning_rate": 0.3, "batch": 8, "accumulation": 2, "steps": 5}
METHODS = {
    "ferret": {
        "name": "ferret",
        "directions": 60,
        "blocks": "tensor",
        "seeds": "shared",
        "allocation": "previous",
        "training": TRAINING,
    },
    "zo-fedsgd": {
        "name": "zo-fedsgd",
        "basis": "rademacher",
        "seeds": "shared",
        "learning_rate": 1e-2,
        "batch": 8,
    },
    "feedsign": {"name": "feedsign", "basis": "rademacher", "learning_rate": 1e-2, "batch": 8},
    "fedkseed": {
        "name": "fedkseed",
        "candidates": 64,
        "steps": 4,
        "learning_rate": 1e-2,
        "batch": 8,
    },
}
HOSTS = (("client-0", "client-3"), ("client-1",), ("client-2", "client-4"))


def recipe(method, rounds=4, **more):
    federation = {"joint": False, "dead_after": 30.0, **more.pop("federation", {})}
    sums = {"threshold": 3, "ahead": 2, **more.pop("secure_sums", {})}
    return Recipe.model_validate(
        {
            "seed": 3,
            "rounds": rounds,
            "evaluation": {"every": rounds},
            "method": METHODS[method],
            "federation": federation,
            "secure_sums": sums,
            **more,
        }
    )


class Run(Together):
    """Clients in threads, and what they send, over a hub."""

    def __init__(self, checked, problem, monkeypatch=None, identities=None, opened=None):
        self.hub, self.sent, self.identities, self.opened = Hub(), [], identities or {}, opened
        super().__init__(checked, lambda: self.hub.transport("run"))
        self.federations = {names: federation_of(problem, checked) for names in HOSTS}
        if monkeypatch is not None:
            send = MemoryClient.send

            async def spied(end, client, what, data):
                if end._shared is self.way()._shared:  # another test's may still be there
                    self.sent.append((client, what, bytes(data)))
                await send(end, client, what, data)

            monkeypatch.setattr(MemoryClient, "send", spied)

    def load(self, names):
        hosted = part_of(self.federations[names], names)
        hosted.identities = {
            name: self.identities[name] for name in names if name in self.identities
        }
        hosted.opened = self.opened
        return hosted

    def here(self, out, progress=None):
        """The coordinator in this thread, with the clients that it finds, or that begin now."""
        for names in HOSTS if not self._threads else ():
            self.host(names, partial(self.load, names))
        return coordinate(self.checked, "run", self.way(), out, progress=progress)

    def end(self):
        (digest,) = self.wait()
        return digest


def alone(checked, problem):
    return in_process(problem, checked.model_dump(exclude_none=True))


@pytest.mark.parametrize("method", mark(METHODS, lambda name: name != "ferret"))
def test_the_result_is_that_of_one_process(method, problem, tmp_path):
    checked = recipe(method)
    expected, run = alone(checked, problem), Run(checked, problem)
    result = run.here(tmp_path / "run")
    assert run.end() == expected.summary["weights_digest"] == result.summary["weights_digest"]
    assert repeats(result.summary["refusals"]) and result.summary["repeated_rounds"] == 0
    for key in ("bytes_up", "bytes_down", "skipped", "train_loss"):
        assert [line.get(key) for line in result.metrics[1:]] == [
            line.get(key) for line in expected.metrics[1:]
        ]


GONE, BEFORE = b"\0gone", bytes([secure.OPENED]) + b"before"


@pytest.mark.parametrize(
    ("says", "text"),
    [
        ({3: GONE, 4: GONE}, "gives no answer for a secure sum: gone"),
        ({2: GONE, 3: GONE, 4: GONE}, "gives no answer for a secure sum: gone"),
        ({2: GONE, 3: BEFORE, 4: GONE}, "client-3 has opened this or a later round before"),
    ],
    ids=["two", "three", "one says so of every round"],
)
def test_who_says_nothing_when_the_sum_is_opened_is_in_it_all_the_same(
    says, text, problem, tmp_path, monkeypatch
):
    """Two of five, once; three are too many: they are asked again.

    And one alone does not say that a round is lost.
    """
    answered, silent = secure.answer_ask, []

    def fails(masking, client, ask):
        said = answered(masking, client, ask)
        if (
            client not in says
            or ask[0] != Phase.OPEN
            or (says[client] == GONE and client in silent)
        ):
            return said
        silent.append(client)
        return said[:17] + says[client]

    monkeypatch.setattr(secure, "answer_ask", fails)
    checked = recipe("zo-fedsgd")
    expected, run, told = alone(checked, problem), Run(checked, problem), Heard()
    result = run.here(tmp_path / "run", told)
    assert run.end() == expected.summary["weights_digest"]
    assert result.summary["repeated_rounds"] == 0 and set(silent) == set(says)
    assert any(text in warning for warning in told.warnings)


@pytest.mark.parametrize("when", ["opening", "close"])
def test_a_coordinator_that_ends_within_a_round_and_one_that_goes_on(
    when, problem, tmp_path, monkeypatch
):
    """Vectors of round 2 have come: the next one gets them in another attempt, but none opens a
    round again.

    Where it was opened and its step not written, that is an empty one.
    """
    checked, coordinators, told = recipe("feedsign"), [], Heard()
    expected, run, act = (
        alone(checked, problem),
        Run(checked, problem),
        getattr(SecureCoordinator, when),
    )

    def ends(self):
        coordinators.append(self)
        if len(coordinators) == 2:
            raise KeyboardInterrupt
        return act(self)

    monkeypatch.setattr(SecureCoordinator, when, ends)
    with pytest.raises(KeyboardInterrupt):
        run.here(tmp_path / "run")
    summary = run.here(tmp_path / "run", told).summary
    assert run.end() == summary["weights_digest"]
    assert summary["rounds"] == 4 and coordinators[0] is not coordinators[2]
    lost = any(
        "round 2: the step was not applied" in text and "its sum is lost" in text
        for text in told.warnings
    )
    assert summary["not_taken"] == lost == (when == "close")
    if when == "opening":
        assert (
            summary["weights_digest"] == expected.summary["weights_digest"]
            and summary["repeated_rounds"] == 1
        )


@pytest.mark.parametrize("lie", ["accuses all", "another share"])
def test_a_coordinator_that_is_started_again_knows_who_is_barred(
    lie, problem, tmp_path, monkeypatch
):
    """By what it has kept, which is checked: no attempt is lost to a liar of before, and nobody
    else is kept out.
    """

    class Client(Liar):
        def __init__(self, number, *arguments):
            super().__init__(number, *arguments, lie=lie if number == 1 else "")

    monkeypatch.setattr(secure, "SecureClient", Client)
    run = Run(recipe("zo-fedsgd", evaluation={"every": 1}), problem)
    with pytest.raises(KeyboardInterrupt):
        run.here(tmp_path / "run", Ending(2))
    (path,) = (tmp_path / "run" / "proofs").iterdir()
    (path.parent / "2.json").write_bytes(path.read_bytes())  # it shows nothing of another client
    (path.parent / "3.json").write_text('{"terms": 1}')
    told = Heard()
    result = run.here(tmp_path / "run", told)
    run.end()
    assert (
        path.name == "1.json"
        and result.summary["repeated_rounds"] == 0
        and not result.summary["not_taken"]
    )
    assert (
        {*result.metrics[3]["clients"]}
        == {*result.metrics[4]["clients"]}
        == {f"client-{n}" for n in (0, 2, 3, 4)}
    )
    assert list(result.summary["refusals"]) == ["client-1"]
    assert sum("is not a valid proof, so it bars no client" in text for text in told.warnings) == 2


@pytest.mark.parametrize(("bits", "times"), [(4, 1), (32, 0)])
def test_values_of_few_steps_are_warned_of_once(bits, times, problem, tmp_path):
    """In steps of a 16th a projection of 3 has 48, a hundredth and more of which is lost."""
    told = Heard()
    checked = recipe("zo-fedsgd", rounds=2, secure_sums={"fraction_bits": bits})
    federation = federation_of(problem, checked, progress=told)
    federation.run()
    texts = [text for text in told.warnings if "raise secure_sums.fraction_bits" in text]
    assert len(texts) == times
    if times:
        assert (
            texts[0].startswith("round 1: the largest value is ")
            and "round to steps of 6.2e-02" in texts[0]
        )
        lost = re.search(r"value is (\S+), but .* loses at least (\d+)%", texts[0])
        assert int(lost[2]) == pytest.approx(100 * 2**-5 / float(lost[1]), rel=0.06)


def test_a_process_that_is_started_again_opens_no_round_twice(problem, tmp_path):
    """It remembers in files what it has opened, and does not take part in a run whose log was set
    back.
    """
    checked, folder = recipe("feedsign"), tmp_path / "opened"
    run = Run(checked, problem, opened=folder)
    run.here(tmp_path / "run")
    run.end()
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        f"client-{n}": "4" for n in range(5)
    }
    hosted = part_of(
        problem.federation(checked.method, per_round=5, secure_sums=checked.secure_sums),
        ["client-1"],
    )
    hosted.opened = folder
    for at, set_back in ((2, True), (3, False), (4, False)):
        replica = SimpleNamespace(
            hosted=hosted, numbers={"client-1": 1}, at=at, version=0, end=None, progress=Progress()
        )
        replica.current = replica.has_header = True
        answers = Responder(replica, SimpleNamespace(welcome=True))
        if set_back:
            terms = Terms(bytes(8), 5, 0, 1, 3, tuple(range(5)))
            answers.hear(b"K" + plan_message([1], False, terms.encode())[1:])
            # steps may be on their way: nothing shows that it was set back
            assert not asyncio.run(answers.try_ask())
            with pytest.raises(
                FedseedError, match=r"no round may be opened twice\. Choose another name"
            ):
                _ = answers.masking
        else:
            assert answers.masking.clients[1].opened == 4


def test_who_signs_with_another_key_than_the_recipe_has_is_named_and_left_out(problem, tmp_path):
    own = {f"client-{n}": Ed25519PrivateKey.generate() for n in range(5)}
    known = {name: identity_text(key.public_key().public_bytes_raw()) for name, key in own.items()}
    checked = recipe("zo-fedsgd", secure_sums={"identities": known}, evaluation={"every": 1})
    run = Run(checked, problem, identities={**own, "client-1": Ed25519PrivateKey.generate()})
    result = run.here(tmp_path / "run")
    run.end()
    assert [line["clients"] for line in result.metrics[2:]] == [
        ["client-0", "client-2", "client-3", "client-4"]
    ] * 3
    ((name, reasons),) = result.summary["refusals"].items()
    assert name == "client-1" and "signs with a key that differs from the known one" in json.dumps(
        reasons
    )


CHANCE = {"epoch", "at"}
PUBLIC = {"digest", "ratio", "metrics"}  # of the weights, which everybody has


def test_nothing_but_masked_words_depends_on_a_clients_data(tmp_path):
    """All that leaves clients, with plain data, and with other data: fewer examples, and losses
    that are no numbers.
    """
    found = {}
    for kind in ("plain", "odd"):
        problem = Problem()
        if kind == "odd":
            problem.spoil()
        with pytest.MonkeyPatch.context() as patch:
            run = Run(recipe("zo-fedsgd"), problem, patch)
            run.here(tmp_path / kind)
            run.end()
        said = set()
        for client, what, data in run.sent:
            if what == "update" and data[:2] == SAID:
                said.add((client, "said", data[2], data[17], len(data)))
            elif what == "update":
                assert len(data) == FRAME_BYTES + 8 + 2 * 8  # the setup, one projection, the weight
                said.add((client, what, data[: FRAME_BYTES - 4]))
            else:
                about = json.loads(data)
                fixed = {key: value for key, value in about.items() if key not in CHANCE | PUBLIC}
                if what == "report":
                    assert fixed.keys() <= {
                        "round",
                        "spent",
                        "by_client",
                        "seconds",
                    } and not fixed.get("by_client")
                    # to apply steps, which everybody has; nothing of local work
                    spent = fixed["spent"]
                    assert not any(value for key, value in spent.items() if key != "seconds")
                    assert spent.get("seconds", {}).keys() <= {"rebuild"}
                    fixed = {"round": fixed["round"]}
                said.add((client, what, json.dumps(fixed, sort_keys=True)))
        found[kind] = said
    assert {one for _, one, *_ in found["plain"]} >= {"said", "update", "report", "beat", "attach"}
    assert found["plain"] == found["odd"]
    attached = {
        json.loads(text)["examples"]
        for _, what, *rest in found["odd"]
        for text in rest
        if what == "attach"
    }
    assert attached == {0}


# -- over a real server
# ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_clients_are_killed(problem, network, shared_server):
    """Five processes, three open a sum: two are killed, the run goes on with the others."""
    more = {
        "secure_sums": {"ahead": 4},
        "federation": {"dead_after": 1.5},
        "evaluation": {"every": 5},
    }
    checked = recipe("zo-fedsgd", 30, **more)
    net = network(shared_server, checked.model_dump(exclude_none=True))
    coordinator = net.coordinator()
    hosts = [net.host(n) for n in range(5)]
    until(lambda: coordinator.reached(5), 300, "no round")
    for host in hosts[3:]:
        host.kill()
    net.check(problem, coordinator, hosts[:3])
    lines = net.lines()
    assert {name for line in lines[1:] for name in line["clients"]} == {
        f"client-{n}" for n in range(5)
    }
    assert lines[-1]["clients"] == ["client-0", "client-1", "client-2"]


FOUND = {  # with the round from which on it is not in the sum, and what is said of it
    "accuses all": (1, "but they are readable"),
    "another secret": (1, "do not fit the keys"),
    "wrong shares to one": (1, "do not fit the keys"),
    "unreadable to one": (1, "not encrypted with the agreed key"),
    "weak keys": (1, "an unusable public key"),
    "another share": (2, "than it was dealt"),
    "signs rubbish": (2, "its confirm message"),
    "nobody's signature": (1, "not signed with its key"),
}
SILENT = ("KEYS", "SHARES", "DELIVER", "CONFIRM", "OPEN")
CASES = list(zip((*FOUND, *SILENT), cycle(METHODS)))


def clear_digest(checked, problem, members):
    """The digest of a run in one process without masks, with these in each round's sum.

    Nobody: its step is empty.
    """
    alone = federation_of(problem, checked)
    masking, coordinator = alone.clients.masking, alone.coordinator
    update, opening = masking.update, coordinator.opening

    def sends(state, plan, client, message):
        if client not in members.get(plan.round, range(5)):
            raise MessageError("left out")
        return update(state, plan, client, message)

    def opens():
        if coordinator.current.number not in members:
            raise LostError("its sum could not be")
        return opening()

    masking.update, coordinator.opening = sends, opens
    with in_the_clear():
        return alone.run().summary["weights_digest"]


@pytest.mark.parametrize("method", mark(METHODS, lambda name: name != "feedsign"))
def test_one_of_five_makes_sums_that_can_not_be(method, problem, network, shared_server):
    """A step is lost for each client at the most, then it is left out and named.

    The others' bits stand.
    """
    checked = recipe(method, 12, evaluation={"every": 1})
    net = network(shared_server, checked.model_dump(exclude_none=True))
    coordinator = net.coordinator()
    hosts = [net.host(n, **({"lie": ABSURD} if n == 2 else {})) for n in range(5)]
    net.check(problem, coordinator, [host for host in hosts if host is not hosts[2]])
    lines = net.lines()[1:]
    lost = {line["round"] for line in lines if line.get("not_taken")}
    members = {
        line["round"]: {int(name[-1]) for name in line["clients"]}
        for line in lines
        if line["round"] not in lost
    }
    assert lost == {1, 2, 3, 12} and all(those == {0, 1, 3, 4} for those in members.values())
    assert coordinator.digest == clear_digest(checked, problem, members)
    ((name, reasons),) = net.summary()["refusals"].items()
    assert (
        name == "client-2"
        and "the sum of round 4, without it, is possible: it is left out until round 11"
        in json.dumps(reasons)
    )
    assert net.summary()["repeated_rounds"] == 0


@pytest.mark.parametrize(
    "case", mark(CASES, lambda case: case != ("another secret", "zo-fedsgd")), ids=" ".join
)
def test_one_of_five_lies(case, problem, network, shared_server):
    """The run ends with the bits of those who are in its sums, all honest clients are in all, and
    it says who lies.
    """
    lie, method = case
    deadline = 3.0 if lie in SILENT else 60.0
    checked = recipe(
        method, 12, evaluation={"every": 1}, federation={"joint": False, "deadline": deadline}
    )
    net = network(shared_server, checked.model_dump(exclude_none=True))
    coordinator = net.coordinator()
    hosts = [
        net.host(n, **({"silent": lie} if lie in SILENT else {"lie": lie}) if n == 2 else {})
        for n in range(5)
    ]
    net.check(problem, coordinator, [host for host in hosts if host is not hosts[2]])
    lines = net.lines()[1:]
    members = {
        line["round"]: {int(name[-1]) for name in line["clients"]}
        - {int(one["client"][-1]) for one in line["skipped"]}
        for line in lines
    }
    assert (
        all({0, 1, 3, 4} <= those for those in members.values()) and not net.summary()["not_taken"]
    )
    said = json.dumps(net.summary()["refusals"].get("client-2", {})) + coordinator.said
    if lie in SILENT:
        assert f"client-2 has not answered {lie} of secure sums" in said
        assert sum(2 in those for those in members.values()) < 8
    else:
        first, why = FOUND[lie]
        assert why in said and not any(
            2 in those for number, those in members.items() if number >= first
        )
    assert coordinator.digest == clear_digest(checked, problem, members)
    # What time stands for: no attempt is begun again, and no deadline passes, but for what is said
    # here; and whoever lets one pass is left out for twice as long at the least, each time for
    # twice as long as before. So all waiting is at most the rest of the time, where that is a
    # deadline or more.
    why = r"client-(\d) (?:has not answered \w+ of secure sums within (\S+) s|can't be accepted)"
    late = why + r": it will not be asked for (\S+) s"
    found = [
        (int(who), float(seconds or 2), float(out))
        for who, seconds, out in re.findall(late, coordinator.said)
    ]
    assert all(who == 2 and out >= 1.98 * seconds for who, seconds, out in found)
    # as they are rounded
    assert all(later[2] + 0.05 >= 2 * (before[2] - 0.05) for before, later in pairwise(found))
    assert bool(found) == (lie in SILENT or lie == "nobody's signature")
    assert net.summary()["repeated_rounds"] <= (len(found) or 1)


@pytest.mark.parametrize("method", mark(METHODS, lambda name: name != "zo-fedsgd"))
def test_processes_are_started_again_when_they_have_opened_a_round(
    method, problem, network, shared_server, monkeypatch
):
    """All of them, with a coordinator that ends before it writes the step: they remember, and the
    step is empty.
    """
    checked = recipe(method, 6)
    net = network(shared_server, checked.model_dump(exclude_none=True))
    opened = net.folder / "opened"
    first = net.coordinator(ends_at=3)
    hosts = [net.host(n, opened=str(opened)) for n in range(5)]
    assert first.wait() == 9
    for host in hosts:
        host.kill()
    assert [(opened / f"client-{n}").read_text() for n in range(5)] == ["3"] * 5
    coordinator = net.coordinator()
    hosts = [net.host(n, opened=str(opened)) for n in range(5)]
    coordinator.wait()
    opening = SecureCoordinator.opening

    def lost(self):
        if self.current.number == 3:
            raise LostError("it was opened before")
        return opening(self)

    monkeypatch.setattr(SecureCoordinator, "opening", lost)
    net.check(problem, coordinator, hosts, alone(checked, problem).summary)
    assert net.summary()["not_taken"] == 1
    assert [(net.folder / f"openings-{n}").read_text().split() for n in range(5)] == [
        list("123456")
    ] * 5
