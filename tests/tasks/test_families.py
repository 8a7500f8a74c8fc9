"""The generated instruction corpus: size, determinism, disjointness, right answers."""

import hashlib
from pathlib import Path

from tokenizers import Tokenizer

import fedseed
from fedseed.tasks.families import families, instances, statements
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
