"""Private runs over a Grid: what nodes say does not depend on their data."""

import json

import numpy as np
import pytest

from fedseed.federation.client.accounts import limits_of
from fedseed.federation.messages import Message
from fedseed.flower import client
from fedseed.privacy import PrivateScalars
from fedseed.privacy.account_file import FileAccount
from fedseed.transport import flower_wire as wire
from support.flower import PAIR, Grid, grid, loading, run, written
from support.problem import Problem

PRIVATE = {
    "example": {"clip": 0.01, "noise": 2.0, "sampling": "poisson", "examples": 60, "budget": 1.5},
    "client": {"clip": 1.0, "noise": 4.0, "budget": 5.0},
}
METHOD = {
    "name": "zo-fedsgd",
    "basis": "rademacher",
    "seeds": "shared",
    "learning_rate": 1e-2,
    "batch": 8,
}
# times, random names, and what depends on them
CHANCE = {"seconds", "rebuild", "time", "question", "heard", "epoch"}

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quickly", "without_pictures")]


def still(told, level):
    """What a node says, without times.

    Of an update by clients, which the coordinator alone sees, its length.
    """
    if isinstance(told, bytes) and level == "client" and told.startswith(b"FS"):
        return len(told)
    if isinstance(told, str | bytes) and told[:1] in ("{", b"{"):
        return still(json.loads(told), level)
    if isinstance(told, list):
        return [still(one, level) for one in told]
    if isinstance(told, dict):
        return {key: still(value, level) for key, value in told.items() if key not in CHANCE}
    return told


def words_of(replies, level):
    """Return what each client says, by client, kind and round, without times.

    How many words travel in one reply, and which are said again, depends on how quickly threads get
    their turn: the Grid is asked in threads of their own, while rounds go on.
    """
    words = {}
    for reply in replies:
        for entry, data in zip(reply["said"], reply["data"], strict=True):
            entry = json.loads(entry)
            is_frame = isinstance(data, bytes) and data.startswith(b"FS")
            number = Message.decode(data).round if is_frame else None
            said = words.setdefault((entry["client"], entry["what"], number), [])
            word = still(data, level)
            if word not in said:
                said.append(word)
    # whether one is needed in a pause depends on the pause
    return {key: said for key, said in words.items() if key[1] != "beat"}


def ran(level, problem, folder, monkeypatch):
    """All that nodes said."""
    folder.mkdir()
    private = {"level": level, **PRIVATE[level]}
    path, recipe = written(folder, METHOD, rounds=200, evaluation={"every": 4}, privacy=private)
    reply, said = client.reply, []

    def heard(*arguments):
        made = reply(*arguments)
        said.append(wire.table(made))
        return made

    with monkeypatch.context() as patch:
        patch.setattr(client, "reply", heard)
        run(grid(path, problem, recipe, folder / "run", processes=False), path)
    return said


@pytest.mark.parametrize("level", PRIVATE)
def test_nodes_say_the_same_whatever_their_data(level, tmp_path, monkeypatch):
    """With noisy sums that are: fewer examples, others, and losses that are no numbers."""
    monkeypatch.setattr(
        PrivateScalars, "noisy_sum", lambda self, vectors, length: np.full(length, 1e-3)
    )
    found = {}
    for kind in ("plain", "odd"):
        problem = Problem()
        if kind == "odd":
            problem.spoil()
        said = ran(level, problem, tmp_path / kind, monkeypatch)
        found[kind] = words_of(said, level)
    assert found["plain"] == found["odd"] and len(found["odd"]) > 10
    words = [word for said in found["odd"].values() for word in said if isinstance(word, dict)]
    assert {key for word in words for key in word} >= {"examples", "digest", "metrics"}
    assert {word["examples"] for word in words if "examples" in word} == {0}
    rounds = {number for _, kind, number in found["odd"] if kind == "update"}
    assert rounds == set(range(1, len(rounds) + 1))


def with_accounts(problem, recipe, folder):
    """Makes nodes' parts whose clients keep accounts in files, as a recipe's do."""
    checked, load = loading(problem, recipe)
    limits = limits_of(checked.privacy, checked.rounds)

    def loaded(names):
        hosted = load(names)
        hosted.accounts = {
            name: FileAccount(folder / f"{name}.jsonl", name, limits) for name in hosted.items
        }
        return hosted

    return loaded


def test_nodes_keep_accounts(tmp_path, capfd):
    """Each message is answered by a new process; the same run again costs nothing, another does."""
    turns, digests = [], []
    for folder, seed in (("first", 3), ("again", 3), ("another", 4)):
        (tmp_path / folder).mkdir()
        path, recipe = written(
            tmp_path / folder,
            METHOD,
            rounds=3,
            seed=seed,
            privacy={"level": "example", "clip": 0.01, "noise": 2.0},
        )
        load = with_accounts(Problem(), recipe, tmp_path / "accounts")
        nodes = Grid(PAIR, path, load, run_config={"out": str(tmp_path / folder / "run")})
        problems = []

        def heard(node, table, problems=problems):
            if "problem" in table:  # the coordinator would wait for other answers
                problems.append(table["problem"])
                raise KeyboardInterrupt
            return table

        nodes.changed = heard
        if folder == "another":
            with pytest.raises(KeyboardInterrupt):
                run(nodes, path)
        else:
            result, _ = run(nodes, path)
            digests.append(result.summary["weights_digest"])
        files = sorted((tmp_path / "accounts").glob("*.jsonl"))
        turns.append([file.read_bytes() for file in files])
    assert digests[0] == digests[1] and len(turns[0]) == 5
    assert turns[0] == turns[1] == turns[2]
    assert problems == ["a privacy account allows no more answers: see this node's output"]
    assert "client-0.jsonl: the privacy account of client client-0" in capfd.readouterr().err
