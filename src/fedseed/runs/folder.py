"""The files in a run's folder: recipe, metrics, orbit or weights, summary, report.

An interrupted run resumes from them.

A round's files are written in an order that lets a run stop at any moment:

    1. progress.jsonl   what the round cost, which no other file records
    2. model.orbit      the step (a dense method: model.safetensors): from here on the round counts
    3. metrics.jsonl    the line, with an evaluation if one is due; evaluating again gives the same

When a run resumes, lines of progress.jsonl and answers.jsonl about later rounds than the orbit's
last are dropped, and a missing line of metrics is made from progress. summary.json comes last: a
folder that has it is finished.
"""

import json
import os
import shutil
import tomllib
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from fedseed.durable import Appender, is_irregular, lock_file, sync_path, write_whole
from fedseed.errors import FedseedError, OrbitError, RecipeError, StorageError
from fedseed.federation.fingerprint import Fingerprint
from fedseed.orbit import NO_DIGEST, Orbit
from fedseed.orbit.file import scan, write_orbit
from fedseed.recipe.keys import list_fields
from fedseed.recipe.reading import make_paths_absolute, read_toml
from fedseed.recipe.settings import Recipe
from fedseed.registry import INCIDENTAL
from fedseed.reports.results import RoundLine, read_summary
from fedseed.runs.ending import can_be_made_again, read_ending
from fedseed.runs.spec import RunSpec
from fedseed.tasks.record import (
    DataRecord,
    describe_changes,
    record_from_json,
    record_to_json,
)
from fedseed.text import flat

MOST_DIFFERENCES = 8  # how many differing keys an error names
# what clients keep from round to round, for methods with error feedback
MEMORY = "memory"
CHAT_TEMPLATE = "chat_template.jinja"
# digests of the data, and the fingerprint of the tokenizer
DATA = "data.json"
FILES = (
    "recipe.toml",
    CHAT_TEMPLATE,
    DATA,
    "answers.jsonl",
    "progress.jsonl",
    "metrics.jsonl",
    "model.orbit",
    "model.safetensors",
    "summary.json",
    "adapter",
    "metrics.png",
    "report.html",
    "tracking.json",
    MEMORY,
)
# only this run needs them
KEPT_INSIDE = (DATA, "answers.jsonl", "progress.jsonl", "tracking.json", MEMORY)


class RunFolder:
    """A run's folder, held by one process at a time.

    Args:
        path: created if missing.
        recipe: the complete recipe as TOML, if the run has one.
        resume: take up the run that is there. Without it there must be none.
        chat_template: the Jinja template of the run's chats, if it has one of its own.
        data: digests of the run's data; none: they are not known here.
        fingerprint: what the base's tokenizer makes of texts, if it has one.
        threads: the number of threads that each process trains with; None: it does not matter.
        claim: only lock the folder and compare recipes; `begin` writes the run's first files. Until
            then `release` leaves nothing behind.

    Raises:
        FedseedError: the folder holds a run already, or another process is using it.
        RecipeError: the run in it has a different recipe, data or tokenizer.
        StorageError: the folder can't be written.
    """

    def __init__(
        self,
        path: Path,
        recipe: str | None = None,
        resume: bool = False,
        chat_template: str = "",
        claim: bool = False,
        data: DataRecord | None = None,
        fingerprint: Fingerprint | None = None,
        threads: int | None = None,
    ) -> None:
        self.path = path
        self._recipe, self._chat_template = recipe, chat_template
        self._data, self._fingerprint, self._threads = data, fingerprint, threads
        # number of threads that the run began with, if it differs from this run's
        self.earlier_threads: int | None = None
        self._begun = False
        # if true, `progress` reaches the disk only through `sync`: in a network run the server's
        # log already has the steps
        self.lazy = False
        # values of metrics and progress that appear in their sums
        self._lines = 0, 0
        existing = [name for name in FILES if (path / name).exists()]
        self.finished = "summary.json" in existing
        for name in (*existing, "log.txt"):
            if is_irregular(path / name):
                raise FedseedError(
                    f"{path / name}: not a regular file but a pipe or a device, which could block "
                    "the run: delete it"
                )
        if existing and not resume:
            content, remedy = (
                ("a run", "")
                if self.finished
                else ("an unfinished run", "continue it with --resume, ")
            )
            raise FedseedError(
                f"{path} holds {content} already ({', '.join(existing)}): {remedy}delete it, or "
                "choose another folder with --out (run --overwrite deletes it)"
            )
        if recipe is not None and "recipe.toml" in existing:
            compare_recipes(path, recipe, extensible=not claim)
        if resume:
            compare_data(path, data or {}, fingerprint)
        if self.finished:
            return
        if resume and threads is not None:
            earlier_threads = read_threads(path)
            if earlier_threads != threads:
                self.earlier_threads = earlier_threads
        self._made_folder = not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{path}: can't be written: {error.strerror}") from error
        self._answers: Appender | None = None
        self._metrics: Appender | None = None
        self._made_progress = "progress.jsonl" not in existing
        self._progress = Appender(path / "progress.jsonl")
        try:
            # the operating system frees the lock when the process ends
            lock_file(self._progress.handle)
            # `release` may already have deleted this file
            if not self._progress.is_in_place():
                raise OSError
        except OSError as error:
            self._progress.close()
            raise FedseedError(f"{path}: another process is running in this folder") from error
        if not claim:
            self.begin()

    def begin(self) -> None:
        """Write the recipe, and the chats' template, unless they are there already.

        Raises StorageError if they can't be written.
        """
        if self._begun:
            return
        try:
            recipe, template = self.path / "recipe.toml", self.path / CHAT_TEMPLATE
            if self._recipe is not None and not recipe.exists():
                table = make_paths_absolute(tomllib.loads(self._recipe))
                write_whole(recipe, tomli_w.dumps(table).encode())
            if self._chat_template and not template.exists():
                write_whole(template, self._chat_template.encode())
            if (self._data or self._threads) and not (self.path / DATA).exists():
                _write_data(self.path, self._data or {}, self._fingerprint, self._threads)
            self._metrics = Appender(self.path / "metrics.jsonl")
        except BaseException:
            self._progress.close()
            raise
        self._begun = True

    @property
    def has_rounds(self) -> bool:
        """Return whether earlier sessions wrote metrics of any round after round 0."""
        metrics = self.path / "metrics.jsonl"
        return metrics.exists() and metrics.read_bytes().count(b"\n") > 1

    def take_up(
        self, last_round: int, fill: bool = False
    ) -> tuple[list[RoundLine], list[RoundLine]]:
        """Return the lines of earlier sessions about rounds that count.

        Later lines are deleted from the files.

        Args:
            last_round: the last round that counts, from the orbit or the weights.
            fill: write empty lines of progress for rounds whose lines were lost in a power cut.

        Returns:
            The lines of metrics, and the lines of progress of the rounds after the last one with
            metrics.

        Raises:
            FedseedError: the files do not fit the orbit.
        """
        if (self.path / "answers.jsonl").exists():
            self._answers = Appender(self.path / "answers.jsonl")
            self._cut(self._answers, last_round)
        assert self._metrics is not None
        metrics, progress = (
            self._cut(self._metrics, last_round),
            self._cut(self._progress, last_round),
        )
        newest = max((line.round for line in (*metrics, *progress)), default=last_round)
        for line in (
            [RoundLine(number) for number in range(newest + 1, last_round + 1)] if fill else ()
        ):
            progress.append(line)
            self._progress.append(line.encode(self._progress.path.name, len(progress)))
        self._lines = len(metrics), len(progress)
        if not metrics and last_round:
            raise FedseedError(
                f"{self.path}: model.orbit is at round {last_round}, but metrics.jsonl has "
                "no round 0"
            )
        last = 0
        if metrics:
            last = metrics[-1].round
        pending = [line for line in progress if line.round > last]
        if [line.round for line in pending] != list(range(last + 1, last_round + 1)):
            raise FedseedError(
                f"{self.path}: model.orbit is at round {last_round}, but progress.jsonl does not "
                f"have the costs of rounds {last + 1} to {last_round}: cut the orbit back with "
                f"`fedseed orbit rollback --to {last}`"
            )
        return metrics, pending

    def _cut(self, file: Appender, last_round: int) -> list[RoundLine]:
        """Return a file's complete lines up to round `last_round`, and delete the rest from the
        file.
        """
        lines: list[RoundLine] = []
        position = 0
        data = file.path.read_bytes()
        # text after the last newline is a line that was not written completely
        texts = data.split(b"\n")[:-1]
        for number, text in enumerate(texts, start=1):
            try:
                line = RoundLine.from_json(json.loads(text), file.path.name, number)
                beyond = line.round > last_round
            except (ValueError, TypeError) as error:
                if number == len(texts) and isinstance(error, json.JSONDecodeError):
                    # a power cut may leave zeros in place of a line
                    break
                raise FedseedError(f"{file.path}: line {number} is not valid: {error}") from error
            if beyond:
                break
            if lines and line.round <= lines[-1].round:
                raise FedseedError(
                    f"{file.path}: line {number}: round {line.round} is out of place"
                )
            lines.append(line)
            position += len(text) + 1
        file.cut(position)
        return lines

    def add_answers(self, first: bytes, line: bytes) -> None:
        """Write a round's answers, before its step counts.

        `first`: the file's first line.
        """
        if self._answers is None:
            self._answers = Appender(self.path / "answers.jsonl")
        self._answers.append(line if self._answers.size else first + line, sync=False)

    def add_progress(self, line: RoundLine) -> None:
        """Write what a round cost. The line is on disk when this returns; the step is written after
        it.
        """
        metrics, progress = self._lines
        self._progress.append(
            line.encode(self._progress.path.name, progress + 1), sync=not self.lazy
        )
        self._lines = metrics, progress + 1

    def sync(self) -> None:
        """Bring to the disk what was written lazily."""
        self._progress.sync()

    def add_metrics(self, line: RoundLine) -> None:
        """Append one line to metrics.jsonl, on disk before this returns."""
        assert self._metrics is not None
        metrics, _ = self._lines
        self._metrics.append(line.encode(self._metrics.path.name, metrics + 1))
        self._progress.cut(0)  # the line of metrics has all of it
        self._lines = metrics + 1, 0

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, the last file of a run."""
        self.release()
        (self.path / "progress.jsonl").unlink(missing_ok=True)
        write_whole(self.path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())

    def list_artefacts(self) -> list[Path]:
        """Return a finished run's files that may be useful elsewhere, for trackers."""
        shared = [self.path / name for name in FILES if name not in KEPT_INSIDE]
        inside = [sorted(path.rglob("*")) if path.is_dir() else [path] for path in shared]
        return [path for path in chain.from_iterable(inside) if path.is_file()]

    def release(self) -> None:
        """Close the files and keep their content; later calls do nothing."""
        if self.finished:
            return
        if not self._begun and self._made_progress and self._progress.handle >= 0:
            # keep a folder that holds files of others
            with suppress(OSError):
                (self.path / "progress.jsonl").unlink()
                if self._made_folder:
                    self.path.rmdir()
        self._progress.close()
        if self._metrics is not None:
            self._metrics.close()
        if self._answers is not None:
            self._answers.close()


def clear_run(path: Path) -> list[str]:
    """Delete the run's files in a folder, and no other files.

    Args:
        path: the run's folder; it need not exist.

    Returns:
        The names of what was deleted.

    Raises:
        FedseedError: another process is running in the folder, or `path` is not a folder.
        StorageError: something can't be deleted.
    """
    if path.exists() and not path.is_dir():
        raise FedseedError(f"{path}: not a folder")
    existing = [name for name in (*FILES, "log.txt") if os.path.lexists(path / name)]
    if not existing:
        return []
    guard = Appender(path / "progress.jsonl")
    try:
        try:
            lock_file(guard.handle)
        except OSError as error:
            raise FedseedError(f"{path}: another process is running in this folder") from error
        for name in existing:
            _delete(path / name)
    finally:
        guard.close()
    with suppress(FileNotFoundError):
        (path / "progress.jsonl").unlink()
    return existing


def _delete(path: Path) -> None:
    """Delete a file, a link (not what it leads to) or a folder. Raises StorageError."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{path}: can't be deleted: {error.strerror}") from error


def compare_recipes(
    path: Path, recipe: str, besides: Collection[str] = (), extensible: bool = True
) -> None:
    """Check key by key that a folder's recipe is the given one.

    Args:
        path: the folder; it has a recipe.toml.
        recipe: the recipe as TOML.
        besides: keys that may differ.
        extensible: whether the command allows another number of rounds (`--resume --rounds`).

    Raises:
        RecipeError: the recipes differ; the message names the keys and both values of each.
    """
    tables = [
        make_paths_absolute(table)
        for table in (read_toml(path / "recipe.toml"), tomllib.loads(recipe))
    ]
    # validation fails if, for example, a plug-in is missing: then the texts are compared as they
    # are
    with suppress(ValidationError):
        # adds the defaults of keys that an earlier fedseed did not have
        tables = [Recipe.model_validate(table).model_dump(exclude_none=True) for table in tables]
    fields = chain.from_iterable(list_fields(Recipe, table) for table in tables)
    apart = {key for key, field in fields if INCIDENTAL in field.metadata}
    folder_values, given_values = map(flat, tables)
    differences: list[str] = []
    for key in dict.fromkeys([*folder_values, *given_values]):
        values = folder_values.get(key), given_values.get(key)
        # the path may differ, because a base is identified by its digest
        if key in ("reward.function", "model.base"):
            values = str(values[0]).rpartition("/")[2], str(values[1]).rpartition("/")[2]
        if values[0] != values[1] and key not in apart and key not in besides:
            a, b = (
                repr(table[key]) if key in table else "not set"
                for table in (folder_values, given_values)
            )
            remark = f" (--resume --rounds {b} changes the number)"
            differences.append(
                f"{key} is {a} there, {b} here{remark if key == 'rounds' and extensible else ''}"
            )
    if len(differences) > MOST_DIFFERENCES:
        remark = f"and {len(differences) - MOST_DIFFERENCES} more keys differ"
        differences[MOST_DIFFERENCES:] = [remark]
    if differences:
        raise RecipeError(f"{path} was started with another recipe: {'; '.join(differences)}")


def compare_data(path: Path, data: DataRecord, fingerprint: Fingerprint | None) -> None:
    """Check that a resumed run has the data and the tokenizer that it began with.

    Args:
        path: the run's folder. Folders of an earlier fedseed have no record of the data, and pass.
        data: digests of the data as they are now.
        fingerprint: the tokenizer's fingerprint as it is now.

    Raises:
        RecipeError: something has changed; the message names what, and the remedy.
        FedseedError: the folder's record can't be read.
    """
    file = path / DATA
    if not file.is_file():
        return
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        earlier_record = record_from_json(stored["data"])
        began_with = None
        if stored.get("tokens"):
            began_with = Fingerprint.from_json(stored["tokens"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise FedseedError(
            f"{file}: can't be read ({error}): without it fedseed can't check whether the data "
            "changed; delete it to resume anyway"
        ) from error
    way_out = (
        "restore the old state, or begin another run with --out. To resume anyway, delete "
        f"{file}; then figures from before and after the change can't be compared"
    )
    changes = []
    if data and earlier_record:
        changes = describe_changes(earlier_record, data)
    if changes:
        raise RecipeError(f"{path} was started with other data: {', '.join(changes)}: {way_out}")
    if fingerprint is not None and began_with is not None:
        difference = fingerprint.difference_from(began_with)
        if difference is not None:
            raise RecipeError(f"{path} was started with other tokens: {difference}")


def read_threads(path: Path) -> int | None:
    """Return the number of threads that a folder's run began with; None if not known.

    The last bits of torch's sums depend on this number.
    """
    try:
        threads = json.loads((path / DATA).read_text(encoding="utf-8"))["threads"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if isinstance(threads, int):
        return threads
    return None


def _write_data(
    path: Path, data: DataRecord, fingerprint: Fingerprint | None, threads: int | None
) -> None:
    tokens = None
    # a private run writes no digests of the data, and then nothing about the tokenizer either
    if fingerprint is not None and data:
        tokens = fingerprint.to_json()
    table = {"data": record_to_json(data), "tokens": tokens, "threads": threads}
    write_whole(path / DATA, (json.dumps(table, indent=1) + "\n").encode())


def extend(settings: RunSpec) -> str | None:
    """Raise the number of rounds of the run in a folder to that of the settings.

    The run becomes an interrupted one. Resumed, it gets the same weights, steps and metrics as a
    run that had all rounds from the start, because a round does not depend on the number of rounds.
    This removes what only the end of a run writes: the orbit's end record, and the evaluation of
    the last round if a longer run has none there. summary.json is removed last, so that an
    interrupted call can be repeated.

    Args:
        settings: the run's new specification; its `folder` holds the run.

    Returns:
        A message about what was done; None if nothing was done, because there is no run yet or it
        already has this number of rounds.

    Raises:
        RecipeError: the folder has another recipe, or the run has more rounds already.
        OrbitError: the orbit is damaged or compacted.
    """
    path = settings.folder
    if path is None or not (path / "metrics.jsonl").is_file():
        return None
    if settings.recipe_text is not None and (path / "recipe.toml").is_file():
        compare_recipes(path, settings.recipe_text, besides=("rounds",))
    compare_data(path, settings.data_record, settings.fingerprint)
    summary = {}
    if (path / "summary.json").is_file():
        summary = read_summary(path)
    earlier_rounds = int(summary.get("rounds", 0))
    if earlier_rounds > settings.rounds:
        raise RecipeError(
            f"--rounds {settings.rounds}: the run in {path} already has {earlier_rounds}; fedseed "
            "export --upto exports an earlier round"
        )
    if summary and (
        earlier_rounds == settings.rounds or (summary.get("stopped") or {}).get("early")
    ):
        # early stopping would end the longer run at the same round
        return None
    ended_orbit = _find_ended_orbit(path / "model.orbit")
    file = path / "recipe.toml"
    if file.is_file():
        recipe = read_toml(file)
        if recipe.get("rounds") != settings.rounds:
            write_whole(file, tomli_w.dumps({**recipe, "rounds": settings.rounds}).encode())
    _take_back_evaluation(path / "metrics.jsonl", settings)
    # remove the end record, and the last digest if a longer run has none there
    if ended_orbit is not None:
        parts = list(ended_orbit.parts)
        if parts and not settings.digests(ended_orbit.last):
            parts[-1] = replace(parts[-1], digest=NO_DIGEST)
        write_orbit(path / "model.orbit", ended_orbit.start, parts)
    if not summary:  # the run was interrupted, so it goes on without a message
        return None
    (path / "summary.json").unlink()
    sync_path(path)
    return f"the run in {path} had {earlier_rounds} rounds: it continues to {settings.rounds}"


def _find_ended_orbit(file: Path) -> Orbit | None:
    """Return a run's orbit if it has its end record; None if there is no orbit or it was cut off.

    Raises OrbitError if it is damaged or compacted.
    """
    if not file.is_file():
        return None
    orbit, damage = scan(file.read_bytes(), str(file))
    if damage is not None and not damage.torn:
        raise OrbitError(damage.text)
    if orbit.header.first > 1:
        raise OrbitError(f"{file} is compacted: a run can't continue from it")
    if damage is not None:
        return None
    return orbit


def reopen_cut_run(path: Path) -> str | None:
    """Turn a finished run whose orbit has lost its last steps into an interrupted one.

    Resumed, it makes the same steps again, because a round depends only on earlier rounds.

    Args:
        path: the run's folder.

    Returns:
        A message about what was done; None if nothing was done, because no step is missing or the
        missing ones can't be made again.

    Raises:
        FedseedError: summary.json is damaged.
        OrbitError: the orbit is damaged.
    """
    file = path / "model.orbit"
    if not (path / "summary.json").is_file() or not file.is_file():
        return None
    ending = read_ending(path)
    orbit, damage = scan(file.read_bytes(), str(file))
    if damage is not None and not damage.torn:
        raise OrbitError(damage.text)
    missing = ending is not None and orbit.last < ending.round
    if ending is None or not missing or not can_be_made_again(file, orbit.header):
        return None
    write_orbit(file, orbit.start, orbit.parts)  # without the end record
    (path / "summary.json").unlink()
    sync_path(path)
    return (
        f"{file} ends with step {orbit.last}, but the run ended with step {ending.round}: making "
        "the missing steps again"
    )


def _take_back_evaluation(file: Path, settings: RunSpec) -> None:
    """Remove the last round's evaluation from its line of metrics, if a longer run does not
    evaluate there.
    """
    texts = file.read_bytes().split(b"\n")[:-1]  # complete lines
    try:
        first, last = (
            RoundLine.from_json(json.loads(texts[number - 1]), file.name, number)
            for number in (1, len(texts))
        )
    except (ValueError, LookupError, TypeError):
        return  # a damaged file: resuming the run reports it
    if settings.evaluates(last.round):
        return
    last.metrics = {
        name: value for name, value in last.metrics.items() if name not in first.metrics
    }
    last.seconds.pop("evaluation", None)
    last.weights_norm = None
    if not settings.digests(last.round):
        last.weights_digest = None
    earlier_lines = b"".join(text + b"\n" for text in texts[:-1])
    write_whole(file, earlier_lines + last.encode(file.name, len(texts)))
