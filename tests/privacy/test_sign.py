"""The private vote: exact odds, and an account of what it costs."""

from fractions import Fraction
from itertools import count
from math import exp, sqrt

import numpy as np
import pytest

from fedseed.privacy import PrivateSign, sign


class Scripted:
    """Random numbers as a script says, and the odds of the script; `explored` goes through all scripts."""

    def __init__(self, script):
        self.script, self.odds, self.branches, self.at = script, Fraction(1), 1, 0

    def _choose(self, odds):
        if self.at == len(self.script):
            self.branches = len(odds)
            raise EOFError
        self.odds *= odds[self.script[self.at]]
        self.at += 1
        return self.script[self.at - 1]

    def randbits(self, bits):
        return self._choose([Fraction(1, 1 << bits)] * (1 << bits)) if bits else 0

    def randbelow(self, above):  # 0, or anything else
        return self._choose([Fraction(1, above), Fraction(above - 1, above)]) if above > 1 else 0


def explored(act, monkeypatch, least=Fraction(1, 10**5)):
    """What an act returns, with exact odds, as far as paths are likelier than `least`; and what is left."""
    found, left, waiting = {}, Fraction(0), [()]
    while waiting:
        script = waiting.pop()
        random = Scripted(script)
        monkeypatch.setattr(sign, "randbits", random.randbits)
        monkeypatch.setattr(sign, "randbelow", random.randbelow)
        try:
            result = act()
        except EOFError:
            if random.odds < least:
                left += random.odds
            else:
                waiting += [(*script, branch) for branch in range(random.branches)]
            continue
        found[result] = found.get(result, Fraction(0)) + random.odds
    return found, left


@pytest.mark.parametrize(("total", "epsilon"), [(0, 3.0), (1, 1.0), (-1, 1.0), (2, 1.0)])
def test_the_odds_are_exact(total, epsilon, monkeypatch):
    """Every way that the coins can fall, with its probability as a fraction: no statistics."""
    found, left = explored(lambda: sign.private_sign(total, epsilon), monkeypatch)
    expected = 1 / (1 + exp(-epsilon * total / 2))
    assert left < Fraction(1, 200) and sum(found.values()) + left == 1
    assert found[1] <= expected + 1e-12 and expected - 1e-12 <= found[1] + left
    assert found[-1] <= 1 - expected + 1e-12 and 1 - expected - 1e-12 <= found[-1] + left


@pytest.mark.parametrize(
    ("total", "epsilon", "factors"), [(80, 1.0, 40), (-80, 1.0, 40), (3, 500.0, 750), (-2, 1e4, 10_000)]
)
def test_no_outcome_is_impossible(total, epsilon, factors, monkeypatch):
    """From eps S / 2 = 37 on a double near 1 has no room for the other sign; here it is e^-1 as often as it takes."""
    asked = count()
    monkeypatch.setattr(sign, "randbits", lambda bits: 0)  # the coin says: the unlikely one, if it happens
    monkeypatch.setattr(sign, "_happens_exp_below_one", lambda above, below: next(asked) >= 0)
    assert sign.private_sign(total, epsilon) == (-1 if total > 0 else 1)
    assert next(asked) == factors + 1  # the last is e^-0


@pytest.mark.parametrize(("total", "epsilon"), [(9, 1.0), (-9, 1.0), (-1, 12.0), (1, 1e-9), (1, 5e-324), (1, 1.7e308)])
def test_draws_of_the_operating_system_have_the_odds(total, epsilon):
    expected = 1 / (1 + exp(max(-700.0, min(700.0, -epsilon * total / 2))))
    drawn = PrivateSign(epsilon).draw([total] * 20_000)
    assert set(drawn) <= {1, -1}
    share = sum(one > 0 for one in drawn) / 20_000
    assert abs(share - expected) < 4.5 * sqrt(expected * (1 - expected) / 20_000) + 1e-9


def test_the_account_is_of_what_the_draw_does():
    """One vote turned round changes the odds by at most e^epsilon, whatever the others say."""
    for epsilon in (0.1, 1.0, 4.0):
        for total in range(-9, 10):
            odds = [1 / (1 + exp(-epsilon * s / 2)) for s in (total, total + 2)]
            assert odds[1] <= exp(epsilon) * odds[0] * (1 + 1e-12)
            assert 1 - odds[0] <= exp(epsilon) * (1 - odds[1]) * (1 + 1e-12)


def test_the_account_says_something_of_every_epsilon():
    """The package's needs e^epsilon as a double; a run with more ended with an overflow in place of a summary."""
    assert PrivateSign(1.0, 4).spent(0)["epsilon"] == 0
    assert PrivateSign(1000.0).spent(3) == {
        "epsilon_per_vote": 1000.0, "votes": 3, "epsilon_pure": 3000.0, "delta": 1e-5, "epsilon": 3000.0,
    }  # fmt: skip
    spent = PrivateSign(1.0, 4).spent(25)
    assert spent.items() >= PrivateSign(1.0, 4).counted(25).items()
    assert spent["votes"] == 100 and spent["epsilon"] == pytest.approx(79.84, abs=0.01)


def test_the_odds_of_a_draw_are_told():
    """Eq. 21; of each pair of sums that one vote tells apart within e^epsilon."""
    told = PrivateSign(0.5).log_chance(np.array([3, -1]), np.array([1, 1]))
    assert exp(told) == pytest.approx(1 / (1 + exp(-0.75)) / (1 + exp(0.25)))
    one, other = (PrivateSign(40.0).log_chance(np.array([total]), np.array([-1])) for total in (99, 97))
    assert one == pytest.approx(-40.0 * 99 / 2) and other - one == pytest.approx(40.0)
