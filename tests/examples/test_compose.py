"""The image and the Compose files: they refer to what is there, `fedseed` takes their commands.

The image starts.

Docker is needed for the last alone.
"""

import re
import subprocess
from pathlib import Path
from shutil import which

import pytest
import yaml

from fedseed.cli import app as cli

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "compose"
FILES = ("server.yaml", "site.yaml")


@pytest.mark.parametrize("name", FILES)
def test_fedseed_takes_the_commands(name, monkeypatch):
    """Parsed as the command line parses them, up to where they would act: a site's file is read."""
    monkeypatch.chdir(FOLDER)
    services = yaml.safe_load((FOLDER / name).read_text())["services"]
    commands = [service["command"] for service in services.values() if "build" in service]
    assert commands
    for command, *words in commands:
        context = cli.load_command(command).make_context(command, list(words))
        assert context.params and not context.args
    for command in services.values():
        assert all(isinstance(word, str) for word in command["command"])


def test_the_image_takes_what_the_start_page_installs():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    [torch] = re.findall(r"^ARG TORCH=(\S+)$", text, re.MULTILINE)
    assert f"torch=={torch} " in (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    seen = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists() and f"!{name}" in seen
    for name in FILES:  # both build it: the file is at the root of what they send
        for service in yaml.safe_load((FOLDER / name).read_text())["services"].values():
            if "build" in service:
                assert (FOLDER / service["build"]["context"] / "Dockerfile").is_file()


def docker(*words):
    return subprocess.run(["docker", *words], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["coordinator", "train"])
def test_the_image_is_built_and_starts(side):
    if which("docker") is None or docker("info").returncode:
        pytest.skip("no Docker daemon answers")
    built = docker(
        "build",
        "--quiet",
        "--build-arg",
        f"SIDE={side}",
        "--tag",
        f"fedseed-test-{side}",
        str(ROOT),
    )
    assert built.returncode == 0, built.stderr[-2000:]
    words = (
        ["--version"] if side == "coordinator" else ["run", "words-feedsign", "--set", "rounds=1"]
    )
    done = docker("run", "--rm", f"fedseed-test-{side}", *words)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "fedseed 0." in done.stdout or "weights digest" in done.stdout
