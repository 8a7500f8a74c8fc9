"""The traits of a loaded base besides its weights. Only this module determines them.

    settings   settings in config.json that must not affect losses or answers are switched off
               (`settle`)
    at rest    parameters that are not tuned: those that the architecture freezes, never saves, or
               changes at each loading, and those that no text reaches (a vision tower)
    padding    whether an example's loss or answer depends on the other examples in its batch

`load_model` determines some of a model's traits; `examine` determines the others by short forward
passes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from re import search
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedseed.errors import RecipeError
from fedseed.models.quantization import splits_outliers
from fedseed.text import first_line, listed
from fedseed.weights.codes import TRAITS, is_movable
from fedseed.weights.perturbation import asks_only

# settings of config.json that must not affect losses or answers, and the values they get
SETTINGS = {
    "output_attentions": False,
    "output_hidden_states": False,
    "output_router_logits": False,
    "return_dict": True,
}
# padding counts if the logits of a text alone and in a padded batch differ by more than this
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
# texts of different lengths that every tokenizer accepts
PROBES = ("One, two", "Three, four, five, six, seven")
# like TOLERANCE, for 16-bit models, whose sums are rounded differently in a batch, and LLM.int8()
COARSE = 0.1
SHOWN = 3  # how many names a message lists


@dataclass
class Traits:
    """The known traits of a loaded model."""

    base: str  # the base's name in the recipe
    notes: list[str] = field(default_factory=list)  # notes for the user
    # parameters that are not tuned, by identity, because peft changes their names
    at_rest: list[torch.nn.Parameter] = field(default_factory=list)
    # whether only texts of equal length may share a forward pass
    equal_lengths: bool = False
    # whether only prompts of equal length may be continued together
    equal_prompts: bool = False
    is_settled: bool = False
    examined: bool = False


def traits_of(model: Any) -> Traits:
    """Return the known traits of a model, with or without an adapter. A new model has none."""
    traits_found = getattr(model, TRAITS, None)
    if isinstance(traits_found, Traits):
        return traits_found
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    traits = Traits(str(getattr(model, "name_or_path", "") or ""))
    setattr(whole, TRAITS, traits)
    return traits


def settle(model: Any, base: str) -> Traits:
    """Determine a new model's settings and frozen parameters, and return its traits."""
    traits = traits_of(model)
    if traits.is_settled:
        return traits
    traits.is_settled, traits.base = True, base
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    changed = sorted(set(_switch_off(whole.config)))
    if changed:
        traits.notes.append(
            f"config.json has {listed(changed, SHOWN)}: switched off, in this run and in an export"
        )
    by_name = dict(whole.named_parameters())
    made = _make_outline(whole)
    unsaved = _never_saved(whole)
    rewritten = _rewritten_by_loading(made) - unsaved
    frozen = _frozen_at_birth(made) - unsaved - rewritten
    for name in by_name:
        if name in frozen or name in unsaved or name in rewritten:
            by_name[name].requires_grad_(False)
            traits.at_rest.append(by_name[name])
    for names, reason in (
        (sorted(unsaved & by_name.keys()), "are never saved with the model"),
        (sorted(rewritten & by_name.keys()), "are changed whenever the model is loaded"),
        (sorted(frozen & by_name.keys()), "are frozen by the architecture"),
    ):
        if names:
            traits.notes.append(f"not tuned, because they {reason}: {listed(names, SHOWN)}")
    return traits


def _configs(config: Any) -> Iterator[Any]:
    """Yield a configuration and the configurations inside it (of a text model, of a vision
    tower).
    """
    # this import loads transformers, which is not needed to import this module
    from transformers import PretrainedConfig

    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PretrainedConfig):
            yield from _configs(value)


def _switch_off(config: Any) -> Iterator[str]:
    """Change the settings that must not affect losses, and yield each change as "key = value"."""
    for part in _configs(config):
        for name, required in SETTINGS.items():
            value = getattr(part, name, None)
            if isinstance(value, bool) and value != required:
                setattr(part, name, required)
                yield f"{name} = {str(value).lower()}"


def _make_outline(model: Any) -> Any:
    """Return a new model of the same class and configuration, without memory for weights.

    If the class's constructor reads values, return the loaded model itself.
    """
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            return type(model)(model.config)
    except Exception:
        return model


def _frozen_at_birth(made: Any) -> set[str]:
    """Return the names of the parameters that the architecture itself freezes.

    Depending on the version of transformers, loading makes some of them trainable again, so the
    class itself is asked.
    """
    return {name for name, parameter in made.named_parameters() if not parameter.requires_grad}


def _rewritten_by_loading(made: Any) -> set[str]:
    """Return the names of the parameters that loading changes after it has read the file.

    From version 5 on, transformers initialises tensors that the file lacks, and marks the tensors
    that it had. A few classes write to a slice of a tensor, such as the row of the padding token,
    and a slice has no mark. Loading an export would overwrite a tuned value there.

    Args:
        made: a model without weights; with another model nothing can be found out.
    """
    parameters = dict(made.named_parameters())
    is_outline = all(parameter.is_meta for parameter in parameters.values())
    # before version 5, a loaded module is not initialised at all, and tensors have no mark
    has_marks = find_spec("transformers.initialization") is not None
    if not is_outline or not has_marks or not hasattr(made, "initialize_weights"):
        return set()
    for tensor in made.state_dict(keep_vars=True).values():
        tensor._is_hf_initialized = True
    for module in made.modules():
        # building the outline has set this mark; loading processes all modules
        module._is_hf_initialized = False
    written = _WrittenStorages()
    # a module that reads values stops this; the modules before it have been checked
    with suppress(Exception), written, torch.random.fork_rng(devices=[]), catch_warnings():
        simplefilter("ignore")  # ignore warnings about tensors without elements
        made.initialize_weights()
    return {
        name
        for name, parameter in parameters.items()
        if parameter.untyped_storage()._cdata in written.storages
    }


class _WrittenStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the storages that torch functions write to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for argument, value in zip(func._schema.arguments, args, strict=False):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written and isinstance(value, torch.Tensor):
                self.storages.add(value.untyped_storage()._cdata)
        return func(*args, **(kwargs or {}))


def _never_saved(model: Any) -> set[str]:
    """Return the names of the parameters that `save_pretrained` does not write."""
    patterns = getattr(model, "_keys_to_ignore_on_save", None) or ()
    names = [name for name, _ in model.named_parameters()]
    return {name for name in names if _is_matched(name, patterns)}


def _is_matched(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a regular expression occurs in a name."""
    return any(search(pattern, name) for pattern in patterns)


class _Reached(TorchFunctionMode):
    """Collects the parameters whose values are passed to a torch function."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not asks_only(func, args, kwargs):
            self._note((*args, *kwargs.values()))
        return func(*args, **kwargs)

    def _note(self, values: Any) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                self.tensors.add(id(value))
            elif isinstance(value, list | tuple):
                self._note(value)
            elif isinstance(value, dict):
                self._note(value.values())


def unreached(model: torch.nn.Module, run: Callable[[], Any]) -> list[str]:
    """Return the names of the parameters that `run` does not use.

    An expert that got none of these few tokens counts as used if other experts like it were used.

    Args:
        model: any torch module.
        run: calls the model.
    """
    with torch.no_grad(), _Reached() as reached:
        run()
    parameters = list(model.named_parameters())
    met = {name for name, parameter in parameters if id(parameter) in reached.tensors}
    idle = [name for name, _ in parameters if name not in met]
    return [name for name in idle if not _is_one_of_several(model, name, met)]


def _is_one_of_several(model: torch.nn.Module, name: str, met: set[str]) -> bool:
    """Return whether a parameter belongs to one of several numbered members of the same class, such
    as experts, of which another was reached.

    The members are in a list, or in a dictionary whose keys end with a number ("expert_3").
    """
    parts = name.split(".")
    for depth in range(1, len(parts)):
        place, key = ".".join(parts[:depth]), parts[depth]
        members = model.get_submodule(place)
        if not _is_numbered(key) or not isinstance(
            members, torch.nn.ModuleList | torch.nn.ModuleDict
        ):
            continue
        if _any_under(met, f"{place}.{key}"):
            continue
        kind = type(members.get_submodule(key))
        for other, member in members.named_children():
            is_alike = _is_numbered(other) and type(member) is kind
            if is_alike and _any_under(met, f"{place}.{other}"):
                return True
    return False


def _is_numbered(key: str) -> bool:
    return key[-1:].isdecimal()


def _any_under(names: set[str], place: str) -> bool:
    return any(name.startswith(f"{place}.") for name in names)


def examine(model: Any, texts: Sequence[Sequence[int]], reads_both_sides: bool = False) -> Traits:
    """Find out by short forward passes what no configuration shows. This is done once for each
    model.

    Parameters that no text reaches are frozen. If padding changes an example's logits or the
    answers generated in a batch, later batches have only texts of equal length.

    Args:
        model: a language model or a classifier of texts; it is tested in evaluation mode.
        texts: tokens of two texts of different lengths, in the form of examples.
        reads_both_sides: whether a token's logits may depend on later tokens, as in masked language
            models.

    Returns:
        The model's traits, with a note for each finding.

    Raises:
        RecipeError: the model's logits differ between two equal passes, or in a causal model later
            tokens change the logits of earlier ones.
    """
    traits = traits_of(model)
    if traits.examined or next(model.parameters()).device.type == "meta":
        return traits
    traits.examined = True
    if splits_outliers(model):
        traits.notes.append(
            "in LLM.int8(), rounding a token depends on other tokens: losses and answers depend "
            "slightly on the other examples in a batch"
        )
    was_training = model.training
    model.eval()  # because dropout would make two passes differ
    try:
        _ask(model, traits, _Probe(model, texts, reads_both_sides))
    except RecipeError:
        raise
    # a foreign class may raise any error, and the run will raise it again
    except Exception as error:
        traits.notes.append(
            f"the effect of padding on a {type(model).__name__} could not be tested: "
            f"{first_line(error)}"
        )
    finally:
        model.train(was_training)
    return traits


def rest_unreached_parts(
    model: Any, texts: Sequence[Sequence[int]], reads_both_sides: bool = False
) -> list[str]:
    """Freeze the trainable parameters that no text reaches, in a model whose base was examined
    before it got an adapter. Arguments are those of `examine`.

    Returns:
        Notes about what was frozen.

    Raises:
        RecipeError: nothing would be left to tune.
    """
    if next(model.parameters()).device.type == "meta":
        return []
    traits, was_training = traits_of(model), model.training
    earlier_notes = len(traits.notes)
    model.eval()
    try:
        probe = _Probe(model, texts, reads_both_sides)
        names = unreached(model, lambda: probe.logits([probe.longer]))
    except Exception:  # a foreign class may raise any error, and `examine` has noted it
        return []
    finally:
        model.train(was_training)
    _rest_unreached(model, traits, [n for n in names if model.get_parameter(n).requires_grad])
    return traits.notes[earlier_notes:]


def _ask(model: Any, traits: Traits, probe: "_Probe") -> None:
    """Complete a model's traits with a probe's findings."""
    stored = {name: parameter.dtype for name, parameter in model.named_parameters()}
    _rest_unreached(model, traits, unreached(model, lambda: probe.logits([probe.longer])))
    _refuse_casts(model, traits.base, stored)
    probe.refuse_chance(traits.base)
    if probe.is_causal:
        probe.refuse_looking_ahead(traits.base)
    if probe.padding_counts():
        traits.equal_lengths = True
        traits.notes.append(
            f"padding changes the outputs of a {type(model).__name__}: only texts of equal length "
            "share a batch"
        )
    elif probe.writes and probe.padding_counts_in_answers():
        traits.equal_prompts = True
        traits.notes.append(
            f"padding changes the text that a {type(model).__name__} generates: only prompts of "
            "equal length share a batch"
        )


def _refuse_casts(model: Any, base: str, stored: dict[str, torch.dtype]) -> None:
    """Raise RecipeError if a forward pass has permanently cast parameters to another dtype.

    For example, a 16-bit router of Switch Transformers becomes a 32-bit one in its first pass.
    Steps would be for that model, but a replay of the orbit or a reader of an export starts from
    the 16-bit one.

    Args:
        model: the model after a forward pass.
        base: the model's name.
        stored: the parameters' dtypes before that pass, by name.
    """
    cast = [name for name, parameter in model.named_parameters() if parameter.dtype != stored[name]]
    if cast:
        now = str(model.get_parameter(cast[0]).dtype).removeprefix("torch.")
        raise RecipeError(
            f'model.base = "{base}": a {type(model).__name__} casts some of its parameters to '
            f"{now} when it computes ({listed(cast, SHOWN)}), so it is no longer the model that "
            f'was loaded: set model.dtype = "{now}"'
        )


def _rest_unreached(model: Any, traits: Traits, names: Sequence[str]) -> None:
    """Freeze the parameters that no text reaches, and add a note.

    Raises RecipeError if nothing is left to tune.
    """
    resting = {id(parameter) for parameter in traits.at_rest}
    # codes of quantised weights are never tuned, and libraries hide that they are read
    idle = [
        name
        for name in names
        if id(model.get_parameter(name)) not in resting and is_movable(model.get_parameter(name))
    ]
    was_tuned = [name for name in idle if model.get_parameter(name).requires_grad]
    for name in idle:
        parameter = model.get_parameter(name)
        parameter.requires_grad_(False)
        traits.at_rest.append(parameter)
    if was_tuned and not any(parameter.requires_grad for parameter in model.parameters()):
        raise RecipeError(
            f'model.base = "{traits.base}": nothing of what is to be tuned affects the loss of a '
            f"text ({listed(was_tuned, SHOWN)}): a {type(model).__name__} does not use it; choose "
            "other model.adapter.targets or model.trainable"
        )
    if idle:
        count = sum(model.get_parameter(name).numel() for name in idle)
        traits.notes.append(
            f"{len(idle):,} tensors ({count:,} parameters) do not affect the loss of a text, and "
            f"are not tuned: {listed(idle, SHOWN)}"
        )


class _Probe:
    """Tests a model with two texts of different lengths."""

    def __init__(self, model: Any, texts: Sequence[Sequence[int]], reads_both_sides: bool) -> None:
        self.model = model
        shorter, longer = sorted((list(text) for text in texts), key=len)
        self.shorter, self.longer = shorter, longer
        config = model.config
        self.encodes = bool(getattr(config, "is_encoder_decoder", False))
        can_generate = bool(getattr(model, "can_generate", lambda: False)())
        # transformers claims this of XLM's masked language model, too
        self.writes = can_generate and not reads_both_sides
        self.is_causal = self.writes and not self.encodes
        self.splits_outliers = splits_outliers(model)
        pad = getattr(config.get_text_config(), "pad_token_id", None)
        self.pad = pad if isinstance(pad, int) and pad >= 0 else longer[-1]

    def logits(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Return each row's logits without those at padding, in float32 on the CPU."""
        width = max(map(len, rows))
        device = next(self.model.parameters()).device
        ids = [[*row, *[self.pad] * (width - len(row))] for row in rows]
        mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        inputs = {
            "input_ids": torch.tensor(ids, device=device),
            "attention_mask": torch.tensor(mask, device=device),
        }
        # a classifier makes its decoder's input itself, as it does in a run
        if self.encodes and self.writes:
            # the decoder gets the same tokens
            inputs["decoder_input_ids"] = inputs["input_ids"]
        if self.writes:
            inputs["use_cache"] = False  # type: ignore[assignment]
        with torch.no_grad():
            logits_of_rows = self.model(**inputs).logits.float().cpu()
        if logits_of_rows.ndim < 3:  # the logits of a classifier
            return list(logits_of_rows)
        return [logits[: len(row)] for logits, row in zip(logits_of_rows, rows, strict=True)]

    def differ(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        """Return whether logits differ by more than rounding can explain."""
        dtype = next(p.dtype for p in self.model.parameters() if p.is_floating_point())
        scale = float(first[first.isfinite()].abs().max()) if first.isfinite().any() else 1.0
        tolerance = COARSE if self.splits_outliers else TOLERANCE.get(dtype, COARSE)
        limit = tolerance * max(1.0, scale)
        apart = (first - second).nan_to_num(0.0, 0.0, 0.0).abs().max()
        return bool(apart > limit)

    def refuse_chance(self, base: str) -> None:
        """Raise RecipeError if two equal passes give different results."""
        config = self.model.config
        # Reformer draws hashes only for texts longer than a chunk, which these texts may not be
        hashes = "lsh" in (getattr(config, "attn_layers", None) or ())
        draws_hashes = hashes and getattr(config, "hash_seed", None) is None
        first, second = (self.logits([self.longer])[0] for _ in range(2))
        if draws_hashes or self.differ(first, second):
            raise RecipeError(
                f'model.base = "{base}": a {type(self.model).__name__} gives different losses for '
                "the same text, because it draws random numbers even in evaluation; set a seed in "
                'its config.json (Reformer: "hash_seed": 0)'
            )

    def refuse_looking_ahead(self, base: str) -> None:
        """Raise RecipeError if a later token changes an earlier one's logits."""
        whole = self.logits([self.longer])[0]
        changed = self.logits([[*self.longer[:-1], self.longer[0]]])[0]
        if whole.ndim == 2 and self.differ(whole[:-1], changed[:-1]):
            raise RecipeError(
                f'model.base = "{base}": in a {type(self.model).__name__} later tokens change the '
                'predictions of earlier ones, so it would see its answers: set "is_decoder": true '
                '(XLM: "causal": true) in its config.json, or use it as it is (model.architecture '
                '= "masked" or "classification")'
            )

    def padding_counts(self) -> bool:
        """Return whether a text's logits depend on a longer text in the same batch.

        CANINE computes with four tokens at a time, and padding changes only texts whose length
        is no multiple of four: the text without its second token is tried, too.
        """
        texts = [self.shorter]
        if len(self.shorter) > 4:
            texts.append([self.shorter[0], *self.shorter[2:]])
        for text in texts:
            alone = self.logits([text])[0]
            if self.differ(alone, self.logits([text, self.longer])[0]):
                return True
        return False

    def padding_counts_in_answers(self) -> bool:
        """Return whether an answer's logits depend on a longer prompt in the same batch."""
        from fedseed.models.writing import first_scores

        alone = first_scores(self.model, [self.shorter], self.pad, self.encodes)
        beside = first_scores(self.model, [self.shorter, self.longer], self.pad, self.encodes)
        return any(
            self.differ(one[0], beside_rows[0])
            for one, beside_rows in zip(alone, beside, strict=True)
        )
