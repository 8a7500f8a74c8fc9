"""Options for transformers to quantise a base, or to load a base that is already quantised.

Files with quantised weights must give the same model on every machine. transformers keeps FP8 and
MXFP4 weights if it finds a GPU that can multiply them, and otherwise converts them to ordinary
weights. These are different models with different digests, so ordinary weights are requested
everywhere. Files of bitsandbytes and torchao are loaded unchanged, and an adapter is tuned on them.
Files of other methods are refused.
"""

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
import transformers

from fedseed.errors import RecipeError, to_install
from fedseed.models.checkpoint import Checkpoint, problem
from fedseed.models.quantization import BITS, HEADS, LIBRARIES, Quantization

# the class with an option for ordinary weights, by the method's name in config.json
TO_FLOATS = {"fp8": "FineGrainedFP8Config", "mxfp4": "Mxfp4Config"}
# methods whose files are loaded unchanged, each with its library's name
LOADED_AS_THEY_ARE = ("bitsandbytes", "torchao")


def method_of(config: Mapping[str, Any]) -> str | None:
    """Return the quantisation method in a base's config.json; None if there is none."""
    settings = config.get("quantization_config")
    if not isinstance(settings, Mapping):
        return None
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        return "bitsandbytes"
    return str(settings.get("quant_method") or "") or None


def loading_options(
    checkpoint: Checkpoint,
    quantization: Quantization | None,
    dtype: torch.dtype,
    device: torch.device | None,
) -> dict[str, Any]:
    """Return the options of `from_pretrained` for a base's quantisation.

    Args:
        checkpoint: the base.
        quantization: how to quantise it; "int4" and "int8" need no options. None: as in its files.
        dtype: the dtype in which the layers compute.
        device: where to load the model; None: on all devices.

    Raises:
        RecipeError: its weights are quantised in a way that can't be tuned, or they are quantised
            already; or a library is missing.
    """
    method = method_of(checkpoint.config)
    if method is not None and (method in TO_FLOATS or _is_known(method)):
        if quantization is not None:
            raise RecipeError(
                f'model.quantization = "{quantization}": the files of model.base = '
                f'"{checkpoint.name}" are quantised already ({method}); leave out '
                "model.quantization"
            )
        return _options_for_files(checkpoint, method, device)
    if quantization is None or quantization in BITS:
        return {}
    library = LIBRARIES[quantization]
    if find_spec(library) is None:
        raise RecipeError(
            f'model.quantization = "{quantization}" needs {library}: {to_install("quantized")}; '
            '"int4" and "int8" need no library'
        )
    return {
        "quantization_config": _library_config(quantization, dtype),
        "device_map": {"": device or "cpu"},
    }


def _is_known(method: str) -> bool:
    """Return whether transformers has a quantiser for a method.

    transformers ignores unknown names, and the files then have ordinary weights.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    names = map(str, AUTO_QUANTIZATION_CONFIG_MAPPING)
    return method in {name.removesuffix("_4bit").removesuffix("_8bit") for name in names}


def _options_for_files(
    checkpoint: Checkpoint, method: str, device: torch.device | None
) -> dict[str, Any]:
    """Return the options of `from_pretrained` for files with quantised weights."""
    if method in TO_FLOATS:
        try:
            conversion = getattr(transformers, TO_FLOATS[method])(dequantize=True)
        except (AttributeError, TypeError) as error:
            raise problem(
                checkpoint.name,
                f"its weights are {method}, which transformers {transformers.__version__} can't "
                "convert to ordinary weights on every machine: install a newer version",
            ) from error
        return {"quantization_config": conversion}
    settings = checkpoint.config["quantization_config"]
    bits = settings.get("bits") or (4 if settings.get("load_in_4bit") else None)
    width = f", {bits} bit" if bits else ""
    fault = f"its weights are quantised ({method}{width})"
    if method not in LOADED_AS_THEY_ARE:
        raise problem(
            checkpoint.name,
            f"{fault}, so steps would change only the other weights: tune the original "
            'unquantised weights, with model.quantization = "int4" if memory is short, and '
            "quantise the result",
        )
    if find_spec(method) is None:
        raise problem(
            checkpoint.name,
            f"{fault}, which needs {method}: {to_install('quantized')}; or tune the original "
            "unquantised weights",
        )
    if device is None:
        raise problem(
            checkpoint.name,
            f'{fault}: model.device = "map" can\'t distribute them; set a single device',
        )
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # because it warns of every cast
    # otherwise bitsandbytes would use a GPU wherever there is one
    return {"device_map": {"": device}}


def _library_config(quantization: Quantization, dtype: torch.dtype) -> Any:
    """Return the configuration of a library's quantiser for transformers."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # because it warns of every cast
    spared = list(HEADS)
    if quantization == "torchao-int8":
        from torchao.quantization import Int8WeightOnlyConfig

        return transformers.TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=spared)
    if quantization == "llm-int8":
        return transformers.BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=spared)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantization,
        bnb_4bit_compute_dtype=dtype,
        llm_int8_skip_modules=spared,
    )
