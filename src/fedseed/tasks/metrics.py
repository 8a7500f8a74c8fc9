"""Scores of generated text, in percent."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

from fedseed.registry import Registry

Score = Callable[[Sequence[str], Sequence[Sequence[str]]], float]

# by how Unicode's names of characters begin
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")  # scripts written without spaces
# letters to Unicode, but of no language
SYMBOLS: tuple[str, ...] = ("MODIFIER", "MATHEMATICAL", "SCRIPT", "DOUBLE-STRUCK", "BLACK-LETTER", "INFORMATION")
SYMBOLS += ("MICRO", "FEMININE ORDINAL", "MASCULINE ORDINAL")
ASCII_WORDS = re.compile("[a-z0-9]+")


def rouge_l(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Returns the mean Rouge-L F-measure times 100, from the `rouge-score` package (no stemming).

    Its own tokenizer keeps a-z and 0-9 and nothing else, so that a right answer in Greek or Chinese would score 0.
    `RougeTokens` gives the same tokens for text in Latin letters (accents included: both drop them), and for other
    scripts what is usual there: words, or single characters where words are not set apart.

    Args:
        predictions: generated texts.
        references: expected texts, as many.

    Raises:
        ValueError: the lengths differ, or there is nothing to score.
    """
    from rouge_score.rouge_scorer import RougeScorer  # takes a second to import

    scorer = RougeScorer(["rougeL"], use_stemmer=False, tokenizer=RougeTokens())
    pairs = _pairs(predictions, [(reference,) for reference in references])
    return _percent([scorer.score(answers[0], said)["rougeL"].fmeasure for said, answers in pairs])


class RougeTokens:
    """What `rouge-score` counts: its default tokens, and those of scripts that the default drops."""

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text, lower case."""
        text = text.lower()
        if text.isascii():
            return ASCII_WORDS.findall(text)
        tokens, open_kind = [""], ""
        for character in text:
            kind = _kind(character)
            if kind == "mark" and open_kind in ("word", "single"):
                tokens[-1] += character
                continue
            if kind in ("ascii", "word") and kind == open_kind:
                tokens[-1] += character
            elif kind in ("ascii", "word", "single"):
                tokens.append(character)
            open_kind = kind
        return tokens[1:]


@cache
def _kind(character: str) -> str:
    """How a lower-case character counts: "ascii" or "word" in a word, "single" alone, "mark" with the last, or ""."""
    if character.isascii():
        return "ascii" if character.isalnum() else ""
    category = unicodedata.category(character)
    if category[0] == "M" or character == "\u30fc":  # vowel signs and the like; the Japanese sign of a long vowel
        return "mark"
    name = unicodedata.name(character, "")
    if category not in ("Ll", "Lo", "Lm", "Lt", "Lu", "Nd") or "LATIN" in name or name.startswith(SYMBOLS):
        return ""
    return "single" if name.startswith(UNSPACED) else "word"


def f1(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """Returns the mean F1 of the words that a text shares with an answer, the best over the answers, times 100.

    As SQuAD's evaluation has it (Rajpurkar et al., 2016; where nothing is left of a text, 2018): `normalised`
    texts, words counted as often as they occur, 1 for two empty texts. Arguments and errors are `exact_match`'s.
    """
    return _percent([max(_f1(said, right) for right in rights) for said, rights in _pairs(predictions, answers)])


def exact_match(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """Returns how many texts are the same as one of their answers, both `normalised`, in percent.

    Args:
        predictions: generated texts.
        answers: the right answers to each, at least one.

    Raises:
        ValueError: the lengths differ, an answer is missing, or there is nothing to score.
    """
    pairs = _pairs(predictions, answers)
    return _percent([any(normalised(said) == normalised(right) for right in rights) for said, rights in pairs])


def macro_f1(found: Sequence[int], right: Sequence[int]) -> float:
    """Returns the mean of the classes' F1, in percent, over all classes that are right or were found at least once.

    Args:
        found: the class that was found for each example.
        right: the class of each example.

    Raises:
        ValueError: the lengths differ, or there is nothing to score.
    """
    if len(found) != len(right) or not right:
        raise ValueError(f"{len(found)} predictions for {len(right)} references")
    both = Counter(said for said, true in zip(found, right, strict=True) if said == true)
    said, true = Counter(found), Counter(right)
    classes = said.keys() | true.keys()
    return 100.0 * sum(2 * both[c] / (said[c] + true[c]) for c in classes) / len(classes)


def final_number(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """Returns how many texts end with the right number, in percent: GSM8K's exact match (Cobbe et al., 2021).

    Arguments and errors are `exact_match`'s; an answer without a number (`last_number`) is an error, too.
    """
    right = []
    for said, rights in _pairs(predictions, answers):
        numbers = [last_number(text) for text in rights]
        if None in numbers:
            raise ValueError(f"no number in the answer {rights[numbers.index(None)]!r}")
        right.append(last_number(said) in numbers)
    return _percent(right)


def normalised(text: str) -> str:
    """Lower case, without punctuation and the articles a, an, the; single spaces.

    SQuAD's rule. It knows ASCII's punctuation only, and so does this one for Latin text; of other scripts their own
    punctuation goes too, and characters of scripts written without spaces become words, so that an F1 means something.
    """
    text = re.sub(r"\b(a|an|the)\b", " ", "".join(c for c in text.lower() if c not in string.punctuation))
    return " ".join((text if text.isascii() else _apart(text)).split())


def _apart(text: str) -> str:
    """Spaces around characters of scripts written without them, and in place of other scripts' punctuation."""
    parts, after_single = [], False
    for character in text:
        kind = _kind(character)
        if kind != "mark":
            if kind == "single" or after_single:
                parts.append(" ")
            after_single = kind == "single"
            # Latin-1's, General and Supplemental Punctuation are what Latin text has: SQuAD's rule keeps them
            code = ord(character)
            latin = code < 0x100 or 0x2000 <= code < 0x2070 or 0x2E00 <= code < 0x2E80
            if not latin and unicodedata.category(character)[0] == "P":
                character = " "
        parts.append(character)
    return "".join(parts)


# A sign counts only where nothing stands before it: "10-5" ends with 5. Digits may be of any script.
NUMBER = re.compile(
    r"(?:(?<![\w)])[-\u2212][$\u20ac\u00a3]?)?"
    r"(?:(?:\d{1,3}(?:[,\u00a0\u2009\u202f]\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
)
NO_DIGITS = re.compile("[,$\u00a0\u2009\u202f\u20ac\u00a3]")  # what stands between the digits of a number


def last_number(text: str) -> Decimal | None:
    """The number after the last "####"; without one, the text's last number; None without any.

    Thousands may be set apart by commas, no-break or thin spaces: 1,234 and 1234 are the same, as are 72 and 72.00.

    Args:
        text: any text.
    """
    _, marked, tail = text.rpartition("####")
    found = NUMBER.search(tail) if marked else None
    words = [found.group()] if found else NUMBER.findall(text)
    return Decimal(NO_DIGITS.sub("", words[-1]).replace("\u2212", "-")) if words else None


def _f1(said: str, right: str) -> float:
    said_words, right_words = normalised(said).split(), normalised(right).split()
    if not said_words or not right_words:
        return float(said_words == right_words)
    common = (Counter(said_words) & Counter(right_words)).total()
    return 2 * common / (len(said_words) + len(right_words))


def _pairs(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> list[tuple[str, Sequence[str]]]:
    if len(predictions) != len(answers) or not answers:
        raise ValueError(f"{len(predictions)} predictions for {len(answers)} references")
    if not all(answers):
        raise ValueError("there is a text without an answer")
    return list(zip(predictions, answers, strict=True))


def _percent(values: Sequence[float]) -> float:
    return 100.0 * sum(values) / len(values)


def _rouge_l(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    return rouge_l(predictions, [right[0] for right in answers])


# metric's name -> score in percent of (generated texts, the right answers to each: at least one)
SCORES: dict[str, Score] = {
    "rouge_l": _rouge_l,  # to the first answer
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
