"""The Compose files: they parse, refer to what is there, and `fedseed` takes their commands. Docker is not needed."""

from pathlib import Path

import pytest
import typer
import yaml

from fedseed.cli import app as cli

FOLDER = Path(__file__).parents[2] / "examples" / "compose"
FILES = ("server.yaml", "site.yaml")


@pytest.mark.parametrize("name", FILES)
def test_fedseed_takes_the_commands(name):
    """Parsed as the command line parses them, up to where they would act."""
    services = yaml.safe_load((FOLDER / name).read_text())["services"]
    commands = [service["command"] for service in services.values() if "build" in service]
    group = typer.main.get_command(cli.app)
    assert commands
    for command, *words in commands:
        context = group.commands[command].make_context(command, list(words))
        assert context.params and not context.args
    for command in services.values():
        assert all(isinstance(word, str) for word in command["command"])
