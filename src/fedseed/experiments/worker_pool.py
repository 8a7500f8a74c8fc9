"""Does runs in processes of their own, so that a run's peak memory is its own and one that dies harms no other.

They are forked from one that has imported what runs need (`fedseed.processes`), and end with the one that asked
for them. This module does not import torch; they do.
"""

import os
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedseed.errors import FedseedError, RecipeError
from fedseed.processes import start
from fedseed.runs.recipe import Recipe, read_recipe

STOPPED = "the sweep was stopped"


@dataclass(frozen=True)
class How:
    """How a sweep's runs are run.

    Args:
        jobs: runs at a time; the machine's cores are shared out among them.
        plugins: files and modules to load first, here and in the runs' processes.
        trust_plugins: load what recipes name as plug-ins, too.
        workers: local processes that each run deals its clients to; None: a run is one process.
        threads: how many threads each process has.
        overwrite: begin every run anew, also where there is a finished one.
    """

    jobs: int = 1
    plugins: Sequence[str] = ()
    trust_plugins: bool = False
    workers: int | None = None
    threads: int | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Job:
    """One run.

    Args:
        name: what progress calls it.
        folder: where its files go.
        recipe: the file or the name of a packaged one.
        settings: what is set in it, "key=value" each.
        how: how it is run.
    """

    name: str
    folder: Path
    recipe: str
    settings: tuple[str, ...]
    how: How = How()

    def read(self) -> Recipe:
        """Returns the recipe as it will be run. Raises RecipeError."""
        return read_recipe(self.recipe, self.settings, self.how.plugins, self.how.trust_plugins)


class WorkerPool:
    """The processes of a sweep's runs.

    Args:
        threads: how many threads a run may use; None: as many as there are cores.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads
        self._running: set[BaseProcess] = set()
        self._lock = threading.Lock()
        self.stopped = threading.Event()

    def run(self, job: Job) -> str | None:
        """Runs or resumes a job; of a finished one, only checks the recipe. Its output goes to log.txt in its folder.

        Returns:
            None, or why it failed.

        Raises:
            RecipeError: the recipe, or what it needs, is wrong.
        """
        summary = job.folder / "summary.json"
        if summary.exists():
            from fedseed.runs.folder import RunFolder

            RunFolder(job.folder, job.read().to_toml(), resume=True)  # checks that it is the same recipe
            return None
        job.folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            if self.stopped.is_set():
                return STOPPED
            process, connection = start(_run, job, threads=self._threads)
            self._running.add(process)
        code = None
        with connection, suppress(EOFError, OSError):  # it died, and has said nothing
            code = connection.recv()
        with self._lock:
            self._running.discard(process)
        process.join()
        if self.stopped.is_set():
            return STOPPED
        if code == 0 and summary.exists():
            return None
        log = job.folder / "log.txt"
        said = log.read_text(encoding="utf-8").strip().splitlines() if log.exists() else []
        reason = said[-1].removeprefix("fedseed: ") if said else f"its process ended with exit code {process.exitcode}"
        if code == 2:
            raise RecipeError(reason)
        return reason

    def stop(self) -> None:
        """Ends all processes; runs that are not finished can be resumed later."""
        with self._lock:
            self.stopped.set()
            for process in self._running:
                process.terminate()


def _run(heard: object, say: object, job: Job) -> int:
    """Does a run in a process forked for it, and returns its exit code; a run whose sweep is gone is resumed later."""
    log = os.open(job.folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        from fedseed.models.loading import quiet
        from fedseed.reports.progress import Screen, Shown
        from fedseed.runs.assembly import build

        quiet()
        checked = job.read()  # plug-ins are loaded here, in the process that runs them
        shown = Shown(Screen(width=120, force_terminal=False))
        build(checked, job.folder, shown, job.how.workers, job.how.threads).run(resume=True)
    except (FedseedError, OSError) as error:
        print(f"fedseed: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, RecipeError) else 1
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()  # whoever hears of the end reads it
        return 1
    return 0
