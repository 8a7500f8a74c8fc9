"""Loads frozen bases in 4 or 8 bits, under an adapter. Built on `bitsandbytes`, which computes on CPUs and GPUs.

    4bit   Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", NeurIPS 2023: 4-bit NormalFloat, a scale in
           float32 for every 64 weights, computed with in the base's dtype
    8bit   Dettmers et al., "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale", NeurIPS 2022

Linear layers are quantised, but for the output layer; embeddings, norms and heads stay as they are. The base is still
the original: its digest is that of the original files, and since only the adapter changes, an orbit replays onto the
original base, and to the same bits on any machine.
"""

import logging
from importlib.util import find_spec
from typing import Any, Literal

import torch

from fedseed.errors import RecipeError, to_install

Quantization = Literal["4bit", "8bit"]
# what text classifiers call their heads; a pooler may be as new
HEADS = ("classifier", "pre_classifier", "classification_head", "score", "pooler", "head", "logits_proj",
         "sequence_summary", "lm_head")  # fmt: skip
BLOCK = 64  # weights of a scale


def settings_of(quantization: Quantization, dtype: torch.dtype, classifies: bool) -> Any:
    """Returns what `from_pretrained` of transformers is given as `quantization_config`.

    Args:
        quantization: how.
        dtype: the base's, which 4-bit layers compute in.
        classifies: whether the model has a classification head, which stays as it is.

    Raises:
        RecipeError: bitsandbytes is missing.
    """
    if find_spec("bitsandbytes") is None:
        wanted = f'model.quantization = "{quantization}"'
        raise RecipeError(f"{wanted} needs bitsandbytes: {to_install('quantized')}")
    from transformers import BitsAndBytesConfig

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of every cast
    spared = list(HEADS) if classifies else None  # None: the output layer
    if quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=spared)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, llm_int8_skip_modules=spared
    )


def settle(model: torch.nn.Module) -> None:
    """Keeps 4-bit layers as they are loaded.

    On some processors bitsandbytes would repack a layer's weights in evaluation and compute in bfloat16 from then on,
    so that a loss would depend on what was computed before. A layer whose width is no multiple of a block it could not
    repack at all.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def saved_by(model: Any, quantization: Quantization) -> int:
    """Returns about how many bytes less a model's weights take once it is quantised, from its outline."""
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    saved: dict[int, int] = {}
    for name, module in model.named_modules():
        spared = module is output or any(part in HEADS for part in name.split("."))
        if isinstance(module, torch.nn.Linear) and not spared:
            count, size = module.weight.numel(), module.weight.element_size()
            small = count // 2 + 4 * count // BLOCK if quantization == "4bit" else count + 4 * module.out_features
            saved[id(module.weight)] = count * size - small
    return sum(saved.values())
