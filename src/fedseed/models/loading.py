"""Loading models: the project's own bases, a local folder, or a hub name."""

import os
import pickle
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PretrainedConfig
from transformers.utils import logging

from fedseed.errors import RecipeError, closest, to_install
from fedseed.models import PACKAGED
from fedseed.models.architectures import LOADERS, Architecture, architecture_of
from fedseed.models.foreign import check_files, own_code
from fedseed.models.heads import Head, head_parameters
from fedseed.models.placement import deal_out, find_device, spread
from fedseed.models.quantization import (
    STAND_INS,
    Quantization,
    check_tunable,
    is_movable,
    loading_options,
    prepare_loaded,
    scale_parameters,
)
from fedseed.processes import COMMAND
from fedseed.text import first_line, listed

WEIGHT_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model.bin.index.json",
)
PATIENCE_SECONDS = 10.0  # for the hub's one answer: its client would try for most of a minute
MOST_LAYERS = 4096  # of a configuration: a model of more would be made until the memory is full


def _problem(base: str, what: str) -> RecipeError:
    return RecipeError(f'model.base = "{base}": {what}')


def locate(base: str) -> str:
    """Returns the folder of a packaged base, an existing folder as it is, or the name for the hub.

    Raises RecipeError if it looks like a path and nothing is there.
    """
    if base in PACKAGED:
        return str(files("fedseed") / "base" / base)
    path = Path(base).expanduser()
    if path.is_dir():
        return str(path)
    if base.startswith((".", "/", "~")) or base.count("/") > 1:
        raise _not_there(base)
    # asking the hub for it could take a minute
    if "/" not in base and (meant := closest(base, PACKAGED, 0.8)):
        raise _problem(
            base, f"did you mean {meant}? It is no folder, and models on the hub are OWNER/NAME"
        )
    return base


def reach(base: str) -> str:
    """Returns a place from which `transformers` can load a base without waiting for what will not
    come.

    That is a folder; a name that the hub knows, as it is; without the hub, the folder in its cache.
    Raises RecipeError if there is no such folder, and the hub can't be reached or has no such
    model.
    """
    if COMMAND in os.environ:
        quiet()
    place = locate(base)
    return place if Path(place).is_dir() else _ask(place)


@lru_cache
def _ask(place: str) -> str:
    """Returns what the hub says; it is asked once for a name."""
    # what the hub's client is built on has changed before: its errors are told apart by what all of
    # them are
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    try:
        HfApi(endpoint=os.environ.get("HF_ENDPOINT")).model_info(place, timeout=PATIENCE_SECONDS)
        return place
    except HFValidationError as error:
        raise _not_there(place, ", and this is no name of the hub") from error
    except RepositoryNotFoundError as error:
        raise _not_there(
            place, ", and the hub has no model of this name that is open to you"
        ) from error
    except HfHubHTTPError:
        return place  # it answers: what is wrong, loading will say
    except Exception as error:
        config = try_to_load_from_cache(place, "config.json")
        if isinstance(config, str):
            return str(Path(config).parent)
        raise _not_there(place, f", and the hub can't be reached ({first_line(error)})") from error


def _not_there(place: str, why: str = "") -> RecipeError:
    known = 'give "small", "words", "digits", an existing folder or a hub name'
    return _problem(place, f"there is no such folder{why}; {known}")


def load_model(
    base: str,
    dtype: str = "float32",
    trust_remote_code: bool = False,
    architecture: Architecture | None = None,
    head: Head | None = None,
    device: str = "cpu",
    attention: str | None = None,
    quantization: Quantization | None = None,
) -> tuple[Any, Any]:
    """Returns a model and its tokenizer (or what stands in its place).

    Args:
        base: "small", "words" or "digits" (the project's own), a local folder, or a hub name.
        dtype: "float32", "bfloat16" or "float16".
        trust_remote_code: run code that comes with the model. Without it such a model is refused;
            nobody is asked.
        architecture: what the task needs (`LOADERS`); None: what the model says it is.
        head: the classes that a classifier of images or texts is to tell apart; None: those of the
            base. A base for other classes, or without a head, gets a new one, whose weights the
            run's seed decides.
        device: where the model is to lie (`fedseed.models.placement`).
        attention: how attention is computed, as transformers calls it (`attn_implementation`);
            None: what it chooses.
        quantization: how its linear layers are quantised (`fedseed.models.quantization`); None: as
            its files are.

    Raises:
        RecipeError: this machine has no such device; or the base is not found, not loadable, of
            another kind than the task needs, or with weights or a tokenizer missing.
    """
    where = find_device(device)
    place, config = reach(base), base_config(base)
    if not trust_remote_code and (code := own_code(place, config)):
        unless = "which is not run unless model.trust_remote_code = true; read the code first"
        raise _problem(base, f"it comes with code of its own ({code}), {unless}")
    check_files(base, place)
    classes = [str(name) for name in config.get("architectures") or ()]
    wanted = architecture or architecture_of(config, head is not None)
    loader = LOADERS[wanted]
    texts = wanted == "classification" and head is not None  # any text model gets a head
    others = {name for kind, other in LOADERS.items() if kind != wanted for name in other.classes()}
    wrong = (
        not texts and others.intersection(classes) and not loader.classes().intersection(classes)
    )
    known = str(config.get("model_type")) in loader.names
    if wrong or (not known and not config.get("auto_map") and config.get("model_type")):
        what = ", ".join(classes) or f"of type {config['model_type']}"
        raise _problem(base, f"the model is {what}; the task needs {loader.about}")
    options: dict[str, Any] = (
        {} if head is None else {**head.options(), "ignore_mismatched_sizes": True}
    )
    if where is not None and where.type != "cpu":
        options["device_map"] = {"": where}  # shard by shard, in their dtype
    if attention is not None:
        options["attn_implementation"] = attention
    if quantization is not None:
        options |= loading_options(base, config, quantization, getattr(torch, dtype), where)
    try:
        # transformers draws what the files do not have
        with torch.random.fork_rng(devices=[]), torch.device("cpu" if where is None else where):
            model, report = loader.auto.from_pretrained(
                place,
                dtype=getattr(torch, dtype),
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                **options,
            )
    except (pickle.UnpicklingError, EOFError) as error:  # torch's own advice would be to run it
        pickled = "its weights are a pickle of more than tensors, or damaged; nothing of it is run"
        raise _problem(base, f"{pickled}. Ask for model.safetensors") from error
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        asked = isinstance(error, ImportError) or any(
            word in str(error).lower() for word in ("attn", "attention")
        )
        if attention is not None and asked:
            raise RecipeError(
                f'model.attention = "{attention}": not to be had for '
                f"{', '.join(classes) or 'this model'} here "
                f'({first_line(error)}); leave it out, or take "eager"'
            ) from error
        raise _not_loadable(base, place, error) from error
    lacking = {*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])}
    drawn = [] if head is None else head.renew(model, base, head.is_known(config), lacking, texts)
    missing = sorted(lacking.difference(drawn))
    if missing:  # transformers would go on with random numbers in their place
        of_all = f"all weights of {type(model).__name__} ({listed(missing, 3)} missing)"
        raise _problem(
            base,
            f"its files do not have {of_all}; the task needs {loader.about} (see "
            "model.architecture)",
        )
    try:
        processor = loader.processor(place, trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        # where sentencepiece is missing, transformers takes its tokenizer.model for tiktoken's, and
        # asks for tiktoken
        asked = any(name in str(error).lower() for name in ("sentencepiece", "tiktoken"))
        # of the hub nobody knows here
        there = Path(place, "tokenizer.model").is_file() or not Path(place).is_dir()
        remedy = "save it into the same folder (save_pretrained)"
        if asked and there and find_spec("sentencepiece") is None:
            remedy = (
                "a tokenizer.model, such as LLaMA's, needs sentencepiece: "
                f"{to_install('sentencepiece')}"
            )
        reason = f"its tokenizer or image processor can't be loaded ({first_line(error)})"
        raise _problem(base, f"{reason}; {remedy}") from error
    _fit(base, model, processor)
    prepare_loaded(model, quantization, base)
    if wanted == "classification":
        # a decoder with a head looks for a text's last token by what texts are filled up with
        for pad in (processor.eos_token_id, processor.pad_token_id):
            model.config.pad_token_id = model.config.pad_token_id if pad is None else pad
    if where is None:
        model = spread(model, deal_out(model))
    model.eval()
    return model, processor


def has_weights(base: str) -> bool:
    """Returns whether a base has weights to load; a folder may hold none.

    Raises RecipeError if there is no folder.
    """
    folder = Path(locate(base))
    return not folder.is_dir() or any(any(folder.glob(pattern)) for pattern in WEIGHT_FILES)


def outline(
    base: str,
    dtype: str = "float32",
    trust_remote_code: bool = False,
    architecture: Architecture | None = None,
    head: Head | None = None,
    attention: str | None = None,
    quantization: Quantization | None = None,
) -> Any:
    """Returns the model that `load_model` would load, on the device "meta": it has no weights and
    takes no memory.

    The arguments are `load_model`'s; a folder needs a config.json and nothing else. Raises
    RecipeError if the configuration can't be had, or no model can be made from it.
    """
    base_config(base)
    options: dict[str, Any] = {} if head is None else head.options()
    attended = {} if attention is None else {"attn_implementation": attention}
    try:
        config = AutoConfig.from_pretrained(
            reach(base), trust_remote_code=trust_remote_code, **options
        )
        wanted = architecture or architecture_of(config.to_dict(), head is not None)
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            model = LOADERS[wanted].auto.from_config(
                config, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code, **attended
            )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise _problem(
            base, f"no model can be made from its configuration ({first_line(error)})"
        ) from error
    if quantization is not None:
        # a library's layers are as large as the project's own of as many bits
        prepare_loaded(model, STAND_INS[quantization], base)
    model.eval()
    return model


def _fit(base: str, model: Any, processor: Any) -> None:
    """Raises RecipeError if a model has not a row for every token.

    An image processor has no tokens.
    """
    tokens: Any = getattr(processor, "vocab_size", None)
    embeddings = None if tokens is None else model.get_input_embeddings()
    if not isinstance(embeddings, torch.nn.Embedding):
        return
    rows = embeddings.num_embeddings
    used = (processor.bos_token_id, processor.eos_token_id, processor.mask_token_id, tokens - 1)
    highest = max(number for number in used if number is not None)
    if highest >= rows:
        of_model = f"the model has embeddings for {rows:,}: one of them is another model's"
        raise _problem(base, f"its tokenizer has {highest + 1:,} tokens, {of_model}")
    pad = processor.pad_token_id
    # a token that was added for padding; any serves, for padding is masked
    if pad is not None and pad >= rows:
        processor.pad_token = processor.eos_token


def base_config(base: str) -> dict[str, Any]:
    """Returns a base's config.json; nothing is run or loaded.

    Raises RecipeError if it can't be had.
    """
    place = reach(base)
    try:
        config: dict[str, Any] = PretrainedConfig.get_config_dict(place)[0]
    except (OSError, ValueError, RecursionError) as error:
        raise _not_loadable(base, place, error) from error
    for key, value in config.items():
        if "layer" in key and isinstance(value, int) and value > MOST_LAYERS:
            most = f"at most {MOST_LAYERS:,} layers are made; get the file anew"
            raise _problem(base, f"{key} = {value:,} in config.json: {most}")
    return config


def _not_loadable(base: str, place: str, error: Exception) -> RecipeError:
    there = "the folder holds no model that can be loaded"
    what = (
        there
        if Path(place).is_dir()
        else "neither a local folder with a model nor to be had from the hub"
    )
    return _problem(base, f"{what} ({first_line(error)})")


def quiet() -> None:
    """Keeps transformers' own progress bars off the screen, and its advice."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def choose_trainable(model: torch.nn.Module, patterns: Sequence[str] | None) -> None:
    """Lets only parameters train whose name matches a pattern such as "*.layers.3.*"; None: all.

    What an adapter has fixed does not train either way.

    Raises RecipeError if nothing matches, or something that is quantised.
    """
    if patterns is None:
        check_tunable(model)
        return
    fixed: frozenset[str] = getattr(model, "fixed_parameters", frozenset())
    chosen = {
        name
        for name, _ in model.named_parameters()
        if name not in fixed and any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    for name, parameter in model.named_parameters():
        if name in chosen and not is_movable(parameter):
            raise RecipeError(
                f"model.trainable = {list(patterns)}: {name} is quantised, and can't be tuned; "
                'name other parameters, such as "*norm*", or with model.quantization = "int4" or '
                '"int8" "*.scales"'
            )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    if not chosen:
        raise RecipeError(f"model.trainable = {list(patterns)}: no parameter has a name like this")


def trainable_names(
    model: Any, base: str, trainable: Sequence[str] | Literal["head", "scales"] | None
) -> Sequence[str] | None:
    """Return the name patterns of the parameters that a recipe's `model.trainable` means.

    Args:
        model: the base.
        base: its name, for errors.
        trainable: patterns, "head", "scales"; None: all.

    Raises:
        RecipeError: the model has no head, or no scales.
    """
    if trainable == "head":
        return head_parameters(model, base)
    if trainable == "scales":
        return scale_parameters(model, base)
    return trainable


def checkpoint_activations(model: torch.nn.Module, base: str = "") -> None:
    """Lets a model of transformers checkpoint each of its layers while it trains.

    Chen, Xu, Zhang, Guestrin: "Training Deep Nets with Sublinear Memory Cost", 2016. Of each layer
    only its input is kept; when the backward pass comes to the layer, its forward pass is done once
    more, with the same dropout. Evaluation and zeroth-order methods, which keep no activations, go
    on as ever.

    Args:
        model: the base, before an adapter is put into it.
        base: its name, for the error.

    Raises:
        RecipeError: a model of this class has no layers that could be checkpointed.
    """
    # as transformers calls it from 5 on
    enable: Any = getattr(model, "activation_checkpointing_enable", None)
    enable = enable or getattr(model, "gradient_checkpointing_enable", None)
    try:
        if enable is None:
            raise ValueError("it is no model of transformers")
        enable({"use_reentrant": False})
    except ValueError as error:
        raise RecipeError(
            f'model.activation_checkpointing = true: model.base = "{base}" is a '
            f"{type(model).__name__}, whose layers "
            f"can't be checkpointed ({first_line(error)}); leave it out, or take a smaller "
            "training.batch"
        ) from error
    # transformers makes embeddings' outputs need a gradient, which only re-entrant checkpoints ask
    # for
    if hasattr(model, "_require_grads_hook"):
        getattr(model, "disable_input_require_grads")()  # noqa: B009 (mypy knows no such method)
