"""The command line.

Exit codes: 0 done; 2 the command line or the recipe is wrong; 3 a run is over and has diverged; 130
interrupted by Ctrl-C; 1 anything else.

A command's imports happen when it is called. The list of commands is a table of names and first
lines, so that `fedseed --help` imports no command, no recipe and no NumPy.
"""

import os
import sys
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from fedseed.cli.waiting import waiting
from fedseed.errors import PAPERS, FedseedError, RecipeError, to_install
from fedseed.processes import COMMAND, refuse_torchrun
from fedseed.registry import COMMANDS
from fedseed.threads import let_waiting_threads_sleep

let_waiting_threads_sleep()  # before torch can be imported

TRAINING_PACKAGES = ("torch", "transformers", "tokenizers", "numba", "llvmlite", "rouge_score")
# key of a context's `meta`, set while the help of all commands is written
LISTING = "fedseed.listing"


class Command(NamedTuple):
    """A command of fedseed's own, as the list of commands shows it."""

    group: str  # its panel in the list
    module: str  # its module in fedseed.cli
    function: str  # its function, or the `typer.Typer` of a group of commands
    about: str  # the first paragraph of its own help


# in the order of the list; tests/cli/test_start.py compares each with the command's own help
OWN: dict[str, Command] = {
    "new": Command(
        "Begin",
        "looking",
        "new",
        "Write a commented recipe and a folder with example data, to begin with.",
    ),
    "tune-rate": Command(
        "Begin",
        "running",
        "tune_rate",
        "Find the learning rate by few short runs, judged on validation examples: a tenth of the "
        "run's passes.",
    ),
    "run": Command(
        "Begin",
        "running",
        "run",
        "Run a federation on this machine: in this process, or with --workers in several.",
    ),
    "evaluate": Command(
        "Begin",
        "results",
        "evaluate",
        "Measure a model on held-out examples: those of its run's recipe, or of another recipe "
        "or task.",
    ),
    "generate": Command(
        "Begin",
        "results",
        "generate",
        "Let a model write: after a prompt, for each line of a file, or in a conversation "
        "(--chat).",
    ),
    "export": Command(
        "Begin",
        "results",
        "export",
        "Write the tuned model as a folder that transformers loads (an adapter: peft), with "
        "tokenizer and model card.",
    ),
    "serve-model": Command(
        "Begin",
        "results",
        "serve_model",
        "Serve the models of many orbits on one base in memory, with OpenAI's interface.",
    ),
    "keys": Command(
        "Federate",
        "network",
        "keys",
        "Make NKEYs, a certificate and a nats-server configuration: TLS, and each client limited "
        "to its own subjects.",
    ),
    "serve": Command(
        "Federate",
        "network",
        "serve",
        "Coordinate a federation over NATS; start it again to go on after an interruption.",
    ),
    "join": Command(
        "Federate",
        "network",
        "join",
        "Take part in a federation over NATS, for one client or many.",
    ),
    "mesh": Command(
        "Federate",
        "mesh",
        "mesh",
        "Tune without a coordinator: as one node among neighbours, or with all nodes simulated "
        "here.",
    ),
    "status": Command(
        "Federate",
        "network",
        "status",
        "Show the state of a run over NATS: round, clients, bytes, loss, refused messages.",
    ),
    "verify": Command(
        "Federate",
        "network",
        "verify",
        "Check a client's answers on a run's record by computing them again from its own data.",
    ),
    "list": Command(
        "Plan",
        "looking",
        "list_",
        "List recipes, models, methods and other parts, and where each comes from.",
    ),
    "explain": Command(
        "Plan",
        "looking",
        "explain",
        "Explain a recipe's key: meaning, type, default, and which methods or tasks have it.",
    ),
    "preview": Command(
        "Plan",
        "looking",
        "preview",
        "Show examples as tokens, which tokens count for the loss, and which are cut.",
    ),
    "partition": Command(
        "Plan",
        "looking",
        "partition",
        "Show how the data is divided: each client's examples by label. Needs the data, no model.",
    ),
    "bench": Command(
        "Plan",
        "looking",
        "bench",
        "Estimate a recipe's costs on this machine: seconds by phase, bytes and memory, from one "
        "round of it.",
    ),
    "report": Command(
        "Look",
        "results",
        "report",
        "Write a page about a run, or about several side by side: one file, to be opened or sent "
        "to somebody.",
    ),
    "watch": Command(
        "Look",
        "results",
        "watch",
        "Serve a page about a current run that is updated by itself.",
    ),
    "compare": Command(
        "Look", "running", "compare", "Run several recipes and lay the results side by side."
    ),
    "orbit": Command(
        "Orbits", "orbit", "app", "Look at, check, replay, cut, compare and sign orbits."
    ),
}
# commands of the package fedseed-papers, listed without importing its modules
IN_PAPERS = {
    "audit": "Attack a recipe's own runs: does the model remember an example, do messages give one "
    "away?",
    "reproduce": "Make figures and tables of the papers again: data, picture or table, and a page "
    "with a verdict on each claim.",
}


class Commands(TyperGroup):
    """fedseed's own commands and those of other packages; an entry point names a `typer.Typer`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*OWN, *sorted(entry_points(group=COMMANDS).names)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands from the table, without importing any."""
        ctx.meta[LISTING] = True
        try:
            super().format_help(ctx, formatter)
        finally:
            del ctx.meta[LISTING]

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return completions of a command's name, also from the table."""
        ctx.meta[LISTING] = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            del ctx.meta[LISTING]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; its module is imported when the command is asked for, not to be
        listed.
        """
        if cmd_name in OWN:
            if LISTING in ctx.meta:
                return _listed(cmd_name, OWN[cmd_name].about, OWN[cmd_name].group)
            return load_command(cmd_name)
        for point in entry_points(group=COMMANDS, name=cmd_name):
            if find_spec(point.module.partition(".")[0]) is not None:
                if LISTING in ctx.meta and IN_PAPERS.get(cmd_name):
                    return _listed(cmd_name, IN_PAPERS[cmd_name], "Papers")
                command: Any = typer.main.get_command(point.load())
                command.name, command.rich_help_panel = cmd_name, "Papers"
                return command
        if cmd_name in IN_PAPERS:
            raise RecipeError(
                f"fedseed {cmd_name} is a command of the package fedseed-papers: {PAPERS}"
            )
        return None


def load_command(name: str) -> Any:
    """Import one of fedseed's own commands and return typer's object for it.

    Args:
        name: its name on the command line.
    """
    own_command = OWN[name]
    with waiting(f"fedseed {name}"):
        thing = getattr(import_module(f"fedseed.cli.{own_command.module}"), own_command.function)
    if not isinstance(thing, typer.Typer):
        single = typer.Typer(add_completion=False)
        single.command(name)(thing)
        thing = single
    command: Any = typer.main.get_command(thing)
    command.name, command.rich_help_panel = name, own_command.group
    return command


def _listed(name: str, help_text: str, group: str) -> Any:
    """Return a command without a function, only to be shown in the list."""
    app = typer.Typer(add_completion=False)
    app.command(name, help=help_text)(lambda: None)
    command: Any = typer.main.get_command(app)
    command.rich_help_panel = group
    return command


app = typer.Typer(
    cls=Commands,
    help="Federated tuning of all parameters of a model with seeds and scalars on the wire.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        import fedseed

        print(f"fedseed {fedseed.__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Say which version this is.", callback=_show_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback if something fails.")
    ] = False,
) -> None:
    """Read the options before the command."""
    if context.invoked_subcommand not in ("run", "join"):
        refuse_torchrun(f"fedseed {context.invoked_subcommand}")
    global _debug
    _debug = debug


_debug = False


def main() -> None:
    """Run the command line; errors become one line and an exit code."""
    os.environ[COMMAND] = "1"
    try:
        # completion needs this name, however fedseed was started
        app(prog_name="fedseed")
    except (FedseedError, OSError) as error:
        _fail(error, 2 if isinstance(error, RecipeError) else 1)
    except ModuleNotFoundError as error:
        if error.name not in TRAINING_PACKAGES:
            raise
        _fail(
            FedseedError(
                f"this needs {error.name}, a part of the training side: {to_install('train')}"
            ),
            1,
        )
    except Exception as error:  # a bug: also one line, with the option that shows more
        _fail(
            RuntimeError(
                f"{type(error).__name__}: {error} (run again with --debug before the command)"
            ),
            1,
        )
    finally:  # restore the screen for programs that call this function
        os.environ.pop(COMMAND, None)


def _fail(error: Exception, code: int) -> None:
    if _debug:
        import traceback

        traceback.print_exc()
    else:
        from fedseed.text import clean

        print(f"fedseed: {clean(' '.join(str(error).split()))}", file=sys.stderr)
    sys.exit(code)
