"""Replay: the only place where recorded steps are turned into weights.

Needs torch; the rest of the orbit does not.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import torch

from fedseed.errors import MessageError, OrbitError
from fedseed.methods import Method
from fedseed.methods.payload import State
from fedseed.models import adapters
from fedseed.models.stored import stored_weights
from fedseed.orbit.header import Header, note_other_version
from fedseed.orbit.record import NO_DIGEST, Record
from fedseed.text import listed
from fedseed.weights.change import Add, AddFactors, Change, Rebuild, Replace, Term
from fedseed.weights.codes import is_movable
from fedseed.weights.digest import base_digest
from fedseed.weights.space import ParameterSpace

SHOWN = 3  # most names in a message
# largest rank, and number of virtual tokens, of an adapter: memory stays below that of a base
USUAL_SIZE = 4096
# most bytes of an adapter, besides those of its base
LARGE_BYTES = 1 << 30
# most coefficients and table entries that are held back: 16 MiB
MAX_HELD_ENTRIES = 1 << 22
# most adds that are held back, of any size
MAX_HELD_STEPS = 1 << 12
# most steps times parameters that are held back: about a second of work, so that a progress bar
# moves
MAX_HELD_WORK = 1 << 34


OnStep = Callable[[int], None]


def replay(
    header: Header,
    records: Iterable[Record],
    model: torch.nn.Module,
    progress: OnStep | None,
    check_all: bool = False,
) -> str:
    """Apply steps to the base in place, and return the weights' digest; see `Orbit.replay`."""
    if header.adapter is None:
        check_base(header, model)
    elif not adapters.is_installed(model):
        raise OrbitError(
            "this orbit tunes an adapter: replay it onto orbit.equip(base), which returns a peft "
            "model"
        )
    else:
        check_base(header, model, adapters.base_digest)
    method = header.method
    space = space_of(header, model)
    if header.adapter is not None and adapters.start_digest(model, space) != header.adapter.digest:
        raise OrbitError(
            "the adapter's first weights are not those of the run: take what orbit.equip(base) "
            "returns"
        )
    if method.from_base:
        space.keep_base(stored_weights(model), often=method.rebuilds_each_step)
    catch_up(method, header.start(), space, records, progress, check_all)
    return space.digest()


def space_of(header: Header, model: torch.nn.Module) -> ParameterSpace:
    """Return the space of the parameters that an orbit tunes, with the header's blocks and kind of
    digests.

    Only these parameters are trainable then, whatever was trainable when the model was loaded.

    Raises:
        OrbitError: the model has no such parameters.
    """
    names = {tensor.name for tensor in header.layout.tensors}
    for name, parameter in model.named_parameters():
        # quantised parameters can't be trained: the layout differs from the header's then
        parameter.requires_grad_(name in names and is_movable(parameter))
    try:
        space = ParameterSpace(model, header.method.blocks, header.digest_kind)
    except ValueError as error:
        raise OrbitError(f"{other_tensors(header, model)} ({error})") from error
    if space.layout != header.layout:
        raise OrbitError(other_tensors(header, model))
    return space


def other_tensors(header: Header, model: torch.nn.Module) -> str:
    """Describe the differences between the tensors that an orbit tunes and a model's."""
    orbit_shapes = {tensor.name: tensor.shape for tensor in header.layout.tensors}
    ours = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    problem = "the base's trainable tensors or blocks differ from the orbit's"
    absent = [name for name in orbit_shapes if name not in ours]
    if absent:
        return f"{problem}: it has no {listed(absent, SHOWN)}"
    differing = [name for name, shape in orbit_shapes.items() if ours[name] != shape]
    if differing:
        name = differing[0]
        return f"{problem}: {name} has shape {list(ours[name])}, not {list(orbit_shapes[name])}"
    return problem


def equip(header: Header, model: torch.nn.Module) -> torch.nn.Module:
    """Return the base with the adapter that an orbit tunes; see `Orbit.equip`."""
    if adapters.is_installed(model) and header.adapter is not None:
        # the run's base is the folder of an adapter, so the adapter is loaded already
        check_base(header, model, adapters.base_digest)
        check_first_weights(header, model)
        return model
    check_base(header, model)
    if header.adapter is None:
        return model
    settings = header.adapter.settings.model_dump(include={"rank", "virtual_tokens", "hidden"})
    sides = set(chain.from_iterable(tensor.shape for tensor in header.layout.tensors))
    base_bytes = sum(parameter.nbytes for parameter in model.parameters())
    is_huge = header.layout.dense_bytes > base_bytes + LARGE_BYTES
    # rank or tokens are larger than the header's tensors, or than any base needs
    for name, number in settings.items():
        if number is not None and number > USUAL_SIZE and (is_huge or number not in sides):
            raise OrbitError(
                f"the orbit's adapter has {name} = {number:,}, which does not fit its tensors or "
                "this base"
            )
    equipped: torch.nn.Module = adapters.install(
        model, header.adapter.settings, header.seed, header.base
    )
    check_first_weights(header, equipped)
    return equipped


def check_first_weights(header: Header, model: torch.nn.Module) -> None:
    """Raise OrbitError if an adapter starts from other weights than the run's did."""
    digest = adapters.start_digest(model, space_of(header, model))
    if header.adapter is not None and digest != header.adapter.digest:
        raise OrbitError(
            f"the adapter's first weights have digest {digest}, those of the run "
            f"{header.adapter.digest}"
        )


def check_base(
    header: Header, model: torch.nn.Module, hashed: Callable[..., str] = base_digest
) -> None:
    """Raise OrbitError if the base has another digest than the orbit's."""
    digest = hashed(model, header.digest_kind)
    if digest == header.base_digest:
        return
    problem = f"another base: its digest is {digest}, the orbit's base has {header.base_digest}"
    names = {name for name, _ in model.named_parameters()}
    if header.adapter is None and not names.issuperset(t.name for t in header.layout.tensors):
        raise OrbitError(f"{problem}. {_other_version(header, model)}")
    raise OrbitError(problem + note_other_version(libraries_here(model), header.libraries))


def libraries_here(model: torch.nn.Module) -> str:
    """Return the libraries that named a model's tensors on this machine; "" for other modules."""
    if not hasattr(model, "config"):
        return ""
    import transformers

    return f"transformers {transformers.__version__}"


def _other_version(header: Header, model: torch.nn.Module) -> str:
    """Return a note that another version of transformers may name the tensors of the same files in
    another way.
    """
    import transformers

    orbit_names = [tensor.name for tensor in header.layout.tensors]
    ours = [name for name, _ in model.named_parameters()]
    absent = [name for name in orbit_names if name not in set(ours)]
    return (
        "The same files may have other tensors under another version: the orbit was made with "
        f"{header.libraries or 'another transformers'} ({len(orbit_names):,} tensors, such as "
        f"{absent[0]}), here is transformers {transformers.__version__} ({len(ours):,} tensors): "
        "replay it with that version, or run all sites with one"
    )


def catch_up(
    method: Method,
    state: State,
    space: ParameterSpace,
    records: Iterable[Record],
    progress: OnStep | None = None,
    check_all: bool = False,
) -> State:
    """Apply recorded steps, and compare the weights with the digests recorded with them.

    Args:
        method: the method.
        state: the state before the first of them.
        space: the parameter space, at the weights before the first of them.
        records: the steps. They are iterated over twice, so an iterator is made into a list.
        progress: called with the number of each step applied.
        check_all: compare with every recorded digest, not with the last one only.

    Returns:
        The state after the last one.

    Raises:
        OrbitError: a step is not valid, or the weights differ from those of the run.
    """
    steps = list(records) if isinstance(records, Iterator) else records
    last = max((i for i, record in enumerate(steps) if record.digest != NO_DIGEST), default=-1)
    # several steps share one pass over the weights, if no digest is needed between them
    pending = Pending(space)
    for i, record in enumerate(steps):
        try:
            step = method.decode_step(state, record.payload)
        except MessageError as error:
            raise OrbitError(f"step {record.round}: {error}") from error
        pending.add(method.change(state, step))
        state = method.advance(state, step)
        if progress is not None:
            progress(record.round)
        if i == last or (check_all and record.digest != NO_DIGEST):
            pending.flush()
            digest = space.digest()
            if digest != record.digest:
                raise OrbitError(
                    f"after step {record.round} the weights' digest is {digest}, the run recorded "
                    f"{record.digest}"
                )
    pending.flush()
    return state


class Pending:
    """Changes that are held back, so that `flush` can carry them out in one pass over the weights.

    The result has the same bits as one change at a time. A sum that is rebuilt from the base, or
    whole weights, replace all earlier changes. Other steps are rounded one after the other, while a
    piece of the weights is in the cache.

    Args:
        space: the parameter space; while changes are held back its weights are those of an earlier
            step.
    """

    def __init__(self, space: ParameterSpace) -> None:
        self._space = space
        self._first: Rebuild | Replace | None = None  # a change that is carried out before the adds
        self._adds: list[Add] = []
        self._factors: list[AddFactors] = []
        self._held = 0

    def add(self, change: Change) -> None:
        """Take one more change, which comes after all before it."""
        if isinstance(change, Rebuild | Replace):
            self._first, self._adds, self._factors, self._held = change, [], [], 0
        elif isinstance(change, AddFactors):
            if self._adds:
                self.flush()
            self._factors.append(change)
            self._held += sum(factor.size for factor in change.factors)
        elif isinstance(change, Add) and change.rounding is None:
            if self._factors:
                self.flush()
            if change.terms:
                self._adds.append(change)
                self._held += sum(map(_entries, change.terms))
        else:
            # changes with running averages, branches or stochastic rounding need a pass each
            self.flush()
            self._space.apply(change)
        steps = len(self._adds) + len(self._factors)
        if (
            self._held > MAX_HELD_ENTRIES
            or steps >= MAX_HELD_STEPS
            or steps * self._space.size > MAX_HELD_WORK
        ):
            self.flush()

    def flush(self) -> None:
        """Carry out what is held back."""
        if self._first is not None:
            self._space.apply(self._first)
        self._space.apply_adds(self._adds)
        self._space.apply_factors(self._factors)
        self._first, self._adds, self._factors, self._held = None, [], [], 0


def _entries(term: Term) -> int:
    """Return the number of a term's coefficients, or of the entries of its basis' table."""
    return max(
        sum(len(c) if hasattr(c, "__len__") else 1 for c in term.coefficients), term.basis.tile
    )
