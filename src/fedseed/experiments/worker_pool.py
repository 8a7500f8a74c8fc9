"""Does runs in processes of their own, so that a run's peak memory is its own and one that dies harms no other.

A helper process imports what runs need, once, and forks for each run. It computes nothing itself, so that no thread of
torch or numba exists yet when it forks. All of these processes end when the one that started them does. This module
does not import torch; its helpers do.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedseed.errors import FedseedError, RecipeError
from fedseed.interpreter import command
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
    """The processes that fork for runs; they are started as they are needed, and used again.

    Args:
        threads: how many threads a run may use; None: as many as there are cores.
    """

    def __init__(self, threads: int | None = None) -> None:
        limit = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
        self._environment = {**os.environ, **limit}
        self._idle: list[subprocess.Popen[str]] = []
        self._all: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()
        self.stopped = False

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
        order = json.dumps({**asdict(job), "folder": str(job.folder)})
        with self._one() as helper:
            code = None
            if helper is not None and helper.stdin is not None and helper.stdout is not None:
                with suppress(OSError, ValueError):  # the helper is gone: its pipe is closed, or it said nothing
                    helper.stdin.write(order + "\n")
                    helper.stdin.flush()
                    code = int(helper.stdout.readline())
        if self.stopped:
            return STOPPED
        if code == 0 and summary.exists():
            return None
        log = job.folder / "log.txt"
        said = log.read_text(encoding="utf-8").strip().splitlines() if log.exists() else []
        reason = said[-1].removeprefix("fedseed: ") if said else f"exit code {code}"
        if code == 2:
            raise RecipeError(reason)
        return reason

    @contextmanager
    def _one(self) -> Iterator[subprocess.Popen[str] | None]:
        with self._lock:
            if self.stopped:
                helper = None
            elif self._idle:
                helper = self._idle.pop()
            else:
                words = command(__name__, "main")
                helper = subprocess.Popen(words, stdin=-1, stdout=-1, text=True, env=self._environment)
                self._all.append(helper)
        yield helper
        with self._lock:
            if helper is not None and helper.poll() is None:
                self._idle.append(helper)

    def stop(self) -> None:
        """Ends all processes; runs that are not finished can be resumed later."""
        with self._lock:
            self.stopped = True
            for helper in self._all:
                helper.terminate()
            for helper in self._all:
                assert helper.stdin is not None
                helper.stdin.close()  # its run sees this, and ends
                helper.wait()


def main() -> None:
    """Works as a helper process: reads orders from standard input, one a line, and writes an exit code for each."""
    try:
        # these take long to import; a run imports whatever else it needs
        import transformers.modeling_utils  # noqa: F401

        import fedseed.models.adapters
        import fedseed.models.loading
        import fedseed.randomness.kernels.cpu
        import fedseed.reports.plots  # every run ends with a picture
        import fedseed.runs.simulation

        fedseed.models.adapters.library()
        fedseed.models.loading.quiet()
        for line in sys.stdin:
            child = os.fork()
            if child == 0:
                _run(json.loads(line))
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # nobody is left to write to
        os._exit(3)  # python's own exit would try once more to write, and say so


def _run(order: dict[str, Any]) -> None:
    """Does a run in a process forked for it, and ends the process."""

    def watch() -> None:
        sys.stdin.read()
        os._exit(3)  # the sweep is gone: the run resumes with the next one

    code = 1
    folder = Path(order["folder"])
    try:
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        threading.Thread(target=watch, daemon=True).start()

        from fedseed.reports.progress import Screen, Shown
        from fedseed.runs.assembly import build

        job = Job(**{**order, "how": How(**order["how"])})
        checked = job.read()  # plug-ins are loaded here, in the process that runs them
        shown = Shown(Screen(width=120, force_terminal=False))
        build(checked, folder, shown, job.how.workers, job.how.threads).run(resume=True)
        code = 0
    except (FedseedError, OSError) as error:
        print(f"fedseed: {' '.join(str(error).split())}", file=sys.stderr)
        code = 2 if isinstance(error, RecipeError) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the watching thread never ends by itself
