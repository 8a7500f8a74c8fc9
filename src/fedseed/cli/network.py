"""`fedseed serve`, `join`, `status`, `keys` and `verify`: a federation over NATS.

`join` and `verify` need torch.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedseed.cli.common import (
    JsonOption,
    Reading,
    ReadingForDevice,
    RecipeArgument,
    Telling,
    answer,
    console,
    end_if_diverged,
    grouped,
    interruptible,
    say,
    stepping,
)
from fedseed.errors import FedseedError, NetworkError, RecipeError, plural
from fedseed.federation.control import Status, parse_control
from fedseed.federation.protocol import list_names
from fedseed.metrics import metric_of, metric_title, shown_metrics
from fedseed.orbit import Orbit
from fedseed.processes import refuse_torchrun
from fedseed.recipe.reading import read_recipe, read_toml
from fedseed.recipe.settings import Recipe
from fedseed.reports.progress import Shown
from fedseed.reports.prometheus import Exporter
from fedseed.reports.results import read_summary
from fedseed.reports.tables import privacy_spent
from fedseed.runs.answers import FILE, read_answers
from fedseed.runs.ending import read_ending
from fedseed.runs.folder import compare_recipes
from fedseed.runs.network import coordinate
from fedseed.runs.spec import RunSpec
from fedseed.tasks.data import OwnData
from fedseed.transport import transport
from fedseed.transport.base import Access, check_run
from fedseed.weights.heap import collect_rarely, map_large

if TYPE_CHECKING:
    from fedseed.transport.nats_server import OwnServer

STATUS_SECONDS = 5.0  # seconds to wait for a coordinator's answer
KeyOption = Annotated[Path | None, typer.Option("--key", help="File with this side's NKEY seed.")]
CaOption = Annotated[Path | None, typer.Option("--ca", help="File with the certificates to trust.")]
# keys of a site's file (`join --local`)
SITE_PATHS = ("out", "data", "evaluation_file", "identity", "account", "key", "ca")
SITE_WORDS = ("client", "evaluation", "budget", "device", "nats", "run")
# lines of progress that a client's process without a terminal prints
JOIN_LINES = 10


@dataclass(frozen=True)
class Reaching:
    """Options for reaching the server, and the run's name there; a recipe has these, too."""

    nats: Annotated[
        str | None,
        typer.Option(
            help="The server: nats://HOST:PORT, or tls:// to require encryption; over WebSocket "
            "ws:// or wss://."
        ),
    ] = None
    run: Annotated[
        str | None, typer.Option(help="The run's name on the server. Default: the recipe's.")
    ] = None
    key: KeyOption = None
    ca: CaOption = None

    def reach(self, recipe: Recipe, name: str) -> Access:
        """Return the settings for reaching the server: the command line overrides the recipe.

        Raises RecipeError.
        """
        return recipe.federation.access(name, self.nats, self.key, self.ca)


@dataclass(frozen=True)
class Figures:
    """Options for serving metrics to Prometheus."""

    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Serve figures for Prometheus at this port, under /metrics."
        ),
    ] = None
    metrics_host: Annotated[
        str, typer.Option(help="The address for --metrics-port. Default: this machine only.")
    ] = "127.0.0.1"

    def serve(self) -> AbstractContextManager[Exporter | None]:
        """Serve the figures inside the block; None: no port was given."""
        if self.metrics_port is None:
            return nullcontext()
        exporter = Exporter(self.metrics_port, self.metrics_host)
        say(f"figures for Prometheus: http://{self.metrics_host}:{exporter.port}/metrics")
        return closing(exporter)


@dataclass(frozen=True)
class Starting:
    """A server that `serve` starts itself."""

    server: Annotated[
        bool,
        typer.Option(
            "--server",
            help="Start a nats-server for this run, which stops with it: for a first federation.",
        ),
    ] = False
    listen: Annotated[
        str | None,
        typer.Option(
            help="With --server: HOST:PORT where it listens. Default: this machine only, port 4222."
        ),
    ] = None

    def check(self, reaching: Reaching) -> None:
        """Raise RecipeError if options do not go together."""
        if self.listen is not None and not self.server:
            raise RecipeError("--listen is only for --server, which starts a nats-server")
        if self.server and (reaching.nats or reaching.key or reaching.ca):
            raise RecipeError(
                "--server starts a server without keys and encryption: leave out --nats, --key and "
                "--ca; with keys, start nats-server with the command that `fedseed keys` prints"
            )

    @contextmanager
    def start(self, folder: Path) -> Iterator["OwnServer | None"]:
        """Run the server inside the block; None: no server is started.

        Args:
            folder: the run's; the server's files are kept beside it.
        """
        if not self.server:
            yield None
            return
        from fedseed.transport.nats_server import DEFAULT_LISTEN, OwnServer

        server = OwnServer(folder.with_name(f"{folder.name}-server"), self.listen or DEFAULT_LISTEN)
        try:
            version = ".".join(map(str, server.version))
            say(f"nats-server {version} at {server.url}: clients join with --nats {server.url}")
            if server.is_open_to_others:
                say(
                    "  others can reach it, and nothing is encrypted or signed: everybody who "
                    "reaches it can take part. `fedseed keys` makes the keys for a real federation"
                )
            yield server
            server.wait_until_left(lambda text: say(f"  {text}"))
            say(
                f"for clients that come later, start the server again: {server.program} -c "
                f"{server.config}"
            )
        finally:
            server.stop()


@grouped
def serve(
    recipe: RecipeArgument,
    run_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the run's files. Default: runs/RUN.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete a run of this name from the server first.")
    ] = False,
    *,
    reaching: Reaching,
    starting: Starting,
    figures: Figures,
    reading: Reading,
) -> None:
    """Coordinate a federation over NATS; start it again to go on after an interruption."""
    starting.check(reaching)
    checked = reading.read_recipe(recipe)
    name = run_name(checked, recipe, reaching.run)
    folder = run_folder or Path("runs") / name
    if (folder / "summary.json").exists():
        if (folder / "recipe.toml").exists():
            compare_recipes(folder, checked.to_toml(), extensible=False)
        console.print(f"the run in {folder} is finished: nothing is changed")
        summary = read_summary(folder)
    else:
        map_large()
        collect_rarely()
        with interruptible(), figures.serve() as exporter, starting.start(folder) as server:
            reach = reaching.reach(checked, "coordinator") if server is None else Access(server.url)
            way = transport(reach, name)
            summary = coordinate(
                checked, name, way, folder, fresh, Shown(console), exporter
            ).summary
    for line in by_client(summary):
        say(line)
    spent = summary.get("privacy")
    if spent:
        say(f"privacy spent: {privacy_spent(spent)}")
    console.print(f"weights digest: {summary['weights_digest']}", highlight=False)
    console.print(f"Files: {folder}")
    end_if_diverged({"": summary})


def read_site(file: Path) -> dict[str, Any]:
    """Return the settings in a site's file, as options of `join` by name.

    Relative paths begin in its folder.

    Raises:
        RecipeError: it can't be read, has a key that is not one of these options, or a value that
            is not a path.
    """
    table, allowed = read_toml(file, "--local "), (*SITE_PATHS, *SITE_WORDS)
    for key, value in table.items():
        if key not in allowed:
            raise RecipeError(
                f"--local {file}: {key} = {value!r}: unknown key; allowed here: "
                f"{', '.join(allowed)}"
            )
        if key in SITE_PATHS:
            if not isinstance(value, str):
                raise RecipeError(f"--local {file}: {key} = {value!r}: a path is expected")
            table[key] = str(file.parent / Path(value).expanduser())
    if isinstance(table.get("client", []), list):
        return table
    return {**table, "client": [table["client"]]}


def _take_site(context: typer.Context, file: Path | None) -> Path | None:
    """Take options from a site's file that the command line leaves out."""
    if file is not None and not context.resilient_parsing:
        context.default_map = read_site(file)
    return file


@dataclass(frozen=True)
class Site:
    """Options that belong to a site."""

    client: Annotated[
        list[str] | None,
        typer.Option(
            help='A client that this process works for; repeatable, also a pattern: "client-*".'
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            help="The client's own data, a file or a folder; for several clients: a folder with a "
            "file for each NAME."
        ),
    ] = None
    evaluation: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="The share of the client's own data that is held out."),
    ] = None
    evaluation_file: Annotated[
        Path | None,
        typer.Option(
            help="The data for the client's evaluation, in place of a share of its own data."
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the tuned model, its orbit and a card, when the run is over."
        ),
    ] = None
    identity: Annotated[
        Path | None,
        typer.Option(
            help='File with the key that signs for a client in secure sums; "{name}": the client.'
        ),
    ] = None
    account: Annotated[
        Path | None,
        typer.Option(
            help='File of a client\'s privacy account, not the usual one; "{name}": the client.'
        ),
    ] = None
    budget: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="The most epsilon for all of the client's runs, in place of the recipe's budget.",
        ),
    ] = None
    local: Annotated[
        Path | None,
        typer.Option(
            is_eager=True,
            callback=_take_site,
            help="TOML file with options that are this site's own, such as client, data, out, "
            "nats, key.",
        ),
    ] = None


def _check_there(*paths: Path | None) -> None:
    """Raise RecipeError if a file or folder does not exist. Checked before torch is imported."""
    for path in paths:
        if path is not None and not path.exists():
            raise RecipeError(f"{path}: there is no such file or folder")


@grouped
def join(
    recipe: RecipeArgument, *, site: Site, reaching: Reaching, reading: ReadingForDevice
) -> None:
    """Take part in a federation over NATS, for one client or many."""
    if not site.client:
        raise RecipeError(
            'join: name the clients with --client NAME (repeatable; --client "*": all of them)'
        )
    checked = reading.read_recipe(recipe)
    if checked.of_parties:
        _check_there(site.data, site.evaluation_file)
    name = run_name(checked, recipe, reaching.run)
    own_data = OwnData(site.data, site.evaluation_file, site.evaluation)
    way = transport(reaching.reach(checked, site.client[0]), name)
    if site.out is not None:
        refuse_torchrun("--out")
    # torch is imported from here on
    from fedseed.runs.joining import (
        Loading,
        SiteAccount,
        make_client,
        prepare_orbit_file,
        save_model,
    )

    orbit = None
    if site.out is not None:
        orbit = prepare_orbit_file(site.out)
    with interruptible():
        progress = Shown(console, JOIN_LINES)
        load = Loading(
            checked,
            site.client,
            progress,
            None if own_data == OwnData() else own_data,
            site.identity,
            SiteAccount(site.account, site.budget),
        )
        process = make_client(load, name, way, orbit)
        digest = process.run()
    say(f"the run {name} is over: {process.last_step} rounds")
    console.print(f"weights digest: {digest}", highlight=False)
    if site.out is not None:
        save_model(process, digest, site.out)
        say(f"Model: {site.out}")


def status(
    run: Annotated[str, typer.Argument(help="The run's name on the server.")],
    nats: Annotated[str, typer.Option("--nats", help="The server.")],
    key: KeyOption = None,
    ca: CaOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for a program.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until the run is over.")] = False,
    every: Annotated[
        float, typer.Option(min=0.1, help="With --watch: seconds between looks.")
    ] = 2.0,
) -> None:
    """Show the state of a run over NATS: round, clients, bytes, loss, refused messages."""
    reach, name = Access(nats, key, ca), check_run(run)
    if watch:
        follow(lambda: asyncio.run(ask(reach, name)), console, every, as_json)
        return
    run_status = asyncio.run(ask(reach, name))
    if as_json:
        console.print_json(json.dumps(run_status))
        return
    for line in describe(run_status):
        say(line)


def keys(
    run: Annotated[
        str, typer.Argument(help="The run's name on the server; or its recipe, a TOML file.")
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "--out", help="Folder for the keys and the server's configuration; must be new."
        ),
    ],
    client: Annotated[
        list[str] | None,
        typer.Option(
            "--client",
            help="A client's name; repeatable. NAME=A,B: one key "
            "for a process that hosts A and B. Default: the recipe's clients.",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Names or addresses of the server. Default: localhost."),
    ] = None,
    port: Annotated[int, typer.Option(help="The server's port.")] = 4222,
    days: Annotated[
        int, typer.Option(help="How long the certificate is valid, from 1 to 36500.")
    ] = 365,
    names: Annotated[
        str | None,
        typer.Option("--run", help="The run's name, if a recipe is given. Default: the recipe's."),
    ] = None,
    mesh: Annotated[
        bool,
        typer.Option(
            "--mesh", help="For `fedseed mesh`: all clients are equal nodes, without a coordinator."
        ),
    ] = False,
) -> None:
    """Make NKEYs, a certificate and a nats-server configuration: TLS, and each client limited to
    its own subjects.
    """
    from fedseed.transport.keys import make, make_for_mesh

    name, recipe, own_data, clients = run, "recipe.toml", False, client
    if Path(run).suffix == ".toml":
        checked = read_recipe(run)
        name, recipe, own_data = run_name(checked, run, names), run, checked.of_parties
        clients = client or checked.federation.clients
    if not clients:
        raise RecipeError(
            "keys: name the clients with --client NAME (repeatable), or give a recipe with "
            "federation.clients"
        )
    hosts = host or ["localhost", "127.0.0.1"]
    if mesh:
        for line in make_for_mesh(check_run(name), folder, clients, hosts, port, days, recipe):
            say(line)
        return
    for line in make(check_run(name), folder, clients, hosts, port, days, recipe, own_data):
        say(line)


@grouped
def verify(
    run: Annotated[
        Path,
        typer.Argument(help="The run's folder, with recipe.toml, model.orbit and answers.jsonl."),
    ],
    client: Annotated[
        list[str],
        typer.Option(help='A client whose answers are computed again; repeatable, "*" for all.'),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="The client's own data, a file or a folder, for a single client. Default: as in "
            "the recipe."
        ),
    ] = None,
    sample: Annotated[
        str, typer.Option(help='Number of answers of each client to compute again, or "all".')
    ] = "20",
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Seed for drawing the answers. Default: one that nobody can predict."
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    reading: ReadingForDevice,
) -> None:
    """Check a client's answers on a run's record by computing them again from its own data.

    Exit code 1: something was forged, or a step can't be judged as its answers are not on record.
    """
    if sample != "all" and not (sample.isdecimal() and int(sample)):
        raise RecipeError(f'--sample {sample}: a whole number above 0, or "all"')
    _check_there(run, data)
    screen = Telling(as_json).screen()
    recipe = reading.read_recipe(str(run / "recipe.toml"))
    ending = read_ending(run)
    orbit, answers = Orbit.open(run / "model.orbit"), read_answers(run / FILE)
    if ending is not None and ending.round > orbit.last:
        raise FedseedError(
            f"{run / 'model.orbit'}: the log ends at step {orbit.last}, but {ending.file} records "
            f"round {ending.round}: ask for the whole log"
        )
    from fedseed.runs.joining import Loading  # torch is imported from here on
    from fedseed.runs.verification import verify as verified

    hosted = Loading(recipe, client, own_data=None if data is None else OwnData(data))()
    if seed is None:
        seed = secrets.randbits(63)
    with stepping(screen, orbit.last) as tell:
        spec = RunSpec.from_recipe(recipe, per_round=recipe.federation.count(len(answers.names)))
        result = verified(
            orbit,
            answers,
            spec,
            hosted,
            None if sample == "all" else int(sample),
            seed,
            lambda number: tell(number, orbit.last),
        )
    if as_json:
        answer({**vars(result), "checked": list(map(vars, result.checked)), "seed": seed})
    else:
        _show(result, hosted.items, seed, screen)
    if ending is not None and ending.is_final and ending.digest not in (None, result.digest):
        raise FedseedError(
            f"{ending.file} has the final digest {ending.digest}, but the log ends with "
            f"{result.digest}: one of the two belongs to another run, or was altered"
        )
    if not result.proven:
        raise typer.Exit(1)


def _show(result: Any, names: Any, seed: int, screen: Any) -> None:
    judged = result.steps - len(result.missing)
    say(
        f"{judged - len(result.unlike):,} of {plural(result.steps, 'step')} follow from the "
        "answers on record",
        screen,
    )
    for rounds, outcome in (
        (result.unlike, "do not"),
        (result.missing, "can't be judged: no answers are on record"),
    ):
        if rounds:
            say(f"  {outcome}: {_listed_rounds(rounds)}", screen)
    table = Table(
        "round",
        "client",
        "on record",
        "computed",
        "apart at most",
        "verdict",
        box=None,
        pad_edge=False,
    )
    for name in names:
        checks = [one for one in result.checked if one.client == name]
        right = sum(one.verdict != "forged" for one in checks)
        near = sum(one.verdict == "open" for one in checks)
        remark = ""
        if near:
            remark = (
                f"; of {near} of them the sign is uncertain, as the value is within the noise "
                "of zero"
            )
        counts_text = (
            f"{right} of {plural(len(checks), 'answer')} computed again (--seed {seed}) are right"
        )
        say(f"{name}: {counts_text}{remark}", screen)
        silent = result.silent.get(name)
        if silent:
            say(
                f"  {name} was asked, but no answer of it is on record, in "
                f"{_listed_rounds(silent)}: compare with its own log",
                screen,
            )
        if checks and not right:
            say(
                "  none is right: check that this is the data that was trained on (fedseed run "
                "splits a folder differently from a site's own data: leave --data out)",
                screen,
            )
        for one in checks:
            if one.verdict == "forged":
                numbers = [f"{number:.6g}" for number in (one.logged, one.computed, one.allowed)]
                table.add_row(str(one.round), name, *numbers, f"forged {one.why}".strip())
    if table.row_count:
        screen.print(table)
    say(f"weights digest: {result.digest}", screen)
    say(f"record: {result.record} (the same for all who verify this log and these answers)", screen)


def _listed_rounds(rounds: list[int]) -> str:
    """Return the numbers of rounds as text; of more than 20, only the first 20."""
    rest = ""
    if len(rounds) > 20:
        rest = f" and {len(rounds) - 20} more"
    return f"rounds {', '.join(map(str, rounds[:20]))}{rest}"


def run_name(recipe: Recipe, source: str, name: str | None) -> str:
    """Return a run's name: the one given, the recipe's, or that of the recipe's file."""
    return check_run(name or recipe.federation.run or Path(source).stem)


async def ask(reach: Access, run: str) -> dict[str, Any]:
    """Return the status from a run's coordinator or, if there is none, from the server.

    Raises:
        NetworkError: the server can't be reached, or knows no such run.
    """
    end = await transport(reach, run).watcher()
    try:
        answer = await end.status(STATUS_SECONDS)
        if answer is not None:
            return parse_control(Status, answer).model_dump(exclude_unset=True)
        log = await end.log()
        if log is None:
            raise NetworkError(f"the server knows no run {run}")
        return {"run": run, "entries": log.last, "ended": log.over}
    finally:
        await end.close()


def by_client(summary: dict[str, Any]) -> list[str]:
    """Return each client's metrics on its held-out data, a line each."""
    lines = []
    for name, figures in summary.get("by_client", {}).items():
        first, last = figures["baseline"] or {}, figures["final"]
        if "loss" in last and figures.get("round") == 0:
            lines.append(
                f"  {name}: held-out loss {last['loss']:.3f} before training ({last['held_out']} "
                "examples); it was absent whenever the tuned model was measured"
            )
        elif "loss" in last:
            loss_before = ""
            if "loss" in first:
                loss_before = f"{first['loss']:.3f} -> "
            away = ""
            if "round" in figures:
                away = f"; after round {figures['round']}: it was absent at the end"
            lines.append(
                f"  {name}: held-out loss {loss_before}{last['loss']:.3f} ({last['held_out']} "
                f"examples{away})"
            )
    return lines


def _describe_waiting(run_status: dict[str, Any]) -> list[str]:
    """Return lines about the clients that a run waits for."""
    lines = []
    if run_status.get("waiting"):
        waiting = run_status["waiting"]
        lines.append(
            f"waiting  {waiting['here']} of {waiting['wanted'] or '?'} clients are here; no round "
            "has begun"
        )
    if run_status["waiting_for"]:
        lines.append(f"waiting  for {list_names(run_status['waiting_for'])}")
    return lines


def describe(run_status: dict[str, Any]) -> list[str]:
    """Return a run's status in a few lines."""
    if "round" not in run_status:
        ended = "; the run is over" if run_status.get("ended") else ""
        log = f"the server holds its log ({run_status['entries']} entries)"
        return [f"{run_status['run']}: no coordinator answers; {log}{ended}"]
    last = run_status["last"]
    lines = [
        f"{run_status['run']} ({run_status['method']}): round {run_status['round']} of "
        f"{run_status['rounds']}, since "
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime(run_status['began']))} UTC",
        f"clients  {run_status['alive']} of {run_status['clients']} alive"
        + (f"; away: {list_names(run_status['away'])}" if run_status["away"] else ""),
    ]
    lines += _describe_waiting(run_status)
    if run_status.get("late"):
        lines.append(
            f"late     {list_names(run_status['late'])}: several times as long as the others"
        )
    if "bytes_up" in last:
        lines.append(
            f"bytes    {last['bytes_up']:,.0f} up, {last['bytes_down']:,.0f} down a client and "
            "round"
        )
    for name in shown_metrics(name for name, value in last.items() if isinstance(value, float)):
        if not name.startswith("bytes_"):
            if metric_of(name)[1].held_out:
                number = last.get("evaluated", last["round"])
            else:
                number = last["round"]
            lines.append(f"{metric_title(name)} {last[name]:.4f} (round {number})")
    privacy = run_status.get("privacy")
    if privacy:
        plain = " (plain composition)" if "epsilon_pure" in privacy else ""
        lines.append(f"privacy  {privacy_spent(privacy)}{plain}")
    if last.get("weights_digest"):
        lines.append(f"digest   {last['weights_digest']}")
    if run_status["repeated_rounds"]:
        lines.append(f"repeated {run_status['repeated_rounds']} rounds had too few answers")
    if run_status["drifted"]:
        lines.append(f"drifted  {list_names(run_status['drifted'])}")
    for name, reasons in run_status["refusals"].items():
        for reason, count in reasons.items():
            lines.append(f"refused  {count} of {name}: {reason}")
    if run_status.get("ended"):
        return [*lines, "the run is over"]
    return lines


def follow(
    look: Callable[[], dict[str, Any]], console: Console, every: float, as_json: bool = False
) -> None:
    """Show the status until the run is over: on a terminal it is updated in place, elsewhere
    printed at each change.

    Args:
        look: returns the current status (`network.ask`).
        console: the console to write to.
        every: seconds between looks.
        as_json: whether to print each status as a line of JSON.
    """
    last_text = ""
    live = None
    if console.is_terminal and not as_json:
        live = Live(console=console, auto_refresh=False)
    with live or nullcontext():
        while True:
            run_status = look()
            text = json.dumps(run_status) if as_json else "\n".join(describe(run_status))
            if live is not None:
                live.update(Text(text), refresh=True)
            elif text != last_text:
                console.print(text, highlight=False, soft_wrap=True)
                last_text = text
            if run_status.get("ended"):
                return
            time.sleep(every)
