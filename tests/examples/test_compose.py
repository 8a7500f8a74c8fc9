"""The Compose files: they parse, refer to what is there, and `fedseed` takes their commands. Docker is not needed."""

import re
from pathlib import Path

import pytest
import typer
import yaml

from fedseed.cli import app as cli

FOLDER = Path(__file__).parents[2] / "examples" / "compose"
FILES = ("server.yaml", "site.yaml")


@pytest.mark.parametrize("name", FILES)
def test_a_compose_file_fits_together(name):
    found = yaml.safe_load((FOLDER / name).read_text())
    services = found["services"]
    assert services and set(found) <= {"name", "services", "volumes", "x-fedseed"}
    readme = (FOLDER / "README.md").read_text()
    for variable in re.findall(r"\$\{(\w+)", (FOLDER / name).read_text()):
        assert f"{variable}=" in readme
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        for volume in service["volumes"]:
            place = re.sub(r"\$\{(\w+):\?[^}]*\}", r"./\1", volume).split(":")[0]
            assert place.startswith("./") or place in found["volumes"]
        if "build" in service:
            build = service["build"]
            root = (FOLDER / build["context"]).resolve()
            assert (root / build["dockerfile"]) == FOLDER / "Dockerfile"
            for copied in re.findall(r"^COPY (.*) \S+$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE):
                assert all((root / part).exists() for part in copied.split())


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
