"""A client's own account: what it counts, what it refuses, and what its file survives."""

import json
import os
import signal
import subprocess
import sys
import threading
from itertools import count

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

from fedseed import durable
from fedseed.errors import PrivacyError, StorageError
from fedseed.privacy.account import Account, Limits, Turn
from fedseed.privacy.account_file import AccountFile, FileAccount
from fedseed.privacy.scalars import Releases, composed_epsilon
from support.forked import start

QUESTIONS = count()


def turn(number=1, question=None, run="aa", client="north", answer=b"noise", **settings):
    question = f"question {next(QUESTIONS)}" if question is None else question
    kind = {"noise": 1.0, "rate": 1.0, "releases": 1, **settings}
    return Turn(client=client, run=run, round=number, question=question, answer=answer, **kind)


def limits(rounds=100, budget=None, delta=1e-5):
    return Limits(rounds, budget, delta)


def epsilon_of_gaussians(count, noise=1.0, delta=1e-5):
    """Epsilon of some vectors without sampling, in closed form."""
    loss, epsilons = GaussianPrivacyLoss(noise / count**0.5), np.linspace(0, 60, 600_001)
    return float(epsilons[np.argmax(loss.get_delta_for_epsilon(epsilons) <= delta)])


@pytest.fixture(params=["memory", "file"])
def account(request, tmp_path):
    """Makes an account with these limits; of a file the same one each time."""

    def make(client="north", **allowed):
        if request.param == "memory":
            return Account(client, limits(**allowed))
        return FileAccount(tmp_path / f"{client}.jsonl", client, limits(**allowed))

    return make


def test_the_same_question_costs_nothing(account):
    one = account(rounds=2)
    first = one.charge(turn(1, "q", answer=b"first"))
    assert one.charge(turn(1, "q", answer=b"second")) == first == one.find("q")
    assert one.turns == 1 and first.answer == b"first"
    one.charge(turn(1, "another", answer=b"second"))
    with pytest.raises(PrivacyError, match=r"2 turns .* used so far"):
        one.charge(turn(1, "a third"))
    assert one.charge(turn(1, "another", answer=b"")).answer == b"second" and one.turns == 2


def test_a_run_has_its_recipes_rounds(account):
    one = account(rounds=3, budget=1000.0)
    with pytest.raises(PrivacyError, match="round 4 was requested, but the recipe has 3 rounds"):
        one.check(turn(4))
    for _ in range(3):
        one.charge(turn(1))
    with pytest.raises(PrivacyError, match="this run has used as many turns"):
        one.charge(turn(2))
    one.charge(turn(1, run="bb"))  # another run: the budget counts both
    assert one.turns == 4


def test_without_a_budget_the_rounds_are_all_there_is(account):
    one = account(rounds=2)
    one.charge(turn(1))
    one.charge(turn(1, run="bb"))
    with pytest.raises(PrivacyError, match="no budget, so all runs together get only that number"):
        one.charge(turn(1, run="cc"))


def test_the_budget_is_of_all_runs_together(account):
    """The last turn within it is allowed, the next is not, and the text says what to do."""
    budget = epsilon_of_gaussians(5) + 0.01
    one = account(rounds=50, budget=budget)
    for number in range(5):
        one.charge(turn(1 + number % 2, run=f"{number % 3}"))
    assert one.epsilon() == pytest.approx(epsilon_of_gaussians(5), abs=2e-4)
    with pytest.raises(PrivacyError) as refusal:
        one.charge(turn(9, run="zz"))
    text = str(refusal.value)
    assert one.place in text and "5 turns" in text and f"{one.epsilon():.4g}" in text
    assert f"privacy.budget is {budget:g}" in text and "--budget" in text
    assert one.turns == 5


def test_another_budget_counts_what_was_used(tmp_path):
    file = tmp_path / "north.jsonl"
    FileAccount(file, "north", limits(budget=8.0)).charge(turn())
    with pytest.raises(PrivacyError, match=r"1 turn .* used so far"):
        FileAccount(file, "north", limits(budget=4.0)).check(turn())
    FileAccount(file, "north", limits(budget=9.0)).charge(turn())
    assert FileAccount(file, "north", limits()).turns == 2


KINDS = {
    "other noise": (Releases(1.0, 1.0, 3), Releases(2.5, 1.0, 4)),
    "other sampling": (Releases(2.0, 0.1, 30), Releases(2.0, 0.3, 10)),
    "sampled and not": (Releases(3.0, 1.0, 2), Releases(1.5, 0.05, 40), Releases(4.0, 0.2, 9)),
}


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_several_kinds_are_composed(kinds, account):
    """As `dp-accounting` composes them, which has its own way to write them down."""
    accountant = PLDAccountant()
    for kind in kinds:
        event = GaussianDpEvent(kind.multiplier)
        if kind.rate < 1:
            event = PoissonSampledDpEvent(kind.rate, event)
        accountant.compose(SelfComposedDpEvent(event, kind.count))
    expected = accountant.get_epsilon(1e-5)
    assert composed_epsilon(tuple(sorted(kinds)), 1e-5) == pytest.approx(expected, rel=2e-3)
    one = account(rounds=1000, budget=expected + 0.05)
    for kind in kinds:
        one.charge(turn(noise=kind.multiplier, rate=kind.rate, releases=kind.count))
    assert one.epsilon() == pytest.approx(expected, rel=2e-3)
    # alone neither would be near the budget
    with pytest.raises(PrivacyError, match="another turn would raise"):
        one.charge(turn(noise=1.0, releases=1))


def test_looking_ahead_allows_no_turn_more():
    """Exactly the turns whose epsilon is within the budget, near and far from it."""
    for most in (1, 63, 64, 65, 200):
        one = Account("north", limits(10_000, epsilon_of_gaussians(most, 30.0) + 1e-3))
        made = 0
        with pytest.raises(PrivacyError):
            for made in count():  # noqa: B007
                one.charge(turn(noise=30.0))
        assert made == most


# -- the file
# ------------------------------------------------------------------------------------------------


def test_a_file_keeps_it_all(tmp_path):
    file = tmp_path / "deep" / "accounts" / "north.jsonl"
    one = FileAccount(file, "north", limits())
    made = [one.charge(turn(answer=answer)) for answer in (b"\0\xff", None, b"")]
    again = FileAccount(file, "north", limits())
    assert [again.find(each.question) for each in made] == made and again.turns == 3
    assert file.parent.stat().st_mode & 0o077 == 0
    kinds = [json.loads(line)["kind"] for line in file.read_text().splitlines()]
    assert kinds == ["account", "turn", "turn", "turn"]


def test_two_processes_at_once(tmp_path):
    """Each sees the other's turns: together they do not exceed the limits."""
    file = tmp_path / "north.jsonl"
    first, second = (FileAccount(file, "north", limits(3)) for _ in range(2))
    kept = first.charge(turn(question="q", answer=b"one"))
    assert second.charge(turn(question="q", answer=b"two")) == kept == second.find("q")
    second.charge(turn())
    first.charge(turn())
    for one in (first, second):
        with pytest.raises(PrivacyError, match="3 turns"):
            one.charge(turn())


def test_many_threads_charge_the_same_account(tmp_path):
    file, answered = tmp_path / "north.jsonl", []

    def work():
        one = FileAccount(file, "north", limits(20))
        for number in range(12):
            try:
                answered.append(one.charge(turn(question=f"{number % 10}-{len(answered) % 3}")))
            except PrivacyError:
                return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    questions = {one.question: one for one in answered}
    assert FileAccount(file, "north", limits(20)).turns == len(questions) <= 20


def test_another_name_for_the_same_data(tmp_path):
    """It does not begin anew, whoever comes first, and also while the first one works."""
    data = "/srv/north.jsonl"
    north = FileAccount(tmp_path / "north.jsonl", "north", limits(4), data)
    north.charge(turn(question="q", answer=b"one"))
    site = FileAccount(tmp_path / "site.jsonl", "site", limits(4), data)
    assert site.turns == 1 and site.charge(turn(question="q", answer=b"two")).answer == b"one"
    site.charge(turn(client="site"))
    north.charge(turn())
    renamed = FileAccount(tmp_path / "third.jsonl", "third", limits(4), data)
    renamed.charge(turn(client="third"))
    # the same name, and its data lies elsewhere
    moved = FileAccount(tmp_path / "site.jsonl", "site", limits(4), "/elsewhere.jsonl")
    for one in (north, site, renamed, moved):
        assert one.find("q").answer == b"one" and one.turns == 4
        with pytest.raises(PrivacyError, match="4 turns"):
            one.charge(turn())
    other = FileAccount(tmp_path / "other.jsonl", "other", limits(4), "/srv/other.jsonl")
    assert other.turns == 0


def test_a_process_that_was_killed_while_it_made_its_account(tmp_path):
    """The temporary file that it leaves is no account, whoever comes next."""
    code = (
        "import os\nfrom pathlib import Path\nfrom fedseed.privacy.account import Limits\n"
        "from fedseed.privacy.account_file import AccountFile, FileAccount\n"
        "os.replace = lambda *_: os._exit(9)\n"
        f"FileAccount(Path({str(tmp_path)!r}) / 'north.jsonl', 'north', Limits(3, None, 1e-5), 'd')"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    assert [path.name for path in tmp_path.glob("north.*.part.jsonl")]
    site = FileAccount(tmp_path / "site.jsonl", "site", limits(3), "d")
    north = FileAccount(tmp_path / "north.jsonl", "north", limits(3), "d")
    site.charge(turn(client="site", question="q", answer=b"one"))
    assert north.find("q").answer == b"one"
    assert not list(tmp_path.glob("*.part.jsonl"))


def test_a_turn_that_one_of_two_accounts_lacks(tmp_path, monkeypatch):
    """A process that was killed between the files has sent nothing, and may still do so."""
    north = FileAccount(tmp_path / "north.jsonl", "north", limits(3), "d")
    site = FileAccount(tmp_path / "site.jsonl", "site", limits(3), "d")
    with monkeypatch.context() as patch:
        whole = AccountFile.add_turn

        def add_turn(file, added):
            if file.path.name == "north.jsonl":
                raise StorageError("killed")
            whole(file, added)

        patch.setattr(AccountFile, "add_turn", add_turn)
        with pytest.raises(StorageError):
            site.charge(turn(client="site", question="q", answer=b"one"))
    north.charge(turn())
    north.charge(turn())
    with pytest.raises(PrivacyError, match="3 turns"):
        north.charge(turn())
    again = FileAccount(tmp_path / "site.jsonl", "site", limits(3), "d")
    assert again.find("q").answer == b"one"
    assert again.turns == FileAccount(tmp_path / "north.jsonl", "north", limits(3), "d").turns == 3


def charged(tmp_path, turns=3):
    file = tmp_path / "north.jsonl"
    one = FileAccount(file, "north", limits())
    made = [one.charge(turn(number + 1, f"q{number}")) for number in range(turns)]
    return file, one, made


def test_a_line_that_was_not_written_to_its_end_is_cut_off(tmp_path):
    file, _, made = charged(tmp_path)
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    before = len(whole) - len(lines[-1])
    for size in range(before, len(whole)):
        for end in (b"", b"\0" * 20, b"\0" * 20 + b"\n"):
            file.write_bytes(whole[:size] + end)
            again = FileAccount(file, "north", limits())
            assert again.turns == 2 and again.find("q2") is None, (size, end)
            assert file.stat().st_size == before
    again.charge(made[2])
    assert file.read_bytes() == whole


def test_any_other_damage_is_refused(tmp_path):
    """Each changed byte, each missing or doubled line but the last ones."""
    file, _, _ = charged(tmp_path)
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    damaged = [
        whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole) - 1)
    ]
    for number in range(len(lines) - 1):
        damaged.append(b"".join(lines[:number] + lines[number + 1 :]))
        damaged.append(b"".join(lines[: number + 1] + lines[number:]))
    for data in [*damaged, b"", b"\n", b"{}\n", b"a key\n", b"no line", lines[1]]:
        file.write_bytes(data)
        with pytest.raises(PrivacyError, match=r"north\.jsonl: .*(can't be trusted|of format)"):
            FileAccount(file, "north", limits())
        assert file.read_bytes() == data  # whatever it is, it is not ours to change


def test_a_file_that_is_set_back_while_a_process_works(tmp_path):
    for change in ("set back", "deleted", "another"):
        folder = tmp_path / change
        folder.mkdir()
        file, one, _ = charged(folder)
        lines = file.read_bytes().splitlines(keepends=True)
        file.unlink()
        if change == "set back":
            file.write_bytes(b"".join(lines[:-1]))
        if change == "another":
            FileAccount(file, "north", limits())
        for act in (lambda: one.find("q"), lambda: one.charge(turn())):  # noqa: B023
            with pytest.raises(PrivacyError, match=r"can't be trusted: .*(set back|is gone)"):
                act()


def test_what_can_not_be_written_is_not_answered(tmp_path, monkeypatch):
    file, one, _ = charged(tmp_path)
    before = file.read_bytes()
    for name in ("pwrite", "fsync"):
        with monkeypatch.context() as patch:

            def full(*_):
                raise OSError(28, "No space left on device")

            patch.setattr(durable.os, name, full)
            with pytest.raises(StorageError, match="No space left on device"):
                one.charge(turn(question="new"))
        assert file.read_bytes() == before
    one.charge(turn(question="new"))
    assert FileAccount(file, "north", limits()).turns == 4


def test_links_and_other_files_are_refused(tmp_path):
    file, _, _ = charged(tmp_path)
    link, pipe = tmp_path / "link.jsonl", tmp_path / "pipe.jsonl"
    link.symlink_to(file)
    os.mkfifo(pipe)
    for path in (link, pipe):
        with pytest.raises(StorageError):
            FileAccount(path, "other", limits())


def suspend_with_lock(folder):
    with durable.locked(folder / ".lock", 0):
        (folder / "held").write_text("")
        signal.pause()


def test_a_process_that_is_suspended_with_the_lock(tmp_path, monkeypatch):
    """The other does not wait for ever, and goes on when the first one is killed."""
    monkeypatch.setattr("fedseed.privacy.account_file.LOCK_SECONDS", 0.3)
    one = FileAccount(tmp_path / "north.jsonl", "north", limits())
    process = start(suspend_with_lock, tmp_path)
    while not (tmp_path / "held").exists():
        process.join(0.05)
    with pytest.raises(PrivacyError, match="another process holds this lock"):
        one.charge(turn())
    process.kill()
    process.join()
    assert one.charge(turn()) and one.turns == 1
