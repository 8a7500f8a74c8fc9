"""The generated instruction corpus: size, determinism, disjointness, right answers."""

import hashlib
import re
from pathlib import Path
from random import Random

import pytest
from tokenizers import Tokenizer

import fedseed
from fedseed.tasks.families import families, instances, split, statements
from fedseed.tasks.families.language import draw, write
from fedseed.tasks.prompts import short_prompt

ALL = families()


def test_the_corpus_is_the_same_on_any_machine():
    text = "\n".join(
        f"{one.instruction}|{one.input}|{one.output}" for family in ALL for one in instances(family, 60, seed=0)
    )
    text += "\n".join(statements(0, 1000))
    assert hashlib.sha256(text.encode()).hexdigest() == KNOWN_DIGEST


# Changes whenever a family, a wording or a word of the world does; the committed base
# was made from the corpus with this digest.
KNOWN_DIGEST = "342aebd8670411511715073847b0737f085e923d7c41c0261cdddc6eda6315b6"


@pytest.mark.long
def test_splits_share_no_question():
    for family in ALL:
        parts = split(family, 5, train=120, validation=30, test=40)
        train, validation, test = (
            {one.content for one in part} for part in (parts.train, parts.validation, parts.test)
        )
        assert (len(train), len(validation), len(test)) == (120, 30, 40)
        assert not train & validation and not train & test and not validation & test
        # More training data leaves the evaluation alone.
        assert split(family, 5, train=200, validation=30, test=40).test == parts.test


def test_a_question_in_another_wording_is_the_same_question():
    # 1,600 adjective and thing pairs exist, whatever the number of wordings.
    with pytest.raises(ValueError, match=r"opposite_sentence.*distinct"):
        instances(next(family for family in ALL if family.name == "opposite_sentence"), 1_601, seed=1)


def test_the_language_of_the_data_files():
    lines = ["pair <- 2 of numbers", "one two <- red | blue", "word <- apple | apple", "low high = sorted pair"]
    lines += ["kind <- 100%", "kind? yes = 3", "not kind? no = 3", "sum = yes + yes", "all <- 2..2 of months"]
    values = draw(lines, Random(0))
    assert {values["one"], values["two"]} == {"red", "blue"} and values["low"] < values["high"]
    assert "no" not in values and len(values["all"]) == 2
    made = write("{word:A}, {word:a}: {sum}, {sum:word}, {sum:+1}, {kind:yes|no}, {pair[0]}", values)
    assert made == f"An apple, an apple: 6, six, 7, yes, {values['pair'][0]}"
    with pytest.raises(ValueError, match="no line of a draw"):
        draw(["a word"], Random(0))


def test_statements_are_plain_and_hold_the_words_of_all_answers():
    written = statements(1, 20_000)
    assert written[:50] == statements(1, 50)
    assert not any("###" in text for text in written)
    known = {word for text in written for word in re.findall(r"\w+", text.lower())}
    for family in ALL:
        if family.group == "base":
            continue
        for one in instances(family, 60, seed="words"):
            unknown = set(re.findall(r"\w+", one.output.lower())) - known
            assert not unknown, (family.name, unknown)


def test_the_committed_tokenizer_returns_text_and_keeps_prompt_and_answer_apart():
    folder = Path(fedseed.__file__).parent / "base" / "small"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    odd = ["apple", "\n\n a\n  b\n", "  x \n\n\n y \n", "Zoë ünï 漢字 \t end ", "def f(x):\n    return x\n", ""]
    for text in [*odd, *statements(2, 200)]:
        assert tokenizer.decode(ids(text), skip_special_tokens=True) == text
    for family in ALL:
        for one in instances(family, 30, seed="tokens"):
            prompt = short_prompt(one.instruction, one.input)
            whole = ids(prompt + one.output)
            assert ids(prompt) + ids(one.output) == whole
            assert len(whole) + 2 < 80
    assert [tokenizer.token_to_id(mark) for mark in ("<pad>", "<s>", "</s>")] == [0, 1, 2]
    assert (folder / "model.safetensors").stat().st_size < 3_500_000
