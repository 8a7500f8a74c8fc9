"""fedseed inside Flower: a ServerApp and a ClientApp, so that a recipe runs in a Flower federation.

    # server_app.py
    from pathlib import Path
    from fedseed.flower import server_app
    app = server_app(Path(__file__).parent / "recipe.toml")

    # client_app.py
    from pathlib import Path
    from fedseed.flower import client_app
    app = client_app(Path(__file__).parent / "recipe.toml")

Plans, updates and steps travel as bytes in Flower's `ConfigRecord`s; the ServerApp has neither
model nor data. Needs the extra `flower`. docs/flower.md has the next steps.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedseed.errors import FedseedError, to_install

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp


def _flwr(module: str) -> Any:
    try:
        return import_module(f"flwr.{module}")
    except ImportError as error:
        raise FedseedError(f"Flower is not installed: {to_install('flower')}") from error


def server_app(recipe: Path | str) -> "ServerApp":
    """Return a ServerApp that coordinates a recipe's run, for `[tool.flwr.app.components]`.

    Args:
        recipe: file or name of the recipe. Flower's run config may add to it: `out` (folder for the
            run's files), `data` (the recipe's task.path) and `set` (more keys of the recipe,
            "key=value;key=value").

    Raises FedseedError: Flower is not installed.
    """
    app: ServerApp = _flwr("serverapp").ServerApp()

    def main(grid: Any, context: Any) -> None:
        from fedseed.flower.server import coordinate

        coordinate(grid, context, recipe)

    app.main()(main)
    return app


def client_app(recipe: Path | str) -> "ClientApp":
    """Return a ClientApp that takes part in a recipe's run, for `[tool.flwr.app.components]`.

    Args:
        recipe: the ServerApp's recipe. Flower's node config names the clients of a node: `client`
            (a name, or several with commas) and `data` (its own data); in a simulation its
            `partition-id` does.

    Raises FedseedError: Flower is not installed.
    """
    app: ClientApp = _flwr("clientapp").ClientApp()

    def answer(message: Any, context: Any) -> Any:
        from fedseed.flower.client import reply

        return reply(message, context, recipe)

    for kind in (app.query, app.train, app.evaluate):
        kind()(answer)
    return app
