"""Scores against the packages and rules that define them, and against values worked out by hand."""

import re
import string
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from fedseed.tasks.metrics import (
    SCORES,
    RougeTokens,
    exact_match,
    f1,
    final_number,
    keeps_accents,
    last_number,
    normalised,
    rouge_l,
    share_of_accents,
)

# Latin letters with and without accents, digits, punctuation, symbols: all that text in Latin
# letters is made of
LATIN = st.text(
    st.one_of(
        st.characters(min_codepoint=9, max_codepoint=0x24F),
        st.sampled_from("abcABC 123 é\u0301İıſﬁẞ–—‘’“”…€™²½ªºµ\u00a0\u2009ﬀ"),
    ),
    max_size=60,
)


@settings(max_examples=50, deadline=None)
@given(LATIN, st.text(st.characters(codec="ascii"), max_size=60))
def test_rouge_l_to_ascii_answers_is_rouge_scores_own(said, right):
    own = RougeScorer(["rougeL"], use_stemmer=False).score(right, said)["rougeL"].fmeasure
    assert rouge_l([said], [[right]]) == pytest.approx(100 * own)


def test_answers_with_accents_are_compared_with_them():
    assert rouge_l(["Böder"], [["Bäder"]]) == 0.0
    assert rouge_l(["die BÄDER"], [["die Bäder"]]) == 100.0
    assert rouge_l(["die Ba\u0308der"], [["die Bäder"]]) == 100.0  # two characters for ä
    assert rouge_l(["la forêt est belle"], [["la forêt est grande"]]) == pytest.approx(75.0)


def test_a_name_in_english_answers_changes_no_score():
    answers = ["the cafe in the old town is open"] * 30
    own = RougeScorer(["rougeL"], use_stemmer=False)
    for texts, accents in ((answers, False), ([*answers, "café"], False), (["ein Café"], True)):
        assert keeps_accents(texts) == accents
        said = [text.replace("open", "closed").replace("fé", "fe") for text in texts]
        if not accents:
            expected = [
                own.score(right, one)["rougeL"].fmeasure
                for right, one in zip(texts, said, strict=True)
            ]
            found = rouge_l(said, [[text] for text in texts])
            assert found == 100.0 * sum(expected) / len(expected)
    assert share_of_accents(["Zażółć gęślą jaźń", "ok"]) == 0.75
    assert share_of_accents(["東京", "42", ""]) == 0.0


@given(st.text(st.characters(codec="ascii"), max_size=60))
def test_tokens_of_ascii_text_are_the_same_either_way(text):
    assert RougeTokens(accents=True).tokenize(text) == RougeTokens().tokenize(text)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Привет, мир! 42", ["привет", "мир", "42"]),
        ("Θα πάω αύριο", ["θα", "πάω", "αύριο"]),
        (
            "東京タワー。",
            ["東", "京", "タ", "ワー"],
        ),  # the long vowel's sign belongs to its syllable
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),  # vowel signs stay in their words
        ("مرحبا بالعالم ٤٢", ["مرحبا", "بالعالم", "٤٢"]),
        ("the Москва2 café", ["the", "москва", "2", "caf"]),
        ("\u1112\u1161\u11ab\u1100\u116e\u11a8", ["\ud55c\uad6d"]),  # Korean in single letters
        ("か\u3099", ["が"]),
        ("и\u0306од", ["йод"]),
        ("", []),
    ],
)
def test_tokens_of_other_scripts(text, tokens):
    assert RougeTokens().tokenize(text) == tokens


@pytest.mark.parametrize(
    ("said", "right", "expected"),
    [
        ("the red cat", "the big red dog", 100 * 4 / 7),  # "the red": 2/3 and 2/4
        ("", "", 0),
        ("красный кот", "большой красный пёс", 100 * 2 / 5),  # rouge-score alone: 0
        ("東京都", "京都", 80),  # 京都: 2/3 and 2/2
    ],
)
def test_rouge_l_by_hand(said, right, expected):
    # the first answer counts
    assert SCORES["rouge_l"]([said], [[right, said]]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("said", "answers", "expected_f1", "expected_match"),
    [
        ("The Eiffel Tower!", ["eiffel tower"], 100, 100),
        ("a tower in Paris", ["Eiffel Tower", "in Paris"], 80, 0),  # 2/3 and 2/2 with the second
        ("red red red", ["red blue"], 40, 0),  # counted once: 1/3 and 1/2
        ("well-known", ["wellknown"], 100, 100),  # SQuAD takes punctuation away, leaves no space
        ("another theme", ["other me"], 0, 0),  # articles only as whole words
        ("the", ["a."], 100, 100),  # nothing is left of either
        ("1998–2002", ["1998 2002"], 0, 0),  # SQuAD knows only ASCII's punctuation
        ("Это Москва!", ["москва"], 100 * 2 / 3, 0),
        ("東京都", ["東京"], 80, 0),
        ("ที่นี่", ["นี่"], 100 * 2 / 3, 0),
        ("Zu\u0308rich", ["Zürich"], 100, 100),  # the same letter, as one character and as two
    ],
)
def test_f1_and_exact_match_by_hand(said, answers, expected_f1, expected_match):
    assert f1([said], [answers]) == pytest.approx(expected_f1)
    assert exact_match([said], [answers]) == expected_match


@settings(max_examples=100, deadline=None)
@given(LATIN)
def test_latin_text_is_normalised_by_squads_rule(text):
    bare = text.lower().translate({ord(c): None for c in string.punctuation})
    assert normalised(text) == " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
    assert exact_match([text], [[text]]) == f1([text], [[text]]) == 100


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She has 3 + 4 = <<3+4=7>>7 apples.\n#### 7", "7"),
        ("#### 1\nno, #### 1,234", "1234"),  # the last mark
        ("#### $1,234.50 or 7", "1234.50"),  # the first number after it
        ("12 of 15 #### none", "15"),
        ("It costs $1,000,000.", "1000000"),
        ("1\u202f234\u00a0567", "1234567"),
        ("it is \u2212$5.", "-5"),
        ("10-5", "5"),
        ("about .5", "0.5"),
        ("1, 2,3456", "3456"),  # no thousands
        ("العدد ٤٢", "42"),
        ("", None),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == (None if number is None else Decimal(number))


def test_final_number():
    said = ["so it is 72.00", "#### 71", "seventy-two", ""]
    assert final_number(said, [["#### 72"]] * 4) == 25
    assert final_number(["1,000"], [["12", "x #### 1000"]]) == 100
    with pytest.raises(ValueError, match="no number in the answer 'x'"):
        final_number(["1"], [["1", "x"]])
