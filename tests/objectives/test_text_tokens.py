"""Prompt and response as plain transformers would tokenise them together: no blank too many, no
special token twice.
"""

import pytest

from fedseed.objectives.losses import CausalLM, Choices
from fedseed.objectives.masked import NextWords
from fedseed.objectives.tokens import TextTokens
from fedseed.tasks.chats import chat_of
from fedseed.tasks.data import ChatStyle, Choice, Example, NextWord

TEXTS = [
    "Count: 2 times one bird is 2 birds. (2) and good or bad or fine.",
    "User: Say 1! Assistant: 1 bird; x=2, y=3\nthe answer is good",
] * 20
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
# "underline" is a metaspace that is written in another way
KINDS = ("llama-2", "metaspace", "underline", "bytes with a blank", "bytes")


def text_tokenizer(kind, ends=False):
    """A tokenizer of a kind, trained on a few lines; it begins a text with BOS."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer, alphabet = Tokenizer(models.BPE(unk_token="<unk>")), []
    if kind == "llama-2":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    elif kind == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    elif kind == "underline":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("_", prepend_scheme="always")
        tokenizer.decoder = decoders.Metaspace("_", prepend_scheme="always")
    else:
        blank = kind != "bytes"
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=blank)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(SPECIAL.values()), initial_alphabet=alphabet
    )
    # a word at a time: longer tokens would span blanks
    words = [word for text in TEXTS for word in (*text.split(), *(f" {w}" for w in text.split()))]
    tokenizer.train_from_iterator([*words, "\n", "a\nb", ": ("], trainer)
    numbers = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    around = "<s> $A </s>" if ends else "<s> $A"
    tokenizer.post_processor = TemplateProcessing(single=around, special_tokens=numbers)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


PAIRS = [
    ("Count: 2 times one bird is", " 2 birds"),
    ("x=", "2"),
    ("Say 1!\n", "1 bird"),
    ("y=", "good"),
    ("the answer is", "\ngood"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("prompt", "response"), PAIRS)
def test_a_response_has_the_tokens_that_it_has_after_its_prompt(kind, prompt, response):
    tokenizer = text_tokenizer(kind)
    assert TextTokens(tokenizer).adds_blank == (kind != "bytes")
    (item,) = CausalLM(tokenizer).prepare([Example(prompt, response)])
    asked = tokenizer(prompt)["input_ids"]
    assert list(item.ids[: item.response_start]) == asked  # what generation is given
    assert list(item.ids[:-1]) == tokenizer(prompt + response)["input_ids"]
    assert item.ids[-1] == tokenizer.eos_token_id
    text = tokenizer.decode(item.ids, skip_special_tokens=True)
    assert text.lstrip(" ") == prompt + response


@pytest.mark.parametrize("kind", KINDS)
def test_a_blank_at_a_prompts_end_is_the_prompts(kind):
    """Plain transformers would take the blank into the next token; generation could not."""
    tokenizer = text_tokenizer(kind)
    (item,) = CausalLM(tokenizer).prepare([Example("x= ", "2")])
    assert list(item.ids[: item.response_start]) == tokenizer("x= ")["input_ids"]
    assert tokenizer.decode(item.ids, skip_special_tokens=True).lstrip(" ") == "x= 2"
    assert tokenizer.convert_ids_to_tokens(item.ids[item.response_start]) == "2"


@pytest.mark.parametrize("kind", KINDS)
def test_options_and_words_have_no_blank_too_many(kind):
    tokenizer = text_tokenizer(kind)
    prompt, options = "Count:\nUser:", (" good", " bad")
    (item,) = Choices(tokenizer).prepare([Choice(prompt, options, 0)])
    for option, sequence in zip(options, item.sequences, strict=True):
        assert list(sequence.ids) == tokenizer(prompt + option)["input_ids"]
    (word,) = NextWords(tokenizer).prepare([NextWord(prompt, options, 0)])
    assert [tokenizer.decode([i]).strip() for i in word.words] == ["good", "bad"]
    assert [[i] for i in word.words] == [
        list(s.ids[item.sequences[0].response_start :]) for s in item.sequences
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_chats_in_both_forms(kind):
    tokenizer = text_tokenizer(kind)
    turns = [{"role": "user", "content": "Say 1!"}, {"role": "assistant", "content": "1 bird"}]
    (plain,) = CausalLM(tokenizer).prepare([chat_of(turns, [], ChatStyle("plain"), "")])
    assert list(plain.ids[:-1]) == tokenizer("User: Say 1!\n\nAssistant: 1 bird")["input_ids"]
    template = (
        "{% for m in messages %}{{ m.role + ':' + m.content + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    (item,) = CausalLM(tokenizer).prepare([chat_of(turns, [], ChatStyle("given", template), "")])
    whole = tokenizer("user:Say 1!</s>assistant:1 bird</s>", add_special_tokens=False)
    assert list(item.ids) == whole["input_ids"]


def test_an_answer_that_a_token_reaches_into_begins_without_a_blank():
    """The template ends with a blank, and the tokenizer would put it into the answer's token."""
    tokenizer = text_tokenizer("llama-2")
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "2"}]
    template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    (item,) = CausalLM(tokenizer).prepare([chat_of(turns, [], ChatStyle("given", template), "")])
    begin = item.learnt[0][0]
    assert tokenizer.convert_ids_to_tokens(list(item.ids[begin - 1 :])) == ["▁", "2", "</s>"]


RENDERED = [
    ("<s>Say 1!", "1 bird</s>", True),
    ("<s>Say 1!", "1 bird", True),
    ("Say 1!", "1 bird</s>", True),
    ("Say 1!", "1 bird</s>\n", True),
    ("", "<s>Say 1! 1 bird</s>", True),
    ("Say 1!", "1 bird", False),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("prompt", "response", "is_rendered"), RENDERED)
def test_what_a_template_has_written_gets_no_special_token_twice(
    kind, prompt, response, is_rendered
):
    tokenizer = text_tokenizer(kind)
    objective = CausalLM(tokenizer)
    (item,) = objective.prepare([Example(prompt, response)])
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    assert (item.ids[0], item.ids[-1]) == (bos, eos)
    assert item.ids.count(bos) == item.ids.count(eos) == 1
    assert item.remarks == (("rendered",) if is_rendered else ())
    (reference,) = objective.references_of(Example(prompt, response))
    assert "</s>" not in reference and reference.endswith("1 bird")


def test_a_turn_that_ends_otherwise_is_ended_and_generation_stops_there():
    tokenizer = text_tokenizer("bytes")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eot|>"]})
    end = tokenizer.convert_tokens_to_ids("<|eot|>")
    objective, example = CausalLM(tokenizer), Example("Say 1!", "1 bird<|eot|>\n")
    (item,) = objective.prepare([example])
    assert item.ids[-1] == end and tokenizer.eos_token_id not in item.ids
    assert objective.ends_of(example) == (end,)
    assert objective.references_of(example) == ("1 bird",)
    assert objective.ends_of(Example("a", "b")) == ()


def test_an_unknown_character_at_the_end_ends_nothing():
    tokenizer = text_tokenizer("metaspace")
    for response in ("1 €", "1 <unk>", "1 <s>"):
        (item,) = CausalLM(tokenizer).prepare([Example("Say 1!", response)])
        assert item.ids[-1] == tokenizer.eos_token_id and item.remarks == ()


def test_special_tokens_around_a_text_that_has_them():
    """As an encoder's prompt or a classifier's text."""
    tokens = TextTokens(text_tokenizer("bytes", ends=True))
    plain = tokens.whole("one bird")
    for text in ("<s>one bird", "one bird</s>", "<s>one bird</s>"):
        assert tokens.whole(text) == plain
    assert plain == tokens.tokenizer("one bird")["input_ids"]
