"""Reward functions: the ones that come along, one of a user's, and what becomes of those that do
not behave.
"""

import pytest

from fedseed.errors import FedseedError, RecipeError
from fedseed.tasks.data import Example
from fedseed.tasks.rewards import Judge, RewardSettings, resolve_function

ONE = [Example("2 + 2 =", " 4", answers=("4", "four"))]


@pytest.mark.parametrize(
    ("name", "answer", "expected"),
    [
        ("exact_match", "The four!", 1.0),
        ("exact_match", "five", 0.0),
        ("f1", "four or five", 0.5),
        ("rouge_l", "4 or 5", 0.5),
        ("final_number", "So it is 4.0", 1.0),
    ],
)
def test_the_rewards_that_come_along_are_the_metrics_of_one_answer(name, answer, expected):
    example = Example("2 + 2 =", " 4") if name == "final_number" else ONE[0]
    assert Judge(RewardSettings(name=name).load())([example], [answer]) == [expected]


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda *_: {}["grade"], r"raised KeyError: 'grade'; prompt '2 \+ 2 =', answer 'Four\.'"),
        (lambda *_: "0.5", r"returned '0.5' \(str\), not a number; prompt '2 \+ 2 ='"),
        (lambda *_: None, r"returned None \(NoneType\), not a number"),
        (lambda *_: "x" * 500, r"returned 'x{56}\.\.\. \(str\)"),
        (lambda one: 1.0, "raised TypeError: .*takes 1 positional argument"),
    ],
    ids=["raises", "text", "nothing", "long", "signature"],
)
def test_a_function_that_does_not_behave_is_named_with_its_example(function, problem):
    with pytest.raises(FedseedError, match=f"reward mine.py:f {problem}") as caught:
        Judge(function, "mine.py:f")(ONE, ["Four."])
    assert "\n" not in str(caught.value) and not isinstance(caught.value, RecipeError)


def test_a_function_is_found_in_its_file_and_in_a_module(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def score(prompt, answer, example):\n    return len(answer)\nTWO = 2\n"
    )
    where = resolve_function("mine.py:score", tmp_path)
    assert where == f"{tmp_path / 'mine.py'}:score"
    assert RewardSettings(function=where).load()("", "abc", None) == 3
    assert (
        RewardSettings(function="math:hypot").load()(3, 4) == 5
        and resolve_function("math:hypot", tmp_path) == "math:hypot"
    )
    (tmp_path / "bad.py").write_text("1 / 0")
    for function, problem in (
        ("mine.py:other", "mine.py has no function other"),
        ("mine.py:TWO", "mine.py has no function TWO"),
        ("bad.py:score", r"reward.function: .*bad.py: ZeroDivisionError"),
        ("gone.py:score", "gone.py: can't be read: No such file"),
    ):
        with pytest.raises(RecipeError, match=problem):
            RewardSettings(function=resolve_function(function, tmp_path)).load()
