"""`fedseed serve`, `join`, `status` and `keys`: a federation over NATS. Only `join` needs torch."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedseed.cli.common import DeviceOption, PluginOption, SetOption, TrustOption, interruptible, settings
from fedseed.cli.status import by_client, describe, follow
from fedseed.errors import NetworkError, RecipeError
from fedseed.federation.protocol import read_json
from fedseed.reports.screen import Screen
from fedseed.transport import transport
from fedseed.transport.base import Access, check_run

if TYPE_CHECKING:
    from fedseed.reports.prometheus import Exporter
    from fedseed.runs.recipe import Recipe

console = Screen()
STATUS_SECONDS = 5.0  # for a coordinator's answer
JOIN_LINES = 10  # in which a client's process says how far it is, where it has no terminal

RecipeArgument = Annotated[str, typer.Argument(help="A TOML file, or the name of a packaged recipe.")]
UrlOption = Annotated[str | None, typer.Option("--nats", help="The server: nats://HOST:PORT, or tls:// to insist.")]
RunOption = Annotated[str | None, typer.Option("--run", help="The run's name on the server. Default: the recipe's.")]
KeyOption = Annotated[Path | None, typer.Option("--key", help="File with this side's NKEY seed.")]
CaOption = Annotated[Path | None, typer.Option("--ca", help="File with the certificates to trust.")]


def serve(
    recipe: RecipeArgument,
    nats: UrlOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run's files. Default: runs/RUN.")] = None,
    set_: SetOption = None,
    run: RunOption = None,
    key: KeyOption = None,
    ca: CaOption = None,
    clients_from: Annotated[
        Path | None, typer.Option("--clients-from", help="The folder of `fedseed keys`: those with keys take part.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete a run of this name from the server first.")] = False,
    server_log: Annotated[
        Path | None, typer.Option("--server-log", help="nats-server's log: what the server refuses is counted, too.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve figures for Prometheus at this port, under /metrics.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="The address for that. Default: this machine only.")] = "127.0.0.1",
    plugin: PluginOption = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Coordinate a federation over NATS; start it again to go on after an interruption."""
    from fedseed.reports.progress import Shown
    from fedseed.reports.results import read_summary
    from fedseed.runs.network import coordinate
    from fedseed.runs.recipe import read_recipe
    from fedseed.runs.roster import with_keys
    from fedseed.weights.heap import map_large

    checked = read_recipe(recipe, set_ or [], plugin or [], trust_plugins)
    if clients_from is not None:
        checked = with_keys(checked, clients_from)
    name = run_name(checked, recipe, run)
    folder = out or Path("runs") / name
    if (folder / "summary.json").exists():
        console.print(f"the run in {folder} is finished: nothing is changed")
        summary = read_summary(folder)
    else:
        reach = replace(access(checked, nats, key, ca, "coordinator"), server_log=server_log)
        map_large()
        with interruptible(), exporting(metrics_port, metrics_host) as exporter:
            way = transport(reach, name)
            summary = coordinate(checked, name, way, folder, fresh, Shown(console), exporter).summary
    for line in by_client(summary):
        say(line)
    if spent := summary.get("privacy"):
        from fedseed.reports.tables import privacy_spent

        say(f"privacy spent: {privacy_spent(spent)}")
    console.print(f"weights digest: {summary['weights_digest']}", highlight=False)
    console.print(f"Files: {folder}")


def join(
    recipe: RecipeArgument,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", help='Whom this process works for; repeatable, patterns such as "client-*" too.'),
    ] = None,
    nats: UrlOption = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="The client's own data, a file or a folder; of several: a file NAME in a folder."),
    ] = None,
    evaluation_file: Annotated[
        Path | None, typer.Option("--evaluation-file", help="What it evaluates on, not a share of its own data.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the tuned model, its orbit and a card, when the run is over.")
    ] = None,
    local: Annotated[
        Path | None, typer.Option("--local", help="TOML file with what is this site's own: client, out, [data], ...")
    ] = None,
    set_: SetOption = None,
    run: RunOption = None,
    key: KeyOption = None,
    ca: CaOption = None,
    identity: Annotated[
        Path | None,
        typer.Option("--identity", help='File with the key that signs for a client in secure sums; "{name}": whose.'),
    ] = None,
    device: DeviceOption = None,
    plugin: PluginOption = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Take part in a federation over NATS, for one client or many."""
    from fedseed.runs.recipe import read_recipe
    from fedseed.runs.site import read_site
    from fedseed.tasks.data import OwnData

    site = read_site(local)
    names = client or site.names
    if not names:
        raise RecipeError('join: say for whom with --client NAME (repeatable; --client "*": for all)')
    checked = read_recipe(recipe, settings(set_, device or site.device), plugin or [], trust_plugins)
    name = run_name(checked, recipe, run or site.federation.run)
    own = site.own
    if data is not None or evaluation_file is not None:
        given = own or OwnData()
        own = replace(given, path=data or given.path, evaluation_file=evaluation_file or given.evaluation_file)
    there = site.federation
    key = key or (None if there.key is None else Path(there.key))
    ca = ca or (None if there.ca is None else Path(there.ca))
    way = transport(access(checked, nats or there.nats, key, ca, names[0]), name)
    folder = out or (None if site.out is None else Path(site.out))
    from fedseed.models.loading import quiet  # torch from here on
    from fedseed.reports.progress import Shown
    from fedseed.runs.joining import joining
    from fedseed.runs.keeping import keep, orbit_place

    quiet()
    orbit = None if folder is None else orbit_place(folder)
    with interruptible():
        shown = Shown(console, JOIN_LINES)
        signs = identity or (None if site.identity is None else Path(site.identity))
        process = joining(checked, name, way, names, progress=shown, own=own, orbit=orbit, identity=signs)
        digest = process.run()
    say(f"the run {name} is over: {process.at} rounds")
    console.print(f"weights digest: {digest}", highlight=False)
    if folder is not None:
        keep(process, digest, folder)
        say(f"Model: {folder}")


def status(
    run: Annotated[str, typer.Argument(help="The run's name on the server.")],
    nats: Annotated[str, typer.Option("--nats", help="The server.")],
    key: KeyOption = None,
    ca: CaOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for a program.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until the run is over.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="With --watch: seconds between looks.")] = 2.0,
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
    run: Annotated[str, typer.Argument(help="The run's name on the server; or its recipe, a TOML file.")],
    out: Annotated[Path, typer.Option(help="Folder for the keys and the server's configuration; must be new.")],
    client: Annotated[list[str] | None, typer.Option("--client", help="A client's name; repeatable. NAME=A,B: one key "
                                          "for a process that hosts A and B. Default: the recipe's clients.")] = None,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Names or addresses of the server. Default: localhost.")
    ] = None,
    port: Annotated[int, typer.Option(help="The server's port.")] = 4222,
    days: Annotated[int, typer.Option(help="How long the certificate is valid.")] = 365,
    named: Annotated[
        str | None, typer.Option("--run", help="With a recipe: the run's name. Default: the recipe's.")
    ] = None,
) -> None:  # fmt: skip
    """Make NKEYs, a certificate and a nats-server configuration: TLS, and each client its own subjects only."""
    from fedseed.transport.keys import make

    name, recipe, own_data, clients = run, "recipe.toml", False, client
    if Path(run).suffix == ".toml":
        from fedseed.runs.recipe import read_recipe

        checked = read_recipe(run)
        name, recipe, own_data = run_name(checked, run, named), run, checked.of_parties
        clients = client or checked.federation.clients
    if not clients:
        raise RecipeError(
            "keys: say for whom with --client NAME (repeatable), or name a recipe with federation.clients"
        )
    made = make(check_run(name), out, clients, host or ["localhost", "127.0.0.1"], port, days, None, recipe, own_data)
    for line in made:
        say(line)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (serve, join, status, keys):
        app.command()(command)


# -- what the commands share ----------------------------------------------------------------------------------


def run_name(recipe: "Recipe", source: str, given: str | None) -> str:
    """A run's name: as given, as the recipe says, or that of the recipe's file."""
    return check_run(given or recipe.federation.run or Path(source).stem)


def access(recipe: "Recipe", url: str | None, key: Path | None, ca: Path | None, name: str) -> Access:
    """How to reach the server: the command line goes before the recipe."""
    settings = recipe.federation
    url = url or settings.nats
    if url is None:
        raise RecipeError("where is the server? --nats URL, or federation.nats in the recipe")
    if key is None and settings.key is not None:
        key = Path(settings.key.replace("{name}", name)).expanduser()
    if ca is None and settings.ca is not None:
        ca = Path(settings.ca).expanduser()
    return Access(url, key, ca)


def say(line: str) -> None:
    """Print a line as it is, so that it can be pasted."""
    console.print(line, highlight=False, soft_wrap=True)


@contextmanager
def exporting(port: int | None, host: str) -> "Iterator[Exporter | None]":
    """Figures for Prometheus as long as the block lasts; None: nobody asked for them."""
    if port is None:
        yield None
        return
    from fedseed.reports.prometheus import Exporter

    exporter = Exporter(port, host)
    console.print(f"figures for Prometheus: http://{host}:{exporter.port}/metrics", highlight=False, soft_wrap=True)
    try:
        yield exporter
    finally:
        exporter.close()


async def ask(reach: Access, run: str) -> dict[str, Any]:
    """What a run's coordinator says, or, if there is none, what the server knows.

    Raises:
        NetworkError: the server can't be reached, or knows no such run.
    """
    end = await transport(reach, run).watcher()
    try:
        answer = await end.status(STATUS_SECONDS)
        if answer is not None:
            return read_json(answer)
        log = await end.log()
        if log is None:
            raise NetworkError(f"the server knows no run {run}")
        return {"run": run, "entries": log.last, "ended": log.over}
    finally:
        await end.close()
