"""The generative base's reader: Debian's two indexes in their own form, split by source package without leaks."""

import importlib.util
import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "real"


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(EXAMPLES)
        spec = importlib.util.spec_from_file_location("make_text_base", EXAMPLES / "make_text_base.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def indexes(count=80):
    """As `apt-cache dumpavail` and a Translation-en file print packages; each source has data beside the program."""
    packages, translations = [], []
    for number in range(count):
        for kind in ("", "-data"):
            packages.append(
                f"Package: p{number}{kind}\nSource: s{number} (1.{number})\nInstalled-Size: 3\n"
                f"Maintainer: Team: {number % 3} <t@example.org>\nDescription: short\n"
                f"Description-md5: {number:x}a{kind[:2].strip('-')}\nTag: role::program,\n x::y\nSection: net\n"
            )
            synopsis = "shared by many" if number % 8 == 0 else f"tool of kind a{number}x{kind}"
            translations.append(
                f"Package: p{number}{kind}\nDescription-md5: {number:x}a{kind[:2].strip('-')}\n"
                f"Description-en: {synopsis}\n It-{number} does what others of its kind do,\n and it does that well: "
                f"lines are joined here.\n .\n  * It has a list{kind}.\n"
            )
    return "\n".join(packages), "\n".join(translations)


def test_descriptions_are_read_as_debian_writes_them(script):
    rows = list(script.description_rows(*indexes()))
    assert len(rows) == len({row.origin for row in rows}) == 80  # one of a source
    assert rows[1] == script.Row(
        "It-1 does what others of its kind do, and it does that well: lines are joined here.\n* It has a list.",
        "tool of kind a1x", "team-1", "s1",
    )  # fmt: skip


def test_the_base_reads_nothing_of_the_task(script, tmp_path):
    rows = list(script.description_rows(*indexes()))
    kept = [row for row in rows if script.is_kept(row.origin)]
    texts = script.documents([row for row in rows if not script.is_kept(row.origin)])
    assert 0 < len(kept) < len(rows) / 2 and len(texts) == len(rows) - len(kept)
    read = "\n".join(texts)
    assert "shared by many" in read and any(row.label == "shared by many" for row in kept)
    counted = script.write_clients(kept, read, tmp_path)
    written = {
        part: [json.loads(line) for line in (tmp_path / f"{part}.jsonl").read_text().splitlines()] for part in counted
    }
    assert {part: len(lines) for part, lines in written.items()} == counted and all(counted.values())
    sources = {part: {line["source"] for line in lines} for part, lines in written.items()}
    assert not sources["train"] & sources["test"]
    for line in written["train"] + written["test"]:
        assert line["completion"].strip() not in read and line["prompt"].partition("\n\nIn one")[0] not in read
