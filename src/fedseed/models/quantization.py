"""Quantised bases: linear layers with codes of 4 or 8 bits, which never change. This module does
not need torch.

    int4, int8         fedseed's own layers (`fedseed.models.quantized_layers`), on any machine
    nf4, fp4           bitsandbytes: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized
                       LLMs", NeurIPS 2023; one scale for every 64 weights
    llm-int8           bitsandbytes: Dettmers et al., "LLM.int8()", NeurIPS 2022
    torchao-int8       torchao: 8-bit weights, one scale for every row

A base whose files are already quantised needs no setting (`fedseed.models.quantized_loading`). A
run tunes an adapter and leaves the codes frozen; with int4 and int8 it can tune the scales instead.

The digest of a quantised base covers the tensors that the model computes with: codes, scales and
unquantised tensors, by their names in `state_dict`. It is the same wherever the same files are
quantised in the same way, and differs from the digest of the original base.

Output layers, classification heads, embeddings, norms and fused experts are not quantised.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from fedseed.errors import FedseedError, RecipeError
from fedseed.weights.codes import count_stray, holds_codes, is_of_library, is_quantized

if TYPE_CHECKING:
    import torch

Quantization = Literal["int4", "int8", "nf4", "fp4", "llm-int8", "torchao-int8"]
BITS: Mapping[str, int] = {"int4": 4, "int8": 8}  # of fedseed's own layers
LIBRARIES: Mapping[str, str] = {
    "nf4": "bitsandbytes",
    "fp4": "bitsandbytes",
    "llm-int8": "bitsandbytes",
    "torchao-int8": "torchao",
}
# fedseed's own layers with the same size as each library's, for models that are only outlined
STAND_INS: Mapping[str, Quantization] = {
    "nf4": "int4",
    "fp4": "int4",
    "llm-int8": "int8",
    "torchao-int8": "int8",
    "int4": "int4",
    "int8": "int8",
}
# names of heads in transformers models; a pooler may be as new as a head
HEADS = (
    "classifier",
    "pre_classifier",
    "classification_head",
    "score",
    "pooler",
    "head",
    "lm_head",
    "logits_proj",
    "sequence_summary",
)
QUANTIZATION_FILE = "quantization.json"  # written beside an exported adapter
REMEDY = (
    'tune an adapter (model.adapter = {kind = "lora"}, or method.name = "fedit"), or use '
    'model.quantization = "int4" and tune its scales (model.trainable = "scales")'
)


def settings_problem(
    quantization: Quantization | None,
    trainable: object,
    has_adapter: bool,
    device: str,
    method: str,
) -> str | None:
    """Return the reason why a recipe's settings can't work with a quantised base; None if they can.

    Args:
        quantization: `model.quantization`.
        trainable: `model.trainable`.
        has_adapter: whether the recipe or its method tunes an adapter.
        device: `model.device`.
        method: the method's name.
    """
    if trainable == "scales":
        if quantization not in BITS:
            setting = "is not set" if quantization is None else f'is "{quantization}"'
            return (
                f'model.trainable = "scales": model.quantization {setting}; set it to "int4" or '
                '"int8", whose scales can train'
            )
        if has_adapter:
            return (
                'model.trainable = "scales": can\'t be combined with an adapter; give name '
                'patterns for both instead, such as ["*lora_*", "*.scales"]'
            )
    if quantization is None:
        return None
    if not has_adapter and trainable is None:
        return (
            f'model.quantization = "{quantization}": {method} would tune all parameters, but '
            f"integer codes can't be tuned; {REMEDY}"
        )
    if device == "map" and quantization in LIBRARIES:
        return (
            f'model.device = "map" with model.quantization = "{quantization}": set a single '
            'device, or use "int4" or "int8"'
        )
    return None


def is_adapter_folder(base: str) -> bool:
    """Return whether a base's name is the folder of an adapter, which a run would tune further."""
    return Path(base, "adapter_config.json").expanduser().is_file()


def prepare_loaded(model: "torch.nn.Module", quantization: Quantization | None, base: str) -> None:
    """Quantise a loaded model's layers, or make a library's layers compute the same on all
    processors.

    On processors with AVX512-BF16, bitsandbytes repacks the weights of a 4-bit layer in the first
    evaluation pass, and then computes in bfloat16. Losses would depend on the processor and on
    earlier computations.

    Args:
        model: the model loaded by transformers; changed in place.
        quantization: "int4" and "int8" are quantised here; with other values a library has already
            done so.
        base: the base's name, for errors.

    Raises:
        RecipeError: the model has no layers to quantise.
    """
    if quantization is not None and quantization in BITS:
        from fedseed.models.quantized_layers import quantize_layers

        quantize_layers(model, BITS[quantization], HEADS)
    if quantization is not None and not is_quantized(model):
        raise RecipeError(
            f'model.quantization = "{quantization}": model.base = "{base}" is a '
            f"{type(model).__name__} without linear layers to quantise; remove this key"
        )
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def quantization_of(model: "torch.nn.Module") -> str:
    """Return "int4" or "int8" if a model has fedseed's own quantised layers; "" if not."""
    from fedseed.models.quantized_layers import QuantizedLayer

    for module in model.modules():
        if isinstance(module, QuantizedLayer):
            return f"int{module.bits}"
    return ""


def splits_outliers(model: "torch.nn.Module") -> bool:
    """Return whether rounding a row of activations depends on other rows, as in LLM.int8().

    A column with an outlier in one row of the batch is treated separately in all rows.
    """
    layers = (module for module in model.modules() if type(module).__name__ == "Linear8bitLt")
    return any(float(getattr(layer.state, "threshold", 0.0)) > 0 for layer in layers)


def describe_quantized(model: "torch.nn.Module") -> str:
    """Return a note on how many of a base's weights are quantised; "" if none are.

    The largest part that may not be quantised are fused experts. Biases of quantised layers are not
    counted.
    """
    packed, plain = 0, dict[int, int]()  # counts; unquantised parameters by identity
    for name, module in model.named_modules():
        if ".lora_" in name:  # of an adapter that is tuned further
            continue
        parameters = list(module.parameters(recurse=False))
        if any(map(holds_codes, parameters)):
            packed += _count_weights(module)
        else:
            plain |= {id(parameter): parameter.numel() for parameter in parameters}
    if not packed:
        return ""
    whole = packed + sum(plain.values())
    return f"the base is quantised: {packed:,} of {whole:,} weights ({packed / whole:.0%})"


def _count_weights(layer: Any) -> int:
    """Return the number of weights that a quantised layer replaces."""
    if hasattr(layer, "in_features"):
        return int(layer.in_features * layer.out_features)
    return int(layer.nx * layer.nf)  # the names of the sides of GPT-2's layers


def check_tunable(model: "torch.nn.Module") -> None:
    """Refuse to tune all of a quantised model, because only unquantised parameters would change.

    A model with an adapter passes, and so does one whose trainable parameters were chosen.

    Raises:
        RecipeError: no choice of trainable parameters was made; the message names what would work.
    """
    count = count_stray(model)
    if count:
        raise RecipeError(
            f"the base is quantised: only its {count:,} unquantised parameters could train. Tune "
            'an adapter (model.adapter = {kind = "lora"}, or method.name = "fedit"); or use the '
            'original base with model.quantization = "int4" and model.trainable = "scales"'
        )


def scale_parameters(model: "torch.nn.Module", base: str) -> list[str]:
    """Return the names of a model's scales, which `model.trainable = "scales"` trains.

    Raises:
        RecipeError: the model has no layers of "int4" or "int8".
    """
    names = _scale_names(model)
    if not names:
        raise RecipeError(
            f'model.trainable = "scales": model.base = "{base}" has no layers of '
            'model.quantization = "int4" or "int8"'
        )
    return names


def _scale_names(model: "torch.nn.Module") -> list[str]:
    """Return the names of the scales of a model's "int4" or "int8" layers."""
    from fedseed.models.quantized_layers import QuantizedLayer

    return [
        f"{name}.scales"
        for name, module in model.named_modules()
        if isinstance(module, QuantizedLayer)
    ]


def dequantized(model: "torch.nn.Module") -> "torch.nn.Module":
    """Return a model with plain layers that computes the same as one with "int4" or "int8" layers.

    Its weights are codes times scales, rounded to the model's dtype as in the layers. transformers
    can save and load this model.

    Args:
        model: the model, whose quantised layers are replaced in place; a model without such layers
            is not changed.
    """
    from fedseed.models.quantized_layers import dequantize_layers

    dequantize_layers(model)
    return model


def check_known(quantization: str) -> None:
    """Raise ValueError if `quantization` is not "" and not a known name."""
    if quantization not in ("", *get_args(Quantization)):
        raise ValueError(
            f"the base is quantised as {quantization!r}, but this version of fedseed only knows "
            f"{', '.join(get_args(Quantization))}"
        )


def save_whole(model: Any, folder: Path) -> None:
    """Write a tuned model without an adapter, in a form that transformers loads.

    Args:
        model: the model, whose own quantised layers are replaced in place by plain ones.
        folder: the folder to write to.
    """
    dequantized(model)
    if is_of_library(model):
        # transformers can't save a model that it loaded quantised in the format of its files
        model.save_pretrained(folder, save_original_format=False)
    else:
        model.save_pretrained(folder)


def write_quantization(folder: Path, quantization: str) -> None:
    """Write the quantisation of an adapter's base into the adapter's folder."""
    text = json.dumps({"quantization": quantization}) + "\n"
    (folder / QUANTIZATION_FILE).write_text(text, encoding="utf-8")


def read_quantization(folder: Path) -> Quantization | None:
    """Return the quantisation of the base of an adapter's folder; None if fedseed did not quantise
    it.

    Raises:
        FedseedError: the file with this information is invalid.
    """
    path = folder / QUANTIZATION_FILE
    if not path.is_file():
        return None
    try:
        quantization = json.loads(path.read_text(encoding="utf-8"))["quantization"]
        check_known(quantization)
    except (ValueError, LookupError, TypeError) as error:
        raise FedseedError(f"{path}: not valid: {error}") from error
    return quantization or None


def recorded_quantization(
    adapter: Path | None, quantization: Quantization | None
) -> Quantization | None:
    """Return the quantisation that the user, or the adapter's folder, requests for a base.

    Args:
        adapter: the folder of an adapter on the base; None: there is none.
        quantization: the user's setting; None: not set.

    Raises:
        FedseedError: the file with this information is invalid.
        RecipeError: the two differ.
    """
    recorded = None if adapter is None else read_quantization(adapter)
    if None not in (recorded, quantization) and recorded != quantization:
        raise RecipeError(
            f'model.quantization = "{quantization}": the adapter in {adapter} was tuned on a base '
            f'quantised as "{recorded}"; leave out model.quantization'
        )
    return quantization or recorded
