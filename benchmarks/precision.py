"""Small steps in 16-bit weights: what is lost, what keeping them costs.

    python benchmarks/precision.py [lost] [memory]

lost     the small base, local training as Ferret's published recipes have it (plain SGD, 1e-4, 10
steps of 4 examples),
         then 200 steps: which share of the weights moved, and how the change compares with
         float32's
memory   OPT-125M's shapes with random weights: peak memory and seconds of a client's three local
steps of 128 tokens,
         each in a process of its own

Without names both parts run, in about five minutes on two cores.
"""

import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from speed import Ready, examples, opt_125m, peak_of, run_parts

from fedseed import Basis, ParameterSpace
from fedseed.recipe.reading import read_recipe
from fedseed.runs.model_setup import equip
from fedseed.training.client import LocalClient
from fedseed.training.settings import LocalTraining

DTYPES = ("float16", "bfloat16")
KINDS = ("nearest", "stochastic", "master")
CASES = [
    "float32 nearest sgd",
    *(f"bfloat16 {kind} {how}" for how in ("sgd", "streaming", "adamw") for kind in KINDS),
]


def trained(
    dtype: str, steps: int, **settings: Any
) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
    """A client's change w_start - w_end, Ferret's coefficients of it (up to a factor), the share of
    moved weights.
    """
    recipe = read_recipe("small-ferret", [f"model.dtype={dtype}"])
    data = recipe.task.load()
    equipment = equip(recipe, data)
    space = ParameterSpace(equipment.model)
    items = equipment.objective.prepare(data.clients[0].examples)
    client = LocalClient(space, equipment.objective, items, 1, 1, 0)
    start = [p.detach().float().clone() for p in space.parameters]
    client.first_order(
        LocalTraining(learning_rate=1e-4, steps=steps, batch=1, accumulation=4, **settings)
    )
    now = client._finer or client.space.parameters
    change = np.concatenate(
        [(a - b.detach().float()).reshape(-1).numpy() for a, b in zip(start, now, strict=True)]
    )
    gammas = client.project_change(Basis("hadamard", 7, size=4096), [4096])[0]
    moved = sum(
        int((a != p.detach().float()).sum()) for a, p in zip(start, space.parameters, strict=True)
    )
    return change, gammas, moved / space.size


def lost() -> None:
    """What becomes of small steps on the small base, which is stored in bfloat16: all dtypes start
    from the same.
    """

    def compared(a: NDArray[np.float32], b: NDArray[np.float32]) -> tuple[float, float]:
        x, y = a.astype(np.float64), b.astype(np.float64)
        return float(x @ y / max(np.sqrt((x @ x) * (y @ y)), 1e-300)), float(
            np.linalg.norm(x - y) / np.linalg.norm(y)
        )

    for steps in (10, 200):
        wanted, coefficients, share = trained("float32", steps)
        print(
            f"\n{steps} steps of 4 examples, plain SGD, 1e-4; float32 moves {share:.1%} of the "
            "weights\n"
        )
        print(
            "| weights | small_steps | weights moved | cosine with float32's change | distance | "
            "along it | cosine of 4,096 coefficients |\n|---|---|---|---|---|---|---|"
        )
        for dtype in DTYPES:
            for kind in KINDS:
                change, gammas, moved = trained(dtype, steps, small_steps=kind)
                cosine, distance = compared(change, wanted)
                along = float(
                    change.astype(np.float64) @ wanted / (wanted.astype(np.float64) @ wanted)
                )
                print(
                    f"| {dtype} | {kind} | {moved:.2%} | {cosine:.3f} | {distance:.2f} | "
                    f"{along:.2f} | {compared(gammas, coefficients)[0]:.3f} |",
                    flush=True,
                )


def child(name: str) -> None:
    """One measurement, in a process of its own.

    Prints MB before and at the peak, and seconds of a step.
    """
    torch.set_num_threads(2)
    dtype, kind, how = name.split()
    model = opt_125m().to(getattr(torch, dtype))
    space = ParameterSpace(model)
    optimizer = how if how != "streaming" else "sgd"
    settings = LocalTraining(
        optimizer=optimizer, learning_rate=1e-4, steps=3, batch=1, accumulation=1, small_steps=kind
    )
    items, seconds = examples(16), 0.0
    tiny = ParameterSpace(torch.nn.Linear(300, 300).to(getattr(torch, dtype)))  # compile first
    tiny.project(torch.zeros(tiny.size), Basis("hadamard", size=8000), 2)
    LocalClient(tiny, Ready(), [], 1, 1, 0).weights()
    from fedseed.weights.moving import write

    write(torch.zeros(10, dtype=torch.bfloat16), torch.zeros(10), (1, 1), 0)

    def act() -> None:
        nonlocal seconds
        client = LocalClient(space, Ready(), items, 1, 2, 0)
        begin = time.perf_counter()
        if how == "streaming":
            client.project_gradients(settings, Basis("hadamard", 7, size=8000), [8000])
        else:
            client.first_order(settings)
        seconds = (time.perf_counter() - begin) / settings.steps
        client.put_back()

    before, peak = peak_of(act)
    print(f"{before} {peak} {seconds}")


def memory() -> None:
    """Peak memory and time of a client's local training."""
    print(
        "\n| weights | small_steps | steps | before, MB | peak, MB | more, bytes a parameter | "
        "seconds a step |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in CASES:
        out = subprocess.run(
            [sys.executable, __file__, "--child", name], capture_output=True, text=True, check=True
        )
        before, peak, seconds = map(float, out.stdout.split())
        dtype, kind, how = name.split()
        each = (peak - before) * 2**20 / 125_239_296
        print(
            f"| {dtype} | {kind} | {how} | {before:.0f} | {peak:.0f} | {each:.1f} | {seconds:.2f} "
            "|",
            flush=True,
        )


PARTS = {"lost": lost, "memory": memory}


if __name__ == "__main__":
    run_parts(PARTS, child, __doc__)
