"""Runs sweeps: several recipes over seeds, data scenarios and grids of settings, and compares them
side by side.

    1. choosing   every point of a run's grid, on the task's validation examples (evaluate_on =
    "validation")
    2. results    the point with the best validation metric, over all seeds, on the task's test
    examples

A search keeps the best point of a `grid`; `each` keeps them all, as lines of their own (an
ablation).

With metric = "validation_loss", which runs with early stopping measure beside their results, one
set of runs serves as both: the chosen point's run is a result, and isn't run again.

Every run is a folder named by its settings and a process of its own, so that its peak memory is its
own. A sweep that was stopped goes on where it was: finished runs are read, an unfinished one is
resumed (`fedseed run --resume`). Planning does not import torch; the processes of the runs do.
"""

import json
import os
import re
import sys
import threading
import time
import tomllib
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, count, product
from math import inf, isfinite
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedseed.actors import LIVES, Actor, Cluster
from fedseed.durable import NO_LINK, write_whole
from fedseed.errors import FedseedError, RecipeError, plural
from fedseed.metrics import lower_is_better, shown_metrics
from fedseed.processes import COMMAND, start
from fedseed.randomness.stream import Seed, check_seed
from fedseed.recipe.keys import explain
from fedseed.recipe.packaged import packaged_recipes, packaged_sweeps
from fedseed.recipe.reading import read_recipe, read_toml
from fedseed.recipe.settings import Recipe
from fedseed.registry import one_line, resolve
from fedseed.reports.comparison import Compared, comparison_lines, costs_sheet, results_sheet
from fedseed.reports.results import read_summary
from fedseed.reports.tables import Sheet
from fedseed.reports.view import view_folder
from fedseed.runs.folder import RunFolder

Point = tuple[str, ...]  # settings of a grid's point, "key=value" each
Grid = dict[str, Annotated[list[Any], Field(min_length=1)]]  # values to choose from, by key
# a metric that runs with early stopping have besides those of their results
BESIDE = "validation_loss"
STOPPED = "the sweep was stopped"


class _Table(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, populate_by_name=True, allow_inf_nan=False
    )


class SweepRun(_Table):
    """One line of the tables.

    Args:
        label: its name there.
        recipe: a TOML file (beside the sweep's, if it is relative) or the name of a packaged
            recipe.
        set: settings, "key=value" each.
        grid: values to choose from, by key; all combinations are tried.
        each: values to be shown side by side, by key; each combination is a line of its own, "label
            key=value", and chooses from the grid for itself.
    """

    label: str
    recipe: str
    set: list[str] = []
    grid: Grid = {}
    each: Grid = {}

    def points(self) -> list[Point]:
        """Return all combinations of the grid's values; without a grid, a single empty one."""
        return _combinations(self.grid)

    def lines(self, grid_by_run: Mapping[str, list[Any]] = {}) -> list["SweepRun"]:
        """Return a run for each combination of `grid_by_run`'s values, with these values set.

        Without `grid_by_run`, the run itself.

        Args:
            grid_by_run: further keys and their values.
        """
        runs = []
        for point in _combinations({**self.each, **grid_by_run}):
            label = _join_words(self.label, *map(_short, point))
            runs.append(
                self.model_copy(update={"label": label, "set": [*self.set, *point], "each": {}})
            )
        return runs


class Scenario(_Table):
    """One block of the tables.

    Args:
        name: its name.
        set: settings that all runs share, such as how data is dealt.
        also: further settings of single runs, by label; they come last but for a grid's.
        grids: values to choose from in this block in place of a run's own, by label and key.
        runs: labels of the runs that this block has; left out: all.
    """

    name: str
    set: list[str] = []
    also: dict[str, list[str]] = {}
    grids: dict[str, Grid] = {}
    runs: list[str] | None = None


class Sweep(_Table):
    """A whole sweep.

    Args:
        title: for the tables.
        seeds: the runs' seeds for the results; a point is chosen with the first.
        choose_in: the scenario in which each run's point is chosen for all of them; by default each
            has its own.
        metric: what the best point is chosen by, on validation examples; "validation_loss": what
            runs with [stopping] measure of them beside the test examples, so that the chosen
            point's run is one of the results.
        set: settings of all runs.
        choose_set: further settings while choosing, such as "evaluation.rouge=false".
        scenarios: blocks of the tables ([[scenario]]).
        runs: their lines ([[run]]); those with `each` become several.
    """

    title: str = ""
    seeds: list[Seed] = Field([1], min_length=1)
    choose_in: str | None = None
    metric: str = "loss"
    set: list[str] = []
    choose_set: list[str] = []
    scenarios: list[Scenario] = Field([Scenario(name="")], alias="scenario", min_length=1)
    runs: list[SweepRun] = Field(alias="run", min_length=1)

    @field_validator("runs")
    @classmethod
    def _a_line_each(cls, runs: list[SweepRun]) -> list[SweepRun]:
        return list(chain.from_iterable(run.lines() for run in runs))

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, seeds: list[Seed]) -> list[Seed]:
        check_distinct(seeds, "seeds")
        return seeds

    @model_validator(mode="after")
    def _names_differ(self) -> "Sweep":
        for kind, names in (
            ("scenario", [s.name for s in self.scenarios]),
            ("run", [r.label for r in self.runs]),
        ):
            if len({slug(name) for name in names}) < len(names):
                raise ValueError(
                    f"two {kind}s have the same name, or names that give the same folder: {names}"
                )
        if self.choose_in is not None and self.choose_in not in {
            scenario.name for scenario in self.scenarios
        }:
            raise ValueError(f"choose_in = {self.choose_in!r}: there is no such scenario")
        if self.metric == BESIDE and self.choose_set:
            raise ValueError(
                f'metric = "{BESIDE}" chooses from the runs of the results: take choose_set out'
            )
        labels = {run.label for run in self.runs}
        for scenario in self.scenarios:
            unknown = {*scenario.also, *scenario.grids, *(scenario.runs or ())} - labels
            if unknown:
                raise ValueError(
                    f"scenario {scenario.name!r} has settings for {sorted(unknown)}: there is no "
                    "such run"
                )
        if self.choose_in is not None:
            lines = self.lines()
            labels_there = {run.label for scenario, run in lines if scenario.name == self.choose_in}
            missing = sorted({run.label for _, run in lines} - labels_there)
            if missing:
                raise ValueError(
                    f"choose_in = {self.choose_in!r} has no run {missing[0]!r} to choose for"
                )
        return self

    def lines(self) -> list[tuple[Scenario, SweepRun]]:
        """Return each block's runs, with the grids that they have there."""
        lines = []
        for scenario in self.scenarios:
            for run in self.runs:
                if scenario.runs is None or run.label in scenario.runs:
                    grid = {**run.grid, **scenario.grids.get(run.label, {})}
                    lines.append((scenario, run.model_copy(update={"grid": grid})))
        return lines


@dataclass(frozen=True)
class SweepLine:
    """A finished line of the tables."""

    scenario: str  # the block's name
    label: str  # the line's label
    point: Point  # the chosen settings
    # validation metric of each point, if there were several
    tried: Mapping[Point, float]
    # a grid's key whose chosen value is the first or last of its values: the best one may lie
    # beyond
    edge: str | None
    folders: Mapping[int, Path]  # the folders of the finished runs, by seed
    failed: Mapping[int, str]  # why runs have no result, by seed

    def compared(self) -> Compared:
        """Return the line with the summaries of its runs."""
        point_text = ""
        if self.tried:
            point_text = f" [{' '.join(map(_short, self.point))}]"
        return Compared(
            self.label, list(map(read_summary, self.folders.values())), point_text, len(self.failed)
        )


def _combinations(values: Mapping[str, list[Any]]) -> list[Point]:
    """Return all combinations of several keys' values, as settings."""
    settings = []
    for key, choices in values.items():
        settings.append([f"{key}={json.dumps(value)}" for value in choices])
    return list(product(*settings))


def slug(text: str) -> str:
    """Return a text as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9.=+_-]+", "-", text).strip("-")


def find_sweep(source: str) -> Path | None:
    """Return the file of a sweep, given a packaged one's name or a TOML file with [[run]].

    None for anything else.
    """
    path = Path(source)
    if not path.is_file():
        if source in packaged_recipes():
            return None
        return packaged_sweeps().get(source)
    try:
        if "run" in read_toml(path):
            return path
        return None
    except RecipeError:
        return None  # reading it as a recipe reports what is wrong


def read_sweep(path: Path) -> Sweep:
    """Return a sweep from its file.

    Raises RecipeError, which names the key, if the file is wrong.
    """
    sweep = _checked(read_toml(path), str(path))
    runs = []
    for run in sweep.runs:
        if run.recipe.endswith(".toml"):
            run = run.model_copy(update={"recipe": str(path.parent / run.recipe)})
        runs.append(run)
    return sweep.model_copy(update={"runs": runs})


def _checked(data: Mapping[str, Any], place: str) -> Sweep:
    try:
        return Sweep.model_validate(data)
    except ValidationError as error:
        raise RecipeError(f"{place}: {explain(error, data, Sweep)}") from error


def parse_grid(text: str, option: str = "--grid") -> tuple[str, list[Any]]:
    """Return key and values of a text such as "method.rate=1e-3,3e-4", which was typed for an
    option.

    Raises RecipeError if the text has another form.
    """
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise RecipeError(f"{option} {text}: write key=value,value, such as method.rate=1e-3,3e-4")
    try:
        return key.strip(), tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        # bare text needs no quotes
        return key.strip(), [value.strip() for value in values.split(",")]


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of a text such as "1,2,3".

    Raises:
        RecipeError: one of them is no seed, or comes twice.
    """
    try:
        seeds = [check_seed(int(word), "--seeds") for word in text.split(",")]
    except ValueError as error:
        raise RecipeError(f"--seeds {text}: write whole numbers, such as 1,2,3") from error
    try:
        check_distinct(seeds, f"--seeds {text}")
    except ValueError as error:
        raise RecipeError(str(error)) from error
    return seeds


def check_distinct(values: Sequence[Any], source: str) -> None:
    """Check that no value comes twice: one run would count as two in means and deviations.

    Raises:
        ValueError: one does; `source` says where.
    """
    for place, value in enumerate(values):
        if value in values[:place]:
            raise ValueError(f"{source}: {value} comes twice; give each once")


def make_sweep(
    file: Path | None,
    recipes: Sequence[str],
    changes: Sequence[str] = (),
    seeds: list[int] | None = None,
    grid: Mapping[str, list[Any]] = {},
    grid_by_run: Mapping[str, list[Any]] = {},
) -> Sweep:
    """Return the sweep of a file, or of recipes, with what a command line adds after it.

    Args:
        file: the sweep's; None: no sweep.
        recipes: files and names, of which each is a line then.
        changes: settings of all runs.
        seeds: the runs' seeds; None: those of the file, or 1.
        grid: values to choose from, by key.
        grid_by_run: values to be shown side by side, by key.

    Raises:
        RecipeError: the file is wrong, or two recipes have the same name.
    """
    if file is None:
        sweep = _checked(
            {"run": [{"label": Path(recipe).stem, "recipe": recipe} for recipe in recipes]},
            "compare",
        )
    else:
        sweep = read_sweep(file)
    if any(change.partition("=")[0].strip() == "seed" for change in changes):
        raise RecipeError(
            "--set seed: a sweep's runs have the seeds that --seeds says, such as --seeds 1,2,3"
        )
    lines = list(chain.from_iterable(run.lines(grid_by_run) for run in sweep.runs))
    runs = [line.model_copy(update={"grid": {**line.grid, **grid}}) for line in lines]
    blocks = []
    # what was typed goes before a block's own values
    for block in sweep.scenarios:
        remaining = {}
        for run, run_grid in block.grids.items():
            remaining[run] = {key: value for key, value in run_grid.items() if key not in grid}
        blocks.append(block.model_copy(update={"grids": remaining}))
    tables = {
        "runs": runs,
        "scenarios": blocks,
        "set": [*sweep.set, *changes],
        "seeds": seeds or sweep.seeds,
    }
    return sweep.model_copy(update=tables)


@dataclass(frozen=True)
class How:
    """The options for a sweep's runs."""

    # runs at a time; the machine's cores are shared out among them
    jobs: int = 1
    # files and modules to load first, here and in the runs' processes
    plugins: Sequence[str] = ()
    trust_plugins: bool = False  # load what recipes name as plug-ins, too
    # local processes that each run deals its clients to; None: a run is one process
    workers: int | None = None
    threads: int | None = None  # how many threads each process has
    # the address of a Ray cluster whose machines have the runs; None: this machine has them
    ray: str | None = None


@dataclass(frozen=True)
class Job:
    """One run."""

    name: str  # what progress calls it
    folder: Path  # where its files go
    recipe: str  # the file or the name of a packaged one
    settings: tuple[str, ...]  # what is set in it, "key=value" each
    how: How = How()  # how it is run

    def read_recipe(self) -> Recipe:
        """Return the recipe as it will be run. Raises RecipeError."""
        return read_recipe(self.recipe, self.settings, self.how.plugins, self.how.trust_plugins)


class WorkerPool:
    """Runs a sweep's jobs, each in a process of its own.

    Args:
        threads: how many threads a run may use; None: as many as there are cores.
        cluster: whose machines the processes are on, where one that dies is started anew; None:
            this machine.
    """

    def __init__(self, threads: int | None = None, cluster: Cluster | None = None) -> None:
        self._threads = threads
        self._start: Callable[..., tuple[Any, Any]] = start if cluster is None else cluster.start
        self._running: set[BaseProcess | Actor] = set()
        self._lock = threading.Lock()
        self.stopped = threading.Event()

    def run(self, job: Job) -> str | None:
        """Run or resumes a job; of a finished one, only checks the recipe.

        Its output goes to log.txt in its folder.

        Returns:
            None, or why it failed.

        Raises:
            RecipeError: the recipe, or what it needs, is wrong.
        """
        summary = job.folder / "summary.json"
        if summary.exists():
            # checks that it is the same recipe
            RunFolder(job.folder, job.read_recipe().to_toml(), resume=True)
            return None
        job.folder.mkdir(parents=True, exist_ok=True)
        problem: Any = None
        for _ in range(LIVES):
            with self._lock:
                if self.stopped.is_set():
                    return STOPPED
                process, connection = self._start(_run, job, threads=self._threads)
                self._running.add(process)
            with connection, suppress(EOFError, OSError):  # it died, and has said nothing
                problem = connection.recv()
            with self._lock:
                self._running.discard(process)
            process.join()
            if self.stopped.is_set():
                return STOPPED
            if problem is not None:
                break
        if isinstance(problem, RecipeError):
            raise problem
        if problem is None:
            return f"its process ended with exit code {process.exitcode}"
        return problem or None

    def stop(self) -> None:
        """End all processes; runs that are not finished can be resumed later."""
        with self._lock:
            self.stopped.set()
            for process in self._running:
                process.terminate()


def _run(order: object, say: object, job: Job) -> RecipeError | str:
    """Do a job in its process; return what went wrong ("": nothing).

    The run resumes what was begun earlier.
    """
    log = os.open(job.folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINK, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.setdefault(COMMAND, "1")  # on a cluster's other machine, too
    try:
        from fedseed.reports.progress import Screen, Shown
        from fedseed.runs.assembly import build

        # plug-ins are loaded here, in the process that runs them
        checked = job.read_recipe()
        progress = Shown(Screen(width=120, force_terminal=False))
        build(checked, job.folder, progress, job.how.workers, job.how.threads).run(resume=True)
    except (FedseedError, OSError) as error:
        text = " ".join(str(error).split())
        print(f"fedseed: {text}", file=sys.stderr, flush=True)
        if isinstance(error, RecipeError):
            return RecipeError(text)
        return text
    except BaseException as error:
        traceback.print_exc()
        return one_line(error)
    return ""


class Sweeping:
    """Runs a sweep in a folder, or goes on with one there.

    Args:
        sweep: what is to be run.
        out: the folder.
        say: shows a line of progress.
        how: how the runs are run.

    Raises:
        RecipeError: a recipe or setting is wrong; nothing has been run then.
    """

    def __init__(
        self, sweep: Sweep, folder: Path, say: Callable[[str], None], settings: How = How()
    ) -> None:
        self.sweep = sweep
        # the runs have processes of their own
        self.how = replace(settings, plugins=tuple(map(resolve, settings.plugins)))
        self.out = folder
        self.say = say
        share = None
        if self.how.jobs > 1:
            share = max(1, (os.cpu_count() or 1) // self.how.jobs)
        cluster = None
        if self.how.ray is not None:
            cluster = Cluster(self.how.ray, self.how.jobs, self.how.threads, say)
        self.pool = WorkerPool(share if cluster is None else cluster.threads, cluster)
        self._numbers = count(1)  # of runs that are over
        self.total = 0
        self._folders: set[Path] = set()
        for scenario, run in sweep.lines():
            points, is_chosen_here = run.points(), sweep.choose_in in (None, scenario.name)
            choosing = is_chosen_here and len(points) > 1
            self.total += len(sweep.seeds) + (len(points) if choosing else 0)
            for point in points:
                self._check(scenario, run, point, choosing)

    def run(self) -> list[SweepLine]:
        """Run the missing parts and return the tables' lines.

        A run that fails is reported and left out.

        Raises:
            RecipeError: there is nothing to choose a grid's point on, or a run's data or model
                can't be had.
        """
        lines, tasks_seen = self.sweep.lines(), set()
        choosing = [line for line in lines if self.sweep.choose_in in (None, line[0].name)]
        for scenario, run in choosing:
            # errors in the data that it chooses on are raised before any run
            if len(run.points()) > 1:
                job = self._job(scenario, run, run.points()[0], self.sweep.seeds[0], choosing=True)
                task = job.read_recipe().task
                task_text = task.model_dump_json()
                if task_text not in tasks_seen and not (job.folder / "summary.json").exists():
                    tasks_seen.add(task_text)
                    task.load()
        with ThreadPoolExecutor(self.how.jobs) as pool:
            futures = {
                (block.name, run.label): pool.submit(self._choose, block, run)
                for block, run in choosing
            }
            # a line waits for its point to be chosen: all choosing is ahead of it in the pool
            lines_done = [
                pool.submit(
                    self._line,
                    scenario,
                    run,
                    futures[self.sweep.choose_in or scenario.name, run.label],
                )
                for scenario, run in lines
            ]
            try:
                return [line.result() for line in lines_done]
            except BaseException:
                # Ctrl-C, or a recipe that turned out wrong: nothing goes on behind the caller's
                # back
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            finally:
                self.pool.stop()

    def _check(self, scenario: Scenario, run: SweepRun, point: Point, choosing: bool) -> None:
        job = self._job(scenario, run, point, self.sweep.seeds[0], choosing=False)
        if job.folder in self._folders:
            raise RecipeError(
                f'run "{run.label}": two points of its grid have names that give the same folder'
            )
        self._folders.add(job.folder)
        task = job.read_recipe().task
        if not choosing:
            return
        validation = getattr(task, "validation", None)
        if "evaluate_on" not in type(task).model_fields:
            raise RecipeError(
                f'run "{run.label}" has a grid, but task.name = "{task.name}" has no validation '
                "examples to choose on (task.evaluate_on): give one value for each key"
            )
        if validation == 0:
            raise RecipeError(
                f'run "{run.label}" has a grid, whose point is chosen on validation examples, but '
                "task.validation = 0 keeps none: set it, such as --set "
                f"task.validation={0.1 if isinstance(validation, float) else 200}"
            )
        self._job(scenario, run, point, self.sweep.seeds[0], choosing=True).read_recipe()

    def _job(
        self, scenario: Scenario, run: SweepRun, point: Point, seed: int, choosing: bool
    ) -> Job:
        own_changes = scenario.also.get(run.label, [])
        settings = [*self.sweep.set, *scenario.set, *run.set, *own_changes, *point, f"seed={seed}"]
        parts = [slug(scenario.name), slug(run.label)]
        choosing = choosing and self.sweep.metric != BESIDE
        if choosing:
            settings += ['task.evaluate_on="validation"', *self.sweep.choose_set]
            parts.append("choosing")
        if point:
            parts.append(slug("_".join(point)))
        folder = self.out.joinpath(*filter(None, parts), f"seed-{seed}")
        title = _join_words(scenario.name, run.label, *map(_short, point), f"seed {seed}")
        name = f"{title}{', on validation examples' if choosing else ''}"
        return Job(name, folder, run.recipe, tuple(settings), self.how)

    def _choose(self, scenario: Scenario, run: SweepRun) -> tuple[Point, dict[Point, float]]:
        """Return the best point, and the validation metric of each, if there are several."""
        points = run.points()
        if len(points) == 1:
            return points[0], {}
        jobs = {
            point: self._job(scenario, run, point, self.sweep.seeds[0], choosing=True)
            for point in points
        }
        tried = {point: self._metric(self._run(job)) for point, job in jobs.items()}
        sign = -1
        if lower_is_better(self.sweep.metric):
            sign = 1
        return min(points, key=lambda p: sign * tried[p] if isfinite(tried[p]) else inf), tried

    def _line(
        self, scenario: Scenario, run: SweepRun, choice: Future[tuple[Point, dict[Point, float]]]
    ) -> SweepLine:
        best, tried = choice.result()
        folders, failed = {}, {}
        for seed in self.sweep.seeds:
            job = self._job(scenario, run, best, seed, choosing=False)
            problem = self._run(job)
            if isinstance(problem, str):
                failed[seed] = problem
            else:
                folders[seed] = job.folder
        edges = (
            key
            for (key, values), setting in zip(run.grid.items(), best, strict=True)
            if len(values) > 2
            and setting.partition("=")[2] in (json.dumps(values[0]), json.dumps(values[-1]))
        )
        return SweepLine(scenario.name, run.label, best, tried, next(edges, None), folders, failed)

    def _metric(self, result: Mapping[str, Any] | str) -> float:
        if isinstance(result, str):
            if lower_is_better(self.sweep.metric):
                return inf
            return -inf
        if self.sweep.metric not in result["final"]:
            names = ", ".join(result["final"])
            stopping = "; runs with [stopping] do that" if self.sweep.metric == BESIDE else ""
            raise RecipeError(f'metric = "{self.sweep.metric}": the runs measure {names}{stopping}')
        return float(result["final"][self.sweep.metric])

    def _run(self, job: Job) -> dict[str, Any] | str:
        """Return the summary of a run, which is run if it is not finished; or why it failed."""
        is_there = (job.folder / "summary.json").exists()
        began = time.perf_counter()
        problem = self.pool.run(job)
        if self.pool.stopped.is_set():
            return STOPPED
        head = f"[{next(self._numbers)}/{self.total}] {job.name}"
        if problem is not None:
            self.say(f"{head}: failed: {problem}")
            return problem
        summary = read_summary(job.folder)
        final = summary["final"]
        metrics = ", ".join(
            f"{k} {final[k]:.3f}" for k in shown_metrics(final) if not k.startswith("unseen_")
        )
        spent = "there already"
        if not is_there:
            spent = f"{time.perf_counter() - began:.0f} s"
        failure = summary.get("failure")
        diverged = ""
        if failure is not None:
            diverged = f", diverged since round {failure['round']}"
        untaken = summary.get("not_taken")
        if untaken:
            diverged += f", {plural(untaken, 'step')} not taken"
        self.say(f"{head}: {metrics}{diverged} ({spent})")
        return summary


def _short(setting: str) -> str:
    """Return a setting without the tables its key is in."""
    key, _, value = setting.partition("=")
    return f"{key.rpartition('.')[2]}={value.strip(chr(34))}"


def _join_words(*words: str, separator: str = " ") -> str:
    """Return words that are not empty, with a blank or something else between them."""
    return separator.join(filter(None, words))


def sheets(sweep: Sweep, lines: Sequence[SweepLine], brief: bool = False) -> list[Sheet]:
    """Return the tables: results and costs of each scenario, and one with what was chosen from.

    If they are to be `brief`, passes and memory are left out, so that the results fit a terminal.
    """
    sheets_made = []
    for scenario in sweep.scenarios:
        compared = [line.compared() for line in lines if line.scenario == scenario.name]
        sheets_made.append(
            results_sheet(
                _join_words(sweep.title, scenario.name, separator=": "),
                compared,
                len(sweep.seeds),
                brief,
            )
        )
        sheets_made.append(
            costs_sheet(_join_words("Costs of a round", scenario.name, separator=": "), compared)
        )
    lines_shown = [line for line in lines if sweep.choose_in in (None, line.scenario)]
    tried = []
    for line in lines_shown:
        for point, value in line.tried.items():
            setting = " ".join(map(_short, point)) + (" (chosen)" if point == line.point else "")
            tried.append([line.scenario, line.label, setting, f"{value:.4f}"])
    if tried:
        edges = ", ".join(
            _join_words(line.scenario, line.label) for line in lines_shown if line.edge
        )
        note = f"By seed {sweep.seeds[0]}."
        if edges:
            note += f" Chosen at a grid's end, so that a better value may lie beyond it: {edges}."
        head = ("scenario", "method", "setting", f"validation {sweep.metric}")
        sheets_made.append(Sheet("Chosen on validation examples", head, tried, note))
    return sheets_made


def _line_to_json(line: SweepLine) -> dict[str, Any]:
    """Return a line as compare.json has it."""
    return {
        "scenario": line.scenario,
        "label": line.label,
        "chosen": line.point,
        "tried": [{"settings": point, "value": value} for point, value in line.tried.items()],
        "failed": line.failed,
        "summaries": {seed: read_summary(folder) for seed, folder in line.folders.items()},
    }


def write_results(sweep: Sweep, lines: Sequence[SweepLine], target: Path) -> list[str]:
    """Write tables as text and Markdown, everything as JSON, a page and a picture.

    compare.txt, compare.md, compare.json, compare.html, compare.png

    Returns:
        Of a sweep with one scenario what its numbers say, a sentence for each line.
    """
    from fedseed.reports.charts import curves
    from fedseed.reports.pages import comparison_page  # Jinja and Matplotlib take a while to import
    from fedseed.reports.plots import draw

    tables, views, panels = sheets(sweep, lines), {}, []
    messages = []
    if len(sweep.scenarios) == 1:
        messages = comparison_lines([line.compared() for line in lines])
    for scenario in sweep.scenarios:
        runs, round_lines = {}, {}
        for line in lines:
            if line.scenario == scenario.name and line.folders:
                seeds = runs[line.label] = list(map(view_folder, line.folders.values()))
                round_lines[line.label] = [view.lines for view in seeds]
        views[scenario.name] = runs
        panels += curves(round_lines, scenario.name)
    content = list(map(_line_to_json, lines))
    end = []
    if messages:
        end = ["".join(f"{text}\n" for text in messages)]
    write_whole(
        target / "compare.txt", "\n".join([*(sheet.text() for sheet in tables), *end]).encode()
    )
    write_whole(
        target / "compare.md", "\n".join([*(sheet.markdown() for sheet in tables), *end]).encode()
    )
    write_whole(target / "compare.json", (json.dumps(content, indent=1) + "\n").encode())
    draw(panels, target / "compare.png", across=4)
    write_whole(
        target / "compare.html",
        comparison_page(sweep.title or "Comparison", views, tables, messages).encode(),
    )
    return messages
