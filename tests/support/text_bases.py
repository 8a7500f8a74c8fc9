"""Tiny random bases of texts with tokenizers of their kinds: T5, BART, BERT, LLaMA.

Folders that transformers loads.
"""

import torch

WORDS = (
    "the film was great good bad terrible so not at all very a fine story Label : positive "
    "negative neutral and"
)
TEXTS = [
    f"{a} {b} film" for a in ("a", "the") for b in ("great", "good", "fine", "bad", "terrible")
]
SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


class Ids:
    """Stands for a tokenizer where texts are numbers already."""

    eos_token_id = pad_token_id = 1
    bos_token_id = None


def word_tokenizer(around="{} </s>", **names):
    """A tokenizer of whole words.

    `around` is what it puts around a text, with "{}" for the text.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = list(dict.fromkeys([*SPECIAL.values(), *names.values()]))
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys([*special, *WORDS.split()]))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if around != "{}":
        template = around.replace("{}", "$A")
        used = [(word, vocabulary[word]) for word in special if word in around]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=used
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL, **names)


KINDS = {  # what the tokenizer puts around a text, and its names; the model's class and sizes
    "t5": (
        "{} </s>",
        {},
        "AutoModelForSeq2SeqLM",
        {
            "d_model": 16,
            "d_kv": 4,
            "d_ff": 32,
            "num_layers": 2,
            "num_heads": 4,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": (
        "<s> {} </s>",
        {"bos_token": "<s>"},
        "AutoModelForSeq2SeqLM",
        {
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "max_position_embeddings": 20,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "bos_token_id": 3,
            "decoder_start_token_id": 1,
            "forced_eos_token_id": 1,
            "init_std": 0.3,
        },
    ),
    "bert": (
        "[CLS] {} [SEP]",
        {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"},
        "AutoModelForMaskedLM",
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 40,
            "pad_token_id": 0,
            "initializer_range": 0.3,
        },
    ),
    "llama": (
        "<s> {}",
        {"bos_token": "<s>"},
        "AutoModelForCausalLM",
        {
            "hidden_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "bos_token_id": 3,
            "eos_token_id": 1,
            "initializer_range": 0.2,
        },
    ),
}


def write(folder, kind):
    """Write a base of a kind into a folder and return the folder."""
    around, names, model, sizes = KINDS[kind]
    return save(folder, word_tokenizer(around, **names), kind, model, sizes)


def save(folder, tokenizer, kind, model, sizes):
    """Write a random model and its tokenizer."""
    random_model(kind, model, vocab_size=len(tokenizer), **sizes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def random_model(kind, model="AutoModelForCausalLM", **sizes):
    """A model of transformers by its kind's name, with random weights."""
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, model).from_config(
        transformers.AutoConfig.for_model(kind, **sizes)
    )
