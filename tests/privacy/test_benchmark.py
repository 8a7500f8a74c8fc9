"""The benchmark of accuracy against epsilon: what its lines are told is what they do."""

import sys
from pathlib import Path

import pytest

from fedseed.privacy import PrivateScalars, mechanism_of, protected

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import privacy
    finally:
        sys.path.pop(0)
    return privacy


def test_every_line_has_the_noise_that_its_epsilon_takes(benchmark):
    """As the method itself reckons it, of all its releases: neither more than allowed nor far less."""
    for lines, _ in benchmark.BASES.values():
        for name, line in lines.items():
            method, settings = benchmark.private(line, 4.0)
            if settings is None:
                assert name == "DP-FeedSign"
                spent = benchmark.PrivateSign(method.epsilon).spent(line.rounds)["epsilon"]
            else:
                account = mechanism_of(protected(method, settings))
                assert isinstance(account, PrivateScalars)
                spent = account.epsilon(line.rounds)
            assert 3.9 < spent <= 4.0, name
            assert benchmark.private(line, None) == (line.method, None)


def test_a_line_may_have_rates_by_epsilon(benchmark):
    for name, rates in (("ZO-FedSGD, clients", (3e-3, 6e-3, 1.2e-2)), ("Ferret, clients", (0.015, 0.06, 0.06))):
        line = benchmark.WORDS[name]
        methods = [benchmark.private(line, epsilon)[0] for epsilon in (1.0, 4.0, None)]
        assert tuple(getattr(method, "training", method).learning_rate for method in methods) == rates
        changed = [method.model_dump(exclude={"learning_rate", "training"}) for method in methods]
        assert changed[0] == changed[1] == changed[2]


def test_both_bases_have_a_line_for_each_method(benchmark):
    tables = [lines for lines, _ in benchmark.BASES.values()]
    assert [list(lines) for lines in tables] == [list(tables[0])] * len(tables)
    for name, line in ((name, line) for lines in tables for name, line in lines.items() if line.privacy):
        assert name.endswith({"example": ", examples", "client": ", clients"}[line.privacy["level"]])


@pytest.mark.long
def test_a_private_run_on_words_begins_where_all_do(benchmark):
    """One short run with hardly any noise: it moves, its account is asked, and the base is as it was for the next."""
    line = benchmark.WORDS["MeZO, examples"]._replace(rounds=2)
    made = benchmark.words(line.clients, 1, validation=True)
    before = made.accuracy(made.model)
    assert len(made.held) == 1 and len(made.held[0]) == 5000
    weights = [one.clone() for one in made.model.parameters()]
    benchmark.accuracy(line, 1e3, 1, made)
    assert all((one == other).all() for one, other in zip(weights, made.model.parameters(), strict=True))
    assert made.accuracy(made.model) == before
