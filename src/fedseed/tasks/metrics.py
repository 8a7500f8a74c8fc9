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

# SINGLE matches a letter of a script written without spaces, with the marks on it; WORD a word of
# another script than Latin (Common has symbols that are letters to Unicode, but of no language)
UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
LETTER = (
    rf"[\p{{L}}\p{{Nd}}--[\p{{Latin}}\p{{ASCII}}{UNSPACED}]--[[\p{{L}}--\u0640]&&\p{{Common}}]]"
)
SINGLE = rf"(?V1)[[\p{{L}}\p{{Nd}}]&&{UNSPACED}][\p{{M}}\u30fc]*"
WORD = rf"{LETTER}[{LETTER}\p{{M}}]*"
LATIN = r"[[\p{Latin}\p{ASCII}]&&[\p{L}\p{Nd}]]"
LATIN_WORD = rf"{LATIN}[{LATIN}\p{{M}}]*"  # with its accents
# a share of words with accents from which a text is in a language that has them: English has less
ACCENTED_SHARE = 0.01
# punctuation of other scripts; Latin text has that of Latin-1, General and Supplemental Punctuation
MARKS = r"(?V1)[\p{P}--[\u0000-\u00ff\u2000-\u206f\u2e00-\u2e7f]]"


def rouge_l(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """Return the mean Rouge-L F-measure to the first answers times 100, from the `rouge-score`
    package (no stemming).

    Its own tokenizer keeps a-z and 0-9 and nothing else, so that a right answer in Greek or Chinese
    would score 0, and "Bäder" would be "Böder". `RougeTokens` gives the same tokens for ASCII text;
    `keeps_accents` decides about accents by all answers. Arguments and errors are
    `exact_match`'s.
    """
    from rouge_score.rouge_scorer import RougeScorer  # takes a second to import

    pairs = _pairs(predictions, answers)
    accents = keeps_accents([rights[0] for _, rights in pairs])
    scorer = RougeScorer(["rougeL"], use_stemmer=False, tokenizer=RougeTokens(accents))
    return _percent(
        [scorer.score(rights[0], prediction)["rougeL"].fmeasure for prediction, rights in pairs]
    )


class RougeTokens:
    """Makes the tokens that `rouge-score` counts: its default ones, and those of scripts that the
    default drops.

    Args:
        accents: whether words in Latin letters keep letters beyond a-z, such as ä, é, ş; otherwise
            they are cut there, as by the package.
    """

    def __init__(self, accents: bool = False) -> None:
        self._words = LATIN_WORD if accents else "[a-z0-9]+"
        self._accents = accents

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of a text, in lower case."""
        # comes with transformers; reading a recipe does not need it
        import regex

        if self._accents:  # one letter may be written as two characters
            text = normalize("NFC", text)
        return regex.findall(f"{SINGLE}|{WORD}|{self._words}", text.lower())


def keeps_accents(answers: Sequence[str]) -> bool:
    """Return whether Rouge-L counts words with their accents: enough of the answers have some.

    A few names in an English text do not change its scores.
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
    """Return the mean F1 of the words that a text shares with an answer, the best over the
    answers, times 100.

    As in SQuAD's evaluation (Rajpurkar et al., 2016; where nothing is left of a text, 2018), texts
    are `normalised`, words count as often as they occur, and two empty texts give 1. Arguments and
    errors are `exact_match`'s.
    """
    return _percent(
        [_best_f1(prediction, rights) for prediction, rights in _pairs(predictions, answers)]
    )


def exact_match(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """Return the percentage of texts equal to one of their answers, both `normalised`.

    Args:
        predictions: generated texts.
        answers: the right answers to each, at least one.

    Raises:
        ValueError: the lengths differ, an answer is missing, or there is nothing to score.
    """
    pairs = _pairs(predictions, answers)
    return _percent(
        [normalised(prediction) in map(normalised, rights) for prediction, rights in pairs]
    )


def macro_f1(predictions: Sequence[int], right: Sequence[int]) -> float:
    """Return the mean of the classes' F1, in percent, over all classes that are right or were
    found at least once.

    Args:
        predictions: the class that was found for each example.
        right: the class of each example.

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
    """Return Pearson's correlation of two rows of numbers, from -1 to 1.

    Args:
        predicted: the predictions; where they are all the same the correlation is 0.
        right: what is right.

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
    """Return Spearman's correlation: Pearson's of the ranks, where equal numbers share a rank.

    Arguments and errors are `pearson`'s.
    """
    return pearson(mean_ranks(predicted), mean_ranks(right))


def mean_ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each number, from 1; equal ones have the mean of theirs."""
    _, places, counts = np.unique(
        np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True
    )
    last = np.cumsum(counts)
    ranks: list[float] = (last - (counts - 1) / 2)[places.reshape(-1)].tolist()
    return ranks


def final_number(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """Return the percentage of texts that end with the right number: GSM8K's exact match (Cobbe et
    al., 2021).

    Arguments and errors are `exact_match`'s; an answer without a number (`last_number`) is an
    error, too.
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

    This is SQuAD's rule, which knows ASCII's punctuation only, as does this one for Latin text.
    Other scripts' own punctuation is removed too, and characters of scripts without spaces become
    words, so that an F1 means something.
    """
    text = re.sub(
        r"\b(a|an|the)\b", " ", "".join(c for c in text.lower() if c not in string.punctuation)
    )
    if not text.isascii():
        import regex

        text = regex.sub(SINGLE, r" \g<0> ", regex.sub(MARKS, " ", text))
    return " ".join(text.split())


# A sign counts only where nothing stands before it: "10-5" ends with 5. Digits may be of any
# script.
NUMBER = re.compile(
    r"(?:(?<![\w)])[-\u2212][$\u20ac\u00a3]?)?"
    r"(?:(?:\d{1,3}(?:[,\u00a0\u2009\u202f]\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
)
# what stands between the digits of a number
NO_DIGITS = re.compile("[,$\u00a0\u2009\u202f\u20ac\u00a3]")


def last_number(text: str) -> Decimal | None:
    """Return the number after the last "####"; without one, the text's last number.

    None without any.

    Thousands may be set apart by commas, no-break or thin spaces: 1,234 and 1234 are the same, as
    are 72 and 72.00.
    """
    _, marked, tail = text.rpartition("####")
    match = None
    if marked:
        match = NUMBER.search(tail)
    words = [match.group()] if match else NUMBER.findall(text)
    if words:
        return Decimal(NO_DIGITS.sub("", words[-1]).replace("\u2212", "-"))
    return None


def _best_f1(prediction: str, rights: Sequence[str]) -> float:
    return max(_f1(prediction, right) for right in rights)


def _f1(prediction: str, right: str) -> float:
    said_words, right_words = normalised(prediction).split(), normalised(right).split()
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
        raise ValueError("there is a text without an answer")
    return list(zip(predictions, answers, strict=True))


def _percent(values: Sequence[float]) -> float:
    return 100.0 * sum(values) / len(values)


# metric's name -> score in percent of (generated texts, the right answers to each: at least one)
SCORES: dict[str, Score] = {
    "rouge_l": rouge_l,
    "f1": f1,
    "exact_match": exact_match,
    "final_number": final_number,
}


def _check(thing: Any) -> None:
    if not callable(thing) or isinstance(thing, type):
        raise TypeError(f"{thing!r} is no function of (generated texts, the right answers to each)")


REGISTRY: Registry[Score] = Registry(
    "metric", "fedseed.metrics", SCORES.items(), _check, reserved=("loss", "perplexity")
)
