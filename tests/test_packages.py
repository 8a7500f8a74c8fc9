"""Wheel and source distribution: what they hold, that they are all that one needs, and how they are
published.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import fedseed
from fedseed.recipe.packaged import packaged_recipes
from support.documents import ROOT, blocks

QUICK = (
    "rounds=1",
    "task.evaluation=2",
    "task.unseen=1",
    "federation.per_round=2",
    "method.training.steps=1",
    "evaluation.rouge=false",
)


def make(folder, *words):
    """Build a distribution, or both."""
    pytest.importorskip("build", reason="the package `build` (extra dev) makes them")
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(folder),
        *map(str, words),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Both, made of what git knows and what it does not ignore.

    The wheel is made of the source distribution.
    """
    folder = make(tmp_path_factory.mktemp("dist"), ROOT)
    return *folder.glob("*.whl"), *folder.glob("*.tar.gz")


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    """The wheel of the second package."""
    [wheel] = make(tmp_path_factory.mktemp("papers"), "--wheel", ROOT / "papers").glob("*.whl")
    return wheel


@pytest.mark.long
def test_papers_and_audits_are_a_package_of_their_own(built, papers):
    with zipfile.ZipFile(papers) as archive:
        names = set(archive.namelist())
        [points] = [
            archive.read(name).decode() for name in names if name.endswith("entry_points.txt")
        ]
    assert {"fedseed_papers/catalogue.toml", "fedseed_papers/templates/finding.html"} <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"fedseed_papers"}
    assert "[fedseed.commands]" in points and "audit = " in points and "reproduce = " in points
    with zipfile.ZipFile(built[0]) as archive:
        assert not [name for name in archive.namelist() if "papers" in name]


@pytest.mark.long
def test_what_they_hold(built):
    wheel, source = built
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        said = Parser().parsestr(
            archive.read(f"fedseed-{fedseed.__version__}.dist-info/METADATA").decode("utf-8")
        )
    assert {f"fedseed/recipes/{name}.toml" for name in packaged_recipes()} <= names
    assert {
        "fedseed/py.typed",
        "fedseed/base/small/model.safetensors",
        "fedseed/cli/template/recipe.toml",
    } <= names
    assert not {name for name in names if name.startswith(("tests/", "docs/"))}
    assert said["Version"] == fedseed.__version__ and said["License-Expression"] == "Apache-2.0"
    assert {"train", "docs", "trackers", "hub"} <= set(said.get_all("Provides-Extra"))
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "README.md",
        "CITATION.cff",
        "LICENSE",
        "docs/start.md",
        "mkdocs.yml",
        "tests/test_packages.py",
    } <= inside
    assert not [
        name for name in inside if name.startswith((".venv", "runs", "build", "dist", ".ci"))
    ]


def test_the_citation_is_of_this_version():
    said = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert {f"version: {fedseed.__version__}", "license: Apache-2.0"} <= set(said)


@pytest.mark.slow
def test_in_an_empty_environment_the_wheel_alone_is_enough(built, papers, tmp_path):
    """The install lines of the start page, the wheel in place of the folder.

    Then its commands, first of all.

    FEDSEED_FROM_INDEX=1 (make packages) installs all that the wheel depends on anew, which takes
    minutes and a package index; without it the environment borrows this one's packages, and has
    nothing of fedseed but the wheel."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    programs = tmp_path / "venv" / "bin"
    python = str(programs / "python")
    lines = next(b.text for b in blocks(ROOT / "docs" / "start.md") if "pip install" in b.text)
    torch = re.search(r"pip install (torch==\S+)", lines)[1]
    assert "pip install '.[train]'" in lines
    # torch's files would take a minute to compile
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
    everything = os.environ.get("FEDSEED_FROM_INDEX") == "1"
    if not everything:
        [packages] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
        # what is editable there is not seen here
        (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))

    def install(wheels):
        for wanted in wheels:
            done = subprocess.run([*pip, *wanted], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-2000:]

    install([[torch], [f"{built[0]}[train]"]] if everything else [["--no-deps", str(built[0])]])
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FEDSEED"))
    }

    def run(*words):
        command = [str(programs / "fedseed"), *words]
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}\n{done.stderr[-2000:]}"
        return done.stdout

    where = [python, "-c", "import fedseed; print(fedseed.__file__)"]
    place = subprocess.run(where, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert Path(place.stdout.strip()).is_relative_to(tmp_path)
    assert (programs / "fedseed").is_file()
    assert "ferret" in run("run", "quickstart-ferret", *(f"--set={pair}" for pair in QUICK))
    run("new", "demo")
    assert (tmp_path / "demo" / "recipe.toml").is_file()
    audit = [str(programs / "fedseed"), "audit", "--help"]
    without = subprocess.run(audit, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert (
        without.returncode == 2
        and "the package fedseed-papers: pip install ./papers" in without.stderr
    )
    install([["--no-deps", str(papers)]])
    assert "canary" in run("audit", "--help")


# -- the release workflow: read as GitHub reads it
# ---------------------------------------------------------------------

WORKFLOW = yaml.safe_load(
    (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
)
JOBS = WORKFLOW["jobs"]


def test_what_it_runs_is_there():
    lines = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
    made = {word for line in lines for word in re.findall(r"^make (\w+)$", line)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert made >= {"dist"} and all(
        re.search(rf"^{target}:", makefile, re.MULTILINE) for target in made
    )
    recipe = re.search(r"^dist:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]
    assert "-m build --outdir dist ." in recipe and "-m build --outdir dist papers" in recipe
    assert "twine check --strict dist/*" in recipe and "fedseed --version" in recipe
    folders = {
        step["with"]["path"]
        for job in JOBS.values()
        for step in job["steps"]
        if "artifact" in step.get("uses", "")
    }
    # "dist/": what the publishing step takes when it is told of no other
    assert {folder.rstrip("/") for folder in folders} == {"dist", "reproduced"}


def test_only_a_tag_is_published_and_without_a_password():
    triggers = WORKFLOW[True]  # `on`: YAML's yes
    assert triggers["push"] == {"tags": ["v*"]} and WORKFLOW["permissions"] == {"contents": "read"}
    publish = JOBS["publish"]
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')" and publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"} and publish["environment"] == "release"
    assert "secrets." not in str(WORKFLOW) and not any("run" in step for step in publish["steps"])


def test_both_packages_have_one_version():
    for folder in ("", "papers"):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))[
            "project"
        ]
        assert project["version"] == fedseed.__version__
        assert folder == "" or f"fedseed[train]=={fedseed.__version__}" in project["dependencies"]
