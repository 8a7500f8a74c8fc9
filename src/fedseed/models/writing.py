"""Generation settings: which settings of generation_config.json a model's `generate` uses.

A scored answer is generated greedily and depends only on its prompt. So it inherits the tokens that
begin, end and pad a text, but not the base's preferences, such as a minimum length, a penalty, stop
strings or a number of texts. For users' prompts the base's preferences apply, except that there is
one text.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import GenerationConfig

# tokens that begin, end or pad a text, or must never occur in one
TOKENS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
)
# these settings count only a decoder's own tokens, and so no padding of a prompt
OF_DECODERS = (
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "bad_words_ids",
    "forced_decoder_ids",
)
# options that make `generate` return one text for each prompt, as tokens
ONE_TEXT: dict[str, Any] = {
    "num_return_sequences": 1,
    "return_dict_in_generate": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_scores": False,
    "output_logits": False,
}


def for_scoring(model: Any) -> "GenerationConfig":
    """Return the generation settings that a scored answer inherits from a model."""
    # this import loads transformers, which is not needed to import this module
    from transformers import GenerationConfig

    settings = model.generation_config
    names = TOKENS + (OF_DECODERS if model.config.is_encoder_decoder else ())
    values = {name: getattr(settings, name, None) for name in names}
    return GenerationConfig(**{name: value for name, value in values.items() if value is not None})


def for_people(model: Any) -> "GenerationConfig":
    """Return a model's own generation settings, for one text."""
    settings = copy.deepcopy(model.generation_config)
    for name, value in ONE_TEXT.items():
        setattr(settings, name, value)
    return settings


@contextmanager
def generating(model: Any, settings: "GenerationConfig") -> Iterator[None]:
    """Let a model generate with these settings, and restore its own afterwards."""
    own_settings = model.generation_config
    model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = own_settings


def first_scores(
    model: Any, prompts: Sequence[Sequence[int]], pad: int, encodes: bool, count: int = 2
) -> list[torch.Tensor]:
    """Return the scores of the first tokens that a model generates after prompts in one batch.

    Args:
        model: a model that generates.
        prompts: tokens.
        pad: the token that pads shorter prompts, at their beginning or, for an encoder, at their
            end.
        encodes: whether an encoder reads the prompts.
        count: number of tokens to generate.

    Returns:
        For each token, float32 scores on the CPU, of shape (prompts, vocabulary).
    """
    width = max(map(len, prompts))
    rows, masks = [], []
    for prompt in prompts:
        filling = width - len(prompt)
        tokens, ones = list(prompt), [1] * len(prompt)
        rows.append(tokens + [pad] * filling if encodes else [pad] * filling + tokens)
        masks.append(ones + [0] * filling if encodes else [0] * filling + ones)
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    settings = for_scoring(whole)
    settings.eos_token_id = None  # so that `count` tokens are generated, even after an end token
    settings.pad_token_id = pad
    device = next(model.parameters()).device
    with torch.no_grad(), generating(whole, settings):
        output = model.generate(
            input_ids=torch.tensor(rows, device=device),
            attention_mask=torch.tensor(masks, device=device),
            max_new_tokens=count,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    return [logits.float().cpu() for logits in output.logits]
