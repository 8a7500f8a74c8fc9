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
from fedseed.processes import alone
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

STATUS_SECONDS = 5.0  # for a coordinator's answer
KeyOption = Annotated[Path | None, typer.Option("--key", help="File with this side's NKEY seed.")]
CaOption = Annotated[Path | None, typer.Option("--ca", help="File with the certificates to trust.")]
# keys of a site's file (`join --local`)
SITE_PATHS = ("out", "data", "evaluation_file", "identity", "account", "key", "ca")
SITE_WORDS = ("client", "evaluation", "budget", "device", "nats", "run")
# in which a client's process says how far it is, where it has no terminal
JOIN_LINES = 10


@dataclass(frozen=True)
class Reaching:
    """Options for reaching the server, and the run's name there; a recipe has the same."""

    nats: Annotated[
        str | None,
        typer.Option(
            help="The server: nats://HOST:PORT, or tls:// to insist; over WebSocket ws:// or wss://."
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
        str, typer.Option(help="The address for that. Default: this machine only.")
    ] = "127.0.0.1"

    def serve(self) -> AbstractContextManager[Exporter | None]:
        """Serves the figures as long as the block lasts; None: nobody asked for them."""
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
            raise RecipeError("--listen is for --server, which starts a nats-server")
        if self.server and (reaching.nats or reaching.key or reaching.ca):
            raise RecipeError(
                "--server starts a server without keys and encryption: leave out --nats, --key and "
                "--ca; with keys, start nats-server as `fedseed keys` says"
            )

    @contextmanager
    def start(self, folder: Path) -> Iterator["OwnServer | None"]:
        """Have the server as long as the block lasts; None: it was not asked for.

        Args:
            folder: the run's; what the server stores lies beside it.
        """
        if not self.server:
            yield None
            return
        from fedseed.transport.nats_server import DEFAULT_LISTEN, OwnServer

        own = OwnServer(folder.with_name(f"{folder.name}-server"), self.listen or DEFAULT_LISTEN)
        try:
            version = ".".join(map(str, own.version))
            say(f"nats-server {version} at {own.url}: clients join with --nats {own.url}")
            if own.is_open_to_others:
                say(
                    "  others can reach it, and nothing is encrypted or signed: whoever reaches it "
                    "can take part. `fedseed keys` makes what a real federation needs"
                )
            yield own
            own.wait_until_left(lambda text: say(f"  {text}"))
            say(f"who comes later needs the server: {own.program} -c {own.config}")
        finally:
            own.stop()


@grouped
def serve(
    recipe: RecipeArgument,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run's files. Default: runs/RUN.")
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
    checked = reading.read(recipe)
    name = run_name(checked, recipe, reaching.run)
    folder = out or Path("runs") / name
    if (folder / "summary.json").exists():
        if (folder / "recipe.toml").exists():
            compare_recipes(folder, checked.to_toml(), extensible=False)
        console.print(f"the run in {folder} is finished: nothing is changed")
        summary = read_summary(folder)
    else:
        map_large()
        collect_rarely()
        with interruptible(), figures.serve() as exporter, starting.start(folder) as own:
            reach = reaching.reach(checked, "coordinator") if own is None else Access(own.url)
            way = transport(reach, name)
            summary = coordinate(
                checked, name, way, folder, fresh, Shown(console), exporter
            ).summary
    for line in by_client(summary):
        say(line)
    if spent := summary.get("privacy"):
        say(f"privacy spent: {privacy_spent(spent)}")
    console.print(f"weights digest: {summary['weights_digest']}", highlight=False)
    console.print(f"Files: {folder}")
    end_if_diverged({"": summary})


def read_site(file: Path) -> dict[str, Any]:
    """Return the settings in a site's file, as options of `join` by name.

    Paths in it begin in its folder.

    Raises:
        RecipeError: it can't be read, has a key that is not one of these options, or lacks a path
            where one is expected.
    """
    said, known = read_toml(file, "--local "), (*SITE_PATHS, *SITE_WORDS)
    for key, value in said.items():
        if key not in known:
            raise RecipeError(
                f"--local {file}: {key} = {value!r}: unknown key; allowed here: {', '.join(known)}"
            )
        if key in SITE_PATHS:
            if not isinstance(value, str):
                raise RecipeError(f"--local {file}: {key} = {value!r}: a path is expected")
            said[key] = str(file.parent / Path(value).expanduser())
    return (
        said if isinstance(said.get("client", []), list) else {**said, "client": [said["client"]]}
    )


def _take_site(context: typer.Context, file: Path | None) -> Path | None:
    """Lets a site's file say what the command line leaves out."""
    if file is not None and not context.resilient_parsing:
        context.default_map = read_site(file)
    return file


@dataclass(frozen=True)
class Site:
    """The options that belong to a site."""

    client: Annotated[
        list[str] | None,
        typer.Option(
            help='Whom this process works for; repeatable, patterns such as "client-*" too.'
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(
            help="The client's own data, a file or a folder; of several: a file NAME in a folder."
        ),
    ] = None
    evaluation: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="The share of its own data that it holds out."),
    ] = None
    evaluation_file: Annotated[
        Path | None, typer.Option(help="What it evaluates on, not a share of its own data.")
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
            help='File with the key that signs for a client in secure sums; "{name}": whose.'
        ),
    ] = None
    account: Annotated[
        Path | None,
        typer.Option(
            help='File of a client\'s privacy account, in place of the usual one; "{name}": whose.'
        ),
    ] = None
    budget: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="The most epsilon of all its runs, in place of the recipe's budget."
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
    """Raises RecipeError if a file or folder is not there: said at once, before torch is
    imported.
    """
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
            'join: say for whom with --client NAME (repeatable; --client "*": for all)'
        )
    checked = reading.read(recipe)
    if checked.of_parties:
        _check_there(site.data, site.evaluation_file)
    name = run_name(checked, recipe, reaching.run)
    own = OwnData(site.data, site.evaluation_file, site.evaluation)
    way = transport(reaching.reach(checked, site.client[0]), name)
    if site.out is not None:
        alone("--out")
    # torch from here on
    from fedseed.runs.joining import Loading, SiteAccount, joining, keep, orbit_place

    orbit = None if site.out is None else orbit_place(site.out)
    with interruptible():
        shown = Shown(console, JOIN_LINES)
        load = Loading(
            checked,
            site.client,
            shown,
            None if own == OwnData() else own,
            site.identity,
            SiteAccount(site.account, site.budget),
        )
        process = joining(load, name, way, orbit)
        digest = process.run()
    say(f"the run {name} is over: {process.last_step} rounds")
    console.print(f"weights digest: {digest}", highlight=False)
    if site.out is not None:
        keep(process, digest, site.out)
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
    """Say how a run over NATS is going: round, clients, bytes, loss, what was refused."""
    reach, name = Access(nats, key, ca), check_run(run)
    if watch:
        follow(lambda: asyncio.run(ask(reach, name)), console, every, as_json)
        return
    about = asyncio.run(ask(reach, name))
    if as_json:
        console.print_json(json.dumps(about))
        return
    for line in describe(about):
        say(line)


def keys(
    run: Annotated[
        str, typer.Argument(help="The run's name on the server; or its recipe, a TOML file.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for the keys and the server's configuration; must be new.")
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
    named: Annotated[
        str | None,
        typer.Option("--run", help="With a recipe: the run's name. Default: the recipe's."),
    ] = None,
) -> None:
    """Make NKEYs, a certificate and a nats-server configuration: TLS, and each client its own
    subjects only.
    """
    from fedseed.transport.keys import make

    name, recipe, own_data, clients = run, "recipe.toml", False, client
    if Path(run).suffix == ".toml":
        checked = read_recipe(run)
        name, recipe, own_data = run_name(checked, run, named), run, checked.of_parties
        clients = client or checked.federation.clients
    if not clients:
        raise RecipeError(
            "keys: say for whom with --client NAME (repeatable) or name a recipe with "
            "federation.clients"
        )
    hosts = host or ["localhost", "127.0.0.1"]
    for line in make(check_run(name), out, clients, hosts, port, days, recipe, own_data):
        say(line)


@grouped
def verify(
    run: Annotated[
        Path,
        typer.Argument(help="The run's folder, with recipe.toml, model.orbit and answers.jsonl."),
    ],
    client: Annotated[
        list[str], typer.Option(help='Whose answers are computed again; repeatable, "*" for all.')
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="The one client's own data, a file or a folder. Default: where the recipe says."
        ),
    ] = None,
    sample: Annotated[str, typer.Option(help='How many answers of each client; "all".')] = "20",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Draws them. Default: nobody can know it beforehand.")
    ] = None,
    as_json: JsonOption = False,
    *,
    reading: ReadingForDevice,
) -> None:
    """Compute again what a run's record says that a client has sent, from its own data.

    1: something was forged, or a step can't be judged as its answers are not on record.
    """
    if sample != "all" and not (sample.isdecimal() and int(sample)):
        raise RecipeError(f'--sample {sample}: a whole number above 0, or "all"')
    _check_there(run, data)
    screen = Telling(as_json).screen()
    recipe = reading.read(str(run / "recipe.toml"))
    ending = read_ending(run)
    orbit, answers = Orbit.open(run / "model.orbit"), read_answers(run / FILE)
    if ending is not None and ending.round > orbit.last:
        raise FedseedError(
            f"{run / 'model.orbit'}: the log ends at step {orbit.last}, and {ending.file} says "
            f"that the run came to round {ending.round}: ask for the whole log"
        )
    from fedseed.runs.joining import Loading  # torch from here on
    from fedseed.runs.verification import verify as verified

    hosted = Loading(recipe, client, own=None if data is None else OwnData(data))()
    drawn = secrets.randbits(63) if seed is None else seed
    with stepping(screen, orbit.last) as tell:
        spec = RunSpec.of(recipe, per_round=recipe.federation.count(len(answers.names)))
        found = verified(
            orbit,
            answers,
            spec,
            hosted,
            None if sample == "all" else int(sample),
            drawn,
            lambda number: tell(number, orbit.last),
        )
    if as_json:
        answer({**vars(found), "checked": list(map(vars, found.checked)), "seed": drawn})
    else:
        _show(found, hosted.items, drawn, screen)
    if ending is not None and ending.over and ending.digest not in (None, found.digest):
        raise FedseedError(
            f"{ending.file} says that the run ended with the digest {ending.digest}, and the log "
            f"ends with {found.digest}: one of the two is another run's, or was altered"
        )
    if not found.proven:
        raise typer.Exit(1)


def _show(found: Any, names: Any, seed: int, screen: Any) -> None:
    known = found.steps - len(found.missing)
    say(
        f"{known - len(found.unlike):,} of {plural(found.steps, 'step')} follow from the answers "
        "on record",
        screen,
    )
    for rounds, what in (
        (found.unlike, "do not"),
        (found.missing, "can't be judged: no answers are on record"),
    ):
        if rounds:
            say(f"  {what}: {_listed_rounds(rounds)}", screen)
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
        theirs = [one for one in found.checked if one.client == name]
        right = sum(one.verdict != "forged" for one in theirs)
        near = sum(one.verdict == "open" for one in theirs)
        more = (
            f"; of {near} of them a sign is within the noise of zero and may be either"
            if near
            else ""
        )
        again = (
            f"{right} of {plural(len(theirs), 'answer')} computed again (--seed {seed}) are right"
        )
        say(f"{name}: {again}{more}", screen)
        if silent := found.silent.get(name):
            say(
                f"  {name} was asked, and no answer of it is on record, in "
                f"{_listed_rounds(silent)}: compare with what its log says of them",
                screen,
            )
        if theirs and not right:
            say(
                "  none is: is this the data that was trained on? (fedseed run on a folder splits "
                "it otherwise than a site splits its own: leave --data out)",
                screen,
            )
        for one in theirs:
            if one.verdict == "forged":
                numbers = [f"{number:.6g}" for number in (one.logged, one.computed, one.allowed)]
                table.add_row(str(one.round), name, *numbers, f"forged {one.why}".strip())
    if table.row_count:
        screen.print(table)
    say(f"weights digest: {found.digest}", screen)
    say(f"record: {found.record} (the same for all who verify this log and these answers)", screen)


def _listed_rounds(rounds: list[int]) -> str:
    """Return the numbers of rounds as text, of many the first 20."""
    more = f" and {len(rounds) - 20} more" if len(rounds) > 20 else ""
    return f"rounds {', '.join(map(str, rounds[:20]))}{more}"


def run_name(recipe: Recipe, source: str, given: str | None) -> str:
    """Returns a run's name: as given, as the recipe says, or that of the recipe's file."""
    return check_run(given or recipe.federation.run or Path(source).stem)


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
                "examples); it was away whenever the tuned model was measured"
            )
        elif "loss" in last:
            before = f"{first['loss']:.3f} -> " if "loss" in first else ""
            away = (
                f"; after round {figures['round']}: it was away at the end"
                if "round" in figures
                else ""
            )
            lines.append(
                f"  {name}: held-out loss {before}{last['loss']:.3f} ({last['held_out']} "
                f"examples{away})"
            )
    return lines


def describe(about: dict[str, Any]) -> list[str]:
    """Returns a run's status in a few lines."""
    if "round" not in about:
        ended = "; the run is over" if about.get("ended") else ""
        log = f"the server holds its log ({about['entries']} entries)"
        return [f"{about['run']}: no coordinator answers; {log}{ended}"]
    last = about["last"]
    lines = [
        f"{about['run']} ({about['method']}): round {about['round']} of {about['rounds']}, "
        f"since {time.strftime('%Y-%m-%d %H:%M', time.gmtime(about['began']))} UTC",
        f"clients  {about['alive']} of {about['clients']} alive"
        + (f"; away: {list_names(about['away'])}" if about["away"] else ""),
    ]
    if about.get("waiting"):
        waiting = about["waiting"]
        lines.append(
            f"waiting  {waiting['here']} of {waiting['wanted'] or '?'} clients are here; no round "
            "has begun"
        )
    if about["waiting_for"]:
        lines.append(f"waiting  for {list_names(about['waiting_for'])}")
    if about.get("late"):
        lines.append(f"late     {list_names(about['late'])}: several times as long as the others")
    if "bytes_up" in last:
        lines.append(
            f"bytes    {last['bytes_up']:,.0f} up, {last['bytes_down']:,.0f} down a client and "
            "round"
        )
    for name in shown_metrics(name for name, value in last.items() if isinstance(value, float)):
        if not name.startswith("bytes_"):
            number = (
                last.get("evaluated", last["round"])
                if metric_of(name)[1].held_out
                else last["round"]
            )
            lines.append(f"{metric_title(name)} {last[name]:.4f} (round {number})")
    if privacy := about.get("privacy"):
        plain = " (plain composition)" if "epsilon_pure" in privacy else ""
        lines.append(f"privacy  {privacy_spent(privacy)}{plain}")
    if last.get("weights_digest"):
        lines.append(f"digest   {last['weights_digest']}")
    if about["repeated_rounds"]:
        lines.append(f"repeated {about['repeated_rounds']} rounds had too few answers")
    if about["drifted"]:
        lines.append(f"drifted  {list_names(about['drifted'])}")
    for name, reasons in about["refusals"].items():
        for reason, count in reasons.items():
            lines.append(f"refused  {count} of {name}: {reason}")
    return [*lines, "the run is over"] if about.get("ended") else lines


def follow(
    look: Callable[[], dict[str, Any]], console: Console, every: float, as_json: bool = False
) -> None:
    """Show what is new until the run is over: on a terminal in place, elsewhere whenever something
    has changed.

    Args:
        look: what is known by now (`network.ask`).
        console: where it goes.
        every: seconds between looks.
        as_json: everything, a line of JSON each.
    """
    told = ""
    live = (
        Live(console=console, auto_refresh=False) if console.is_terminal and not as_json else None
    )
    with live or nullcontext():
        while True:
            about = look()
            text = json.dumps(about) if as_json else "\n".join(describe(about))
            if live is not None:
                live.update(Text(text), refresh=True)
            elif text != told:
                console.print(text, highlight=False, soft_wrap=True)
                told = text
            if about.get("ended"):
                return
            time.sleep(every)
