"""Scores of generated text, in percent."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any
from unicodedata import normalize

import numpy as np

from fedseed.registry import Registry

Score = Callable[[Sequence[str], Sequence[Sequence[str]]], float]

# SINGLE matches a letter, with its marks, of a script without spaces between words. WORD matches a
# word of any script but Latin. (Unicode lists symbols as letters of the script Common, which
# belongs to no language.)
UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
LETTER = (
    rf"[\p{{L}}\p{{Nd}}--[\p{{Latin}}\p{{ASCII}}{UNSPACED}]--[[\p{{L}}--\u0640]&&\p{{Common}}]]"
)
SINGLE = rf"(?V1)[[\p{{L}}\p{{Nd}}]&&{UNSPACED}][\p{{M}}\u30fc]*"
WORD = rf"{LETTER}[{LETTER}\p{{M}}]*"
LATIN = r"[[\p{Latin}\p{ASCII}]&&[\p{L}\p{Nd}]]"
LATIN_WORD = rf"{LATIN}[{LATIN}\p{{M}}]*"  # with accents
# from this share of words with accents on, a text is taken to be in a language with accents;
# English has fewer
ACCENTED_SHARE = 0.01
# punctuation of other scripts; for Latin text, that of Latin-1, General and Supplemental
# Punctuation
MARKS = r"(?V1)[\p{P}--[\u0000-\u00ff\u2000-\u206f\u2e00-\u2e7f]]"


def rouge_l(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """Return 100 times the mean Rouge-L F-measure against the first answer of each example, from
    the `rouge-score` package (no stemming).

    The package's own tokenizer keeps only a-z and 0-9, so a right answer in Greek or Chinese would
    score 0, and "Bäder" would equal "Böder". `RougeTokens` gives the same tokens for ASCII text.
    `keeps_accents` decides from all answers whether accents count. Arguments and errors are those
    of `exact_match`.
    """
    from rouge_score.rouge_scorer import RougeScorer  # imported here because it takes a second

    pairs = _pairs(predictions, answers)
    accents = keeps_accents([rights[0] for _, rights in pairs])
    scorer = RougeScorer(["rougeL"], use_stemmer=False, tokenizer=RougeTokens(accents))
    return _percent(
        [scorer.score(rights[0], prediction)["rougeL"].fmeasure for prediction, rights in pairs]
    )


class RougeTokens:
    """Makes the tokens for `rouge-score`: its default tokens, and those of scripts that the default
    drops.

    Args:
        accents: whether words in Latin letters keep letters beyond a-z, such as ä, é, ş. If not,
            words are cut at such letters, as in the package.
    """

    def __init__(self, accents: bool = False) -> None:
        self._words = LATIN_WORD if accents else "[a-z0-9]+"
        self._accents = accents

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of a text, in lower case."""
        # imported here because it comes with transformers, which reading a recipe does not need
        import regex

        if self._accents:  # because a letter with its accent may be two characters
            text = normalize("NFC", text)
        tokens = regex.findall(f"{SINGLE}|{WORD}|{self._words}", text.lower())
        # the same in other scripts: a syllable of Hangul or Kana may be several characters, too
        return [normalize("NFC", token) for token in tokens]


def keeps_accents(answers: Sequence[str]) -> bool:
    """Return whether Rouge-L counts accents: it does if enough words of the answers have some.

    So a few foreign names in an English text do not change its scores.
    """
    return share_of_accents(answers) >= ACCENTED_SHARE


def share_of_accents(texts: Sequence[str]) -> float:
    """Return the share of the texts' words in Latin letters that have a letter beyond a-z."""
    if all(map(str.isascii, texts)):
        return 0.0
    import regex

    count = accented = 0
    for text in texts:
        words = regex.findall(rf"(?V1){LATIN_WORD}", normalize("NFC", text))
        count += len(words)
        accented += sum(not word.isascii() for word in words)
    if count:
        return accented / count
    return 0.0


def f1(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """Return 100 times the mean F1 of the words that a text shares with an answer, the best over
    its answers.

    This is SQuAD's evaluation (Rajpurkar et al., 2016, and 2018 for empty texts): texts are
    `normalised`, words count as often as they occur, and two empty texts give 1. Arguments and
    errors are those of `exact_match`.
    """
    return _percent(
        [_best_f1(prediction, rights) for prediction, rights in _pairs(predictions, answers)]
    )


def exact_match(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """Return the percentage of texts that equal one of their answers, both `normalised`.

    Args:
        predictions: generated texts.
        answers: the right answers to each text, at least one.

    Raises:
        ValueError: the lengths differ, an answer is missing, or there is nothing to score.
    """
    pairs = _pairs(predictions, answers)
    return _percent(
        [_compared(prediction) in map(_compared, rights) for prediction, rights in pairs]
    )


def macro_f1(predictions: Sequence[int], right: Sequence[int]) -> float:
    """Return the mean F1 of the classes, in percent, over all classes that are right or predicted
    at least once.

    Args:
        predictions: the predicted class of each example.
        right: the right class of each example.

    Raises:
        ValueError: the lengths differ, or there is nothing to score.
    """
    if len(predictions) != len(right) or not right:
        raise ValueError(f"{len(predictions)} predictions for {len(right)} references")
    hits = Counter(
        prediction
        for prediction, true in zip(predictions, right, strict=True)
        if prediction == true
    )
    prediction, true = Counter(predictions), Counter(right)
    classes = prediction.keys() | true.keys()
    return 100.0 * sum(2 * hits[c] / (prediction[c] + true[c]) for c in classes) / len(classes)


def pearson(predicted: Sequence[float], right: Sequence[float]) -> float:
    """Return Pearson's correlation of two sequences of numbers, from -1 to 1.

    Args:
        predicted: the predictions. If they are all equal, the correlation is 0.
        right: the right numbers.

    Raises:
        ValueError: the lengths differ, or there are fewer than two.
    """
    if len(predicted) != len(right) or len(right) < 2:
        raise ValueError(f"{len(predicted)} predictions for {len(right)} references")
    if not np.ptp(predicted) or not np.ptp(right):
        return 0.0
    predicted_ranks, true_ranks = (
        np.asarray(values, dtype=np.float64) - np.mean(values) for values in (predicted, right)
    )
    predicted_ranks, true_ranks = (
        predicted_ranks / np.linalg.norm(predicted_ranks),
        true_ranks / np.linalg.norm(true_ranks),
    )
    return float(np.clip(predicted_ranks @ true_ranks, -1.0, 1.0))


def spearman(predicted: Sequence[float], right: Sequence[float]) -> float:
    """Return Spearman's correlation: Pearson's correlation of the ranks. Equal numbers share their
    mean rank.

    Arguments and errors are those of `pearson`.
    """
    return pearson(mean_ranks(predicted), mean_ranks(right))


def mean_ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each number, from 1; equal numbers get their mean rank."""
    _, places, counts = np.unique(
        np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True
    )
    last = np.cumsum(counts)
    ranks: list[float] = (last - (counts - 1) / 2)[places.reshape(-1)].tolist()
    return ranks


def final_number(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """Return the percentage of texts that end with the right number: GSM8K's exact match (Cobbe et
    al., 2021).

    Arguments and errors are those of `exact_match`; an answer without a number (`last_number`) also
    raises ValueError.
    """
    right = []
    for prediction, rights in _pairs(predictions, answers):
        numbers = [last_number(text) for text in rights]
        if None in numbers:
            raise ValueError(f"no number in the answer {rights[numbers.index(None)]!r}")
        right.append(last_number(prediction) in numbers)
    return _percent(right)


def normalised(text: str) -> str:
    """Return a text in lower case with single spaces, without punctuation and the articles a, an,
    the.

    This is SQuAD's rule for Latin text, which removes only ASCII punctuation. For other scripts
    their own punctuation is removed as well, and each character of a script without spaces becomes
    a word, so that F1 is meaningful.
    """
    text = re.sub(
        r"\b(a|an|the)\b", " ", "".join(c for c in text.lower() if c not in string.punctuation)
    )
    if not text.isascii():
        import regex

        text = regex.sub(SINGLE, r" \g<0> ", regex.sub(MARKS, " ", text))
    return " ".join(text.split())


# A sign counts only at the beginning of a word: "10-5" ends with 5. Digits may be of any script.
NUMBER = re.compile(
    r"(?:(?<![\w)])[-\u2212][$\u20ac\u00a3]?)?"
    r"(?:(?:\d{1,3}(?:[,\u00a0\u2009\u202f]\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
)
# separators between the digits of a number
NO_DIGITS = re.compile("[,$\u00a0\u2009\u202f\u20ac\u00a3]")


def last_number(text: str) -> Decimal | None:
    """Return the number after the last "####", or the text's last number if there is no "####".

    None if there is no number.

    Commas, no-break spaces or thin spaces may separate thousands: 1,234 equals 1234, and 72 equals
    72.00.
    """
    _, marked, tail = text.rpartition("####")
    match = None
    if marked:
        match = NUMBER.search(tail)
    words = [match.group()] if match else NUMBER.findall(text)
    if words:
        return Decimal(NO_DIGITS.sub("", words[-1]).replace("\u2212", "-"))
    return None


def _compared(text: str) -> str:
    """Return a text as `normalised`, with each letter and its accents as one character.

    Files from macOS often have them as two, and both forms are the same text.
    """
    return normalised(normalize("NFC", text))


def _best_f1(prediction: str, rights: Sequence[str]) -> float:
    return max(_f1(prediction, right) for right in rights)


def _f1(prediction: str, right: str) -> float:
    said_words, right_words = _compared(prediction).split(), _compared(right).split()
    if not said_words or not right_words:
        return float(said_words == right_words)
    common = (Counter(said_words) & Counter(right_words)).total()
    return 2 * common / (len(said_words) + len(right_words))


def _pairs(
    predictions: Sequence[str], answers: Sequence[Sequence[str]]
) -> list[tuple[str, Sequence[str]]]:
    if len(predictions) != len(answers) or not answers:
        raise ValueError(f"{len(predictions)} predictions for {len(answers)} references")
    if not all(answers):
        raise ValueError("one of the texts has no answer")
    return list(zip(predictions, answers, strict=True))


def _percent(values: Sequence[float]) -> float:
    return 100.0 * sum(values) / len(values)


# name of a metric -> its score in percent, a function of (generated texts, right answers to each:
# at least one)
SCORES: dict[str, Score] = {
    "rouge_l": rouge_l,
    "f1": f1,
    "exact_match": exact_match,
    "final_number": final_number,
}


def _check(thing: Any) -> None:
    if not callable(thing) or isinstance(thing, type):
        raise TypeError(
            f"{thing!r} is not a function of (generated texts, the right answers to each)"
        )


REGISTRY: Registry[Score] = Registry(
    "metric", "fedseed.metrics", SCORES.items(), _check, reserved=("loss", "perplexity")
)
