"""Loads models: the bases that come with fedseed, a local folder, or a hub name."""

import json
import pickle
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from re import findall
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig

from fedseed.errors import RecipeError, to_install
from fedseed.models import adapters
from fedseed.models.architectures import (
    LOADERS,
    Architecture,
    Loader,
    architecture_of,
    hears_besides,
    sees_ahead_unless_told,
)
from fedseed.models.checkpoint import (
    ADAPTER_CONFIG,
    Checkpoint,
    base_config,
    find_checkpoint,
    has_weights,
    locate,
    not_loadable,
    problem,
    quiet,
    reach,
    whole_weights,
)
from fedseed.models.foreign import check_files, own_code
from fedseed.models.heads import Head, head_parameters
from fedseed.models.placement import deal_out, find_device, spread
from fedseed.models.quantization import (
    STAND_INS,
    Quantization,
    check_tunable,
    prepare_loaded,
    recorded_quantization,
    scale_parameters,
)
from fedseed.models.quantized_loading import loading_options
from fedseed.models.targets import matches
from fedseed.models.traits import settle, traits_of
from fedseed.text import first_line, listed
from fedseed.weights.codes import is_movable

__all__ = [
    "base_config",
    "checkpoint_activations",
    "choose_trainable",
    "has_weights",
    "load_model",
    "locate",
    "outline",
    "quiet",
    "reach",
    "read_config",
    "read_processor",
]


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
    """Return a model and its tokenizer or image processor.

    Args:
        base: "small", "words" or "digits" (which come with fedseed), a local folder, or a hub name.
            The folder of a LoRA is loaded onto its base, as a peft model whose LoRA trains.
        dtype: "float32", "bfloat16" or "float16".
        trust_remote_code: run code that comes with the model. If false, such a model is refused,
            without a question to the user.
        architecture: the architecture that the task needs (`LOADERS`); None: the model's own.
        head: the classes of a classifier of images or texts; None: the base's classes. If the base
            has no head, or its outputs can't be matched to the classes, it gets a new head, whose
            weights depend on the run's seed.
        device: where to load the model (`fedseed.models.placement`).
        attention: transformers' `attn_implementation`; None: its own choice.
        quantization: how to quantise its linear layers (`fedseed.models.quantization`); None: as in
            its files, or as recorded in a LoRA's folder.

    Raises:
        RecipeError: this machine has no such device; the base is not found, can't be loaded, does
            not fit the task, or is quantised in an unsupported way; or weights or a tokenizer are
            missing.
    """
    torch_device = find_device(device)
    if quantization is not None and quantization not in get_args(Quantization):
        raise RecipeError(
            f'model.quantization = "{quantization}": choose one of '
            f"{', '.join(get_args(Quantization))}"
        )
    checkpoint = find_checkpoint(base)
    quantization = recorded_quantization(checkpoint.adapter, quantization)
    _check_code(checkpoint, trust_remote_code)
    kind = architecture or architecture_of(checkpoint.config, head is not None)
    loader = LOADERS[kind]
    _check_kind(checkpoint, kind, head is not None)
    options: dict[str, Any] = {
        "dtype": getattr(torch, dtype),
        "trust_remote_code": trust_remote_code,
        **_configured(checkpoint, kind, head),
        **loading_options(checkpoint, quantization, getattr(torch, dtype), torch_device),
    }
    if torch_device is not None and torch_device.type != "cpu":
        options["device_map"] = {"": torch_device}  # loads shard by shard, in the shards' dtype
    if attention is not None:
        options["attn_implementation"] = attention
    model, report = _read_weights(checkpoint, loader, options, torch_device)
    _complete(checkpoint, loader, model, report, head)
    processor = read_processor(checkpoint, loader, trust_remote_code)
    _fit(base, model, processor)
    prepare_loaded(model, quantization, base)
    if kind == "classification":
        _set_pad_token(model, processor)
    if torch_device is None:
        model = spread(model, deal_out(model))
    traits = settle(model, base)
    if "is_decoder" in options:
        traits.notes.append(
            f"a {type(model).__name__} reads from left to right in this run (is_decoder = true), "
            "as the task requires"
        )
    if head is not None:
        traits.notes += filter(None, [head.account(checkpoint.config, loader.classes())])
    if checkpoint.adapter is not None:
        model = adapters.load(model, checkpoint.adapter, trains=True)
    model.eval()
    return model, processor


def _set_pad_token(model: Any, processor: Any) -> None:
    """Set the padding token of a classifier, which a decoder needs to find a text's last token."""
    for pad in (processor.eos_token_id, processor.pad_token_id):
        if pad is not None:
            model.config.pad_token_id = pad


def _check_code(checkpoint: Checkpoint, trusted: bool) -> None:
    """Raise RecipeError if a base contains code that the user has not allowed, or suspicious
    files.
    """
    places = {checkpoint.place: checkpoint.config}
    if checkpoint.adapter is not None:
        places.setdefault(str(checkpoint.adapter), {})
    for place, config in places.items():
        code = own_code(place, config)
        if code and not trusted:
            unless = "which runs only with model.trust_remote_code = true; read the code first"
            raise problem(checkpoint.name, f"it contains its own code ({code}), {unless}")
        check_files(checkpoint.name, place)


def _check_kind(checkpoint: Checkpoint, kind: Architecture, has_head: bool) -> None:
    """Raise RecipeError if a base is of another kind than the task needs."""
    loader, config = LOADERS[kind], checkpoint.config
    model_type = config.get("model_type")
    if hears_besides(config) and kind == "causal":
        return
    if hears_besides(config) and kind == "seq2seq":
        fault = f"the model is {checkpoint.description}, which continues text, but the task needs"
        raise problem(checkpoint.name, f"{fault} {loader.description} (model.architecture)")
    of_texts = kind == "classification" and has_head  # because any text model can get a head
    others: set[str] = set()
    for other_kind, other_loader in LOADERS.items():
        if other_kind != kind:
            others |= other_loader.classes()
    mine = loader.classes().intersection(checkpoint.classes)
    is_other = not of_texts and others.intersection(checkpoint.classes) and not mine
    is_unknown = model_type and str(model_type) not in loader.names and not config.get("auto_map")
    if is_other or is_unknown:
        fault = f"the model is {checkpoint.description}, but the task needs {loader.description}"
        raise problem(checkpoint.name, fault)


def _configured(checkpoint: Checkpoint, kind: Architecture, head: Head | None) -> dict[str, Any]:
    """Return settings that are added to a base's configuration."""
    options = {} if head is None else head.options(checkpoint.config)
    if kind == "causal" and sees_ahead_unless_told(checkpoint.config):
        options["is_decoder"] = True
    return options


def _read_weights(
    checkpoint: Checkpoint,
    loader: Loader,
    options: dict[str, Any],
    torch_device: torch.device | None,
) -> tuple[Any, dict[str, Any]]:
    """Return a model with the weights from its files, and transformers' report of missing
    weights.
    """
    try:
        # transformers draws weights that the files do not have
        with (
            torch.random.fork_rng(devices=[]),
            torch.device("cpu" if torch_device is None else torch_device),
            _without_adapter(checkpoint) as place,
        ):
            model, report = loader.auto_for(checkpoint.config).from_pretrained(
                place, output_loading_info=True, ignore_mismatched_sizes=True, **options
            )
    # torch's own message would suggest running the pickle's code
    except (pickle.UnpicklingError, EOFError) as error:
        pickled = "its weights are a pickle with more than tensors, or damaged; its code is not run"
        raise problem(checkpoint.name, f"{pickled}. Ask for model.safetensors") from error
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise _unreadable(checkpoint, options.get("attn_implementation"), error) from error
    if hasattr(model, "peft_config"):
        raise problem(
            checkpoint.name,
            "it is an adapter on the hub: download it into a folder (hf download) and give "
            "that folder",
        )
    model.name_or_path = model.config.name_or_path = checkpoint.place
    return model, report


@contextmanager
def _without_adapter(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the path of a base's weights. If the folder also has an adapter, yield a folder without
    it.

    Otherwise transformers would also load the adapter and freeze all parameters.
    """
    place = Path(checkpoint.place)
    if not (place / ADAPTER_CONFIG).is_file():
        yield checkpoint.place
        return
    with TemporaryDirectory(prefix="fedseed-base-") as folder:
        for path in place.iterdir():
            if not path.name.startswith("adapter_"):
                Path(folder, path.name).symlink_to(path.resolve())
        yield folder


def _unreadable(checkpoint: Checkpoint, attention: str | None, error: Exception) -> RecipeError:
    """Return the error for a base whose weights can't be read."""
    text = str(error).lower()
    if attention is not None and (
        isinstance(error, ImportError) or "attn" in text or "attention" in text
    ):
        return RecipeError(
            f'model.attention = "{attention}": not available for '
            f"{', '.join(checkpoint.classes) or 'this model'} here ({first_line(error)}); remove "
            'this key, or use "eager"'
        )
    folder = Path(checkpoint.place)
    others = sorted(path.name for path in folder.glob("*.gguf")) if folder.is_dir() else []
    if others and not whole_weights(folder):
        return problem(
            checkpoint.name,
            f"its weights are {listed(others, 2)}, which can't be tuned: use the original weights "
            "(model.safetensors)",
        )
    return not_loadable(checkpoint.name, checkpoint.place, error)


def _complete(
    checkpoint: Checkpoint, loader: Loader, model: Any, report: dict[str, Any], head: Head | None
) -> None:
    """Draw a new head if one is needed, and refuse a base that lacks any other weights.

    transformers would continue with random numbers in place of missing weights.
    """
    sizes = _misfits(report, model)
    lacking = {*report["missing_keys"], *sizes}
    new_names: Collection[str] = ()
    if head is not None:
        is_known = head.is_known(checkpoint.config)
        keeps = loader is LOADERS["classification"]
        new_names = head.renew(model, checkpoint.name, is_known, lacking, keeps)
    missing = sorted(lacking.difference(new_names))
    if not missing:
        return
    misfits = [name for name in missing if name in sizes]
    if misfits:
        name = misfits[0]
        file_shape, config_shape = sizes[name]
        shapes = f"{name} of shape {file_shape}, but config.json requires {config_shape}"
        if file_shape is None:
            shapes = f"{name} of another shape than config.json requires ({config_shape})"
        if len(misfits) > 1:
            shapes += f" (and {len(misfits) - 1:,} more)"
        reason = _newer_saver(checkpoint.place) or "one of the two files belongs to another model"
        raise problem(checkpoint.name, f"its file has {shapes}: {reason}")
    unexpected = [str(name) for name in report.get("unexpected_keys") or ()]
    if any("lora_" in name or "base_layer" in name for name in unexpected):
        raise problem(
            checkpoint.name,
            "its file has a base and an adapter that were not merged (names with base_layer): "
            "merge them (merge_and_unload of peft) and save that",
        )
    of_all = f"all weights of {type(model).__name__} (missing: {listed(missing, 3)})"
    wrong_class = not loader.classes().intersection(checkpoint.classes)
    fault = f"its files do not have {of_all}"
    if wrong_class:
        fault += f", but the task needs {loader.description} (see model.architecture)"
    elif _newer_saver(checkpoint.place):
        fault += f": {_newer_saver(checkpoint.place)}"
    raise problem(checkpoint.name, fault)


def _misfits(report: dict[str, Any], model: Any) -> dict[str, tuple[list[int] | None, list[int]]]:
    """Return the tensors whose shapes in the file and in the model differ. The result has by name
    the file's shape (None: not known) and the model's.

    Before version 5, transformers reports only names.
    """
    found: dict[str, tuple[list[int] | None, list[int]]] = {}
    for key in report["mismatched_keys"]:
        if isinstance(key, str):
            found[key] = None, list(model.get_parameter(key).shape)
        else:
            found[key[0]] = list(key[1]), list(key[2])
    return found


def _newer_saver(place: str) -> str:
    """Return advice for a folder that was saved by a newer transformers; "" if it was not."""
    saver, here = _saver_version(place), transformers.__version__
    if _numbers(saver) <= _numbers(here):
        return ""
    return (
        f"it was saved by transformers {saver}, and the installed version ({here}) may read it "
        f"differently: install transformers {saver}, or save the base with the installed version"
    )


def _numbers(version: str) -> list[int]:
    """Return the numbers of a version, such as 5, 0 and 0 for "5.0.0rc1"."""
    return [int(number) for number in findall(r"\d+", version)[:3]]


def read_processor(checkpoint: Checkpoint, loader: Loader, trusted: bool) -> Any:
    """Return a base's tokenizer or image processor. An adapter's folder may have its own.

    Raises:
        RecipeError: it can't be loaded.
    """
    places = [checkpoint.place]
    if checkpoint.adapter is not None and (checkpoint.adapter / "tokenizer_config.json").is_file():
        places.insert(0, str(checkpoint.adapter))
    try:
        return loader.processor(places[0], trusted)
    except (OSError, ValueError, ImportError) as error:
        remedy = _tokenizer_remedy(places[0], error)
        reason = f"its tokenizer or image processor can't be loaded ({first_line(error)})"
        raise problem(checkpoint.name, f"{reason}; {remedy}") from error


def _tokenizer_remedy(place: str, error: Exception) -> str:
    """Return advice for a tokenizer that can't be loaded."""
    text = str(error).lower()
    if "does not exist or is not currently imported" in text:
        saver = _saver_version(place)
        newer = f"transformers {saver}" if saver else "a newer transformers"
        return (
            f"it was saved by {newer}, but transformers {transformers.__version__}, which is "
            f"installed here, does not have this class: install {newer}, or save the base with "
            "the installed version"
        )
    # if sentencepiece is missing, transformers mistakes its tokenizer.model for tiktoken's, and
    # asks for tiktoken
    names_library = any(name in text for name in ("sentencepiece", "tiktoken"))
    # files on the hub are not known here
    is_there = Path(place, "tokenizer.model").is_file() or not Path(place).is_dir()
    if names_library and is_there and find_spec("sentencepiece") is None:
        installing = to_install("sentencepiece")
        return f"a tokenizer.model, such as LLaMA's, needs sentencepiece: {installing}"
    return "save the tokenizer into the same folder (save_pretrained)"


def _saver_version(place: str) -> str:
    """Return the version of transformers that saved a folder; "" if its files do not have it."""
    try:
        settings = json.loads(Path(place, "config.json").read_text(encoding="utf-8"))
        return str(settings.get("transformers_version") or "")
    except (OSError, ValueError, AttributeError):
        return ""


def outline(
    base: str,
    dtype: str = "float32",
    trust_remote_code: bool = False,
    architecture: Architecture | None = None,
    head: Head | None = None,
    attention: str | None = None,
    quantization: Quantization | None = None,
) -> Any:
    """Return the model that `load_model` would load, on the device "meta", without weights and
    without taking memory.

    The arguments are those of `load_model`. A folder needs only a config.json. Raises RecipeError
    if the configuration can't be read, or no model can be made from it.
    """
    checkpoint = find_checkpoint(base)
    quantization = recorded_quantization(checkpoint.adapter, quantization)
    kind = architecture or architecture_of(checkpoint.config, head is not None)
    options = _configured(checkpoint, kind, head)
    attention_options = {} if attention is None else {"attn_implementation": attention}
    config = _read_config(checkpoint, trust_remote_code, options)
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            model = (
                LOADERS[kind]
                .auto_for(checkpoint.config)
                .from_config(
                    config,
                    dtype=getattr(torch, dtype),
                    trust_remote_code=trust_remote_code,
                    **attention_options,
                )
            )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise _no_model(base, error) from error
    if quantization is not None:
        # a library's quantised layers have the same size as fedseed's own of as many bits
        prepare_loaded(model, STAND_INS[quantization], base)
    settle(model, base)
    if checkpoint.adapter is not None:
        model = adapters.load(model, checkpoint.adapter, trains=True)
    model.eval()
    return model


def read_config(
    base: str, trust_remote_code: bool, architecture: Architecture, head: Head | None
) -> Any:
    """Return the configuration of the model that `load_model` would load, without importing its
    class.

    Importing a model's class takes seconds. The arguments are those of `load_model`.

    Raises:
        RecipeError: the configuration can't be read.
    """
    checkpoint = find_checkpoint(base)
    options = _configured(checkpoint, architecture, head)
    return _read_config(checkpoint, trust_remote_code, options)


def _read_config(checkpoint: Checkpoint, trusted: bool, options: dict[str, Any]) -> Any:
    """Return a base's configuration as transformers reads it. Raises RecipeError if that fails."""
    try:
        return AutoConfig.from_pretrained(checkpoint.place, trust_remote_code=trusted, **options)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise _no_model(checkpoint.name, error) from error


def _no_model(base: str, error: Exception) -> RecipeError:
    """Return the error for a configuration from which no model can be made."""
    return problem(base, f"no model can be made from its configuration ({first_line(error)})")


def embedding_rows(model: Any) -> int | None:
    """Return the number of tokens in a model's embedding; None if it has no such table."""
    try:
        embeddings = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):  # CANINE computes embeddings by hashing
        return None
    if isinstance(embeddings, torch.nn.Embedding):
        return embeddings.num_embeddings
    return None


def _fit(base: str, model: Any, processor: Any) -> None:
    """Raise RecipeError if a model's embedding does not have a row for every token.

    An image processor has no tokens.
    """
    tokens: Any = getattr(processor, "vocab_size", None)
    rows = None if tokens is None else embedding_rows(model)
    if rows is None:
        return
    numbers = (processor.bos_token_id, processor.eos_token_id, processor.mask_token_id, tokens - 1)
    highest = max(number for number in numbers if number is not None)
    if highest >= rows:
        of_model = (
            f"but the model has embeddings for only {rows:,}: tokenizer and model do not belong "
            "together"
        )
        raise problem(base, f"its tokenizer has {highest + 1:,} tokens, {of_model}")
    pad = processor.pad_token_id
    # a token was added for padding; replace it by any other token, because padding is masked
    if pad is not None and pad >= rows:
        processor.pad_token = processor.eos_token


def choose_trainable(
    model: torch.nn.Module, patterns: Sequence[str] | None, key: str = "model.trainable"
) -> None:
    """Let only those parameters train whose names match a pattern such as "*.layers.3.*"; None:
    all.

    Parameters that an adapter has fixed never train. `key` is the recipe's key of the patterns, for
    errors.

    Raises RecipeError if a pattern matches no parameter, or a quantised one.
    """
    if patterns is None:
        check_tunable(model)
        return
    fixed: frozenset[str] = getattr(model, "fixed_parameters", frozenset())
    tunable = [name for name, _ in model.named_parameters() if name not in fixed]
    matched = {name for name in tunable if matches(name, patterns)}
    if not matched:
        raise RecipeError(f"{key} = {list(patterns)}: no parameter has such a name")
    resting = {id(parameter) for parameter in traits_of(model).at_rest}
    trained_names = {
        name
        for name, parameter in model.named_parameters()
        if name in matched and id(parameter) not in resting
    }
    for name, parameter in model.named_parameters():
        if name in trained_names and not is_movable(parameter):
            raise RecipeError(
                f"model.trainable = {list(patterns)}: {name} is quantised and can't be tuned; "
                'name other parameters, such as "*norm*", or, with model.quantization = "int4" or '
                '"int8", "*.scales"'
            )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained_names)
    if not trained_names:
        raise RecipeError(
            f"model.trainable = {list(patterns)}: {listed(sorted(matched), 3)} can't be tuned, "
            "because the architecture freezes them or no text reaches them"
        )


def trainable_names(
    model: Any, base: str, trainable: Sequence[str] | Literal["head", "scales"] | None
) -> Sequence[str] | None:
    """Return the name patterns of the parameters that a recipe's `model.trainable` selects.

    Args:
        model: the base.
        base: the model's name, for errors.
        trainable: patterns, "head" or "scales"; None: all parameters.

    Raises:
        RecipeError: the model has no head, or no scales.
    """
    if trainable == "head":
        return head_parameters(model, base)
    if trainable == "scales":
        return scale_parameters(model, base)
    return trainable


def checkpoint_activations(model: torch.nn.Module, base: str = "") -> None:
    """Turn on activation checkpointing for each layer of a transformers model in training.

    Chen, Xu, Zhang, Guestrin: "Training Deep Nets with Sublinear Memory Cost", 2016. Only the input
    of each layer is kept. When the backward pass reaches the layer, its forward pass is repeated
    with the same dropout. Evaluation and zeroth-order methods keep no activations, so nothing
    changes for them.

    Args:
        model: the base, before an adapter is installed.
        base: the model's name, for errors.

    Raises:
        RecipeError: models of this class do not support checkpointing of layers.
    """
    # the name in transformers 5 and later
    enable: Any = getattr(model, "activation_checkpointing_enable", None)
    enable = enable or getattr(model, "gradient_checkpointing_enable", None)
    try:
        if enable is None:
            raise ValueError("it is not a transformers model")
        enable({"use_reentrant": False})
    except ValueError as error:
        raise RecipeError(
            f'model.activation_checkpointing = true: model.base = "{base}" is a '
            f"{type(model).__name__}, which does not support checkpointing of layers "
            f"({first_line(error)}); remove this key, or lower training.batch"
        ) from error
    # transformers lets embeddings' outputs require a gradient, which only re-entrant checkpoints
    # need
    if hasattr(model, "_require_grads_hook"):
        getattr(model, "disable_input_require_grads")()  # noqa: B009 (mypy knows no such method)
