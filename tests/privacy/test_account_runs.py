"""Clients' accounts with the commands, over a real nats-server."""

import shutil
import threading

import pytest
import tomli_w

from fedseed.federation.messages import Message
from fedseed.methods.fedmezo import FedMeZO
from fedseed.privacy.account import Limits
from fedseed.privacy.account_file import FileAccount
from fedseed.privacy.scalars import Releases, composed_epsilon
from fedseed.recipe.settings import Recipe
from support.asking import STEPS, Asker, Client, account_of, hosted_of, recipe_of, waited
from support.forked import fedseed_forked
from support.instruction_files import rows, write_lines
from support.network import Server

pytestmark = pytest.mark.long  # models are loaded

NOISE, ROUNDS = 2.0, 3
# what three turns spend, and no fourth
BUDGET = composed_epsilon((Releases(NOISE, 1.0, ROUNDS * STEPS),), 1e-5) + 0.01
METHOD = FedMeZO(steps=STEPS, personal="random", learning_rate=1e-4, batch=2)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with a recipe and a client's data; its state lies there, too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_lines(tmp_path / "north.jsonl", rows("north", 8))
    written(tmp_path)
    return tmp_path


def written(folder, rounds=ROUNDS, **privacy):
    privacy = {"level": "example", "clip": 0.01, "noise": NOISE, "budget": BUDGET, **privacy}
    recipe = {
        "rounds": rounds,
        "seed": 3,
        "task": {"name": "files", "evaluation": 0.0},
        "federation": {"clients": ["north"], "dead_after": 30.0},
        "method": METHOD.model_dump(
            include={"name", "steps", "personal", "learning_rate", "batch"}
        ),
        "privacy": privacy,
    }
    (folder / "recipe.toml").write_text(tomli_w.dumps(recipe))


class Command:
    """`fedseed` in a process of its own, in whose end a thread waits."""

    def __init__(self, folder, *words):
        self.ended = None
        self._thread = threading.Thread(target=self._live, args=(folder, words), daemon=True)
        self._thread.start()

    def _live(self, folder, words):
        self.ended = fedseed_forked(*words, cwd=folder)

    def wait(self):
        assert waited(lambda: self.ended is not None, 240)
        return self.ended


def join(site, server, run, *more):
    words = ["join", "recipe.toml", "--nats", server.url, "--run", run, "--data", "north.jsonl"]
    return Command(site, *words, "--client", "north", *more)


def account(site, name="north"):
    path = site / "state" / "fedseed" / "accounts" / f"{name}.jsonl"
    return FileAccount(path, name, Limits(ROUNDS, BUDGET, 1e-5))


class Asked:
    """An asker that lets a client in whatever it is, and asks for one round after the other."""

    def __init__(self, server):
        self.asker = Asker(server)

    def let_in(self, run, start):
        self.asker.begin(run, start, ["north"], start[-16:])

    def ask(self, number, process):
        """The answer's payload; None: the process ended."""
        before = len(self.asker.received)
        while process.ended is None:
            self.asker.call()
            self.asker.ask(METHOD, number, 1e-4)
            if waited(lambda: len(self.asker.received) > before, 1.0):
                _, _, message = self.asker.received[-1]
                assert isinstance(message, Message) and message.round == number
                return message.payload
        return None


@pytest.fixture
def asked(shared_server):
    made = Asked(shared_server)
    yield made
    made.asker.close()


def start_of(site):
    """How the orbit begins, as the client says it."""
    from fedseed.recipe.reading import read_recipe
    from fedseed.runs.joining import Loading
    from fedseed.tasks.data import OwnData

    recipe = read_recipe(str(site / "recipe.toml"))
    return Loading(recipe, ["north"], own_data=OwnData(site / "north.jsonl"))().start


def test_three_logs_get_no_more_than_the_recipe(site, asked, shared_server):
    """Three streams, each with steps of their own; without an account each would get all rounds."""
    start, answers, ends = start_of(site), [], []
    for run, scalar in (("accounts-a", 1e-3), ("accounts-b", 2e-3), ("accounts-c", 3e-3)):
        asked.let_in(run, start)
        process = join(site, shared_server, run)
        for number in range(1, 8):
            answer = asked.ask(number, process)
            if answer is None:
                break
            answers.append((run, number, answer))
            asked.asker.add_step(METHOD, number, [scalar] * STEPS)
        ends.append(process.wait())
    assert [(run, number) for run, number, _ in answers] == [
        ("accounts-a", 1),
        ("accounts-a", 2),
        ("accounts-a", 3),
        ("accounts-b", 1),
        ("accounts-c", 1),
    ]
    # round 1 of each is the same question
    assert answers[0][2] == answers[3][2] == answers[4][2]
    assert len({answer for _, _, answer in answers}) == 3 == account(site).turns
    assert account(site).epsilon() <= BUDGET
    assert [one.returncode for one in ends] == [1, 1, 1]
    texts = [" ".join(f"{one.stdout}{one.stderr}".split()) for one in ends]
    assert "round 4 was requested, but the recipe has 3 rounds" in texts[0]
    for text in texts:
        assert "north.jsonl: the privacy account of client north allows no more answers" in text
        assert "3 turns (epsilon" in text and "--budget" in text and "Traceback" not in text


def test_a_server_that_deletes_its_files_gets_no_more(site, tmp_path):
    """One run on one server, whose store is deleted twice: each time round 1 comes again."""
    server, start, answers = Server(tmp_path / "nats"), start_of(site), []
    try:
        for scalar in (1e-3, 2e-3, 3e-3):
            asked = Asked(server)
            asked.let_in("accounts-lost", start)
            process = join(site, server, "accounts-lost")
            for number in range(1, 8):
                answer = asked.ask(number, process)
                if answer is None:
                    break
                answers.append((number, answer))
                asked.asker.add_step(METHOD, number, [scalar] * STEPS)
            end = process.wait()
            assert end.returncode == 1
            text = " ".join(f"{end.stdout}{end.stderr}".split())
            assert "the privacy account of client north allows no more answers" in text
            asked.asker.close()
            server.kill()
            shutil.rmtree(server.folder / "store")
            server.start()
    finally:
        server.kill()
    assert [number for number, _ in answers] == [1, 2, 3, 1, 1]
    assert len({answer for _, answer in answers}) == 3 == account(site).turns
    assert account(site).epsilon() <= BUDGET


def test_another_plan_of_a_round_is_another_question(tmp_path, shared_server):
    """To the same process at the same weights; the same plan in another attempt is the same."""
    recipe = recipe_of(rounds=3)
    start, asker = hosted_of(recipe, "north").start, Asker(shared_server)
    asker.begin("accounts-g", start, ["north"], start[-16:])
    client = Client(tmp_path, shared_server, "accounts-g", recipe)
    method, answers = Recipe.model_validate(recipe).method, []
    try:
        for rate, attempt in ((1e-3, 2), (2e-3, 1), (1e-3, 0), (2e-3, 3)):

            def answer(attempt=attempt):
                return [m for _, _, m in asker.received if m.attempt == attempt]

            while not answer():
                assert client.code is None, client.text
                asker.call()
                asker.ask(method, 1, rate, attempt)
                waited(answer, 1.0)
            answers.append(answer()[0].payload)
    finally:
        client.kill()
        asker.close()
    assert answers[0] == answers[2] != answers[1] == answers[3]
    assert account_of(tmp_path / "accounts", recipe, "north").turns == 2


def test_the_same_run_again_costs_nothing(site, shared_server):
    """Another stream, another folder, the coordinator's own command: the same answers and model."""
    digests, turns = [], []
    for run in ("accounts-d", "accounts-e"):
        words = ["serve", "recipe.toml", "--nats", shared_server.url, "--run", run]
        coordinator = Command(site, *words, "--out", run)
        client = join(site, shared_server, run).wait()
        assert (client.returncode, coordinator.wait().returncode) == (0, 0), client
        digests += [line for line in client.stdout.splitlines() if "digest" in line]
        turns.append(account(site).answered())
    assert digests[0] == digests[1] and len(digests) == 2
    assert turns[0] == turns[1] and len(turns[0]) == ROUNDS


def test_a_site_may_allow_more_or_count_elsewhere(site, asked, shared_server):
    """What was used stays used: a larger budget of its own, or a file of its own."""
    asked.let_in("accounts-f", start_of(site))
    refused = join(site, shared_server, "accounts-f", "--budget", "0.5")
    assert asked.ask(1, refused) is None
    assert "--budget is 0.5" in refused.wait().stderr and account(site).turns == 0

    allowed = join(site, shared_server, "accounts-f", "--account", "own-{name}.jsonl")
    assert asked.ask(1, allowed) is not None
    assert account(site).turns == 0
    asked.asker.add_step(METHOD, 1, [0.0] * STEPS)
    for number in (2, 3):
        assert asked.ask(number, allowed) is not None
        asked.asker.add_step(METHOD, number, [0.0] * STEPS)
    assert asked.ask(4, allowed) is None and allowed.wait().returncode == 1
    own = FileAccount(site / "own-north.jsonl", "north", Limits(ROUNDS, BUDGET, 1e-5))
    assert own.turns == 3
