"""Texts with a number to predict: rows in JSON and tables, what is wrong, and correlations."""

import numpy as np
import pytest

from fedseed.errors import RecipeError
from fedseed.tasks.data import Choice, Example, Score
from fedseed.tasks.forms import examples_in
from fedseed.tasks.metrics import mean_ranks, pearson, spearman
from fedseed.tasks.own import FilesTask
from support.instruction_files import write_lines

TABLE = "text,label\na man rides,0.25\na dog runs,3.8\nthe sea,4\na tree,1.0\nnobody knows,\n"


def everything(data):
    return [*data.clients[0].examples, *data.evaluation[""]]


def test_a_column_of_a_table_is_predicted_if_the_recipe_says_so(tmp_path):
    (tmp_path / "a.csv").write_text(TABLE)
    task = FilesTask(path=str(tmp_path / "a.csv"), clients=1, evaluation=0.25, score_field="label")
    data = task.load()
    expected = {"a man rides": 0.25, "a dog runs": 3.8, "the sea": 4.0, "a tree": 1.0}
    assert {one.text: one.value for one in everything(data)} == expected
    assert data.scores == () and data.notes[0] == "1 examples left out (no score)"
    assert 'the model learns to predict the number in "label" (regression)' in data.notes
    with pytest.raises(
        RecipeError, match=r'looks like a score: to predict it, set task\.score_field = "label"'
    ):
        task.model_copy(update={"score_field": None}).load()
    with pytest.raises(RecipeError, match="predicts either a number or a label: give only one"):
        task.model_copy(update={"labels": ["1", "2"]}).load()


def test_rows_with_two_texts(tmp_path):
    """Under other names, too; whole numbers are numbers like others."""
    rows = [{"sentence1": f"a {i}", "sentence2": f"b {i}", "score": i} for i in range(4)]
    rows[2]["score"] = None
    path = str(write_lines(tmp_path / "a.jsonl", rows))
    fields = {"text": "sentence1", "text_pair": "sentence2"}
    data = FilesTask(
        path=path, clients=1, evaluation=0.25, fields=fields, score_field="score"
    ).load()
    found = sorted(everything(data), key=lambda one: one.value)
    assert found == [Score(f"a {i}", float(i), f"b {i}") for i in (0, 1, 3)]


@pytest.mark.parametrize(
    ("text", "value"),
    [("3,8", 3.8), ("-0.5", -0.5), ("1e-3", 1e-3), (" 7 ", 7.0), ("0,250", 0.25), (",5", 0.5)],
)
def test_numbers_as_tables_write_them(text, value):
    found, _ = examples_in({"n": [{"text": "a", "label": text}]}, score_field="label")
    assert found["n"] == [Score("a", value)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"text": "a", "label": "1,234"},
            r"decimal comma, or does it separate thousands\? Write 1\.234",
        ),
        ({"text": "a", "label": "good"}, '"label" = good: expected a number'),
        ({"text": "a", "label": True}, '"label" = True: expected a number'),
        ({"text": "a", "label": "inf"}, '"label" = inf: expected a number'),
        ({"text": "a", "score": 1.0}, 'no "label", which task.score_field names'),
        ({"label": 1.0}, 'no "text" to predict "label" from; name the text.s field in task.fields'),
        ({"chosen": "a", "rejected": "b", "label": 1.0}, 'no "text" to predict'),
    ],
)
def test_what_is_no_score_is_named(row, message):
    with pytest.raises(RecipeError, match=message):
        examples_in({"n": [row]}, score_field="label")


def test_a_score_beside_a_text_is_never_taken_for_what_is_learnt():
    """Corpora have one of quality; a row with two texts is no corpus."""
    found, notes = examples_in({"n": [{"text": "a", "score": 2.5}]})
    assert found["n"] == [Example("", "a")]
    assert '1 texts have a "score", which is not used' in notes[0]
    with pytest.raises(RecipeError, match=r'each text, set task\.score_field = "score"'):
        examples_in({"n": [{"text": "a", "text_pair": "b", "score": 2.5}]})


def test_two_texts_of_a_label():
    rows = [{"text": "a", "text_pair": f"b {i}", "label": f"{i}"} for i in range(2)]
    made = examples_in({"n": rows})[0]["n"]
    assert made[1] == Choice("a\nb 1\nLabel:", (" 0", " 1"), 1)
    assert (made[1].text, made[1].pair) == ("a", "b 1")


@pytest.mark.parametrize("ties", [1, 3, 40])
def test_correlations_are_scipys(ties):
    stats = pytest.importorskip("scipy.stats")
    draws = np.random.default_rng(ties)
    right = np.round(draws.normal(size=50) * 20 / ties) / 4
    predicted = np.round(right + draws.normal(size=50), 2 if ties > 1 else 9)
    assert mean_ranks(right) == stats.rankdata(right).tolist()
    found = pearson(predicted.tolist(), right.tolist()), spearman(predicted, right)
    expected = stats.pearsonr(predicted, right), stats.spearmanr(predicted, right)
    assert found == pytest.approx([one.statistic for one in expected], abs=1e-12)


def test_correlations_without_scipy():
    assert mean_ranks([3.0, 1.0, 3.0, 0.5]) == [3.5, 2.0, 3.5, 1.0]
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert pearson([1, 2, 4], [0, 1, 0]) == pytest.approx(-1 / np.sqrt(28))
    assert spearman([1, 10, 100], [3, 2, 1]) == pytest.approx(-1)
    assert pearson([2.0, 2.0], [0.0, 1.0]) == 0.0  # nothing is told apart
    with pytest.raises(ValueError, match="1 predictions for 1"):
        pearson([1.0], [1.0])
