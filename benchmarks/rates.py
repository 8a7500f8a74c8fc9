"""Does `fedseed tune-rate` find the rate that a full grid would? Eight small models, tasks and
methods.

    python benchmarks/rates.py [--fresh] [--share 6] [--out runs/rates.json]
    python benchmarks/rates.py --seeds 21 22 23 24 25 26 27 28 --out runs/rates.json

Of each a full run with the rate that is found, and full runs with nine rates over four decades. The
loss on the task's validation examples, by which a search chooses, decides; that on held-out ones,
which a search never sees, stands beside it. What is in the file already is not run again. With
--seeds the rates that were found, and those of the grids with at least half of the best gain, are
run again with other seeds, as one run's end near the rate that diverges is luck.
"""

import argparse
import json
import tempfile
from collections.abc import Collection
from math import inf, isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from fedseed.errors import FedseedError
from fedseed.models.loading import quiet
from fedseed.recipe.reading import read_recipe
from fedseed.recipe.settings import Recipe
from fedseed.runs.assembly import build
from fedseed.runs.rates import SHARE, find_rate, with_rate

WORDS = [
    "<pad>",
    "</s>",
    "<unk>",
    "Count",
    "plus",
    "is",
    "the",
    "film",
    "was",
    "great",
    "good",
    "bad",
    "poor",
    "fine",
    "story",
    "a",
    "very",
    "so",
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "9",
]
SIZES: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
    "gpt2": {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "opt": {
        "hidden_size": 48,
        "word_embed_proj_dim": 48,
        "ffn_dim": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    },
    "gpt_neox": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    },
    "qwen2": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    },
}
NOTHING = 1e-3  # of the loss: what a best rate must gain for a share of it to mean anything
ZEROTH = [10 ** (-6 + 0.5 * i) for i in range(9)]  # 1e-6 to 1e-2
FIRST = [10 ** (-4 + 0.5 * i) for i in range(9)]  # 1e-4 to 1
# what it is: base, task, settings, grid
PAIRS: dict[str, tuple[str, str, list[str], list[float]]] = {
    "words, words, feedsign": (
        "words",
        "words",
        ["rounds=200", 'method={name="feedsign",batch=8}'],
        ZEROTH,
    ),
    "words, words, ferret": (
        "words",
        "words",
        [
            "rounds=12",
            'method={name="ferret",directions=2000,seeds="shared"}',
            "method.training={steps=8,batch=8}",
        ],
        FIRST,
    ),
    "digits, digits, fedavg": (
        "digits",
        "digits",
        [
            "rounds=12",
            'method={name="fedavg"}',
            'method.training={steps=6,batch=16,optimizer="sgd"}',
            'model.trainable="head"',
        ],
        FIRST,
    ),
    "digits, digits, zo-fedsgd": (
        "digits",
        "digits",
        ["rounds=200", 'method={name="zo-fedsgd",batch=16}', 'model.trainable="head"'],
        ZEROTH,
    ),
    "llama, labels, mezo": (
        "llama",
        "labels",
        ["rounds=300", 'method={name="mezo",estimates=4,batch=8}'],
        ZEROTH,
    ),
    "gpt2, labels, fedkseed": (
        "gpt2",
        "labels",
        ["rounds=15", 'method={name="fedkseed",candidates=256,steps=20}', "method.batch=8"],
        ZEROTH,
    ),
    "gpt2, sums, fedavg": (
        "gpt2",
        "sums",
        ["rounds=12", 'method={name="fedavg"}', "method.training={steps=10,batch=8}"],
        FIRST,
    ),
    "opt, sums, ferret": (
        "opt",
        "sums",
        [
            "rounds=15",
            'method={name="ferret",directions=4000,seeds="shared"}',
            "method.training={steps=10,batch=8}",
        ],
        FIRST,
    ),
}
# written down before any of them was run: other bases ("-7": another random one), seeds and
# pairings
FRESH: dict[str, tuple[str, str, list[str], list[float]]] = {
    "words, words, mezo": (
        "words",
        "words",
        ["seed=7", "rounds=300", 'method={name="mezo",batch=8}'],
        ZEROTH,
    ),
    "digits, digits, ferret": (
        "digits",
        "digits",
        [
            "seed=7",
            "rounds=12",
            'method={name="ferret",directions=1000}',
            "method.training={steps=6,batch=16}",
        ],
        FIRST,
    ),
    "qwen2, labels, feedsign": (
        "qwen2",
        "labels",
        ["seed=7", "rounds=300", 'method={name="feedsign",batch=8}'],
        ZEROTH,
    ),
    "llama-7, sums, fedkseed": (
        "llama-7",
        "sums",
        [
            "seed=7",
            "rounds=20",
            "method.batch=8",
            'method={name="fedkseed",candidates=512,steps=15}',
        ],
        ZEROTH,
    ),
    "gpt_neox, labels, fedavg": (
        "gpt_neox",
        "labels",
        [
            "seed=7",
            "rounds=10",
            'method={name="fedavg"}',
            'method.training={steps=8,batch=8,optimizer="adamw"}',
        ],
        FIRST,
    ),
    "opt-7, labels, zo-fedsgd": (
        "opt-7",
        "labels",
        ["seed=7", "rounds=250", 'method={name="zo-fedsgd",batch=8}'],
        ZEROTH,
    ),
    "gpt2-7, sums, fedsgd": (
        "gpt2-7",
        "sums",
        ["seed=7", "rounds=60", 'method={name="fedsgd",batch=16}'],
        FIRST,
    ),
    "llama-7, labels, fedmezo": (
        "llama-7",
        "labels",
        ["seed=7", "rounds=15", "method.batch=8", 'method={name="fedmezo",steps=20}'],
        ZEROTH,
    ),
}


def base(folder: Path, kind: str) -> str:
    """A random base of a kind, with a tokenizer of whole words."""
    if not (folder / kind).exists():
        tokenizer = Tokenizer(
            models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(
            folder / kind
        )
        architecture, _, seed = kind.partition("-")
        torch.manual_seed(int(seed or 0))
        config = transformers.AutoConfig.for_model(
            architecture,
            vocab_size=len(WORDS),
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=1,
            **SIZES[architecture],
        )
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / kind)
    return str(folder / kind)


def data(folder: Path, task: str) -> str:
    """Three clients' files of a task."""
    (folder / task).mkdir(exist_ok=True)
    for n, name in enumerate(("north", "south", "east")):
        rows = []
        for i in range(120):
            if task == "sums":
                a, b = (i + n) % 5, (i // 5 + n) % 5
                rows.append({"prompt": f"Count {a} plus {b} is", "completion": f" {a + b}"})
            else:
                word, good = (
                    ["great", "good", "fine", "bad", "poor"][(i + n) % 5],
                    (i + n) % 5 < 3,
                )
                thing = ("film", "story")[i % 2]
                rows.append(
                    {
                        "text": f"the {thing} was {['very', 'so', 'a'][i % 3]} {word}",
                        "label": str(int(good)),
                    }
                )
        (folder / task / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder / task)


def recipe_of(folder: Path, name: str, *more: str) -> Recipe:
    """The recipe of a pair."""
    kind, task, settings, _ = (PAIRS | FRESH)[name]
    where = base(folder, kind) if kind.partition("-")[0] in SIZES else kind
    own = task in ("sums", "labels")
    told = (
        f'name="files",path="{data(folder, task)}",validation=0.1,evaluation=0.2'
        if own
        else f'name="{task}"'
    )
    text = [
        f'model.base="{where}"',
        f"task={{{told}}}",
        *settings,
        "evaluation.every=1000",
        "evaluation.rouge=false",
        "stopping.patience=2",
    ]  # two evaluations: none stops early, and the validation loss is told
    (folder / "empty.toml").write_text("")
    return read_recipe(folder / "empty.toml", [*text, *more])


def losses_after(recipe: Recipe) -> list[list[float]]:
    """Validation and held-out loss, before and after a run."""
    try:
        summary = build(recipe).run().summary
    except FedseedError:
        return [[nan, nan], [inf, inf]]
    found = [
        [summary[when][name] for name in ("validation_loss", "loss")]
        for when in ("baseline", "final")
    ]
    return [found[0], [loss if isfinite(loss) else inf for loss in found[1]]]


def share(kept: dict[str, Any], which: int) -> str:
    """How much of the best gain of the grid the rate has that was found."""
    lowest = min(after[which] for after in kept["grid"].values())
    gain, best = kept["before"][which] - kept["after"][which], kept["before"][which] - lowest
    return f"{gain / best:.1%}" if best > NOTHING * kept["before"][which] else "no rate gains"


def again(
    folder: Path, done: dict[str, Any], seeds: list[int], out: Path, names: Collection[str]
) -> None:
    """Mean validation loss over seeds: the rate that was found, and the best of the grid."""
    print(
        "| pair | rate found | before | after | best of nine | at | share of its gain |\n|"
        + "---|" * 7
    )
    for name in names:
        kept = done[name]
        lowest, before = min(after[0] for after in kept["grid"].values()), kept["before"][0]
        exact = dict(zip(kept["grid"], (PAIRS | FRESH)[name][3], strict=True))
        rates = {
            rate: exact[rate]
            for rate, after in kept["grid"].items()
            if before - after[0] >= (before - lowest) / 2
        }
        ends: dict[str, list[float]] = {}
        for rate, value in {"found": kept["rate"], **rates}.items():
            for seed in seeds:
                key = f"{rate}, seed {seed}"
                if key not in kept.setdefault("again", {}):
                    recipe = recipe_of(folder, name, f"seed={seed}")
                    kept["again"][key] = losses_after(with_rate(recipe, value))
                    out.write_text(json.dumps(done, indent=1))
                ends.setdefault(rate, []).append(kept["again"][key][1][0])
        begun = fmean(start[0] for start, _ in kept["again"].values() if isfinite(start[0]))
        means = {rate: fmean(losses) for rate, losses in ends.items()}
        best = min(rates, key=lambda rate: means[rate])
        gain = (begun - means["found"]) / (begun - means[best])
        losses = " | ".join(f"{loss:.3f}" for loss in (begun, means["found"], means[best]))
        print(f"| {name} | {kept['rate']:.2g} | {losses} | {best} | {gain:.1%} |", flush=True)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/rates.json"))
    parser.add_argument(
        "--fresh", action="store_true", help="eight pairs that the rule was not made with"
    )
    parser.add_argument(
        "--share", type=float, default=SHARE, help="passes that the search may take, in runs"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="run what the file has again with these"
    )
    parser.add_argument("--pairs", nargs="+", help="of them these alone")
    args = parser.parse_args()
    quiet()
    torch.set_num_threads(1)
    done: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if args.seeds:
        with tempfile.TemporaryDirectory() as folder:
            again(
                Path(folder),
                done,
                args.seeds,
                args.out,
                args.pairs or (FRESH if args.fresh else PAIRS),
            )
        return
    titles = (
        "pair | rate found | slope and curvature say | passes | before | after | best of nine | at"
    )
    print(f"| {titles} | share of its gain | held-out |\n|" + "---|" * 10)
    with tempfile.TemporaryDirectory() as folder:
        for name, (_, _, _, grid) in (FRESH if args.fresh else PAIRS).items():
            recipe, kept = recipe_of(Path(folder), name), done.setdefault(name, {})
            if "rate" not in kept:  # delete it from the file to search again
                found = find_rate(recipe, say=lambda text: None, share=args.share)
                before, after = losses_after(with_rate(recipe, found.rate))
                kept |= {
                    "rate": found.rate,
                    "start": found.start,
                    "share": found.passes / found.whole,
                }
                kept |= {"before": before, "after": after}
                kept.setdefault("grid", {})
            for rate in grid:
                if f"{rate:.3g}" not in kept["grid"]:
                    kept["grid"][f"{rate:.3g}"] = losses_after(with_rate(recipe, rate))[1]
                args.out.write_text(json.dumps(done, indent=1))
            best, start = min(kept["grid"], key=lambda rate: kept["grid"][rate][0]), kept["start"]
            losses = " | ".join(
                f"{loss:.3f}"
                for loss in (kept["before"][0], kept["after"][0], kept["grid"][best][0])
            )
            shown = [
                name,
                f"{kept['rate']:.2g}",
                "-" if start is None else f"{start:.2g}",
                f"{kept['share']:.0%}",
            ]
            print(
                f"| {' | '.join(shown)} | {losses} | {best} | {share(kept, 0)} | {share(kept, 1)} "
                "|",
                flush=True,
            )


if __name__ == "__main__":
    main()
