"""`fedseed orbit ...`: inspect, check, replay, cut and sign orbits."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedseed.cli.common import (
    JsonOption,
    Placing,
    PluginOption,
    Telling,
    answer,
    console,
    grouped,
    say,
    stepping,
)
from fedseed.cli.results import export
from fedseed.errors import RecipeError, plural
from fedseed.orbit import NO_DIGEST, Orbit, edit
from fedseed.text import show_text

app = typer.Typer(
    help="Look at, check, replay, cut, compare and sign orbits.", no_args_is_help=True
)
# most characters shown of a text in a header; --json has all of it
MOST_SHOWN = 2000

PathArgument = Annotated[Path, typer.Argument(help="The orbit file.")]
NewFile = Annotated[Path, typer.Option("--out", help="The new orbit file; must not exist.")]


app.command("replay", help="Rebuild the model and write it as a folder, like `fedseed export`.")(
    export
)


@app.command()
def info(path: PathArgument, plugin: PluginOption = None, as_json: JsonOption = False) -> None:
    """Show the content of an orbit."""
    orbit = Orbit.open(path)
    header, layout = orbit.header, orbit.header.layout
    adapter = None
    if header.adapter is not None:
        adapter = header.adapter.settings.model_dump()
    final = None
    if orbit.parts and orbit.parts[-1].digest != NO_DIGEST:
        final = orbit.parts[-1].digest
    facts: dict[str, Any] = {
        **header.about_base,
        "parameters": layout.size,
        "tensors": len(layout.tensors),
        "blocks": len(layout.block_sizes),
        "adapter": adapter,
        "method": header.method.model_dump(),
        "seed": header.seed,
        "first": header.first,
        "steps": orbit.last,
        "complete": orbit.complete,
        "bytes": orbit.size,
        "model_bytes": layout.dense_bytes,
        "final_digest": final,
    }
    if as_json:
        answer(facts)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in {**facts, "seed": str(header.seed), "complete": _state(orbit)}.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k}={v}" for k, v in value.items())
        text = f"{value:,}" if isinstance(value, int) else str(value)
        table.add_row(name.replace("_", " "), show_text(text, MOST_SHOWN))
    console.print(table)


@app.command()
@grouped
def verify(
    path: PathArgument,
    replay: Annotated[
        bool, typer.Option("--replay", help="Also replay, and compare every recorded digest.")
    ] = False,
    key: Annotated[Path | None, typer.Option(help="Public key: also check the signature.")] = None,
    signed: Annotated[
        Path | None, typer.Option("--signature", help="The signature. Default: PATH.sig.")
    ] = None,
    plugin: PluginOption = None,
    as_json: JsonOption = False,
    *,
    placing: Placing,
) -> None:
    """Check an orbit: checksums, chain, every step's content; if asked, digests and signature."""
    if signed is not None and key is None:
        raise RecipeError("--signature needs --key, the signer's public key")
    orbit = Orbit.open(path)
    orbit.check_steps()
    screen = Telling(as_json).screen()
    say(
        f"{plural(len(orbit), 'step')} up to {orbit.last:,}: checksums, chain and contents are "
        "right",
        screen,
    )
    say(_state(orbit), screen)
    result: dict[str, Any] = {"steps": len(orbit), "last": orbit.last, "complete": orbit.complete}
    if key is not None:
        from fedseed.orbit import signature

        signature.verify(path, key, signed)
        result["signed_by"] = key.name
        say(f"the signature is that of {key.name}", screen)
    if replay:
        recorded = sum(part.digest != NO_DIGEST for part in orbit.parts)
        from fedseed.runs.tuned import Source, open_tuned

        with stepping(screen, orbit.last) as tell:
            tuned = open_tuned(
                Source(str(path), path), placing.base, None, placing.device, tell, check_all=True
            )
        digest = None
        if tuned.facts is not None:
            digest = tuned.facts.digest
        result |= {"digests_compared": recorded, "digest": digest}
        right = f"{plural(recorded, 'recorded digest')} {'is' if recorded == 1 else 'are'} right"
        say(f"replayed: {right}; the last is {digest}", screen)
    if as_json:
        answer(result)


@app.command()
def rollback(
    path: PathArgument,
    last_step: Annotated[int, typer.Option("--to", help="Number of the last step to keep.")],
    target: NewFile,
    plugin: PluginOption = None,
) -> None:
    """Write the steps up to a number into a new orbit.

    Later steps may be damaged; PATH is not changed.
    """
    orbit = edit.rollback(path, last_step, target)
    say(f"{target}: {plural(orbit.last, 'step')}, {orbit.size:,} bytes")


@app.command()
def compact(path: PathArgument, target: NewFile, plugin: PluginOption = None) -> None:
    """Keep only the final model, for a method whose newest step replaces all before it
    (FedKSeed).
    """
    orbit = edit.compact(path, target)
    say(f"{target}: step {orbit.last:,} only, {orbit.size:,} bytes")


PlaceArgument = Annotated[
    str, typer.Argument(help="A folder, file:///FOLDER, or OWNER/NAME of the Hugging Face hub.")
]


@app.command()
def push(
    path: PathArgument,
    place: PlaceArgument,
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository of the hub private.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace another orbit that is there.")
    ] = False,
    plugin: PluginOption = None,
) -> None:
    """Put an orbit into a folder or a repository of the hub, as model.orbit."""
    from fedseed.orbit.sharing import push_orbit

    if Orbit.open(path).header.base_folder:
        say(
            "The orbit has the path of the base's folder on this machine: everybody who gets the "
            "orbit can read it."
        )
    say(f"Orbit: {push_orbit(path, place, private, force)}")


@app.command()
def pull(
    place: PlaceArgument,
    target: Annotated[Path, typer.Option("--out", help="The file; must not exist.")] = Path(
        "model.orbit"
    ),
    plugin: PluginOption = None,
) -> None:
    """Get an orbit from a folder or a repository of the hub, and check it."""
    from fedseed.orbit.sharing import pull_orbit

    orbit = pull_orbit(place, target)
    say(f"{target}: {plural(len(orbit), 'step')} on {orbit.header.base}, {orbit.size:,} bytes")


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(help="An orbit file.")],
    second: Annotated[Path, typer.Argument(help="Another.")],
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the differences of two orbits: settings, and the first step that differs."""
    a, b = Orbit.open(first), Orbit.open(second)
    differences = edit.differences(a, b)
    if as_json:
        answer({"same": not differences, "differences": differences})
        return
    for line in differences or [f"the same base, settings and {plural(a.last, 'step')}"]:
        say(line)


@app.command()
def keygen(
    key: Annotated[
        Path, typer.Argument(help="File for the private key; the public key goes to KEY.pub.")
    ],
) -> None:
    """Make an Ed25519 key: to sign orbits with, or for a client of secure sums."""
    from fedseed.orbit.signature import generate_key

    public = generate_key(key)
    say(f"private key: {key} (keep it to yourself); public key: {public}")
    say(
        "in a recipe (secure_sums.identities): "
        f"{public.read_text(encoding='ascii').splitlines()[1]}"
    )


@app.command()
def sign(
    path: PathArgument, key: Annotated[Path, typer.Option(help="The private key's file.")]
) -> None:
    """Sign an orbit with Ed25519; the signature goes to PATH.sig."""
    from fedseed.orbit import signature

    say(f"signature: {signature.sign(path, key)}")


def _state(orbit: Orbit) -> str:
    if orbit.complete:
        return "complete"
    return "not complete: the run has not ended, or the file's end is cut off"
