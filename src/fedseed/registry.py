"""What can be chosen by name, from fedseed and others: methods, tasks, metrics, rules, trackers.

A registry is filled from three places:

    the package's own           a list such as `fedseed.methods.METHODS`, or whatever a room's
    modules define
    installed packages          entry points of a group such as "fedseed.methods", name = the
    thing's own name
    plug-in files and modules   `--plugin FILE`, which call `fedseed.register_method(MyMethod)` and
    the like

Entry points are loaded when they are first needed: for a name that is not known yet, or for a list.
One that fails breaks nothing; whoever asks for it is told why.

A plug-in is code that runs with all rights of whoever starts fedseed. Installing a package or
writing `--plugin FILE` is consent. A recipe is data, which people pass on: what its `plugins` name
is loaded only with `--trust-plugins`.
"""

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

from fedseed.errors import RecipeError, did_you_mean

T = TypeVar("T")
BUILT_IN = "built in"
# marks a setting that does not define a run: runs that differ in it only are the same run
INCIDENTAL = "incidental"
COMMANDS = "fedseed.commands"  # entry points of packages that add commands, such as fedseed-papers

# the plug-in whose code runs just now
_loading: ContextVar[str | None] = ContextVar("loading", default=None)
_loaded: dict[str, str] = {}  # plug-ins that have run: path or module -> hash of the file's bytes
_registries: list["Registry[Any]"] = []
_lock = threading.RLock()  # runs of a sweep are prepared in threads


class Entry(NamedTuple, Generic[T]):
    """Something that can be chosen: what recipes call it, the class or function, and where it came
    from.
    """

    name: str
    thing: T
    origin: str  # "built in", a package with its version, or a file


class Registry(Generic[T]):
    """Things of one kind, by name.

    Args:
        what: the kind, in errors: "method".
        group: the entry points' group.
        own: the package's own things with their names, in the order in which they are listed.
        check: raises ValueError or TypeError if something can't be of this kind.
        marks: what else must differ between any two things, such as a method's code in messages.
        advice: what to do when marks clash.
        reserved: names that nothing may have.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        entries: Iterable[tuple[str, T]],
        check: Callable[[Any], None] = lambda thing: None,
        marks: Callable[[T], Mapping[str, object]] = lambda thing: {},
        advice: str = "choose another",
        reserved: Sequence[str] = (),
    ) -> None:
        self.what = kind
        self.group = group
        self._check = check
        self._marks = marks
        self._advice = advice
        self._reserved = tuple(reserved)
        self._entries: dict[str, Entry[T]] = {}
        self._broken: dict[str, str] = {}
        self._complete = False  # whether entry points have been looked at
        for name, thing in entries:
            self._add(Entry(name, thing, BUILT_IN))
        _registries.append(self)

    def add(self, name: str, thing: T) -> None:
        """Add something of others.

        Adding it again from the same place replaces it: a notebook's cell may run twice.

        Args:
            name: what recipes will call it.
            thing: the class or function.

        Raises:
            RecipeError: it can't be of this kind, or its name or a mark is taken; names both
                origins.
        """
        origin = _loading.get() or str(getattr(thing, "__module__", type(thing).__module__))
        try:
            self._check(thing)
            with _lock:
                self._add(Entry(name, thing, origin))
        except (TypeError, ValueError) as error:
            raise RecipeError(
                f"{origin}: {self.what} {name!r} can't be registered: {error}"
            ) from error

    def _add(self, entry: Entry[T]) -> None:
        def describe_origin(entry_shown: Entry[T]) -> str:
            if entry_shown.origin == BUILT_IN:
                return "fedseed itself"
            return entry_shown.origin

        if entry.name in self._reserved:
            raise ValueError("fedseed uses the name itself; choose another")
        existing = self._entries.get(entry.name)
        if existing is not None:  # the same thing, defined anew, replaces it
            names = (getattr(one.thing, "__qualname__", None) for one in (entry, existing))
            if len(set(names)) > 1 or not entry.origin == existing.origin != BUILT_IN:
                raise ValueError(
                    f"the name is taken by {describe_origin(existing)}; choose another"
                )
        for entry_there in self._entries.values():
            marks_there: Mapping[str, object] = {}
            if entry_there.name != entry.name:
                marks_there = self._marks(entry_there.thing)
            for mark, value in self._marks(entry.thing).items():
                if marks_there.get(mark) == value:
                    raise ValueError(
                        f"{mark} {value} is that of {entry_there.name} "
                        f"({describe_origin(entry_there)}); {self._advice}"
                    )
        self._entries[entry.name] = entry

    def find(self, name: object) -> T | None:
        """Return the thing of this name; None: there is none."""
        if not isinstance(name, str):
            return None
        if name not in self._entries:
            self._load_entry_points()
        if name in self._entries:
            return self._entries[name].thing
        return None

    def get(self, name: str) -> T:
        """Return the thing of this name. Raises RecipeError, with the known names, if there is
        none.
        """
        thing = self.find(name)
        if thing is None:
            raise RecipeError(f"{self.what} {name!r}: {self.unknown(name)}")
        return thing

    def unknown(self, name: object) -> str:
        """Describe why a name is unknown: name the known ones, or the fault of an entry point that
        could not be loaded.
        """
        if isinstance(name, str) and name in self.broken():
            return self._broken[name]
        names = self.names()
        question = did_you_mean(name, names)
        return (
            f"{question}choose one of {', '.join(names)}, or give the file of your own with "
            "--plugin"
        )

    def entries(self) -> list[Entry[T]]:
        """Return all there are, the package's own first."""
        self._load_entry_points()
        return list(self._entries.values())

    def names(self) -> list[str]:
        """Return all names."""
        return [entry.name for entry in self.entries()]

    def broken(self) -> Mapping[str, str]:
        """Return the faults of entry points that can't be used, by name."""
        self._load_entry_points()
        return self._broken

    def _load_entry_points(self) -> None:
        with _lock:
            if self._complete:
                return
            self._complete = True
            for point in entry_points(group=self.group):
                origin = "an installed package"
                if point.dist is not None:
                    origin = f"{point.dist.name} {point.dist.version}"
                try:
                    with _mark_origin(origin):
                        thing = point.load()
                    self._check(thing)
                    own_name = name_of(thing)
                    if own_name is not None and own_name != point.name:
                        raise ValueError(
                            f"it calls itself {own_name!r}: entry point and name must be the same"
                        )
                    self._add(Entry(point.name, thing, origin))
                except Exception as error:
                    # whatever others do on import must not break a run that needs none of it
                    self._broken[point.name] = (
                        f"the entry point of {origin} can't be loaded: {one_line(error)}"
                    )


def classes_in(package: str, base: type) -> list[Any]:
    """Return a package's classes that can be used in place of `base`: a file in the package is
    enough to be found.

    Args:
        package: its name; all its modules are imported, in alphabetical order.
        base: what they inherit from.
    """
    classes = []
    for module_name in sorted(
        info.name for info in pkgutil.iter_modules(sys.modules[package].__path__, f"{package}.")
    ):
        for thing in vars(importlib.import_module(module_name)).values():
            defined_here = (
                isinstance(thing, type)
                and issubclass(thing, base)
                and thing.__module__ == module_name
            )
            if defined_here and not inspect.isabstract(thing):
                classes.append(thing)
    return classes


def name_of(thing: Any) -> str | None:
    """Return the name that a class of settings gives itself, in its field `name`.

    None for anything else.
    """
    field = getattr(thing, "model_fields", {}).get("name")
    if field is None:
        return None
    return str(field.default)


def check_class(thing: Any, base: type) -> None:
    """Check what every registry wants of a class of settings that others have written.

    Raises:
        TypeError: no class that can be used in place of `base`.
        ValueError: it has no name or no line for `fedseed list`.
    """
    if not isinstance(thing, type) or not issubclass(thing, base):
        raise TypeError(f"{thing!r} is no subclass of {base.__module__}.{base.__qualname__}")
    missing = sorted(getattr(thing, "__abstractmethods__", ()))
    if missing:
        raise TypeError(f"{thing.__qualname__} leaves out {', '.join(missing)}")
    name = getattr(thing, "model_fields", {})["name"].default
    if not isinstance(name, str) or not name:
        raise ValueError(
            f'{thing.__qualname__} has no name: write name: Literal["my-name"] = "my-name"'
        )
    if not isinstance(getattr(thing, "about", None), str):
        raise ValueError(f"{thing.__qualname__}.about is missing: one line for `fedseed list`")


def load_plugin(source: str | Path, option: str = "--plugin", registers: bool = True) -> str:
    """Run a plug-in's code, once: a Python file, or a module by its name.

    Args:
        source: a path that ends with .py, or a module's name such as "my_package.methods".
        option: what errors call the place that asked for it.
        registers: whether code that registers nothing is an error.

    Returns:
        What it is known by: the absolute path, or the module's name.

    Raises:
        RecipeError: it can't be found or run, or registers nothing. Nothing of it is left then.
    """
    name = resolve(source)
    is_file = name.endswith(".py")
    with _lock:
        try:
            digest = ""
            if is_file:
                digest = hashlib.sha256(Path(name).read_bytes()).hexdigest()
        except OSError as error:
            raise RecipeError(f"{option} {source}: can't be read: {error.strerror}") from error
        if _loaded.get(name) == digest:
            return name
        earlier = [(registry, dict(registry._entries)) for registry in _registries]
        fresh = is_file or name not in sys.modules
        try:
            with _mark_origin(name):
                if is_file:
                    _run_file(Path(name))
                else:
                    importlib.import_module(name)
        except Exception as error:
            for (
                registry,
                entries,
            ) in earlier:  # what the plug-in has added or replaced is taken back
                others = {
                    key: entry for key, entry in registry._entries.items() if entry.origin != name
                }
                registry._entries = {**others, **entries}
            reason = str(error) if isinstance(error, RecipeError) else one_line(error)
            hint = ""
            if (
                isinstance(error, ModuleNotFoundError)
                and not is_file
                and name.startswith(f"{error.name}")
            ):
                hint = "; a file is named by its path, with .py at its end"
            raise RecipeError(f"{option} {source}: {reason}{hint}") from error
        added = any(
            entry.origin == name for registry in _registries for entry in registry._entries.values()
        )
        if fresh and registers and not added:
            raise RecipeError(
                f"{option} {source}: registers nothing; call fedseed.register_method, "
                "register_task, register_metric, register_aggregation, register_tracker or "
                "register_transport in it"
            )
        _loaded[name] = digest
        return name


def load_module(source: str | Path, option: str) -> ModuleType:
    """Return a file or module whose code has been run as `load_plugin` does.

    It need not register anything.
    """
    with _lock:
        name = load_plugin(source, option, registers=False)
        return sys.modules[_module_name(Path(name)) if name.endswith(".py") else name]


def resolve(source: str | Path, folder: Path | None = None) -> str:
    """Return a plug-in's identifier: a file's absolute path, or a module's name.

    Args:
        source: as it was written.
        folder: what a relative path begins at; None: the working folder.
    """
    text = str(source)
    if not text.endswith(".py"):
        return text
    path = Path(text).expanduser()
    return str((path if folder is None else folder / path).resolve())


def is_loaded(name: str) -> bool:
    """Return whether a plug-in, as `resolve` names it, has run."""
    return name in _loaded


def _module_name(path: Path) -> str:
    """Return a name that no other file has: two files called my_method.py are two modules."""
    return f"fedseed_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _run_file(path: Path) -> None:
    module_name = _module_name(path)
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None  # its name ends with .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # pydantic looks names up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise


@contextmanager
def _mark_origin(origin: str) -> Iterator[None]:
    """Mark whatever is registered inside as coming from `origin`."""
    token = _loading.set(origin)
    try:
        yield
    finally:
        _loading.reset(token)


def one_line(error: BaseException) -> str:
    """Return an error in one line, with its type."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return " ".join(text.split())
