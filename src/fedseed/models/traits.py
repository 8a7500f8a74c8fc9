"""The traits of a loaded base beside its weights; only this module determines them.

    settings      what config.json asks for that neither a loss nor an answer may depend on is
                  switched off (`settle`)
    at rest       parameters that are not tuned: those that the architecture freezes, those that it
                  never saves or writes to whenever it is loaded, and those that no text reaches (a
                  vision tower)
    padding       whether an example's loss, or its answer, depends on what it shares a batch with

`load_model` begins a model's traits; `examine` completes them by forward passes of a few tokens.
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

# what neither a loss nor an answer may inherit from config.json, and what it is set to
SETTINGS = {
    "output_attentions": False,
    "output_hidden_states": False,
    "output_router_logits": False,
    "return_dict": True,
}
# logits of a text alone and in a padded batch are further apart than this only where padding counts
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
# texts of different length, such as every tokenizer takes
PROBES = ("One, two", "Three, four, five, six, seven")
# in 16 bit, where sums round otherwise in a batch; and in LLM.int8()
COARSE = 0.1
SHOWN = 3  # names in a message


@dataclass
class Traits:
    """The known traits of a loaded model."""

    base: str  # as the recipe names it
    notes: list[str] = field(default_factory=list)  # lines for a person
    # parameters that are not tuned, by their identity; peft gives them other names
    at_rest: list[torch.nn.Parameter] = field(default_factory=list)
    # texts that share a forward pass must be of one length
    equal_lengths: bool = False
    # prompts that are continued together must be of one length
    equal_prompts: bool = False
    is_settled: bool = False
    examined: bool = False


def traits_of(model: Any) -> Traits:
    """Return the known traits of a model, with or without an adapter; a new model has none."""
    traits_found = getattr(model, TRAITS, None)
    if isinstance(traits_found, Traits):
        return traits_found
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    traits = Traits(str(getattr(model, "name_or_path", "") or ""))
    setattr(whole, TRAITS, traits)
    return traits


def settle(model: Any, base: str) -> Traits:
    """Return a new model's traits, with its settings and frozen parameters decided."""
    traits = traits_of(model)
    if traits.is_settled:
        return traits
    traits.is_settled, traits.base = True, base
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    changed = sorted(set(_switch_off(whole.config)))
    if changed:
        traits.notes.append(
            f"config.json has {listed(changed, SHOWN)}: switched off, here and in an export"
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
            traits.notes.append(f"not tuned, for they {reason}: {listed(names, SHOWN)}")
    return traits


def _configs(config: Any) -> Iterator[Any]:
    """Yield a configuration and those inside it (a text model's, a vision tower's)."""
    # this import loads transformers, which is not needed to import this module
    from transformers import PretrainedConfig

    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PretrainedConfig):
            yield from _configs(value)


def _switch_off(config: Any) -> Iterator[str]:
    """Set what must not be inherited, and yield each change as "key = value"."""
    for part in _configs(config):
        for name, required in SETTINGS.items():
            value = getattr(part, name, None)
            if isinstance(value, bool) and value != required:
                setattr(part, name, required)
                yield f"{name} = {str(value).lower()}"


def _make_outline(model: Any) -> Any:
    """Return a new model of the same class and configuration, without weights.

    For a class whose making reads values, it is the loaded model itself.
    """
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            return type(model)(model.config)
    except Exception:
        return model


def _frozen_at_birth(made: Any) -> set[str]:
    """Return the names of the parameters that the architecture itself freezes.

    Loading gives some of them a gradient again, by the version of transformers; the class knows.
    """
    return {name for name, parameter in made.named_parameters() if not parameter.requires_grad}


def _rewritten_by_loading(made: Any) -> set[str]:
    """Return the names of the parameters that loading writes to after it has read the file.

    From 5 on transformers initialises what the file did not have, and marks tensors that it had. A
    few classes write to a slice of a tensor, such as the row of the padding token, and a slice has
    no mark. A tuned value there would be lost when an export is loaded.

    Args:
        made: a model without weights; of another one nothing can be found out.
    """
    parameters = dict(made.named_parameters())
    is_outline = all(parameter.is_meta for parameter in parameters.values())
    # before 5 a module that was loaded is not initialised at all, and tensors have no mark
    has_marks = find_spec("transformers.initialization") is not None
    if not is_outline or not has_marks or not hasattr(made, "initialize_weights"):
        return set()
    for tensor in made.state_dict(keep_vars=True).values():
        tensor._is_hf_initialized = True
    for module in made.modules():
        # the making of the outline has set this; loading comes to all modules
        module._is_hf_initialized = False
    written = _WrittenStorages()
    # a module that reads values ends this: the modules before it were looked at
    with suppress(Exception), written, torch.random.fork_rng(devices=[]), catch_warnings():
        simplefilter("ignore")  # of tensors without elements
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
    """Return the names of the parameters that `save_pretrained` leaves out of the file."""
    patterns = getattr(model, "_keys_to_ignore_on_save", None) or ()
    names = [name for name, _ in model.named_parameters()]
    return {name for name in names if _is_matched(name, patterns)}


def _is_matched(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a regular expression occurs in a name."""
    return any(search(pattern, name) for pattern in patterns)


class _Reached(TorchFunctionMode):
    """Collects the parameters whose values some torch function is given."""

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
    """Return the names of the parameters that take no part in what `run` computes.

    An expert that these few tokens were not sent to takes part: others of its kind did.

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
    """Return whether a parameter lies in one of several numbered members of the same class, such as
    an expert, and another of them was reached.

    The members are those of a list, or of a dictionary whose keys end with a number ("expert_3").
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
    """Find out what no configuration says, by forward passes of a few tokens; once for a model.

    Parameters that no text reaches are frozen. Where padding changes an example's logits, or the
    answers that are generated in a batch, batches are made of texts of one length from then on.

    Args:
        model: a language model or a classifier of texts; it is asked in evaluation mode.
        texts: tokens of two texts of different length, as examples would have them.
        reads_both_sides: whether a token's logits may depend on what stands after it, as where a
            blank is filled.

    Returns:
        The model's traits, with a line for each thing found.

    Raises:
        RecipeError: the model's logits differ between two equal passes; or a causal model's later
            tokens change earlier ones' logits.
    """
    traits = traits_of(model)
    if traits.examined or next(model.parameters()).device.type == "meta":
        return traits
    traits.examined = True
    if splits_outliers(model):
        traits.notes.append(
            "LLM.int8() rounds a token by the tokens beside it: losses and answers depend a little "
            "on what shares a batch"
        )
    was_training = model.training
    model.eval()  # dropout would make two passes differ
    try:
        _ask(model, traits, _Probe(model, texts, reads_both_sides))
    except RecipeError:
        raise
    except Exception as error:  # whatever a class of others raises, the run will meet it, too
        traits.notes.append(
            f"what padding does to a {type(model).__name__} was not found out: {first_line(error)}"
        )
    finally:
        model.train(was_training)
    return traits


def _ask(model: Any, traits: Traits, probe: "_Probe") -> None:
    """Complete a model's traits by what a probe finds."""
    stored = {name: parameter.dtype for name, parameter in model.named_parameters()}
    _rest_unreached(model, traits, unreached(model, lambda: probe.logits([probe.longer])))
    _refuse_casts(model, traits.base, stored)
    probe.refuse_chance(traits.base)
    if probe.is_causal:
        probe.refuse_looking_ahead(traits.base)
    if probe.padding_counts():
        traits.equal_lengths = True
        traits.notes.append(
            f"padding changes what a {type(model).__name__} computes: texts of one length go "
            "through it together"
        )
    elif probe.writes and probe.padding_counts_in_answers():
        traits.equal_prompts = True
        traits.notes.append(
            f"padding changes what a {type(model).__name__} writes: prompts of one length are "
            "answered together"
        )


def _refuse_casts(model: Any, base: str, stored: dict[str, torch.dtype]) -> None:
    """Raise RecipeError if a forward pass has cast parameters for good.

    A router of Switch Transformers in 16 bits becomes one of 32 when it first computes. Steps would
    be of that one, which neither an orbit's replay nor an export's reader begins with.

    Args:
        model: after a forward pass.
        base: its name.
        stored: the parameters' dtypes before that pass, by name.
    """
    cast = [name for name, parameter in model.named_parameters() if parameter.dtype != stored[name]]
    if cast:
        now = str(model.get_parameter(cast[0]).dtype).removeprefix("torch.")
        raise RecipeError(
            f'model.base = "{base}": a {type(model).__name__} casts parameters of its own to {now} '
            f"when it computes ({listed(cast, SHOWN)}), and goes on as another model than was "
            f'loaded: set model.dtype = "{now}"'
        )


def _rest_unreached(model: Any, traits: Traits, names: Sequence[str]) -> None:
    """Freeze the parameters that no text reaches, and say so."""
    resting = {id(parameter) for parameter in traits.at_rest}
    # codes of quantised weights are not tuned anyway, and libraries hide that they are read
    idle = [
        name
        for name in names
        if id(model.get_parameter(name)) not in resting and is_movable(model.get_parameter(name))
    ]
    for name in idle:
        parameter = model.get_parameter(name)
        parameter.requires_grad_(False)
        traits.at_rest.append(parameter)
    if idle:
        count = sum(model.get_parameter(name).numel() for name in idle)
        traits.notes.append(
            f"{len(idle):,} tensors ({count:,} parameters) take no part in the loss of a text, and "
            f"are not tuned: {listed(idle, SHOWN)}"
        )


class _Probe:
    """Two texts of different length, and a model to ask about them."""

    def __init__(self, model: Any, texts: Sequence[Sequence[int]], reads_both_sides: bool) -> None:
        self.model = model
        shorter, longer = sorted((list(text) for text in texts), key=len)
        self.shorter, self.longer = shorter, longer
        config = model.config
        self.encodes = bool(getattr(config, "is_encoder_decoder", False))
        can_generate = bool(getattr(model, "can_generate", lambda: False)())
        # transformers says of XLM's masked language model, too, that it can
        self.writes = can_generate and not reads_both_sides
        self.is_causal = self.writes and not self.encodes
        self.splits_outliers = splits_outliers(model)
        pad = getattr(config.get_text_config(), "pad_token_id", None)
        self.pad = pad if isinstance(pad, int) and pad >= 0 else longer[-1]

    def logits(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Return each row's logits, without those of padding; in float32 on the CPU."""
        width = max(map(len, rows))
        device = next(self.model.parameters()).device
        ids = [[*row, *[self.pad] * (width - len(row))] for row in rows]
        mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        inputs = {
            "input_ids": torch.tensor(ids, device=device),
            "attention_mask": torch.tensor(mask, device=device),
        }
        # a classifier makes its decoder's input itself, as in a run
        if self.encodes and self.writes:
            # the decoder answers with the same tokens
            inputs["decoder_input_ids"] = inputs["input_ids"]
        if self.writes:
            inputs["use_cache"] = False  # type: ignore[assignment]
        with torch.no_grad():
            logits_of_rows = self.model(**inputs).logits.float().cpu()
        if logits_of_rows.ndim < 3:  # a classifier's
            return list(logits_of_rows)
        return [logits[: len(row)] for logits, row in zip(logits_of_rows, rows, strict=True)]

    def differ(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        """Return whether logits differ by more than rounding explains."""
        dtype = next(p.dtype for p in self.model.parameters() if p.is_floating_point())
        scale = float(first[first.isfinite()].abs().max()) if first.isfinite().any() else 1.0
        tolerance = COARSE if self.splits_outliers else TOLERANCE.get(dtype, COARSE)
        limit = tolerance * max(1.0, scale)
        apart = (first - second).nan_to_num(0.0, 0.0, 0.0).abs().max()
        return bool(apart > limit)

    def refuse_chance(self, base: str) -> None:
        """Raise RecipeError if two equal passes give two results."""
        config = self.model.config
        # Reformer draws hashes for texts that are longer than a chunk, which these may not be
        hashes = "lsh" in (getattr(config, "attn_layers", None) or ())
        draws_hashes = hashes and getattr(config, "hash_seed", None) is None
        first, second = (self.logits([self.longer])[0] for _ in range(2))
        if draws_hashes or self.differ(first, second):
            raise RecipeError(
                f'model.base = "{base}": a {type(self.model).__name__} computes two losses for one '
                "text, since it draws at random in evaluation, too; give it a seed in config.json "
                '(Reformer: "hash_seed": 0)'
            )

    def refuse_looking_ahead(self, base: str) -> None:
        """Raise RecipeError if a later token changes an earlier one's logits."""
        whole = self.logits([self.longer])[0]
        changed = self.logits([[*self.longer[:-1], self.longer[0]]])[0]
        if whole.ndim == 2 and self.differ(whole[:-1], changed[:-1]):
            raise RecipeError(
                f'model.base = "{base}": in a {type(self.model).__name__} later tokens change what '
                'earlier ones predict, so it would see its answers: set "is_decoder": true (XLM: '
                '"causal": true) in its config.json, or take it for what it is '
                '(model.architecture = "masked" or "classification")'
            )

    def padding_counts(self) -> bool:
        """Return whether a text's logits depend on the longer text beside it.

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
        """Return whether an answer's logits depend on the longer prompt beside it."""
        from fedseed.models.writing import first_scores

        alone = first_scores(self.model, [self.shorter], self.pad, self.encodes)
        beside = first_scores(self.model, [self.shorter, self.longer], self.pad, self.encodes)
        return any(
            self.differ(one[0], beside_rows[0])
            for one, beside_rows in zip(alone, beside, strict=True)
        )
