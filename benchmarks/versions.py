"""Which versions mix? Orbits and federations across versions of transformers, torch and numpy.

    python benchmarks/versions.py [--out docs/versions.md] [--folder FOLDER] [--bases llama gpt2]
        [--environment old=transformers==4.56.2,torch==2.6.0,numpy==2.0.2]

Makes an environment for each set of versions (`newest` is the one that runs this; the others see
its packages and install their own on top), and small random bases, saved by each of the savers.
Then

1. each environment tunes each base, and every other one replays the orbit;
2. two parties of two environments run a federation over a real nats-server.

Right is the same digest of the weights, or a refusal that names both versions; anything else is a
failure, and the exit code is then 1. It writes a page with the matrix. It takes half an hour on a
busy core, without the downloads; torch 2.6 takes 5 GB of disk. --folder keeps environments and
runs.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BASES = ("llama", "gpt2", "gpt_neox", "mixtral", "qwen3_moe")
NEWEST = "newest"
ENVIRONMENTS = (
    "old=transformers==4.56.2,torch==2.6.0,numpy==2.0.2",
    "5.0=transformers==5.0.0",
)
LIBRARIES = ("transformers", "tokenizers", "torch", "numpy")
# what the commands of a federation import
IMPORTED = ("fedseed.cli.network", "fedseed.runs.network", "fedseed.runs.joining")
IMPORTED += (
    "transformers.modeling_utils",
    "fedseed.randomness.kernels.cpu",
    "fedseed.runs.assembly",
)
METHODS = {
    "feedsign": "learning_rate = 1e-3\nbatch = 4",
    "ferret": 'bytes = "3kB"\n[method.training]\nlearning_rate = 0.01\nsteps = 1\nbatch = 4',
}
CLIENTS = ("north", "south")
ROUNDS = 3
MOST_SECONDS = 600  # for a federation
GRACE_SECONDS = 10  # for the others, after a party has failed
SAME, REFUSED, FAILS = "same digest", "refused", "fails"


@dataclass(frozen=True)
class Environment:
    """A Python with certain versions."""

    name: str
    python: Path
    versions: dict[str, str]

    def describe(self) -> str:
        """Return the versions as a text."""
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())


@dataclass(frozen=True)
class Outcome:
    """What became of one crossing: a verdict, and what was said."""

    verdict: str
    text: str = ""


def judge_refusal(text: str, *pairs: tuple[Environment, Environment]) -> Outcome:
    """Return whether a refusal names both versions of one of the pairs that may be at odds."""
    for pair in pairs:
        if all(environment.versions["transformers"] in text for environment in pair):
            return Outcome(REFUSED, text)
    return Outcome(FAILS, f"the refusal does not name both versions: {text}")


# base, saver, the two environments and the outcome
Row = tuple[str, str, str, str, Outcome]


# what the environments do


def work(orders: Path, results: Path) -> None:
    """Carry out orders in this environment, and write what became of each."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    from fedseed.errors import FedseedError

    acts = {"build": build_base, "run": run_here, "replay": replay_here}
    found = []
    for order in json.loads(orders.read_text()):
        act = acts[order.pop("act")]
        try:
            found.append({"digest": act(**order)})
        except FedseedError as error:
            found.append({"refused": str(error)})
        except Exception as error:
            traceback.print_exc()
            found.append({"failed": f"{type(error).__name__}: {error}"})
    results.write_text(json.dumps(found))


def build_base(base: str, folder: str) -> str:
    """Save a small random base; returns its folder."""
    sys.path.insert(0, str(Path(__file__).parent))
    import tiny_bases

    tiny_bases.build("causal", base, Path(folder))
    return folder


def run_here(recipe: str, out: str) -> str:
    """Tune a base, and return the digest of the tuned weights."""
    from fedseed import Federation

    federation = Federation.from_file(recipe, out=out, progress=False)
    federation.draw = lambda *_: None  # type: ignore[method-assign]
    return str(federation.run().summary["weights_digest"])


def replay_here(orbit: str, base: str) -> str:
    """Return the digest of the weights that an orbit gives here."""
    from fedseed import ParameterSpace
    from fedseed.runs.tuned import find_source, open_tuned

    return ParameterSpace(open_tuned(find_source(orbit), base, check_all=True).model).digest()


def host_commands() -> None:
    """Carry out what a `Host` asks of this process, until it closes the pipe."""
    for name in IMPORTED:
        import_module(name)
    from fedseed.cli.app import main as run_command

    codes: dict[int, int] = {}
    for line in sys.stdin:
        order = json.loads(line)
        answer: int | None = order.get("process")
        if order["act"] == "start":
            answer = fork_command(run_command, **order["command"])
        elif order["act"] == "kill":
            os.kill(order["process"], signal.SIGKILL)
        else:
            answer = poll_fork(order["process"], codes)
        print(json.dumps(answer), flush=True)


def fork_command(
    run_command: Callable[[], Any], arguments: list[str], log: str, variables: dict[str, str]
) -> int:
    """Run a command of fedseed in a fork of this process, and return the fork's number."""
    number = os.fork()
    if number:
        return number
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(variables)
    sys.argv = ["fedseed", *arguments]
    code = 1
    try:
        run_command()
        code = 0
    except SystemExit as error:
        if isinstance(error.code, int | None):
            code = error.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def poll_fork(number: int, codes: dict[int, int]) -> int | None:
    """Return the exit code of a fork; None: it runs. `codes` keeps those of forks that ended."""
    if number not in codes:
        ended, status = os.waitpid(number, os.WNOHANG)
        if ended:
            codes[number] = os.waitstatus_to_exitcode(status)
    return codes.get(number)


# what leads them


class Host:
    """A process of an environment that forks for each command of fedseed.

    It has imported what commands need, which takes longer than a small federation.
    """

    def __init__(self, environment: Environment) -> None:
        command = [environment.python, Path(__file__).resolve(), "--host"]
        self.process = subprocess.Popen(
            command, env=surroundings(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **order: Any) -> int | None:
        """Return the process' answer to an order."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer: int | None = json.loads(self.process.stdout.readline())
        return answer

    def start(self, arguments: list[Any], log: Path) -> "Party":
        """Start a command; what it says goes into a log."""
        # notes on clients' data, which would outlive the folder
        variables = {"XDG_STATE_HOME": str(log.parent / "state")}
        command = {"arguments": list(map(str, arguments)), "log": str(log), "variables": variables}
        return Party(self, self.ask(act="start", command=command))

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@dataclass(frozen=True)
class Party:
    """A command that runs in a fork of a host."""

    host: Host
    process: int | None

    def poll(self) -> int | None:
        """Return the command's exit code; None: it runs."""
        return self.host.ask(act="poll", process=self.process)

    def kill(self) -> None:
        """End the command, and wait for that."""
        self.host.ask(act="kill", process=self.process)
        while self.poll() is None:
            time.sleep(0.05)


class Crossing:
    """The crossings of some environments.

    Args:
        folder: for bases, orbits and runs.
        environments: at least two.
        savers: the names of those that save bases.
        bases: model types.
    """

    def __init__(
        self,
        folder: Path,
        environments: list[Environment],
        savers: list[str],
        bases: list[str],
    ) -> None:
        self.folder, self.environments = folder, environments
        self.savers = [one for name in savers for one in environments if one.name == name]
        self.bases = bases
        self.hosts: dict[str, Host] = {}
        self.data = folder / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        for client in CLIENTS:
            rows = [
                {"prompt": f"count {client} {number} birds", "completion": f" one two {number}"}
                for number in range(12)
            ]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (self.data / f"{client}.jsonl").write_text(text)

    def host(self, environment: Environment) -> Host:
        """Return the process of an environment that commands are forked from."""
        if environment.name not in self.hosts:
            self.hosts[environment.name] = Host(environment)
        return self.hosts[environment.name]

    def close(self) -> None:
        """End the processes that commands were forked from."""
        for host in self.hosts.values():
            host.close()
        self.hosts.clear()

    def base_folder(self, saver: Environment, base: str) -> Path:
        """Return the folder of a base."""
        return self.folder / "bases" / saver.name / base

    def recipe(self, saver: Environment, base: str, method: str) -> Path:
        """Write a recipe, and return its file."""
        path = self.folder / f"{saver.name}-{base}-{method}.toml"
        path.write_text(
            f'rounds = {ROUNDS}\nseed = 5\n[task]\nname = "files"\npath = "{self.data}"\n'
            "evaluation = 0.2\n[evaluation]\nrouge = false\n"
            f"[federation]\nclients = {json.dumps(CLIENTS)}\n"
            f'[method]\nname = "{method}"\n{METHODS[method]}\n'
            f'[model]\nbase = "{self.base_folder(saver, base)}"\narchitecture = "causal"\n'
        )
        return path

    def order(self, environment: Environment, orders: list[dict[str, str]]) -> list[dict[str, str]]:
        """Return what an environment answers to orders."""
        if not orders:
            return []
        asked, answered = self.folder / "orders.json", self.folder / "results.json"
        asked.write_text(json.dumps(orders))
        command = [environment.python, Path(__file__).resolve(), "--work", asked, answered]
        subprocess.run(command, env=surroundings(), check=True)
        found: list[dict[str, str]] = json.loads(answered.read_text())
        return found

    def build(self) -> None:
        """Save the bases.

        Raises RuntimeError: a base can't be built.
        """
        for saver in self.savers:
            folders = {base: self.base_folder(saver, base) for base in self.bases}
            orders = [
                {"act": "build", "base": base, "folder": str(folder)}
                for base, folder in folders.items()
                if not folder.is_dir()
            ]
            for answer in self.order(saver, orders):
                if "digest" not in answer:
                    raise RuntimeError(f"{saver.name} can't build a base: {answer}")

    def cross_orbits(self) -> Iterator[Row]:
        """Yield base, saver, writer, reader and the outcome for each orbit and reader."""
        for saver in self.savers:
            cases = [(base, method) for base in self.bases for method in METHODS]
            written = {}
            for writer in self.environments:
                outs = [self.folder / f"run-{saver.name}-{writer.name}-{b}-{m}" for b, m in cases]
                orders = []
                for (base, method), out in zip(cases, outs, strict=True):
                    shutil.rmtree(out, ignore_errors=True)
                    recipe = str(self.recipe(saver, base, method))
                    orders.append({"act": "run", "recipe": recipe, "out": str(out)})
                answers = self.order(writer, orders)
                written[writer.name] = dict(
                    zip(cases, zip(outs, answers, strict=True), strict=True)
                )
            for writer, reader in permutations(self.environments, 2):
                yield from self.read(saver, writer, reader, written[writer.name])

    def read(
        self,
        saver: Environment,
        writer: Environment,
        reader: Environment,
        written: dict[tuple[str, str], tuple[Path, dict[str, str]]],
    ) -> Iterator[Row]:
        """Yield what becomes of one environment's orbits in another."""
        made = {case: run for case, run in written.items() if "digest" in run[1]}
        orders = [
            {
                "act": "replay",
                "orbit": str(out / "model.orbit"),
                "base": str(self.base_folder(saver, base)),
            }
            for (base, _), (out, _) in made.items()
        ]
        answers = dict(zip(made, self.order(reader, orders), strict=True))
        for (base, method), (_, run) in written.items():
            answer = answers.get((base, method))
            if answer is None and "refused" in run:
                # the writer itself can't read what the saver saved
                outcome = judge_refusal(run["refused"], (saver, writer))
            elif answer is None:
                outcome = Outcome(FAILS, f"{method}: {run}")
            elif "refused" in answer:
                # the orbit does not fit, or this reader can't read what the saver saved
                outcome = judge_refusal(answer["refused"], (reader, writer), (reader, saver))
            elif answer.get("digest") == run["digest"]:
                outcome = Outcome(SAME)
            else:
                outcome = Outcome(FAILS, f"{method}: {answer}, but the run has {run}")
            yield base, saver.name, writer.name, reader.name, outcome

    def cross_parties(self, server: str) -> Iterator[Row]:
        """Yield base, saver, two parties' environments and the outcome for each federation.

        What the folder has from an earlier call is not run again.
        """
        path = self.folder / "federations.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        known = {tuple(case): Outcome(*outcome) for case, outcome in map(json.loads, lines)}
        for saver in self.savers:
            for base in self.bases:
                for one, other in combinations(self.environments, 2):
                    case = (base, saver.name, one.name, other.name)
                    if case not in known:
                        outcome = self.federate(server, saver, base, one, other)
                        known[case] = outcome
                        with path.open("a") as file:
                            file.write(json.dumps([case, [outcome.verdict, outcome.text]]) + "\n")
                    yield *case, known[case]

    def federate(
        self, server: str, saver: Environment, base: str, one: Environment, other: Environment
    ) -> Outcome:
        """Return what becomes of a federation of two parties with different versions."""
        name = f"{saver.name}-{base}-{one.name}-{other.name}".replace(".", "_")
        folder = self.folder / "federations" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        recipe = self.recipe(saver, base, "feedsign")
        options = ["--nats", server, "--run", name]
        serving = ["serve", recipe, "--out", folder / "run", *options]
        first = self.host(self.environments[0])
        parties = {"coordinator": first.start(serving, folder / "coordinator.log")}
        for client, environment in zip(CLIENTS, (one, other), strict=True):
            joining = ["join", recipe, "--client", client, "--data", self.data / f"{client}.jsonl"]
            joining += ["--out", folder / client, *options]
            parties[client] = self.host(environment).start(joining, folder / f"{client}.log")
        codes = finish(parties)
        if not any(codes.values()):
            return compare_models(*(folder / client for client in CLIENTS))
        errors = [last_error(folder / f"{party}.log") for party in parties if codes[party]]
        refusals = [text for text in errors if text]
        if not refusals:
            return Outcome(FAILS, f"exit codes {codes}")
        outcomes = [
            judge_refusal(text, (one, other), (saver, one), (saver, other)) for text in refusals
        ]
        return min(outcomes, key=lambda outcome: outcome.verdict == FAILS)


def surroundings() -> dict[str, str]:
    """Return the environment variables of the processes that are started."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "papers" / "src")])
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}


def finish(parties: dict[str, Party]) -> dict[str, int | None]:
    """Wait for the parties of a federation, and return their exit codes.

    After one has ended with an error, the others have some seconds to end, too; None: one did not.
    """
    ends_at = time.monotonic() + MOST_SECONDS
    has_failed = False
    while time.monotonic() < ends_at:
        codes = {name: party.poll() for name, party in parties.items()}
        if None not in codes.values():
            break
        if any(codes.values()) and not has_failed:
            has_failed, ends_at = True, min(ends_at, time.monotonic() + GRACE_SECONDS)
        time.sleep(0.2)
    codes = {name: party.poll() for name, party in parties.items()}
    for name, party in parties.items():
        if codes[name] is None:
            party.kill()
    return codes


def last_error(log: Path) -> str:
    """Return the error that ended a command; "" if it said none."""
    text = " ".join(log.read_text().split())
    _, found, error = text.rpartition("fedseed: ")
    return error if found else ""


def compare_models(one: Path, other: Path) -> Outcome:
    """Return whether two parties were left with the same tensors."""
    from safetensors.numpy import load_file

    mine, yours = (load_file(folder / "model.safetensors") for folder in (one, other))
    apart = [n for n in {**mine, **yours} if n not in mine or n not in yours]
    apart += [n for n in mine if n in yours and mine[n].tobytes() != yours[n].tobytes()]
    return Outcome(FAILS, f"other tensors: {apart[:3]}") if apart else Outcome(SAME)


@contextmanager
def nats_server(folder: Path) -> Iterator[str]:
    """Run a nats-server with an empty store, and give its address."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.network import Server

    shutil.rmtree(folder, ignore_errors=True)
    server = Server(folder)
    try:
        yield server.url
    finally:
        server.kill()


def make_environment(name: str, requirements: list[str], folder: Path) -> Environment:
    """Make a Python that has some packages of its own, and otherwise those of this one."""
    place = folder / "environments" / name
    python = place / "bin" / "python"
    if not place.is_dir():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        packages = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        Path(packages, "parent.pth").write_text(sysconfig.get_path("purelib") + "\n")
        installing = [python, "-m", "pip", "install", "--quiet", *requirements]
        subprocess.run(installing, check=True)
    return environment_of(name, python)


def environment_of(name: str, python: Path) -> Environment:
    """Return a Python with its versions."""
    code = (
        "import json, importlib.metadata as m; "
        f"print(json.dumps({{n: m.version(n) for n in {LIBRARIES}}}))"
    )
    found = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return Environment(name, python, json.loads(found.stdout))


# the page


def matrix(rows: list[Row], between: str) -> list[str]:
    """Return a table: a line for each saver and pair of environments, a column for each base."""
    bases = list(dict.fromkeys(row[0] for row in rows))
    lines = [
        f"| base saved by | {between} | {' | '.join(bases)} |",
        "|---" * (2 + len(bases)) + "|",
    ]
    for saver, one, other in dict.fromkeys(row[1:4] for row in rows):
        cells = []
        for base in bases:
            verdicts = {row[4].verdict for row in rows if row[:4] == (base, saver, one, other)}
            cells.append(" / ".join(sorted(verdicts)))
        lines.append(f"| {saver} | {one}, {other} | {' | '.join(cells)} |")
    return lines


def page(
    environments: list[Environment],
    orbits: list[Row],
    parties: list[Row],
) -> str:
    """Return the page of the documentation."""
    lines = [
        "# Which versions mix",
        "",
        "Made by `python benchmarks/versions.py`: small random bases, saved by one version, tuned",
        "by parties with other versions, and orbits of one version replayed by another. *Same",
        "digest*: all weights are the same, bit for bit. *Refused*: before the first round or",
        "step, with both versions named.",
        "",
        "| | versions |",
        "|---|---|",
        *(f"| {one.name} | {one.describe()} |" for one in environments),
        "",
        "## Federations of two parties, over nats-server",
        "",
        *matrix(parties, "parties"),
        "",
        f"## Orbits, by {' and '.join(METHODS)}",
        "",
        *matrix(orbits, "written by, replayed by"),
        "",
        "## What a refusal says",
        "",
    ]
    shown: dict[str, str] = {}
    for base, saver, one, other, outcome in [*parties, *orbits]:
        if outcome.verdict == REFUSED:
            shown.setdefault(
                shorten(outcome.text)[:60],
                f"{base}, saved by {saver}, {one}, {other}: `{shorten(outcome.text)}`",
            )
    lines += [f"- {text}" for text in shown.values()] or ["Nothing was refused."]
    failures = [row for row in (*parties, *orbits) if row[4].verdict == FAILS]
    if failures:
        lines += ["", "## Fails", ""]
        lines += [f"- {', '.join(row[:4])}: {shorten(row[4].text)}" for row in failures]
    return "\n".join(lines) + "\n"


def shorten(text: str) -> str:
    """Return a message without folders, on one line."""
    return re.sub(r'"?/[^\s":]*/([^\s/":]+)"?', r"\1", " ".join(text.split()))


def main() -> int:
    """Cross versions, and write the page; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--work", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--host", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--environment", action="append", metavar="NAME=REQUIREMENT,...")
    parser.add_argument("--savers", nargs="+", default=["old", NEWEST])
    parser.add_argument("--bases", nargs="+", default=list(BASES))
    parser.add_argument("--folder", type=Path, help="keeps environments, bases and runs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "versions.md")
    options = parser.parse_args()
    if options.work:
        work(*options.work)
        return 0
    if options.host:
        host_commands()
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        environments = [environment_of(NEWEST, Path(sys.executable))]
        for text in options.environment or ENVIRONMENTS:
            name, _, requirements = text.partition("=")
            environments.append(make_environment(name, requirements.split(","), folder))
        crossing = Crossing(folder, environments, options.savers, options.bases)
        crossing.build()
        with nats_server(folder / "server") as server, closing(crossing):
            parties = list(shown(crossing.cross_parties(server)))
        orbits = list(shown(crossing.cross_orbits()))
    options.out.write_text(page(environments, orbits, parties), encoding="utf-8")
    failed = [row for row in (*parties, *orbits) if row[4].verdict == FAILS]
    print(f"{len(parties)} federations, {len(orbits)} replays, {len(failed)} failed")
    return 1 if failed else 0


def shown(
    rows: Iterator[Row],
) -> Iterator[Row]:
    """Print each outcome as it comes."""
    for row in rows:
        print(*row[:4], row[4].verdict, row[4].text, flush=True)
        yield row


if __name__ == "__main__":
    sys.exit(main())
