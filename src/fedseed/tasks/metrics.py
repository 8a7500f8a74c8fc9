"""Metrics over generated text."""

from collections.abc import Sequence


def rouge_l(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Mean Rouge-L F-measure times 100, from the `rouge-score` package (no stemming).

    Args:
        predictions: generated texts.
        references: expected texts, as many.

    Raises:
        ValueError: the lengths differ, or there is nothing to score.
    """
    from rouge_score.rouge_scorer import RougeScorer  # takes a second to import

    if len(predictions) != len(references) or not references:
        raise ValueError(f"{len(predictions)} predictions for {len(references)} references")
    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    scores = [scorer.score(r, p)["rougeL"].fmeasure for p, r in zip(predictions, references, strict=True)]
    return 100.0 * sum(scores) / len(scores)
