"""What a run says of Rouge-L's tokens before it begins."""

import pytest

from fedseed.objectives.evaluation import score_notes
from fedseed.objectives.losses import CausalLM, Choices
from fedseed.objectives.prepared import prepare
from fedseed.objectives.settings import EvaluationSettings
from fedseed.tasks.data import Choice, Example
from support.chat_bases import chat_tokenizer

TOKENIZER = chat_tokenizer("qwen2")
ENGLISH = ["the old town is open"] * 60


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (["die Bäder", "das Haus"], "Rouge-L keeps accents: 25.0% of the words"),
        ([*ENGLISH, "a café"], "Rouge-L keeps only a-z and 0-9, like rouge-score: 0.3% of"),
        (ENGLISH, None),
        (["東京"], None),
    ],
)
def test_a_line_says_what_is_counted(answers, said):
    objective = CausalLM(TOKENIZER)
    held = prepare(objective, "the evaluation set", [Example("a", text) for text in answers])
    lines = score_notes(objective, held, ("rouge_l",), EvaluationSettings())
    assert [line[: len(said or "")] for line in lines] == ([said] if said else [])
    assert score_notes(objective, held, ("rouge_l",), EvaluationSettings(rouge=False)) == []
    assert score_notes(objective, held, (), EvaluationSettings()) == []


def test_choices_have_no_generated_answers():
    objective = Choices(TOKENIZER)
    held = prepare(objective, "the evaluation set", [Choice("a", (" ä", " b"), 0)])
    assert score_notes(objective, held, ("rouge_l",), EvaluationSettings()) == []
