"""Bases whose files hold quantised weights: what they become here, the same on every machine.

transformers keeps FP8 and MXFP4 weights where it finds a GPU that can multiply them, and makes
ordinary weights of them elsewhere: two models, with two digests. So ordinary weights are asked for
everywhere. Other quantised weights are integers with scales, which no step can move.
"""

from collections.abc import Mapping
from typing import Any

import transformers

from fedseed.models.checkpoint import Checkpoint, problem

# the class whose option makes ordinary weights, by the name of the method in config.json
TO_FLOATS = {"fp8": "FineGrainedFP8Config", "mxfp4": "Mxfp4Config"}


def method_of(config: Mapping[str, Any]) -> str | None:
    """Return how a base's weights are quantised, as its config.json says it; None: they are not."""
    settings = config.get("quantization_config")
    if not isinstance(settings, Mapping):
        return None
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        return "bitsandbytes"
    return str(settings.get("quant_method") or "") or None


def loading_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what `from_pretrained` is told, so that a quantised base has ordinary weights.

    Raises:
        RecipeError: its weights can't be made ordinary ones.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    method = method_of(checkpoint.config)
    if method is None:
        return {}
    if method in TO_FLOATS:
        try:
            made = getattr(transformers, TO_FLOATS[method])(dequantize=True)
        except (AttributeError, TypeError) as error:
            raise problem(
                checkpoint.name,
                f"its weights are {method}, of which transformers {transformers.__version__} makes "
                "no ordinary weights on every machine: take a newer one",
            ) from error
        return {"quantization_config": made}
    known = {
        str(name).removesuffix("_4bit").removesuffix("_8bit")
        for name in AUTO_QUANTIZATION_CONFIG_MAPPING
    }
    if method not in known:
        return {}  # transformers passes over it: the files hold ordinary weights
    settings = checkpoint.config["quantization_config"]
    bits = settings.get("bits") or (4 if settings.get("load_in_4bit") else None)
    width = f", {bits} bit" if bits else ""
    raise problem(
        checkpoint.name,
        f"its weights are quantised ({method}{width}), and steps would move the others alone: "
        "tune the original weights it was made of, and quantise what comes out",
    )
