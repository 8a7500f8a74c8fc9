"""FedMeZO's Conjecture 3.8: models of a known effective rank, and LoRA on them."""

import pytest
import torch

from fedseed_papers import lora_rank
from fedseed_papers.findings import VERDICTS
from fedseed_papers.lora_rank import ALPHA, HIDDEN, Measured, Problem, Setting, Tuned, decaying

PROBLEM = Setting("decay 1", 1.0)


def test_variances_fall_as_a_power_and_have_a_mean_of_one():
    # 1, 1/2 and 1/4, over 7/12
    assert decaying(3, 1.0).tolist() == pytest.approx([18 / 11, 9 / 11, 6 / 11])
    assert decaying(3, 0.0).tolist() == [1.0, 1.0, 1.0]


def test_a_change_has_the_rank_and_the_size_of_its_setting():
    problem = Problem(Setting("", 1.0, 4), (1, 2))
    for base, teacher in zip((problem.first, problem.second), problem.teacher, strict=True):
        change = teacher - base
        assert torch.linalg.matrix_rank(change, rtol=1e-4).tolist() == [4, 4]
        sizes = change.norm(dim=(1, 2)) / base.norm(dim=(1, 2))
        assert sizes.tolist() == pytest.approx([0.5, 0.5])


def test_a_decay_lowers_the_effective_rank():
    ranks = [Problem(Setting("", decay), (1,)).effective_ranks()[0] for decay in (0.7, 1.0, 1.7)]
    assert ranks[0] > 1.5 * ranks[1] > 3 * ranks[2] > 0


def test_factors_start_at_the_base_and_can_reach_the_teacher():
    problem = Problem(PROBLEM, (1, 2))
    tuned = Tuned(problem, HIDDEN, 3)
    x = problem.inputs(50)
    y = problem.targets(x)
    out = torch.tanh(x @ problem.first.transpose(1, 2)) @ problem.second.transpose(1, 2)
    expected = (problem.weights * (out - y) ** 2).sum(dim=2).mean(dim=1) / 2
    assert torch.allclose(tuned.losses(x, y), expected[:, None].expand(-1, 3), rtol=1e-4)
    # W + alpha / r B A = W + Delta with A = I and B = r / alpha Delta
    for place, (base, teacher) in enumerate(
        zip((problem.first, problem.second), problem.teacher, strict=True)
    ):
        tuned.factors[2 * place] = (HIDDEN / ALPHA * (teacher - base))[:, None]
        tuned.factors[2 * place + 1] = torch.eye(HIDDEN)[None, None]
    assert float(tuned.losses(x, y).max()) < 1e-6 * float(expected.min())


def test_steps_lower_the_loss(monkeypatch):
    monkeypatch.setattr(lora_rank, "STEPS", 100)
    problem = Problem(PROBLEM, (1,))
    tuned, x = Tuned(problem, 8, 1), problem.inputs(200)
    y = problem.targets(x)
    before = float(tuned.losses(x, y))
    tuned.train(0.3 / tuned.trace())
    assert float(tuned.losses(x, y)) < 0.95 * before


def test_the_best_rank_is_that_of_the_lowest_loss():
    losses = {1: {7: 0.5, 8: 0.2}, 2: {7: 0.4, 8: 0.3}}
    found = Measured({}, losses, {})
    assert (found.best(7), found.best(8)) == (2, 1)


def measured_with(best_ranks):
    """Stands in for `measure`: effective ranks a little below 2, 4, 8 and 16, best ranks as
    given.
    """

    def measure(setting, seeds):
        settings = [*lora_rank.SETTINGS, *lora_rank.LOW]
        place = settings.index(setting) % 4
        ranks = {seed: 1.9 * 2**place * (1 + seed / 1000) for seed in seeds}
        losses = {
            rank: dict.fromkeys(seeds, 0.5 if rank == best_ranks[place] else 0.6)
            for rank in lora_rank.LORA_RANKS
        }
        shares = {rank: dict.fromkeys(seeds, 0.2) for rank in lora_rank.LORA_RANKS}
        return Measured(ranks, losses, shares)

    return measure


@pytest.mark.parametrize(
    ("best_ranks", "verdicts"),
    [
        ((2, 4, 8, 16), [VERDICTS[1]] * 3),
        # no relation, and a 16th of the largest effective rank: |log2| is 0, 1, 2 and 3
        ((2, 2, 2, 2), [VERDICTS[3]] * 3),
        # proportional and above it, but four times: |log2| is 2
        ((8, 16, 32, 32), [VERDICTS[1], VERDICTS[1], VERDICTS[3]]),
    ],
)
def test_claims_follow_the_rule(best_ranks, verdicts, monkeypatch):
    monkeypatch.setattr(lora_rank, "measure", measured_with(best_ranks))
    finding = lora_rank.compared(tuple(range(11, 21)))
    assert [claim.verdict for claim in finding.claims] == verdicts
    assert all(claim.seeds == 10 and claim.p < 0.01 for claim in finding.claims)
    means, _ = finding.sheets
    assert [row[0] for row in means.rows] == [
        setting.name for setting in (*lora_rank.SETTINGS, *lora_rank.LOW)
    ]
    assert means.rows[0][2] == str(best_ranks[0])
