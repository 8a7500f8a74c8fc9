"""Make models from orbits: one by name, or many in turn on one base in memory."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedseed.errors import OrbitError
from fedseed.models.quantization import Quantization
from fedseed.orbit import Header, Orbit, Record
from fedseed.orbit.replay import catch_up, check_base, space_of
from fedseed.runs.ending import read_ending
from fedseed.runs.tuned import find_source, open_tuned, run_folder_of
from fedseed.weights.space import ParameterSpace


def from_orbit(
    path: str | Path, base: str | None = None, upto: int | None = None, device: str = "cpu"
) -> Any:
    """Return the tuned model that an orbit makes of its base, a model of transformers (or of peft)
    for evaluation.

    Args:
        path: an orbit's file, or a run's folder.
        base: name or folder of the base; None: as in the run.
        upto: number of the last step to apply; None: all.
        device: the model's device.

    Raises:
        RecipeError: there is no such file, or its base is not found.
        OrbitError: it is damaged, or of another base.
    """
    return open_tuned(find_source(str(path)), base, upto, device).model


class Swapper:
    """One base in memory that is turned into the models of many orbits, each with its exact bits.
    To leave an orbit, the base's bits are copied back, never computed by subtraction. An orbit's
    steps are regenerated from seeds and coefficients. The base is hashed once; an orbit's digest is
    compared when it is first used.

    Args:
        base: its name or folder, or a model that is loaded, at its base.
        orbits: files by name; others can be added later.
        keep: the number of orbits whose weights stay in memory, the last used ones; they are copied
            and not recomputed.
        dtype: the dtype in which a base is loaded.
        quantization: how it is quantised as it is loaded (`model.quantization`); None: not at all.
        device: the base's device.

    Raises:
        RecipeError: the base can't be loaded.
    """

    def __init__(
        self,
        base: str | torch.nn.Module,
        orbits: Mapping[str, str | Path] | None = None,
        keep: int = 0,
        dtype: str = "float32",
        device: str = "cpu",
        quantization: Quantization | None = None,
    ) -> None:
        from fedseed.models.loading import load_model

        self.tokenizer: Any = None
        if isinstance(base, str):
            base, self.tokenizer = load_model(base, dtype, device=device, quantization=quantization)
        self.model: Any = base
        self.keep = keep
        # the orbit of the current model; None: it is the base
        self.active: str | None = None
        # the space of the active orbit, or of the last one
        self._space: ParameterSpace | None = None
        self._spaces: dict[Any, ParameterSpace] = {}
        # the base's digest for each kind of digest in the orbits
        self._bases = set[str]()
        self._orbits: dict[str, Orbit] = {}
        self._seen: set[str] = set()  # orbits whose weights had the recorded digest
        self._kept: OrderedDict[str, list[torch.Tensor]] = OrderedDict()
        for name, path in (orbits or {}).items():
            self.add(name, path)

    @property
    def names(self) -> list[str]:
        """Return the names of the orbits, in the order in which they were added."""
        return list(self._orbits)

    def add(self, name: str, path: str | Path) -> None:
        """Add an orbit; it is read now, and applied when it is asked for.

        Raises:
            OrbitError: it can't be read, is damaged, has another base or an end other than its run,
                or tunes an adapter.
        """
        path = Path(path)
        ending = read_ending(run_folder_of(path))
        orbit = Orbit.open(path)
        header = orbit.header
        if ending is not None:
            ending.check(path, header, orbit.last, orbit.last_digest)
        if header.adapter is not None:
            raise OrbitError(
                f"{path}: it tunes an adapter, which can't be swapped: fedseed.from_orbit loads it"
            )
        if header.base_digest not in self._bases:
            self.to(None)
            check_base(header, self.model)
            self._bases.add(header.base_digest)
        self._orbits[name] = orbit
        self._seen.discard(name)
        self._kept.pop(name, None)
        self.active = None if self.active == name else self.active

    def remove(self, name: str) -> None:
        """Forget an orbit. If the model is this orbit's, it stays until another one is requested.

        Args:
            name: the orbit's name; an unknown one is ignored.
        """
        self._orbits.pop(name, None)
        self._seen.discard(name)
        self._kept.pop(name, None)
        self.active = None if self.active == name else self.active

    def to(self, name: str | None) -> Any:
        """Make the model, in place, that of an orbit.

        Args:
            name: the orbit's, as it was added; None: the base.

        Returns:
            The model.

        Raises:
            KeyError: there is no such orbit.
            OrbitError: its steps are not valid, or give other weights than the run recorded; the
                model is the base then.
        """
        orbit = None
        if name is not None:
            orbit = self._orbits[name]
        if name is not None and name == self.active:
            return self.model
        if self._space is not None:
            self._space.restore_base()
        self.active = None
        if orbit is not None and name is not None:
            self._space = self._space_for(orbit.header)
            if name in self._kept:
                self._space.restore(self._kept[name])
                self._kept.move_to_end(name)
            else:
                self._replay(name, orbit, self._space)
        self.active = name
        return self.model

    def _replay(self, name: str, orbit: Orbit, space: ParameterSpace) -> None:
        records: Iterable[Record] = orbit.steps()
        if name in self._seen:
            records = [Record(one.round, one.payload) for one in records]
        try:
            catch_up(orbit.header.method, orbit.header.start(), space, records)
        except OrbitError as error:
            space.restore_base()
            raise OrbitError(f"{name}: {error}") from error
        self._seen.add(name)
        if self.keep:
            self._kept[name] = space.snapshot()
            while len(self._kept) > self.keep:
                self._kept.popitem(last=False)

    def _space_for(self, header: Header) -> ParameterSpace:
        """Return the space of the tensors that an orbit tunes, with a copy of the base.

        Orbits that tune the same tensors share one.
        """
        key = header.layout, header.trainable, header.base_digest
        if key not in self._spaces:
            space = space_of(header, self.model)
            space.keep_base()
            self._spaces[key] = space
        return self._spaces[key]
