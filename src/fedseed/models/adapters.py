"""Adapters: a few parameters added to a frozen base, which are tuned in its place. Built on `peft`.

    lora       Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022: W +
    (alpha / r) B A
    p-tuning   Liu et al., "GPT Understands, Too", 2021: virtual tokens that an MLP makes of an
    embedding
    prompt     Lester, Al-Rfou, Constant, "The Power of Scale for Parameter-Efficient Prompt
    Tuning", EMNLP 2021

An adapter is installed before the parameter space is made, so every method that tunes a model tunes
an adapter as well, and sends what belongs to the adapter only. What it starts from is drawn from
the shared stream by the run's seed: the same bits at every client, whatever `peft`'s and torch's
generators do. Settings are free of torch.
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
from fedseed.text import first_line
from fedseed.weights.codes import is_quantized
from fedseed.weights.layout import DigestKind

if TYPE_CHECKING:
    import torch

# what peft puts into a layer's name; fused experts have it several times
WRAPPED = re.compile(r"\.(?:base_layer\.)+")


class _Adapter(BaseModel, metaclass=Hinting):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class LoRA(_Adapter):
    """Low-rank changes of linear layers.

    Args:
        rank: r, columns of the factors that are trained.
        alpha: the change is scaled by alpha / r.
        targets: names of the layers (their last parts); None: peft's choice for the architecture,
            for most the attention's query and value projections.
        dropout: on the adapter's input, in first-order training.
        train: "both" factors, or "b" alone: A stays as the shared stream has drawn it, signs over
            sqrt(rank), and only B is trained and sent. The mean of clients' changes is exact then
            (FFA-LoRA: Sun, Li, Li, Ding, "Improving LoRA in Privacy-preserving Federated Learning",
            ICLR 2024).
    """

    kind: Literal["lora"] = "lora"
    rank: PositiveInt = 8
    alpha: PositiveInt = 16
    targets: list[str] | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    train: Literal["both", "b"] = "both"


class PTuning(_Adapter):
    """Virtual tokens before the prompt: an embedding through an MLP of three layers.

    Both are trained and sent.

    Args:
        virtual_tokens: how many virtual tokens.
        hidden: width of the MLP; None: that of the model.
    """

    kind: Literal["p-tuning"] = "p-tuning"
    virtual_tokens: PositiveInt = 20
    hidden: PositiveInt | None = None


class PromptTuning(_Adapter):
    """Virtual tokens before the prompt, trained as they are.

    Args:
        virtual_tokens: how many virtual tokens.
        init: what they start as: rows of the model's own embedding ("vocabulary"), or N(0, 1)
            ("normal": peft's default, far from any word of most models).
    """

    kind: Literal["prompt"] = "prompt"
    virtual_tokens: PositiveInt = 20
    init: Literal["vocabulary", "normal"] = "vocabulary"


Adapter = LoRA | PTuning | PromptTuning
AnyAdapter = Annotated[Adapter, Field(discriminator="kind")]


def choose_adapter(
    requested: Adapter | None, required: Adapter | None, method: str
) -> Adapter | None:
    """Return the adapter of a run: the recipe's, or else the one that the method is defined with.

    Raises RecipeError if the method is defined with another kind.
    """
    if requested is None or required is None or requested.kind == required.kind:
        return requested or required
    raise RecipeError(
        f'model.adapter.kind = "{requested.kind}": {method} tunes "{required.kind}"; leave '
        'model.adapter out, or take method.name = "fedavg", which tunes any adapter'
    )


def install(model: Any, settings: Adapter, seed: int, base: str = "") -> Any:
    """Return the model with an adapter, a `peft` model; only the adapter's parameters train.

    Args:
        model: the base; LoRA's layers are put into it in place.
        settings: which adapter.
        seed: the run's seed, which decides the adapter's first weights.
        base: the base's name, for the adapter's configuration.

    Raises:
        RecipeError: the adapter does not fit the model.
    """
    wrapped = wrap(model, settings, base)
    _draw(wrapped, settings, seed)
    return wrapped.eval()


def library() -> Any:
    """Return PEFT, which takes seconds to import and brings bitsandbytes, where that is
    installed.
    """
    # on import it warns of kernels that could come from the hub
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    import peft

    return peft


def wrap(model: Any, settings: Adapter, base: str = "") -> Any:
    """Return the model with an adapter whose first weights are peft's own: enough to know its
    size.
    """
    peft = library()
    speaks = getattr(model, "can_generate", lambda: False)()
    causal = speaks and not model.config.is_encoder_decoder
    if not causal and not isinstance(settings, LoRA):
        raise RecipeError(
            f'model.adapter.kind = "{settings.kind}": virtual tokens need a causal language model; '
            f'this base is a {type(model).__name__}: choose "lora"'
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
            f"this base ({type(model).__name__}): {first_line(error)}"
        ) from error
    if not isinstance(settings, LoRA):
        wrapped.prompt_encoder.to(model.get_input_embeddings().weight.device)
    wrapped.peft_config["default"].base_model_name_or_path = base or None
    if isinstance(settings, LoRA) and settings.train == "b":
        _fix_first_factors(wrapped, settings)
    return wrapped


def _fix_first_factors(model: Any, settings: LoRA) -> None:
    """Let B alone train, and note the names of the factors A in `model.fixed_parameters`."""
    others = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and "lora_A." not in name and "lora_B." not in name
    ]
    if others:
        raise RecipeError(
            f'model.adapter.train = "b" with targets = {settings.targets}: {others[0]} is no '
            "factor of a linear layer; name linear layers alone, or leave model.adapter.train out"
        )
    fixed = {name: p for name, p in model.named_parameters() if "lora_A." in name}
    for parameter in fixed.values():
        parameter.requires_grad_(False)
    model.fixed_parameters = frozenset(fixed)


def start_digest(model: Any, space: Any) -> str:
    """Return the digest of an adapter's first weights: those that train, and those it has fixed.

    Args:
        model: the `peft` model.
        space: the parameter space of what trains.
    """
    from fedseed.weights.digest import hash_tensors

    names: frozenset[str] = getattr(model, "fixed_parameters", frozenset())
    if not names:
        return str(space.digest())
    entries = zip(space.layout.tensors, space.parameters, strict=True)
    fixed = [(name, p) for name, p in model.named_parameters() if name in names]
    return hash_tensors([*((entry.name, p) for entry, p in entries), *fixed], space.digest_kind)


def _draw(model: Any, settings: Adapter, seed: int) -> None:
    """Draw the adapter's first weights, parameter by parameter in their order, in float32.

    LoRA's B, or of an embedding A: zeros, so that the model starts as the base. A fixed A: signs
    over sqrt(rank). LoRA's A and an MLP's layers: uniform on +-1 / sqrt(fan-in). An embedding's B:
    N(0, 1). Virtual tokens: rows of the model's embedding, or N(0, 1).
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
                unit = (draws + 0.5) * 2.0**-31 - 1.0  # in double precision, rounded once
                values = (unit * (1 / sqrt(layer.weight[0].numel()))).astype(np.float32)
                p.copy_(torch.from_numpy(values).reshape(p.shape))
            elif isinstance(settings, PromptTuning) and settings.init == "vocabulary":
                embeddings = model.get_base_model().get_input_embeddings().weight
                # 64-bit numbers modulo a vocabulary: no row is likelier than another by more than
                # one part in 10^13
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
    """Write the adapter as `peft` has it: `PeftModel.from_pretrained(base, folder)` loads it.

    Of P-tuning `peft` keeps the virtual tokens as its MLP makes them, which is what the model uses,
    not the MLP.
    """
    with hushed():
        # "auto" would ask the hub for the base
        model.save_pretrained(folder, save_embedding_layers=False)


def differences(model: Any, folder: Path) -> list[str]:
    """Return the names of the tensors that a saved adapter has otherwise than the model."""
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
    """Return the base with an adapter that `save`, or peft, has written.

    Args:
        model: the base; LoRA's layers are put into it in place.
        folder: the adapter's.
        trains: whether the adapter is to be tuned on: a LoRA.

    Raises:
        RecipeError: they do not fit, or the adapter can't be tuned on.
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
    """Leave torch's generator as it is; peft draws first weights by it, on the CPU."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        yield


def settings_of(model: Any, folder: Path | str = "") -> LoRA:
    """Return the settings of the LoRA inside a model of peft.

    Raises RecipeError if it is another kind of adapter.
    """
    config = model.peft_config["default"]
    if str(getattr(config, "peft_type", "")).rpartition(".")[2] != "LORA":
        raise RecipeError(
            f"{folder or 'the model'}: an adapter of kind {config.peft_type} can't be tuned on; "
            "a LoRA can"
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

    Changes `model`. A layer that shares its matrix with another, such as a tied `lm_head`, gets one
    of its own first: the adapter has changed the layer alone.

    Raises RecipeError if there is no adapter, one whose virtual tokens no weights of the base can
    stand for, or a base whose weights are quantised.
    """
    if not is_installed(model) or has_virtual_tokens(model):
        raise RecipeError(
            "--merge: only a LoRA adapter can be added to the base's weights; leave it out"
        )
    if is_quantized(model):
        raise RecipeError(
            "--merge: the base's weights are quantised, and with the adapter added they would be "
            "rounded to a few bits once more: another model. Leave --merge out, and load the "
            "adapter beside the quantised base with peft"
        )
    _untie_adapted(model)
    with hushed():
        return model.merge_and_unload()


def _untie_adapted(model: Any) -> None:
    """Give each layer that has an adapter a matrix of its own; its configuration says so."""
    import torch

    whole = model.get_base_model()
    names: dict[int, list[str]] = {}
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for names_of_matrix in names.values():
        adapted = [name for name in names_of_matrix if ".base_layer." in name]
        # the last of several may keep the matrix, if nobody else has it
        for name in adapted if len(adapted) < len(names_of_matrix) else adapted[:-1]:
            place, _, last = name.rpartition(".")
            layer = whole.get_submodule(place)
            setattr(layer, last, torch.nn.Parameter(getattr(layer, last).detach().clone()))
            for config in (whole.config, whole.config.get_text_config()):
                config.tie_word_embeddings = False


@contextmanager
def hushed() -> Iterator[None]:
    """Keep peft's advice about the base and deprecations inside other libraries off the screen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)
        warnings.simplefilter("ignore", category=FutureWarning)
        # fused experts: peft first looks for layers of these names, then for the tensors
        warnings.filterwarnings("ignore", r"The following \w+_pattern keys", RuntimeWarning)
        yield


def base_digest(model: Any, kind: DigestKind = "blake2b") -> str:
    """Return the digest of the base inside a `peft` model, as `fedseed.weights.digest` gave it
    before `install`.
    """
    from fedseed.weights.digest import hash_tensors, untied

    tensors = untied(
        (WRAPPED.sub(".", name), tensor)
        for name, tensor in model.get_base_model().state_dict(keep_vars=True).items()
        if ".lora_" not in name
    )
    return hash_tensors(tensors, kind)


def virtual_tokens(settings: Adapter | None) -> int:
    """Return the number of a model's positions that an adapter takes."""
    if settings is None or isinstance(settings, LoRA):
        return 0
    return settings.virtual_tokens


def is_installed(model: "torch.nn.Module") -> bool:
    """Return whether a model has an adapter."""
    return hasattr(model, "peft_config")


def has_virtual_tokens(model: "torch.nn.Module") -> bool:
    """Return whether a model has an adapter that puts virtual tokens before the prompt."""
    # a model that transformers has put an adapter into has no active_peft_config
    config = getattr(model, "active_peft_config", None) if is_installed(model) else None
    return bool(getattr(config, "is_prompt_learning", False))


def at_home(model: "torch.nn.Module", device: "torch.device") -> AbstractContextManager[Any]:
    """Make new tensors on the model's device in a forward pass with virtual tokens.

    Peft names no device for them.
    """
    if has_virtual_tokens(model):
        return device
    return nullcontext()
