"""The release workflow: it is read as GitHub reads it; what it runs is there; nothing but a tag is published."""

import re
import tomllib

import yaml

import fedseed
from support.documents import ROOT

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
JOBS = WORKFLOW["jobs"]


def test_what_it_runs_is_there():
    lines = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
    made = {word for line in lines for word in re.findall(r"^make (\w+)$", line)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert made == {"dist"} and all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in made)
    recipe = re.search(r"^dist:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]
    assert "-m build --outdir dist ." in recipe and "-m build --outdir dist papers" in recipe
    assert "twine check --strict dist/*" in recipe and "fedseed --version" in recipe
    folders = {
        step["with"]["path"] for job in JOBS.values() for step in job["steps"] if "artifact" in step.get("uses", "")
    }
    assert folders == {"dist/"}  # what the publishing step takes when it is told of no other


def test_only_a_tag_is_published_and_without_a_password():
    triggers = WORKFLOW[True]  # `on`: YAML's yes
    assert triggers["push"] == {"tags": ["v*"]} and WORKFLOW["permissions"] == {"contents": "read"}
    publish = JOBS["publish"]
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')" and publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"} and publish["environment"] == "release"
    assert "secrets." not in str(WORKFLOW) and not any("run" in step for step in publish["steps"])


def test_both_packages_have_one_version():
    for folder in ("", "papers"):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert project["version"] == fedseed.__version__
        assert folder == "" or f"fedseed[train]=={fedseed.__version__}" in project["dependencies"]
