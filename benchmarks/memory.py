"""Peaks of memory: what `fedseed bench --memory` reckons by a base's shapes, beside what a process
takes.

    python benchmarks/memory.py                 # every method, OPT-125M's shapes, float32
    python benchmarks/memory.py FedAvg Ferret   # those whose names begin so

Each measurement is a process of its own: two rounds of two clients, 4 examples of 128 tokens at a
time, no evaluation. The base has random weights (scripts/make_random_base.py).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

LENGTH = 128  # tokens of an example
EXAMPLES = 24
ROOT = Path(__file__).parent.parent
FIRST = ["method.training.steps=2", "method.training.batch=4", "method.training.accumulation=1"]
SGD = ["method.training.optimizer=sgd", "method.training.learning_rate=1e-6"]
# where activations are more than messages; a step takes seconds, and SGD keeps nothing from one to
# the next
MANY = ["method.training.batch=16", "method.training.steps=1"]
FERRET = [
    "method.name=ferret",
    "method.directions=8000",
    "method.blocks=one",
    "method.allocation=size",
    "method.seeds=shared",
]
CASES = {
    "forward pass": ["method.name=feedsign", "method.batch=2"],
    "FeedSign": ["method.name=feedsign", "method.batch=2"],
    "FedKSeed": ["method.name=fedkseed", "method.steps=2", "method.batch=4"],
    "FedAvg, AdamW": ["method.name=fedavg", *FIRST],
    "FedAvg, SGD, 16 examples at a time": ["method.name=fedavg", *FIRST, *SGD, *MANY],
    "FedAvg, SGD, 16 examples, checkpointed": [
        "method.name=fedavg",
        *FIRST,
        *SGD,
        *MANY,
        "model.activation_checkpointing=true",
    ],
    "FedSGD": ["method.name=fedsgd", "method.batch=4", "method.micro_batch=4"],
    "Ferret": [*FERRET, *FIRST, *SGD],
    "Ferret, streaming": [*FERRET, *FIRST, *SGD, "method.streaming=true"],
    "Ferret, streaming, checkpointed": [
        *FERRET,
        *FIRST,
        *SGD,
        "method.streaming=true",
        "model.activation_checkpointing=true",
    ],
}


def text_of(tokenizer: object, length: int) -> Iterator[tuple[str, str]]:
    """Prompts and responses that are examples of just so many tokens, without end."""
    import random

    rng = random.Random(1)
    words = [
        "the",
        "a",
        "red",
        "green",
        "old",
        "tree",
        "house",
        "river",
        "bird",
        "king",
        "sees",
        "finds",
        "has",
        "takes",
    ]
    ids = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[operator]  # noqa: E731
    while True:
        prompt = " ".join(rng.choice(words) for _ in range(8))
        response = rng.choice(words)
        while 2 + len(ids(prompt)) + len(ids(response)) < length:
            response += " " + rng.choice(words)
        if 2 + len(ids(prompt)) + len(ids(response)) == length:
            yield prompt, response


def prepare(
    folder: Path,
    shape: str = "opt-125m",
    dtype: str = "float32",
    clients: Sequence[str] = ("north", "south"),
    length: int = LENGTH,
) -> None:
    """Make base, configuration, data of some clients and recipe in a folder."""
    from transformers import AutoTokenizer

    made = [sys.executable, str(ROOT / "scripts" / "make_random_base.py"), shape, "--dtype", dtype]
    if shape.startswith("opt"):
        made += ["--set", "dropout=0.0"]
    subprocess.run([*made, "--out", str(folder / "base")], check=True, stdout=subprocess.DEVNULL)
    texts = text_of(AutoTokenizer.from_pretrained(folder / "base"), length)
    (folder / "data").mkdir()
    for client in clients:
        lines = [
            json.dumps(dict(zip(("prompt", "completion"), next(texts), strict=True)))
            for _ in range(EXAMPLES)
        ]
        (folder / "data" / f"{client}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "recipe.toml").write_text(
        f'rounds = 2\n[model]\ndtype = "{dtype}"\n[task]\nname = "files"\npath = '
        f'"{folder / "data"}"\n'
        '[evaluation]\nrouge = false\n[method]\nname = "feedsign"\n',
        encoding="utf-8",
    )


def resident(name: str) -> int:
    """A size in bytes of this process as Linux knows it."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


def measured(recipe: str, settings: list[str], passes_only: bool) -> dict[str, int]:
    """Two rounds here; what was in memory before, and at the peak."""
    import torch

    from fedseed.recipe.reading import read_recipe
    from fedseed.reports.results import RoundLine
    from fedseed.runs.assembly import build

    torch.set_num_threads(2)
    settle()  # compiled kernels are there: a plain forward pass is compared with the others
    federation = build(read_recipe(recipe, settings))
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    for number in (1, 2):
        if passes_only:
            with torch.no_grad():
                federation.worker.objective.losses(
                    federation.worker.space.model, federation.items[0][:4]
                )
            continue
        federation.gather(number)
        federation.apply(federation.coordinator.close(), RoundLine(number), False)
    return {"before": before, "peak": resident("VmHWM")}


def settle() -> None:
    """Have libraries do something: they bring compilers, threads and tables."""
    import torch

    from fedseed import Basis, ParameterSpace

    space = ParameterSpace(torch.nn.Linear(512, 512))
    for basis in (Basis("hadamard", size=4096), Basis("rademacher")):
        space.add(basis, [0.0], 1.0)
        space.project(torch.zeros(space.size), basis, 2)
        with torch.no_grad(), space.perturbed(basis, 0, 1e-3):
            space.model(torch.zeros(16, 512))


def settings_of(folder: Path, name: str) -> list[str]:
    """A case's settings, on the base in a folder."""
    return [f"model.base={folder / 'base'}", *CASES[name]]


def child(folder: Path, name: str) -> dict[str, int]:
    """A measurement in a process of its own."""
    command = [sys.executable, __file__, "--folder", str(folder), "--child", name]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="beginnings of the cases' names")
    parser.add_argument("--folder", type=Path, help="where base and data are, or are to be")
    parser.add_argument("--json", action="store_true", help="print the peaks by name, in bytes")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        (name,) = args.names
        recipe = str(args.folder / "recipe.toml")
        print(json.dumps(measured(recipe, settings_of(args.folder, name), name == "forward pass")))
        return
    from fedseed.experiments.bench import reckon
    from fedseed.recipe.reading import read_recipe

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if not (folder / "recipe.toml").exists():
            folder.mkdir(parents=True, exist_ok=True)
            prepare(folder)
        names = [
            n for n in CASES if not args.names or any(n.startswith(given) for given in args.names)
        ]
        if args.json:
            print(json.dumps({name: child(folder, name)["peak"] for name in names}))
            return
        print("| MB | before | peak measured | reckoned by shapes |\n|---|---|---|---|")
        for name in names:
            shapes = reckon(read_recipe(folder / "recipe.toml", settings_of(folder, name)), LENGTH)
            found = child(folder, name)
            columns = (found["before"], found["peak"], shapes.total)
            print(
                f"| {name} | " + " | ".join(f"{column / 1e6:.0f}" for column in columns) + " |",
                flush=True,
            )


if __name__ == "__main__":
    main()
