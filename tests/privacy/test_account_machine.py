"""What a client releases is within its own budget, whatever the coordinator and the server do.

A state machine over a real nats-server: streams, logs, recipes, plans and steps of any kind, and
clients in processes of their own, one or two at once, that are killed at drawn moments.
FEDSEED_SECONDS=600 for ten minutes."""

import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from fedseed.privacy.account import Limits
from fedseed.privacy.account_file import FileAccount
from fedseed.privacy.scalars import Releases, composed_epsilon
from fedseed.recipe.settings import Recipe
from support.asking import (
    EXAMPLES,
    MOMENTS,
    STEPS,
    Asker,
    Client,
    hosted_of,
    recipe_of,
    waited,
)
from support.forked import forked
from support.network import Server
from support.tiers import limit_seconds

pytestmark = pytest.mark.long

RECIPES = {
    "rounds alone": recipe_of(rounds=3),
    "little budget": recipe_of(rounds=3, budget=5.5),
    "budget": recipe_of(rounds=4, budget=8.0),
    "another seed": recipe_of(rounds=4, budget=8.0, seed=4),
    "less noise": recipe_of(rounds=4, budget=12.0, noise=1.2),
    "sampled": recipe_of(rounds=4, budget=6.0, sampling="poisson"),
}
STARTS = {key: hosted_of(recipe, "north").start for key, recipe in RECIPES.items()}
METHODS = {key: Recipe.model_validate(recipe).method for key, recipe in RECIPES.items()}
NAMES = ("north", "site")  # of the same data
RUNS = ("one", "two")
SEEDS = st.integers(0, 2**64 - 1)


def kind_of(recipe):
    privacy = recipe["privacy"]
    rate = 8 / EXAMPLES if privacy["sampling"] == "poisson" else 1.0
    return privacy["noise"], rate


class Adversary(RuleBasedStateMachine):
    """The coordinator and the server; what it hears is what the client has released."""

    server: ClassVar[Server]  # all examples share it, each with streams of its own
    trials: ClassVar[Counter[str]]  # what has been done, over all examples

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp(prefix="fedseed-accounts-"))
        self.unique = self.folder.name.rpartition("-")[2]
        self.asker = Asker(self.server)
        self.clients, self.seen, self.restarted = [], 0, False
        self.counted = {}  # turns in the accounts' files, by answer
        self.answers_of_plans = {}  # by the plan, and the log that it was sent for
        # names and recipes of the clients that may have counted a turn since the last look
        self.recent = set()
        self.logs, self.replaced_logs = set(), 0  # names of logs; logs begun anew under one
        self.asked = {}  # by attempt: what a plan has asked
        self.vectors, self.turns = Counter(), Counter()  # counted: by kind; by run and client
        self.trials["examples"] += 1
        self.new_log("one", "budget", False)

    @rule(seed=SEEDS)
    def act(self, seed):
        """The next thing that happens; plans more often than all else."""
        random, alone = Random(seed), not any(map(self.is_asked, self.clients))
        weights = {
            self.join: (30 if alone else 1) if len(self.clients) < 2 else 0,
            self.ask: 1 if alone else 10,
            self.step: 3 if len(self.steps) < 6 else 0,
            self.another_log: 2,
            self.kill: (10 if alone else 1) if self.clients else 0,
            self.restart_server: 0 if self.restarted else 0.1,
        }
        (action,) = random.choices(list(weights), list(weights.values()))
        action(random)

    # -- what the coordinator and the server do
    # ----------------------------------------------------------------------------------------------

    def another_log(self, random):
        """In place of one or beside it, with the clients in any order, for the same recipe or
        another.
        """
        key = random.choice([self.key] * 12 + [*RECIPES])
        run = random.choice([self.run.partition("-")[0], *RUNS])
        self.new_log(run, key, random.random() < 0.3)

    def new_log(self, run, key, swapped):
        self.run, self.key = f"{run}-{self.unique}", key
        self.names = [*NAMES][:: -1 if swapped else 1]
        self.replaced_logs += self.run in self.logs
        self.logs.add(self.run)
        self.steps = []
        link = STARTS[key][-16:]
        self.asker.begin(self.run, STARTS[key], self.names, link)
        self.trials["logs"] += 1

    def ask(self, random):
        """A plan of the next round, or of another."""
        rate = random.choice([1e-3, 2e-3, 3e-3])
        number = max(1, len(self.steps) + 1 + random.choice([0, 0, 0, 0, 0, 0, 1, -1, 7]))
        before, end = len(self.asker.received), time.monotonic() + 120
        there = [client for client in self.clients if self.is_asked(client)]
        expected = number == len(self.steps) + 1 and there
        attempt = self.new_question(number, rate)
        while True:
            self.asker.ask(METHODS[self.key], number, rate, attempt)
            if not expected:
                break
            self.asker.call()
            # the same plan again, as a coordinator sends it where no answer comes
            if waited(lambda: self.answered(there, before, attempt), 1.0):
                break
            assert time.monotonic() < end, [client.text for client in there]
        self.hear()

    def new_question(self, number, rate):
        """Note what is about to be asked; returns the attempt that an answer to it will name.

        To a client the attempt makes no difference.
        """
        self.trials["plans"] += 1
        attempt = self.trials["plans"] % 250
        self.asked[attempt] = self.key, self.steps, number, rate, tuple(self.names)
        return attempt

    def step(self, random):
        """A step, of anybody's making."""
        method, number = METHODS[self.key], len(self.steps) + 1
        scalars = [random.choice([-1e-3, 0.0, 5e-4]) for _ in range(STEPS)]
        self.steps.append(self.asker.add_step(method, number, scalars))
        self.trials["steps"] += 1

    def restart_server(self, random):
        self.restarted = True
        self.server.kill()
        self.server.start()
        assert waited(self.asker.is_connected)
        self.trials["restarts of the server"] += 1

    # -- what happens to the client
    # ----------------------------------------------------------------------------------------------

    def join(self, random):
        """By the run's recipe, or another one of its owner's; it may die on the way."""
        key = random.choice([self.key] * 9 + [*RECIPES])
        name = random.choice([NAMES[0], *NAMES])
        moment = random.choice([None, None, *MOMENTS])
        kill = moment and (moment, random.randint(1, MOMENTS[moment]))
        welcomed = self.asker.welcomed
        client = Client(self.folder, self.server, self.run, RECIPES[key], name, kill)
        client.key = key
        self.clients.append(client)
        self.recent.add((name, key))
        self.trials["joins"] += 1
        until = lambda: self.asker.welcomed > welcomed or client.code is not None  # noqa: E731
        assert waited(until), client.text
        self.forget_dead()

    def kill(self, random):
        """Now, or a few moments after a plan has come that nobody waits to be answered."""
        client = self.clients.pop(0)
        if self.is_asked(client) and random.random() < 0.7:
            rate, number = 1e-3, len(self.steps) + 1
            attempt = self.new_question(number, rate)
            self.asker.ask(METHODS[self.key], number, rate, attempt)
            time.sleep(random.random() * 0.05)
        client.kill()
        self.trials["kills"] += 1
        self.hear()

    # -- what must be true
    # ----------------------------------------------------------------------------------------------

    def is_asked(self, client):
        """Whether a client follows this log."""
        return client.run == self.run and client.key == self.key and client.code is None

    def answered(self, clients, before, attempt):
        answers = self.asker.received[before:]
        senders = {sender for _, sender, message in answers if message.attempt == attempt}
        return all(client.name in senders or client.code is not None for client in clients)

    def hear(self):
        """Take what has come since: each new answer must have been allowed.

        A client that still follows an earlier log of the same name answers a plan of the new log
        at the weights of the earlier one. So two answers to one plan may differ, and each is
        counted; what must not happen is two answers to one question in the clients' accounts.
        """
        received, self.seen = self.asker.received[self.seen :], len(self.asker.received)
        self.read_accounts()
        for _, sender, message in received:
            self.trials["answers"] += 1
            key, steps, number, rate, names = self.asked[message.attempt]
            assert message.payload in self.counted, "an answer that no account has counted"
            assert message.round == number == self.counted[message.payload].round
            # a plan of an earlier or a later round is answered at that round's weights
            plan = key, tuple(steps[: number - 1]), number, rate, names.index(sender)
            self.answers_of_plans.setdefault(plan, set()).add(message.payload)
            assert len(self.answers_of_plans[plan]) <= 1 + self.replaced_logs
        self.forget_dead()

    def read_accounts(self):
        """Read the turns that clients have counted, and look whether their recipes allowed them.

        Their order in time is not known where two clients have counted some, so that the order is
        taken in which the smaller budgets come first.
        """
        alive = {(client.name, client.key) for client in self.clients if client.code is None}
        new, questions = [], {turn.question for turn in self.counted.values()}
        for name in NAMES:
            path = self.folder / "accounts" / f"{name}.jsonl"
            if path.exists():
                account = FileAccount(path, name, Limits(1, None, 1e-5))
                for turn in account.answered():
                    if turn.question not in questions:
                        questions.add(turn.question)
                        new.append(turn)
        for turn in sorted(new, key=self.least_budget):
            assert turn.answer not in self.counted, "one answer to two questions"
            self.counted[turn.answer] = turn
            self.count(turn)
        self.recent = alive

    def recipes_of(self, turn):
        return [RECIPES[key] for name, key in self.recent if name == turn.client]

    def least_budget(self, turn):
        return min(recipe["privacy"].get("budget", 0.0) for recipe in self.recipes_of(turn))

    def count(self, turn):
        self.vectors[turn.noise, turn.rate] += turn.releases
        self.turns[turn.run, turn.client] += 1
        self.trials["turns"] += 1
        assert turn.releases == STEPS
        assert any(self.is_allowed(turn, recipe) for recipe in self.recipes_of(turn)), turn

    def is_allowed(self, turn, recipe):
        """Whether a client with this recipe was allowed its last turn."""
        is_in_rounds = self.turns[turn.run, turn.client] <= recipe["rounds"]
        kind = np.float32(turn.noise), turn.rate  # the settings travel in 32 bits
        noise, rate = kind_of(recipe)
        if kind != (np.float32(noise), rate) or not is_in_rounds:
            return False
        budget = recipe["privacy"].get("budget")
        if budget is None:
            return self.turns.total() <= recipe["rounds"]
        return self.epsilon() <= budget

    def epsilon(self):
        kinds = sorted(Releases(*kind, count) for kind, count in self.vectors.items())
        return composed_epsilon(tuple(kinds), 1e-5)

    def forget_dead(self):
        """A client ends by a kill, or by what its account or the log says, in a line."""
        for client in [client for client in self.clients if client.code is not None]:
            self.clients.remove(client)
            client.process.join()
            assert client.code in (1, -9), client.text
            if client.code == 1:
                assert "Traceback" not in client.text
                refused = "allows no more answers" in client.text
                assert refused or "differs from this recipe and base" in client.text, client.text
                self.trials["refusals" if refused else "other recipes"] += 1
            else:
                self.trials["deaths at a chosen moment"] += 1

    def teardown(self):
        """What has come to the end counts, too."""
        if not hasattr(self, "asker"):
            return
        for client in self.clients:
            client.kill()
        self.hear()
        self.asker.close()
        shutil.rmtree(self.folder)


def profile(examples, steps):
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=[Phase.generate],
        print_blob=True,
    )


@pytest.fixture
def adversary(tmp_path):
    forked(os.getpid)  # from here on processes begin in milliseconds
    server = Server(tmp_path / "nats")
    Adversary.server, Adversary.trials = server, Counter()
    yield Adversary
    server.kill()
    print(dict(Adversary.trials))


def test_a_few_runs(adversary):
    run_state_machine_as_test(adversary, settings=profile(4, 20))


@pytest.mark.slow
def test_many_runs(adversary):
    """FEDSEED_SECONDS=600 for ten minutes of them."""
    end = time.monotonic() + limit_seconds(20)
    while time.monotonic() < end:
        run_state_machine_as_test(adversary, settings=profile(5, 25))
    assert adversary.trials["turns"] > 2
