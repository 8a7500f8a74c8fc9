"""How many kernels a GPU is asked for, how often it is waited for, and how many bytes move:
reckoned without one.

    python benchmarks/launches.py [--shapes 125M 1.3B 7B] [--write]

The real launchers run on tensors of torch's device "meta", which have shapes and no memory, and
every launch is counted in place of being made. What is counted is fedseed's own: directions, steps
and projections, not the model's passes.

    a look     the weights w + scale z of a loss: where there is room for a second buffer of the
    weights, and (layers)
               where only a layer's copies are kept at a time
    a step     two looks and what is added to the weights (FeedSign, ZO-FedSGD, MeZO, FedKSeed's
    local ones)
    rebuild    FedKSeed's 4,096 directions onto the base
    norms, project, apply    Ferret's, in the paper's blocks, with 100 directions each; apply: of
    one client

`--write` keeps the table in launches.json, which a test compares with what the code does.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, OPTConfig

from fedseed import Basis, ParameterSpace
from fedseed.randomness.kernels import Kernels, lowrank_triton
from fedseed.randomness.kernels import triton as flat
from fedseed.weights.change import Add, Rebuild, Term
from fedseed.weights.perturbation import Perturbation
from fedseed.weights.projection import change_norms, project_change

TABLE = Path(__file__).with_suffix(".json")
SHAPES = {
    "125M": OPTConfig(
        hidden_size=768,
        ffn_dim=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        word_embed_proj_dim=768,
    ),
    "1.3B": LlamaConfig(
        hidden_size=2048, intermediate_size=5504, num_hidden_layers=24, num_attention_heads=16
    ),
    "7B": LlamaConfig(),
}
COLUMNS = ("launches", "waits", "bytes")


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts launches (in place of making them), copies to the host, and bytes of weights that are
    read and written.
    """
    found: Counter[str] = Counter()
    move_all, project_all = Kernels.move_all, flat.project_all

    def launch(*_: Any, **__: Any) -> None:
        found["launches"] += 1

    def moved(self: Kernels, jobs: Any, *rest: Any) -> None:
        found["bytes"] += sum(job.destination.nbytes + job.source.nbytes for job in jobs)
        move_all(self, jobs, *rest)

    def projected(spec: Any, first: int, runs: Any) -> Any:
        found["bytes"] += sum(run.a.nbytes + run.b.nbytes for run in runs)
        return project_all(spec, first, runs)

    def waited(tensor: torch.Tensor) -> torch.Tensor:
        found["waits"] += 1
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")

    with (
        patch.object(flat, "launch", launch),
        patch.object(lowrank_triton, "launch", launch),
        patch.object(Kernels, "move_all", moved),
        patch.object(flat, "project_all", projected),
        patch.object(torch.Tensor, "cpu", waited),
    ):
        yield found


def works(space: ParameterSpace) -> dict[str, Callable[[], object]]:
    """Returns what is counted, by name.

    Tensors without memory are alike, so that one stands for all.
    """
    rademacher, hadamard = Basis("rademacher", 1), Basis("hadamard", 1, size=4096)
    one, vector = np.ones(1, dtype=np.float32), space.vector
    lowrank = Basis("lowrank", 1, rank=1)
    counts = [100] * len(space.layout.block_sizes)
    coefficients = [np.ones(count, dtype=np.float32) for count in counts]

    def look(basis: Basis) -> None:
        Perturbation(vector, Term(basis, one), 1e-3).copies(vector.parameters)

    def by_layer() -> None:
        perturbation = Perturbation(vector, Term(rademacher, one), 1e-3)
        for parameter in vector.parameters:
            perturbation.whole(parameter)

    def step() -> None:
        look(rademacher)
        look(rademacher)
        space.apply(Add([Term(rademacher, one)], -1e-6))

    rounded = Add([Term(rademacher, one)], -1e-6, rounding=(1, 2))
    pool = Rebuild([Term(rademacher, np.ones(4096, dtype=np.float32))])
    return {
        "a look": lambda: look(rademacher),
        "a look, layers": by_layer,
        "a look, lowrank": lambda: look(lowrank),
        "a step": step,
        "a step, rounded stochastically": lambda: space.apply(rounded),
        "1,000 steps replayed": lambda: space.apply_adds(
            [Add([Term(rademacher, one, k)], 1e-6) for k in range(1000)]
        ),
        "rebuild": lambda: space.apply(pool),
        "norms": lambda: change_norms(vector, space.parameters),
        "project": lambda: project_change(vector, space.parameters, rademacher, counts),
        "project, hadamard": lambda: project_change(vector, space.parameters, hadamard, counts),
        "apply": lambda: space.apply(Add([Term(rademacher, coefficients)])),
    }


def table(shape: str) -> dict[str, list[int]]:
    """Returns the counts (`COLUMNS`) of each kind of work at a shape."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(SHAPES[shape], dtype=torch.bfloat16)
    space = ParameterSpace(model, blocks="packed")
    space.keep_base()
    rows = {}
    for name, work in works(space).items():
        with counted() as found:
            work()
        rows[name] = [found[column] for column in COLUMNS]
    return rows


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=[*SHAPES])
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    found = {shape: table(shape) for shape in args.shapes}
    print("| | " + " | ".join(f"{shape}: launches | waits | GB" for shape in found) + " |")
    print("|---" * (1 + 3 * len(found)) + "|")
    for name in next(iter(found.values())):
        cells = (
            f"{rows[name][0]:,} | {rows[name][1]} | {rows[name][2] / 1e9:.2f}"
            for rows in found.values()
        )
        print(f"| {name} | " + " | ".join(cells) + " |")
    if args.write:
        TABLE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
