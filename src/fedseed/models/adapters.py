"""Adapters: a few parameters that are added to a frozen base and tuned instead of it. Built on
`peft`.

    lora       Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022:
               W + (alpha / r) B A
    p-tuning   Liu et al., "GPT Understands, Too", 2021: virtual tokens that an MLP computes from an
               embedding
    prompt     Lester, Al-Rfou, Constant, "The Power of Scale for Parameter-Efficient Prompt
               Tuning", EMNLP 2021

An adapter is installed before the parameter space is made. So every method that can tune a model
can also tune an adapter, and it then sends only the adapter's part. The adapter's first weights are
drawn from the shared stream with the run's seed. They have the same bits at every client and do not
depend on the generators of `peft` and torch. The settings need no torch.
"""

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from fedseed.errors import RecipeError
from fedseed.hinting import Hinting
from fedseed.text import first_line, listed
from fedseed.weights.codes import is_quantized
from fedseed.weights.layout import DigestKind

if TYPE_CHECKING:
    import torch

SHOWN = 8  # how many names of layers a message lists
# what peft inserts into a layer's name; for fused experts, several times
WRAPPED = re.compile(r"\.(?:base_layer\.)+")


class _Adapter(BaseModel, metaclass=Hinting):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class LoRA(_Adapter):
    """Low-rank changes of linear layers.

    Args:
        rank: r, the number of columns of the trained factors.
        alpha: the change is scaled by alpha / r.
        targets: the last parts of the layers' names; None: peft's choice for the architecture,
            usually the query and value projections of the attention.
        dropout: dropout on the adapter's input, in first-order training.
        train: "both" factors, or only "b". With "b", A is fixed: signs from the shared stream,
            divided by sqrt(rank). Only B is trained and sent, and the mean of clients' changes is
            then exact (FFA-LoRA: Sun, Li, Li, Ding, "Improving LoRA in Privacy-preserving Federated
            Learning", ICLR 2024).
    """

    kind: Literal["lora"] = "lora"
    rank: PositiveInt = 8
    alpha: PositiveInt = 16
    targets: list[str] | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    train: Literal["both", "b"] = "both"


class PTuning(_Adapter):
    """Virtual tokens before the prompt: an embedding through an MLP of three layers.

    The embedding and the MLP are both trained and sent.

    Args:
        virtual_tokens: number of virtual tokens.
        hidden: width of the MLP; None: the model's width.
    """

    kind: Literal["p-tuning"] = "p-tuning"
    virtual_tokens: PositiveInt = 20
    hidden: PositiveInt | None = None


class PromptTuning(_Adapter):
    """Virtual tokens before the prompt, whose embeddings are trained directly.

    Args:
        virtual_tokens: number of virtual tokens.
        init: their first values: rows of the model's own embedding ("vocabulary"), or N(0, 1)
            ("normal", peft's default, which is far from any word in most models).
    """

    kind: Literal["prompt"] = "prompt"
    virtual_tokens: PositiveInt = 20
    init: Literal["vocabulary", "normal"] = "vocabulary"


Adapter = LoRA | PTuning | PromptTuning
AnyAdapter = Annotated[Adapter, Field(discriminator="kind")]


def choose_adapter(
    requested: Adapter | None, required: Adapter | None, method: str
) -> Adapter | None:
    """Return the adapter of a run: the recipe's, or the method's own if the recipe has none.

    Raises RecipeError if the recipe's is of another kind than the method's own.
    """
    if requested is None or required is None or requested.kind == required.kind:
        return requested or required
    raise RecipeError(
        f'model.adapter.kind = "{requested.kind}": {method} tunes "{required.kind}"; leave out '
        'model.adapter, or use method.name = "fedavg", which tunes any adapter'
    )


def install(model: Any, settings: Adapter, seed: int, base: str = "") -> Any:
    """Return the model with an adapter, as a `peft` model in which only the adapter's parameters
    train.

    Args:
        model: the base; LoRA's layers are inserted in place.
        settings: the adapter's settings.
        seed: the run's seed, which determines the adapter's first weights.
        base: the base's name, for the adapter's configuration.

    Raises:
        RecipeError: the adapter does not fit the model.
    """
    wrapped = wrap(model, settings, base)
    _draw(wrapped, settings, seed)
    return wrapped.eval()


def library() -> Any:
    """Import and return peft. The import takes seconds, and also imports bitsandbytes if that is
    installed.
    """
    # on import, bitsandbytes warns of kernels that could come from the hub
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    import peft

    return peft


def wrap(model: Any, settings: Adapter, base: str = "") -> Any:
    """Return the model with an adapter whose first weights are peft's own; this is enough to know
    its size.
    """
    peft = library()
    speaks = getattr(model, "can_generate", lambda: False)()
    causal = speaks and not model.config.is_encoder_decoder
    if not causal and not isinstance(settings, LoRA):
        raise RecipeError(
            f'model.adapter.kind = "{settings.kind}": virtual tokens need a causal language '
            f'model, but this base is a {type(model).__name__}: choose "lora"'
        )
    task = "CAUSAL_LM" if causal else "SEQ_2_SEQ_LM" if speaks else None
    config: Any
    match settings:
        case LoRA():
            config = peft.LoraConfig(
                task_type=task,
                r=settings.rank,
                lora_alpha=settings.alpha,
                lora_dropout=settings.dropout,
                target_modules=None if settings.targets is None else list(settings.targets),
            )
        case PTuning():
            config = peft.PromptEncoderConfig(
                task_type=task,
                num_virtual_tokens=settings.virtual_tokens,
                encoder_reparameterization_type="MLP",
                encoder_hidden_size=settings.hidden,
            )
        case PromptTuning():
            config = peft.PromptTuningConfig(
                task_type=task, num_virtual_tokens=settings.virtual_tokens
            )
    try:
        with torch_draws_apart(), hushed():
            wrapped = peft.get_peft_model(model, config)
    except ValueError as error:
        raise RecipeError(
            f'model.adapter.kind = "{settings.kind}" with targets = '
            f"{getattr(settings, 'targets', None)} does not fit "
            f"this base ({type(model).__name__}): {first_line(error)}{_fitting_targets(model)}"
        ) from error
    if not isinstance(settings, LoRA):
        wrapped.prompt_encoder.to(model.get_input_embeddings().weight.device)
    _refuse_positions(wrapped)
    wrapped.peft_config["default"].base_model_name_or_path = base or None
    if isinstance(settings, LoRA) and settings.train == "b":
        _fix_first_factors(wrapped, settings)
    return wrapped


def _fitting_targets(model: Any) -> str:
    """Return the end of a message with the last parts of the names of a model's linear layers."""
    import torch

    names = [
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
    ]
    names = [name for name in names if not name.isdecimal()]
    if not names:
        return ""
    return f"; its linear layers are {listed(list(dict.fromkeys(names)), SHOWN)} (in targets)"


def _refuse_positions(model: Any) -> None:
    """Raise RecipeError for an adapter on embeddings of positions, which are not looked up by ids.

    peft would pass the text or its mask as if they were ids.
    """
    for name, module in model.named_modules():
        is_adapted = name.endswith(".base_layer")
        if is_adapted and "PositionalEmbedding" in type(module).__name__:
            place = name.removesuffix(".base_layer").removeprefix("base_model.model.")
            raise RecipeError(
                f"model.adapter.targets: {place} is a {type(module).__name__}, which finds its "
                "rows itself, so a LoRA can't change them: leave it out"
            )


def _fix_first_factors(model: Any, settings: LoRA) -> None:
    """Let only B train, and record the names of the factors A in `model.fixed_parameters`."""
    others = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and "lora_A." not in name and "lora_B." not in name
    ]
    if others:
        raise RecipeError(
            f'model.adapter.train = "b" with targets = {settings.targets}: {others[0]} is not a '
            "factor of a linear layer; name only linear layers, or leave out model.adapter.train"
        )
    fixed = {name: p for name, p in model.named_parameters() if "lora_A." in name}
    for parameter in fixed.values():
        parameter.requires_grad_(False)
    model.fixed_parameters = frozenset(fixed)


def start_digest(model: Any, space: Any) -> str:
    """Return the digest of an adapter's first weights, both the trained and the fixed ones.

    Args:
        model: the `peft` model.
        space: the parameter space of the trained parameters.
    """
    from fedseed.weights.digest import hash_tensors

    names: frozenset[str] = getattr(model, "fixed_parameters", frozenset())
    if not names:
        return str(space.digest())
    entries = zip(space.layout.tensors, space.parameters, strict=True)
    fixed = [(name, p) for name, p in model.named_parameters() if name in names]
    return hash_tensors([*((entry.name, p) for entry, p in entries), *fixed], space.digest_kind)


def _draw(model: Any, settings: Adapter, seed: int) -> None:
    """Draw the adapter's first weights in float32, parameter by parameter in order.

    LoRA's B (for an embedding, A) is zero, so that the model starts as the base. A fixed A has
    signs divided by sqrt(rank). LoRA's A and the layers of an MLP are uniform on +-1 /
    sqrt(fan-in). B of an embedding is N(0, 1). Virtual tokens are rows of the model's embedding, or
    N(0, 1).
    """
    import torch

    from fedseed.randomness import Basis, Domain, derive
    from fedseed.randomness.stream import uniform_integers, words

    fixed: frozenset[str] = getattr(model, "fixed_parameters", frozenset())
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad or n in fixed]
    with torch.no_grad():
        for number, (name, p) in enumerate(trained):
            layer, count = model.get_submodule(name.rpartition(".")[0]), p.numel()
            if "lora_B" in name or "lora_embedding_A" in name:
                p.zero_()
            elif name in fixed:
                basis = Basis("rademacher", derive(seed, Domain.ADAPTER, 0, number))
                signs = basis.direction(0, 0, count)
                p.copy_(torch.from_numpy(signs).reshape(p.shape) / sqrt(len(p)))
            elif "lora_embedding_B" in name:
                p.copy_(_normal(seed, number, count).reshape(p.shape))
            elif not isinstance(layer, torch.nn.Embedding):
                draws = words(seed, Domain.ADAPTER, number, 0, -(-count // 4)).reshape(-1)[:count]
                # in double precision, then rounded once to float32
                unit = (draws + 0.5) * 2.0**-31 - 1.0
                values = (unit * (1 / sqrt(layer.weight[0].numel()))).astype(np.float32)
                p.copy_(torch.from_numpy(values).reshape(p.shape))
            elif isinstance(settings, PromptTuning) and settings.init == "vocabulary":
                embeddings = model.get_base_model().get_input_embeddings().weight
                # a 64-bit number modulo the vocabulary's size: rows differ in probability by less
                # than one part in 10^13
                rows = [
                    int(n) % len(embeddings)
                    for n in uniform_integers(seed, Domain.ADAPTER, len(p), number)
                ]
                p.copy_(embeddings[rows])
            else:
                p.copy_(_normal(seed, number, count).reshape(p.shape))


def _normal(seed: int, number: int, count: int) -> "torch.Tensor":
    """Return first weights of an adapter's parameter: N(0, 1), shape (count,), float32."""
    import torch

    from fedseed.randomness import Basis, Domain, derive

    basis = Basis("normal", derive(seed, Domain.ADAPTER, 0, number))
    return torch.from_numpy(basis.direction(0, 0, count))


def save(model: Any, folder: Path) -> None:
    """Write the adapter in `peft`'s format. `PeftModel.from_pretrained(base, folder)` loads it.

    For P-tuning, `peft` saves the MLP's output, which is all that the model uses, and not the MLP
    itself.
    """
    with hushed():
        # "auto" would look for the base on the hub
        model.save_pretrained(folder, save_embedding_layers=False)


def differences(model: Any, folder: Path) -> list[str]:
    """Return the names of the tensors that differ between a saved adapter and the model."""
    import torch

    peft = library()
    with hushed():
        saved = peft.utils.load_peft_weights(str(folder), device="cpu")
        ours = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    return [
        name
        for name in dict.fromkeys([*ours, *saved])
        if name not in ours or name not in saved or not torch.equal(ours[name].cpu(), saved[name])
    ]


def load(model: Any, folder: Path, trains: bool = False) -> Any:
    """Return the base with an adapter that was written by `save` or by peft.

    Args:
        model: the base; LoRA's layers are inserted in place.
        folder: the adapter's folder.
        trains: whether the adapter, which must be a LoRA, will be tuned further.

    Raises:
        RecipeError: base and adapter do not fit, or the adapter can't be tuned further.
    """
    peft = library()
    try:
        with torch_draws_apart(), hushed():
            wrapped = peft.PeftModel.from_pretrained(model, folder, is_trainable=trains).eval()
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise RecipeError(
            f"{folder}: the adapter does not fit its base: {first_line(error)}"
        ) from error
    if trains:
        settings_of(wrapped, folder)
    return wrapped


@contextmanager
def torch_draws_apart() -> Iterator[None]:
    """Restore torch's generator afterwards, which peft uses to draw first weights on the CPU."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        yield


def settings_of(model: Any, folder: Path | str = "") -> LoRA:
    """Return the settings of the LoRA in a peft model.

    Raises RecipeError if it is another kind of adapter.
    """
    config = model.peft_config["default"]
    if str(getattr(config, "peft_type", "")).rpartition(".")[2] != "LORA":
        raise RecipeError(
            f"{folder or 'the model'}: an adapter of kind {config.peft_type} can't be tuned "
            "further, only a LoRA"
        )
    targets = config.target_modules
    module_names = [targets] if isinstance(targets, str) else sorted(targets or ())
    return LoRA(
        rank=int(config.r),
        alpha=max(1, round(config.lora_alpha)),
        targets=module_names or None,
        dropout=float(config.lora_dropout or 0.0),
    )


def merged(model: Any) -> Any:
    """Return the base with an adapter's changes added to its weights: a model without an adapter.

    Changes `model`. If a layer shares its matrix with another, such as a tied `lm_head`, it first
    gets its own copy, because the adapter changed only this layer.

    Raises RecipeError if there is no LoRA adapter, or if the base is quantised. (Virtual tokens
    can't be expressed by the base's weights.)
    """
    if not is_installed(model) or has_virtual_tokens(model):
        raise RecipeError(
            "--merge: only a LoRA adapter can be added to the base's weights; leave out --merge"
        )
    if is_quantized(model):
        raise RecipeError(
            "--merge: the base's weights are quantised. With the adapter added they would be "
            "rounded to a few bits again, which gives a different model. Leave out --merge, and "
            "load the adapter on the quantised base with peft"
        )
    _untie_adapted(model)
    with hushed():
        return model.merge_and_unload()


def _untie_adapted(model: Any) -> None:
    """Give each layer that has an adapter its own matrix, and record this in the configuration.

    A configuration says only whether all layers share their matrices or none does. So none does any
    more: BART's encoder, decoder and output layer each get their own.
    """
    import torch

    whole = model.get_base_model()
    names: dict[int, list[str]] = {}
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    shared = [group for group in names.values() if len(group) > 1]
    if not any(".base_layer." in name for group in shared for name in group):
        return
    for group in shared:
        for name in group[1:]:
            place, _, last = name.rpartition(".")
            layer = whole.get_submodule(place)
            setattr(layer, last, torch.nn.Parameter(getattr(layer, last).detach().clone()))
    for config in (whole.config, whole.config.get_text_config()):
        config.tie_word_embeddings = False


@contextmanager
def hushed() -> Iterator[None]:
    """Hide peft's advice about the base, and deprecation warnings inside other libraries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)
        warnings.simplefilter("ignore", category=FutureWarning)
        # for fused experts, peft first looks for layers with these names, then for the tensors
        warnings.filterwarnings("ignore", r"The following \w+_pattern keys", RuntimeWarning)
        yield


def base_digest(model: Any, kind: DigestKind = "blake2b") -> str:
    """Return the digest of the base in a `peft` model: the one that `fedseed.weights.digest`
    returned before `install`.
    """
    from fedseed.weights.digest import hash_tensors, untied

    tensors = untied(
        (WRAPPED.sub(".", name), tensor)
        for name, tensor in model.get_base_model().state_dict(keep_vars=True).items()
        if ".lora_" not in name
    )
    return hash_tensors(tensors, kind)


def virtual_tokens(settings: Adapter | None) -> int:
    """Return how many of a model's positions an adapter takes."""
    if settings is None or isinstance(settings, LoRA):
        return 0
    return settings.virtual_tokens


def is_installed(model: "torch.nn.Module") -> bool:
    """Return whether a model has an adapter."""
    return hasattr(model, "peft_config")


def has_virtual_tokens(model: "torch.nn.Module") -> bool:
    """Return whether a model has an adapter that puts virtual tokens before the prompt."""
    # if transformers itself added the adapter, the model has no active_peft_config
    config = getattr(model, "active_peft_config", None) if is_installed(model) else None
    return bool(getattr(config, "is_prompt_learning", False))


def at_home(model: "torch.nn.Module", device: "torch.device") -> AbstractContextManager[Any]:
    """Create new tensors on the model's device in a forward pass with virtual tokens.

    This is needed because peft does not set their device.
    """
    if has_virtual_tokens(model):
        return device
    return nullcontext()
