"""Regression heads against plain transformers: predictions, losses, pairs of texts, metrics."""

import pytest
import torch

from fedseed.objectives.classification import TextClasses, TextScores
from fedseed.objectives.evaluation import measure
from fedseed.objectives.prepared import prepare
from fedseed.objectives.settings import EvaluationSettings
from fedseed.tasks.data import Choice, Score
from support.text_bases import KINDS, random_model, word_tokenizer

EXAMPLES = [
    Score("the film was great", 4.5, "a good film"),
    Score("bad film", 0.25, "the story was not very good at all"),
    Score("a fine story", 3.0),
]


@pytest.fixture
def tokenizer():
    """Of BERT's kind: it says which tokens are the second text's."""
    from tokenizers.processors import TemplateProcessing

    around, names, _, _ = KINDS["bert"]
    made = word_tokenizer(around, **names)
    marks = [(word, made.convert_tokens_to_ids(word)) for word in ("[CLS]", "[SEP]")]
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
    )
    made.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return made


def classifier(tokenizer, outputs, **settings):
    sizes = {"vocab_size": len(tokenizer), "num_labels": outputs, **settings}
    _, _, _, others = KINDS["bert"]
    name = "AutoModelForSequenceClassification"
    return random_model("bert", name, **{**others, **sizes}).eval()


def plain(model, tokenizer, example):
    """Return the head's outputs for one text or pair, in plain transformers."""
    given = (example.text, example.pair) if example.pair else (example.text,)
    return model(**tokenizer(*given, return_tensors="pt")).logits[0]


def test_predictions_and_losses_are_those_of_plain_transformers(tokenizer):
    model = classifier(tokenizer, 1, problem_type="regression")
    objective = TextScores(tokenizer)
    items = objective.prepare(EXAMPLES)
    expected = torch.stack([plain(model, tokenizer, one)[0] for one in EXAMPLES])
    torch.testing.assert_close(objective.predictions(model, items), expected)
    values = torch.tensor([one.value for one in EXAMPLES])
    losses = objective.losses(model, items)
    torch.testing.assert_close(losses, (expected - values) ** 2)
    # the model's own loss, of a batch that transformers' Trainer would make
    pairs = [(one.text, one.pair) for one in EXAMPLES[:2]]
    batch = tokenizer([a for a, _ in pairs], [b for _, b in pairs], padding=True)
    given = {name: torch.tensor(value) for name, value in batch.items()}
    torch.testing.assert_close(losses[:2].mean(), model(**given, labels=values[:2]).loss)
    # the second text is told from the first one
    blind = model(input_ids=torch.tensor([items[0].ids])).logits[0, 0]
    assert abs((blind - expected[0]).item()) > 1e-4


def test_classes_of_two_texts_are_those_of_plain_transformers(tokenizer):
    model, objective = classifier(tokenizer, 3), TextClasses(tokenizer)
    options = (" a", " b", " c")
    examples = [Choice("x", options, 0, text=one.text, pair=one.pair) for one in EXAMPLES]
    found = objective.scores(model, objective.prepare(examples))
    expected = torch.stack([plain(model, tokenizer, one) for one in EXAMPLES])
    torch.testing.assert_close(found, expected)


def test_metrics(tokenizer):
    stats = pytest.importorskip("scipy.stats")
    model, objective = classifier(tokenizer, 1), TextScores(tokenizer)
    prepared = prepare(objective, "n", EXAMPLES)
    found = measure(model, objective, prepared, (), EvaluationSettings())
    predicted = objective.predictions(model, prepared.items).tolist()
    values = [one.value for one in EXAMPLES]
    mean = sum((a - b) ** 2 for a, b in zip(predicted, values, strict=True)) / 3
    assert found == pytest.approx(
        {
            "loss": mean,
            "pearson": stats.pearsonr(predicted, values).statistic,
            "spearman": stats.spearmanr(predicted, values).statistic,
        },
        rel=1e-5,
    )
    alike = prepare(objective, "n", [EXAMPLES[0], EXAMPLES[0]])
    assert set(measure(model, objective, alike, (), EvaluationSettings())) == {"loss"}
