"""`fedseed serve`, `join`, `status` and `keys`: a federation over NATS. Only `join` needs torch."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedseed.cli.common import DeviceOption, PluginOption, SetOption, TrustOption, note, settings
from fedseed.errors import NetworkError, RecipeError
from fedseed.federation.protocol import listed, read_json
from fedseed.transport import transport
from fedseed.transport.base import Access, check_run

if TYPE_CHECKING:
    from fedseed.reports.prometheus import Exporter
    from fedseed.runs.recipe import Recipe

console = Console()
STATUS_SECONDS = 5.0  # for a coordinator's answer

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

    checked = read_recipe(recipe, set_ or [], plugin or [], trust_plugins, note)
    name = run_name(checked, recipe, run)
    folder = out or Path("runs") / name
    if (folder / "summary.json").exists():
        console.print(f"the run in {folder} is finished: nothing is changed")
        summary = read_summary(folder)
    else:
        reach = replace(access(checked, nats, key, ca, "coordinator"), server_log=server_log)
        with exporting(metrics_port, metrics_host) as exporter:
            way = transport(reach, name)
            summary = coordinate(checked, name, way, folder, fresh, Shown(console), exporter).summary
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
        Path | None, typer.Option("--data", help="The client's own examples (JSON lines), not those of the recipe.")
    ] = None,
    set_: SetOption = None,
    run: RunOption = None,
    key: KeyOption = None,
    ca: CaOption = None,
    device: DeviceOption = None,
    plugin: PluginOption = None,
    trust_plugins: TrustOption = False,
) -> None:
    """Take part in a federation over NATS, for one client or many."""
    from fedseed.runs.recipe import read_recipe

    if not client:
        raise RecipeError('join: say for whom with --client NAME (repeatable; --client "*": for all)')
    checked = read_recipe(recipe, settings(set_, device), plugin or [], trust_plugins, note)
    name = run_name(checked, recipe, run)
    examples = None if data is None else read_examples(data)
    from fedseed.models.loading import quiet  # torch from here on
    from fedseed.reports.progress import Shown
    from fedseed.runs.joining import joining

    quiet()
    way = transport(access(checked, nats, key, ca, client[0]), name)
    process = joining(checked, name, way, client, examples, Shown(console))
    console.print(f"weights digest: {process.run()}", highlight=False)


def status(
    run: Annotated[str, typer.Argument(help="The run's name on the server.")],
    nats: Annotated[str, typer.Option("--nats", help="The server.")],
    key: KeyOption = None,
    ca: CaOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for a program.")] = False,
) -> None:
    """Say how a run over NATS is going: round, clients, bytes, loss, what was refused."""
    about = asyncio.run(ask(Access(nats, key, ca), check_run(run)))
    if as_json:
        console.print_json(json.dumps(about))
        return
    for line in describe(about):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def keys(
    run: Annotated[str, typer.Argument(help="The run's name on the server.")],
    out: Annotated[Path, typer.Option(help="Folder for the keys and the server's configuration; must be new.")],
    client: Annotated[list[str], typer.Option("--client", help="A client's name; repeatable. NAME=A,B: one key for "
                                                               "a process that hosts A and B.")],
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Names or addresses of the server. Default: localhost.")
    ] = None,
    port: Annotated[int, typer.Option(help="The server's port.")] = 4222,
    days: Annotated[int, typer.Option(help="How long the certificate is valid.")] = 365,
) -> None:  # fmt: skip
    """Make NKEYs, a certificate and a nats-server configuration: TLS, and each client its own subjects only."""
    from fedseed.transport.keys import make

    made = make(check_run(run), out, client, host or ["localhost", "127.0.0.1"], port, days)
    for line in made:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


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


def read_examples(path: Path) -> list[Any]:
    """A client's own examples, an object a line: prompt and response, or prompt, options and gold.

    Raises:
        RecipeError: missing or malformed; names the line.
    """
    from fedseed.tasks.data import Choice, Example
    from fedseed.tasks.files import read_records

    if path.suffix != ".jsonl":
        raise RecipeError(f"--data {path}: a .jsonl file is expected: an object a line")
    examples: list[Any] = []
    for row in read_records(path):
        prompt = row.field("prompt", str)
        if "options" in row.values:
            options = row.field("options", list)
            try:
                examples.append(Choice(prompt, tuple(map(str, options)), row.field("gold", int)))
            except ValueError as error:
                raise RecipeError(f"{row.where}: {error}") from error
        else:
            examples.append(Example(prompt, row.field("response", str)))
    return examples


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
        last = await end.log_end()
        if last is None:
            raise NetworkError(f"the server knows no run {run}")
        return {"run": run, "entries": last}
    finally:
        await end.close()


def describe(about: dict[str, Any]) -> list[str]:
    """A run's status in a few lines."""
    if "round" not in about:
        return [f"{about['run']}: no coordinator answers; the server holds its log ({about['entries']} entries)"]
    last = about["last"]
    lines = [
        f"{about['run']} ({about['method']}): round {about['round']} of {about['rounds']}, "
        f"since {time.strftime('%Y-%m-%d %H:%M', time.gmtime(about['began']))} UTC",
        f"clients  {about['alive']} of {about['clients']} alive"
        + (f"; away: {listed(about['away'])}" if about["away"] else ""),
    ]
    if about["waiting_for"]:
        lines.append(f"waiting  for {listed(about['waiting_for'])}")
    if "bytes_up" in last:
        lines.append(f"bytes    {last['bytes_up']:,.0f} up, {last['bytes_down']:,.0f} down a client and round")
    for key, label in (("loss", "held-out loss"), ("train_loss", "local loss"), ("accuracy", "accuracy")):
        if last.get(key) is not None:
            lines.append(f"{label:<8} {last[key]:.4f} (round {last['round']})")
    if last.get("weights_digest"):
        lines.append(f"digest   {last['weights_digest']}")
    if about["repeated_rounds"]:
        lines.append(f"repeated {about['repeated_rounds']} rounds had too few answers")
    if about["skewed_clocks"]:
        lines.append(f"clocks   wrong at {listed(about['skewed_clocks'])}")
    if about["drifted"]:
        lines.append(f"drifted  {listed(about['drifted'])}")
    for name, reasons in about["refusals"].items():
        for reason, count in reasons.items():
            lines.append(f"refused  {count} of {name}: {reason}")
    return lines
