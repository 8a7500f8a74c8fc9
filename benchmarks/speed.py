"""Shared randomness against plain torch, in one process: ratios, growth over d and K, memory.

    python benchmarks/speed.py [kernels] [lowrank] [step] [ferret] [memory] [growth]

Without names all parts run, in about seven minutes on two cores. Shapes are OPT-125M's with random
weights, float32. "Plain torch" is what the published code does: for each direction seed torch's
generator, draw a normal (or truncated normal) tensor for each parameter, scale it, and add it to
the weights (or take its inner product with the change).
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line sets it

import numba
import numpy as np
import torch
from numba.core.registry import cpu_target
from transformers import OPTConfig, OPTForCausalLM

from fedseed import Basis, FedKSeed, FeedSign, Ferret, ParameterSpace
from fedseed.federation.client.worker import Worker
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.methods import Method
from fedseed.objectives.losses import CausalLM, Tokens
from fedseed.randomness.kernels import cpu
from fedseed.training.settings import LocalTraining

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
LENGTH = 128  # tokens of an example
TORCH_DIRECTIONS = 8  # timed, then scaled


class Ready(CausalLM):
    """The language objective on examples that are tokens already."""

    def __init__(self) -> None:
        self.pad, self.max_length = 1, LENGTH

    def items(self, example: Any) -> list[Any]:
        """As they are."""
        return [example]


def opt_125m(
    dtype: torch.dtype = torch.float32, device: str = "cpu", **shape: Any
) -> torch.nn.Module:
    """OPT-125M's architecture, or another `shape` of it, with random weights.

    No more memory than the weights.
    """
    with torch.device("meta"):
        model = OPTForCausalLM(OPTConfig(dropout=0.0, **shape))
    model = model.to(dtype).to_empty(device=device)
    model.tie_weights()
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.02)
    return model.eval()


def examples(count: int) -> list[Tokens]:
    """Random token sequences, all of them response but for the first token."""
    g = torch.Generator().manual_seed(1)
    rows = torch.randint(5, 50_000, (count, LENGTH), generator=g).tolist()
    return [Tokens(tuple(row), 1) for row in rows]


def timed(act: Callable[[], Any], runs: int = 7, warm: int = 1) -> float:
    """Median seconds."""
    for _ in range(warm):
        act()
    spent = []
    for _ in range(runs):
        begin = time.perf_counter()
        act()
        spent.append(time.perf_counter() - begin)
    return median(spent)


def _seconds(act: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


class Spent(NamedTuple):
    """What something took: seconds of the clock, of the processors in the system, page faults,
    times it had to wait.
    """

    seconds: float
    system: float
    faults: int
    waits: int


def spent_by(act: Callable[[], Any]) -> Spent:
    """Do it once."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    seconds = _seconds(act)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return Spent(
        seconds,
        after.ru_stime - before.ru_stime,
        after.ru_minflt - before.ru_minflt,
        after.ru_nivcsw - before.ru_nivcsw,
    )


def machine() -> None:
    """What a step's time may depend on: threads, caches, and what a pass over memory takes."""
    place = torch.ones(1 << 26)
    pace = timed(lambda: place.add_(1.0))
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # as a run does
    torch.set_num_threads(threads)  # numba's first call has set it: both have one OpenMP
    features = cpu_target.target_context.codegen().magic_tuple()
    print(
        f"\nthreads: torch {torch.get_num_threads()}, numba {numba.get_num_threads()}, processors "
        f"{len(os.sched_getaffinity(0))}; compiled for {features[1]}, tiles of {cpu._ROWS} x "
        f"{cpu._PANEL}, "
        f"slabs of {cpu._SLAB * 4 >> 10} KiB; memory {2 * 4 * place.numel() / pace / 1e9:.1f} "
        f"GB/s; load {os.getloadavg()[0]:.1f}"
    )
    space = ParameterSpace(torch.nn.Linear(768, 3072))
    inputs, work = torch.randn(LENGTH, 768), 2 * LENGTH * 768 * 3072 / 1e9
    rates = []
    with torch.no_grad():
        plain = partial(space.model, inputs)
        for basis in (None, "rademacher", "hadamard", "normal"):
            with nullcontext() if basis is None else space.perturbed(Basis(basis, 1), 0, 1e-3):
                rates.append(f"{basis or 'plain'} {work / timed(plain, 21, 3):.0f}")
    library = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    print(
        f"a product with a matrix of 768 x 3,072, GFLOP/s: {', '.join(rates)}; torch multiplies by "
        f"{library.group(1) if library else 'a library of its own'}"
    )


def torch_direction(
    parameters: Sequence[torch.Tensor], truncated: bool, use: Callable[[Any, torch.Tensor], Any]
) -> None:
    """One direction as the published code makes it; `use` gets each parameter and its part."""
    torch.manual_seed(7)
    for p in parameters:
        z = torch.empty_like(p)
        if truncated:
            torch.nn.init.trunc_normal_(z, a=-1.0, b=1.0)
        else:
            z.normal_()
        use(p, z)


def kernels() -> None:
    """One perturbation, a rebuild from 4,096 directions, and projections."""
    model = opt_125m()
    space = ParameterSpace(model)
    weights = [p.data for p in space.parameters]

    def bare() -> None:
        for w in weights:
            w.add_(1.0)

    limit = timed(bare)
    change = torch.randn(space.size)
    parts = list(torch.split(change, [w.numel() for w in weights]))
    by_id = {id(w): part for w, part in zip(weights, parts, strict=True)}
    plain = {
        kind: timed(
            lambda t=kind == "truncated_normal": torch_direction(
                weights, t, lambda w, z: w.add_(z, alpha=1e-9)
            ),
            3,
        )
        for kind in ("normal", "truncated_normal")
    }
    dot = timed(
        lambda: torch_direction(weights, False, lambda w, z: torch.dot(z.view(-1), by_id[id(w)])), 3
    )
    begin = time.perf_counter()
    for _ in range(TORCH_DIRECTIONS):
        torch_direction(weights, False, lambda w, z: w.add_(z, alpha=1e-9))
    rebuild = (time.perf_counter() - begin) / TORCH_DIRECTIONS * 4096
    print(f"d = {space.size:,}, float32, {torch.get_num_threads()} threads")
    print(
        f"bare w.add_(1.0): {limit * 1e3:.1f} ms; torch, one normal direction: "
        f"{plain['normal']:.2f} s, truncated "
        f"normal: {plain['truncated_normal']:.2f} s; one inner product: {dot:.2f} s"
    )
    print(
        "\n| operation | seconds | times faster than torch | times a bare add |\n|---|---|---|---|"
    )

    def row(name: str, seconds: float, torch_seconds: float) -> None:
        print(
            f"| {name} | {seconds:.4f} | {torch_seconds / seconds:,.0f} | {seconds / limit:.1f} |"
        )

    for kind in ("rademacher", "hadamard", "normal", "truncated_normal"):
        basis = Basis(kind, 7)
        reference = plain["truncated_normal" if kind == "truncated_normal" else "normal"]
        row(
            f"one perturbation, {kind}", timed(lambda b=basis: space.add(b, [1.0], 1e-9)), reference
        )
    coefficients = np.full(4096, 1e-3, dtype=np.float32)
    row(
        "rebuild from 4,096, hadamard",
        timed(lambda: space.add(Basis("hadamard", 7), coefficients, 1e-9)),
        rebuild,
    )
    row(
        "rebuild from 4,096, rademacher",
        timed(lambda: space.add(Basis("rademacher", 7), coefficients, 1e-9), 1, 0),
        rebuild,
    )
    for kind in ("rademacher", "normal", "truncated_normal"):
        row(
            f"one inner product, {kind}",
            timed(lambda k=kind: space.project(change, Basis(k, 7), 1)),
            dot,
        )
    row(
        "4,096 inner products, hadamard",
        timed(lambda: space.project(change, Basis("hadamard", 7), 4096)),
        dot * 4096,
    )
    row(
        "4,096 inner products, rademacher",
        timed(lambda: space.project(change, Basis("rademacher", 7), 4096), 1, 0),
        dot * 4096,
    )


def lowrank() -> None:
    """Sums of and products with 4,096 directions of `lowrank`, beside plain torch with directions
    of the same kind.

    Torch does it twice: direction after direction (a rank-one update, or two products with vectors,
    for each matrix), and all at once by matrix products (GEMM), which needs the factors of all
    directions in memory.
    """
    count, few, group = 4096, 8, 512
    model = opt_125m()
    space = ParameterSpace(model)
    weights = [p.data for p in space.parameters]
    change = torch.randn(space.size)
    parts = [
        x.view(w.shape)
        for x, w in zip(torch.split(change, [w.numel() for w in weights]), weights, strict=True)
    ]
    signs = partial(torch.empty, dtype=torch.float32)

    def draw(*shape: int) -> torch.Tensor:
        return signs(*shape).bernoulli_().mul_(2).sub_(1)

    def add_one() -> None:
        for w in weights:
            if w.dim() < 2:
                w.add_(draw(len(w)), alpha=1e-9)
            else:
                w.view(len(w), -1).addr_(draw(len(w)), draw(w.numel() // len(w)), alpha=1e-9)

    def project_one() -> None:
        for x in parts:
            torch.dot(draw(len(x)), x) if x.dim() < 2 else torch.dot(
                draw(len(x)) @ x, draw(x.shape[1])
            )

    def add_all() -> None:
        for w in weights:
            for _ in range(0, count, group):
                if w.dim() < 2:
                    w.addmv_(draw(len(w), group), torch.full((group,), 1e-12))
                else:
                    w.addmm_(draw(len(w), group) * 1e-12, draw(group, w.shape[1]))

    def project_all() -> None:
        for x in parts:
            for _ in range(0, count, group):
                if x.dim() < 2:
                    draw(group, len(x)) @ x
                else:
                    ((draw(group, len(x)) @ x) * draw(group, x.shape[1])).sum(1)

    bare = timed(lambda: [w.add_(1e-9) for w in weights])
    basis, coefficients = Basis("lowrank", 7), np.full(count, 1e-3, dtype=np.float32)
    print(
        f"d = {space.size:,}, float32, {torch.get_num_threads()} threads; a bare w.add_: "
        f"{bare * 1e3:.0f} ms"
    )
    print(
        "\n| 4,096 directions of rank 1 | seconds | torch, one by one | times | torch, GEMM | "
        "times |"
    )
    print("|---|---|---|---|---|---|")
    for name, ours, one, every in (
        ("add", lambda: space.add(basis, coefficients, 1e-9), add_one, add_all),
        ("project", lambda: space.project(change, basis, count), project_one, project_all),
    ):
        seconds, apart, gemm = timed(ours, 3), timed(one, few) * count, timed(every, 1, 0)
        print(
            f"| {name} | {seconds:.2f} | {apart:.0f} | {apart / seconds:.0f} | {gemm:.1f} | "
            f"{gemm / seconds:.1f} |"
        )
    for kind in ("lowrank", "rademacher"):
        print(
            f"one direction of {kind}: "
            f"{timed(lambda k=kind: space.add(Basis(k, 7), [1.0], 1e-9)) * 1e3:.0f} ms"
        )


def one_client(method: Method, model: torch.nn.Module) -> tuple[Callable[[int], None], Worker]:
    """A function that runs one round of a federation of one client, and its worker."""
    worker = Worker(model, method, Ready(), 1)
    coordinator = Coordinator(method, worker.space.layout, 1, [16], 1)
    items = examples(16)

    def round_(number: int) -> None:
        clients = coordinator.open(number)
        answer = worker.train(coordinator.plan(0), 0, items)
        assert answer.message is not None, answer.reason
        coordinator.receive(answer.message, clients[0])
        worker.apply(coordinator.close().encode())
        round_.seconds = answer.cost.seconds  # type: ignore[attr-defined]

    return round_, worker


def step() -> None:
    """A zeroth-order step against two plain forward passes and against the published code's way."""
    model = opt_125m()
    items = examples(1)
    objective = Ready()

    @torch.no_grad()
    def forward() -> float:
        return float(objective.losses(model, items).sum())

    weights = [p.data for p in model.parameters()]

    def published() -> None:
        for scale in (1e-9, -2e-9, 1e-9):
            torch_direction(weights, False, lambda w, z, s=scale: w.add_(z, alpha=s))
        forward()
        forward()
        torch_direction(weights, False, lambda w, z: w.add_(z, alpha=1e-9))

    passes: list[float] = []
    machine()
    print(
        "\n| step, batch 1 x 128 tokens | seconds | times two forward passes | lowest, highest "
        "| page faults: passes, step | system seconds | waits |\n|---|---|---|---|---|---|---|"
    )
    for label, method in (
        ("FeedSign, rademacher", FeedSign(basis="rademacher", learning_rate=1e-9, batch=1)),
        ("FeedSign, hadamard", FeedSign(basis="hadamard", learning_rate=1e-9, batch=1)),
        ("FeedSign, normal", FeedSign(basis="normal", learning_rate=1e-9, batch=1)),
    ):
        round_, _ = one_client(method, model)
        round_(1)
        steps, two = [], []
        for number in range(2, 23):  # in turn, so that both see the same machine
            two.append(spent_by(lambda: (forward(), forward())))
            steps.append(spent_by(partial(round_, number)))
        passes += [t.seconds for t in two]
        ratios = [a.seconds / b.seconds for a, b in zip(steps, two, strict=True)]

        def middle(name: str, two: list[Spent] = two, steps: list[Spent] = steps) -> list[float]:
            return [median(getattr(s, name) for s in of) for of in (two, steps)]

        faults, system, waits = (middle(name) for name in ("faults", "system", "waits"))
        print(
            f"| {label} | {median(s.seconds for s in steps):.3f} | {median(ratios):.2f} | "
            f"{min(ratios):.2f}, "
            f"{max(ratios):.2f} | {faults[0]:,.0f}, {faults[1]:,.0f} | {system[0]:.3f}, "
            f"{system[1]:.3f} | {waits[0]:.0f}, {waits[1]:.0f} |",
            flush=True,
        )
    # FedKSeed: a whole round, with what it costs to take up the plan's model and to put it back,
    # and a step alone
    rounds = {}
    for steps in (20, 4):
        method = FedKSeed(basis="hadamard", candidates=4096, learning_rate=1e-9, steps=steps)
        rounds[steps], _ = one_client(method, opt_125m())
        rounds[steps](1)
    whole, alone, spent = [], [], []
    for number in range(2, 7):
        two = [_seconds(forward) + _seconds(forward)]
        long, short = (_seconds(lambda n=number, s=steps: rounds[s](n)) for steps in (20, 4))
        two.append(_seconds(forward) + _seconds(forward))
        passes_now = sum(two) / 2
        spent.append((long / 20, (long - short) / 16))
        whole.append(spent[-1][0] / passes_now)
        alone.append(spent[-1][1] / passes_now)
    for label, of, ratios in (("a round of 20 steps / 20", 0, whole), ("a step of it", 1, alone)):
        seconds = median(pair[of] for pair in spent)
        print(
            f"| FedKSeed, hadamard, {label} | {seconds:.3f} | {median(ratios):.2f} "
            f"| {min(ratios):.2f}, {max(ratios):.2f} | | | |"
        )
    slow = timed(published, 1, 0)
    print(f"| the published code's way | {slow:.3f} | {slow / median(passes):.2f} | | | | |")
    print(f"two forward passes: {median(passes):.3f} s")


def ferret() -> None:
    """A Ferret round: what projection and rebuild are of it."""
    print(
        "\n| Ferret round, 10 iterations x 128 tokens, K = 8,000, hadamard | local | projection | "
        "rebuild | share |"
    )
    print("|---|---|---|---|---|")
    for streaming in (False, True):
        model = opt_125m()
        training = LocalTraining(learning_rate=1e-6, steps=10, batch=1, accumulation=1)
        method = Ferret(
            directions=8000,
            basis="hadamard",
            blocks="one",
            allocation="size",
            seeds="shared",
            training=training,
            streaming=streaming,
        )
        worker = Worker(model, method, Ready(), 1)
        coordinator = Coordinator(method, worker.space.layout, 1, [16], 1)
        rounds = []
        for number in range(1, 4):
            coordinator.open(number)
            answer = worker.train(coordinator.plan(0), 0, examples(16))
            assert answer.message is not None, answer.reason
            coordinator.receive(answer.message, 0)
            message = coordinator.close().encode()
            begin = time.perf_counter()
            worker.apply(message)
            seconds = answer.cost.seconds
            rounds.append((seconds["local"], seconds["projection"], time.perf_counter() - begin))
        local, projection, rebuild = (median(r[i] for r in rounds[1:]) for i in range(3))
        share = (projection + rebuild) / (local + projection + rebuild)
        name = "streaming" if streaming else "ordinary"
        print(f"| {name} | {local:.2f} s | {projection:.3f} s | {rebuild:.3f} s | {share:.1%} |")


def peak_of(act: Callable[[], Any]) -> tuple[float, float]:
    """Resident MB before, and at the peak while `act` runs (Linux)."""

    def field(name: str) -> float:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
        raise OSError(f"/proc/self/status has no {name}")

    before = field("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    act()
    return before, field("VmHWM")


def child(name: str) -> None:
    """One measurement of memory, in a process of its own; prints MiB before and at the peak."""
    torch.set_num_threads(2)
    model = opt_125m()
    items, objective = examples(16), Ready()
    if name == "forward":

        def act() -> None:
            with torch.no_grad():
                objective.losses(model, items[:1]).sum()

    elif (
        name == "activations"
    ):  # of forward and backward: the gradient of one small tensor at the very bottom
        for key, p in model.named_parameters():
            p.requires_grad_("embed_positions" in key)

        def act() -> None:
            objective.losses(model, items[:1]).sum().backward()  # type: ignore[no-untyped-call]

    elif name in ("feedsign", "fedkseed"):
        method: Method = FeedSign(basis="rademacher", learning_rate=1e-9, batch=1)
        if name != "feedsign":
            method = FedKSeed(basis="hadamard", candidates=4096, learning_rate=1e-9, steps=2)
        round_, _ = one_client(method, model)

        def act() -> None:
            round_(1)
            round_(2)

    else:
        training = LocalTraining(learning_rate=1e-6, steps=3, batch=1, accumulation=1)
        method = Ferret(
            directions=8000,
            basis="hadamard",
            blocks="one",
            allocation="size",
            seeds="shared",
            training=training,
            streaming=name == "streaming",
        )
        round_, _ = one_client(method, model)

        def act() -> None:
            round_(1)

    # compile first: compilers need memory of their own
    tiny = ParameterSpace(torch.nn.Linear(300, 300))
    for kind in ("hadamard", "rademacher"):
        tiny.add(Basis(kind, size=8000), [1.0], 1e-3)
        tiny.project(torch.zeros(tiny.size), Basis(kind, size=8000), 2)
    before, peak = peak_of(act)
    print(f"{before} {peak}")


def memory() -> None:
    """Peak resident memory of a step and of a streaming round, each in a process of its own."""
    found = {}
    for name in ("forward", "feedsign", "fedkseed", "activations", "ordinary", "streaming"):
        out = subprocess.run(
            [sys.executable, __file__, "--child", name], capture_output=True, text=True, check=True
        )
        found[name] = [float(x) for x in out.stdout.split()]
    largest = 50_272 * 768 * 4 / 2**20
    print("\n| memory, MiB | before | peak |\n|---|---|---|")
    for name, (before, peak) in found.items():
        print(f"| {name} | {before:.0f} | {peak:.0f} |")
    for name in ("feedsign", "fedkseed"):
        print(
            f"{name}: {found[name][1] / found['forward'][1]:.3f} times a plain forward pass's peak"
        )
    over = found["streaming"][1] - found["activations"][1]
    print(
        f"streaming Ferret: weights + activations + {over / largest:.2f} times the largest layer "
        f"({largest:.0f} MiB)"
    )


def growth() -> None:
    """Time over d and over K, as pictures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (over_d, over_k) = plt.subplots(1, 2, figsize=(10, 4))
    sizes = [1 << n for n in range(16, 27, 2)]
    counts = [16, 64, 256, 1024, 4096, 16384]
    bare = []
    for kind in ("hadamard", "rademacher", "normal"):
        spent = []
        for size in sizes:
            space = ParameterSpace(torch.nn.ParameterList([torch.zeros(size)]))
            spent.append(timed(lambda s=space, k=kind: s.add(Basis(k, 1), [1.0], 1e-3), 9))
            if kind == "hadamard":
                bare.append(timed(lambda s=space: s.parameters[0].data.add_(1.0), 9))
        over_d.loglog(sizes, [s * 1e3 for s in spent], marker="o", label=kind)
        print(
            f"one direction, {kind}: "
            + ", ".join(f"{d:,}: {s * 1e3:.2f} ms" for d, s in zip(sizes, spent, strict=True))
        )
    over_d.loglog(sizes, [s * 1e3 for s in bare], "k--", label="bare w.add_(1.0)")
    over_d.set(
        xlabel="d, parameters", ylabel="milliseconds", title="one direction added to the weights"
    )
    for size in (1 << 24, 1 << 27):  # the larger one is drawn
        space = ParameterSpace(torch.nn.ParameterList([torch.zeros(size)]))
        change = torch.randn(size)
        for kind, what in product(("hadamard", "rademacher"), ("add", "project")):
            if kind == "rademacher" and size < 1 << 27:
                continue
            spent = []
            for count in counts if kind == "hadamard" else counts[:4]:
                basis = Basis(kind, 1, size=count)
                c = np.full(count, 1e-3, dtype=np.float32)
                act = (
                    partial(space.add, basis, c, 1e-3)
                    if what == "add"
                    else partial(space.project, change, basis, count)
                )
                spent.append(timed(act, 15 if kind == "hadamard" else 1))
            if size == 1 << 27:
                over_k.loglog(
                    counts[: len(spent)],
                    [s * 1e3 for s in spent],
                    marker="o",
                    label=f"{what}, {kind}",
                )
            if kind == "hadamard":
                print(
                    f"{what}, hadamard, d = {size:,}: "
                    + ", ".join(
                        f"K = {k:,}: {s * 1e3:.2f} ms" for k, s in zip(counts, spent, strict=True)
                    )
                )
                print(f"   largest / smallest: {max(spent) / min(spent):.2f}")
    over_k.set(
        xlabel="K, directions",
        ylabel="milliseconds",
        title=f"K directions at once, d = {size / 1e6:.1f} million",
    )
    for axes in (over_d, over_k):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.tight_layout()
    PICTURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURES / "growth.png", dpi=110)
    print(f"Picture: {PICTURES / 'growth.png'}")


PARTS = {
    "kernels": kernels,
    "lowrank": lowrank,
    "step": step,
    "ferret": ferret,
    "memory": memory,
    "growth": growth,
}


def run_parts(
    parts: Mapping[str, Callable[[], None]], child: Callable[[str], None], about: str | None
) -> None:
    """A benchmark's command line: the parts that are asked for, or what a part runs in a process of
    its own.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0] if about else None)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=[])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return
    for name in args.parts or parts:
        parts[name]()


if __name__ == "__main__":
    run_parts(PARTS, child, __doc__)
