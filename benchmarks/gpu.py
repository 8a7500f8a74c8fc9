"""Everything that is to be tried on a GPU, in one command: `make gpu`.

    python benchmarks/gpu.py [same] [perturbed] [rounds] [speed] [--sizes 125m 1.3b 3b] [--out FILE]

same         the Triton kernels give the CPU's bits: every basis and dtype, awkward places, lengths
and widths
perturbed    a look at w + scale * v gives the loss that the moved weights give, and leaves the
weights' bits alone
rounds       rounds of every method on the GPU; the orbits are replayed on the CPU to the same
digests
speed        seconds and memory at the shapes of OPT-125M, OPT-1.3B and LLaMA-3B with random
bfloat16 weights: a
             direction, a rebuild, a projection, a zeroth-order step, a Ferret round, a digest,
             beside plain torch

At most eight minutes on an H100; a part that would begin after `--budget` seconds is left out, and
the report says so. The report (Markdown) goes to the screen and into a file as it grows. Exits with
1 if any bits differ.

`--toy` runs all of it on a CPU through Triton's interpreter at sizes that take a minute: not for
its figures, but to see that nothing of it is broken before somebody borrows a GPU.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line sets it

import numpy as np
import torch
from speed import Ready
from transformers import AutoModelForCausalLM, LlamaConfig, OPTConfig

from fedseed import Basis, Federation, FedKSeed, FeedSign, Ferret, Orbit, ParameterSpace
from fedseed.federation.client.worker import Worker
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.methods import Method
from fedseed.models.loading import load_model
from fedseed.objectives.losses import Tokens
from fedseed.randomness import BASES
from fedseed.randomness.kernels import load
from fedseed.randomness.kernels.reference import Part
from fedseed.randomness.matrices import Matrices
from fedseed.recipe.packaged import packaged_recipes
from fedseed.recipe.reading import read_recipe
from fedseed.training.settings import LocalTraining
from fedseed.weights.change import Rebuild, Term
from fedseed.weights.devices import peak_on
from fedseed.weights.projection import project_change

TOY = os.environ.get("TRITON_INTERPRET") == "1"  # set by `main`, before the kernels are imported
DEVICE = torch.device("cpu" if TOY else "cuda")
DTYPES = ("float32", "bfloat16", "float16")
LENGTH, BATCH = (8, 2) if TOY else (256, 16)  # tokens of an example, examples of a batch
ITERATIONS = 2 if TOY else 10  # of a Ferret round
REBUILT, PROJECTED = (64, 64) if TOY else (4096, 8000)  # directions: FedKSeed's pool, Ferret's K
RUNS = 1 if TOY else 5  # medians are over so many, after one that compiles
# first element, elements: across tiles, chunks, a span and 32 bits; multiples of nothing
PLACES = [(0, 1), (3, 17), *([] if TOY else [(1000, 4097), (2**20 - 77, 1203), (2**33 + 5, 513)])]
LARGE = [] if TOY else [(12_345, 3_000_017)]
SIZES = {
    "125m": lambda: OPTConfig(dropout=0.0),
    "1.3b": lambda: OPTConfig(
        hidden_size=2048,
        num_hidden_layers=24,
        num_attention_heads=32,
        ffn_dim=8192,
        word_embed_proj_dim=2048,
        dropout=0.0,
    ),
    "3b": lambda: LlamaConfig(
        hidden_size=3200,
        num_hidden_layers=26,
        num_attention_heads=32,
        intermediate_size=8640,
        vocab_size=32_000,
        max_position_embeddings=2048,
    ),
    "toy": lambda: OPTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=24,
        vocab_size=64,
        word_embed_proj_dim=16,
        max_position_embeddings=64,
        dropout=0.0,
    ),
}

began = time.perf_counter()


class Report:
    """Markdown on the screen and in a file.

    Args:
        path: the file; replaced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wrong = 0  # comparisons that failed
        path.write_text("", encoding="utf-8")

    def say(self, text: str = "") -> None:
        """A line."""
        print(text, flush=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(text + "\n")

    def table(self, *names: str) -> None:
        """A table's head."""
        self.say()
        self.row(*names)
        self.say("|" + "---|" * len(names))

    def row(self, *cells: str) -> None:
        """A table's row."""
        self.say("| " + " | ".join(cells) + " |")

    def check(self, what: str, same: bool) -> None:
        """Count a comparison; one that fails is a line."""
        if not same:
            self.wrong += 1
            self.say(f"- **differs**: {what}")


def wait() -> None:
    """Return when the device has done everything."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def seconds(act: Callable[[], Any], runs: int = RUNS) -> float:
    """Median seconds, the device's work included, after a run that compiles."""
    act()
    spent = []
    for _ in range(runs):
        wait()
        begin = time.perf_counter()
        act()
        wait()
        spent.append(time.perf_counter() - begin)
    return median(spent)


def milliseconds(value: float) -> str:
    """As a table has it."""
    return f"{value * 1e3:,.2f} ms"


# -- the same bits
# ------------------------------------------------------------------------------------------------


def stored(values: np.ndarray, dtype: str) -> torch.Tensor:
    """Weights of a dtype on the device."""
    return torch.from_numpy(values).to(getattr(torch, dtype)).to(DEVICE)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's elements as the CPU's kernels take them."""
    here = tensor.detach().cpu()
    return (
        here.numpy()
        if here.dtype == torch.float32
        else here.view(torch.int16).numpy().view(np.uint16)
    )


def same(report: Report, _: argparse.Namespace) -> None:
    """The kernels."""
    gpu, cpu = load("triton"), load("cpu")
    rng, count = np.random.default_rng(1), 0
    for name in BASES:
        for start, size in [*PLACES, *LARGE]:
            values = rng.normal(size=size).astype(np.float32)
            length = max(size, 5000)
            # `lowrank` alone looks at them
            matrices = Matrices([(start,), (size // 33, 33), (size % 33,)])
            for dtype in DTYPES:
                spec = Basis(name, 2**63 + 11, size=64, rank=2).spec_on(matrices)
                parts = [Part(spec, 61, rng.normal(size=7).astype(np.float32))]
                w = stored(values, dtype)
                out, expected = torch.empty_like(w), np.empty_like(as_array(w))
                gpu.move(out, w, dtype, gpu.prepare(parts, length), -1.3, start)
                cpu.move(expected, as_array(w), dtype, cpu.prepare(parts, length), -1.3, start)
                report.check(
                    f"move, {name}, {dtype}, {size} from {start}",
                    bool((as_array(out) == expected).all()),
                )
                count += 1
            for directions, tile in ((1, 64), (150, 64), *([] if TOY else [(4099, 4096)])):
                spec, x = Basis(name, 7, size=tile).spec_on(matrices), stored(values, "float32")
                found = gpu.project(spec, 3, directions, x, start, length)
                known = cpu.project(spec, 3, directions, as_array(x), start, length)
                report.check(
                    f"project, {name}, {directions} directions, {size} from {start}",
                    bool((found.view(np.uint32) == known.view(np.uint32)).all()),
                )
                count += 1
    report.say(f"{count} comparisons of kernels with the CPU's bits, {report.wrong} differ.")


def perturbed(report: Report, _: argparse.Namespace) -> None:
    """Looks at moved weights."""
    before = report.wrong
    looks = [(dtype, name) for dtype in DTYPES for name in BASES]
    for dtype, name in looks[::3] if TOY else looks:
        model = random_model("toy" if TOY else "125m", dtype)
        space, objective, items = ParameterSpace(model), Ready(), examples(2)
        digest, basis = space.digest(), Basis(name, 3)
        with torch.no_grad():
            with space.perturbed(basis, 5, 1e-2):
                looked = objective.losses(model, items)
            report.check(f"weights after a look, {name}, {dtype}", space.digest() == digest)
            space.add(basis, np.ones(1, dtype=np.float32), 1e-2, first=5)
            moved = objective.losses(model, items)
        report.check(f"loss at moved weights, {name}, {dtype}", torch.equal(looked, moved))
        report.check(f"a look moves nothing, {name}, {dtype}", space.digest() != digest)
    report.say(
        f"Looks at perturbed weights in every basis and dtype: {report.wrong - before} differ."
    )


# -- rounds
# ------------------------------------------------------------------------------------------------


def rounds(report: Report, _: argparse.Namespace) -> None:
    """Every method, on the GPU; replayed on the CPU."""
    report.table("method", "dtype", "seconds", "loss", "replayed on the CPU")
    small = [name for name in packaged_recipes() if name.startswith("small-")]
    with tempfile.TemporaryDirectory() as folder:
        base = tiny_base(Path(folder) / "base") if TOY else "small"
        for name in ["small-feedsign", "small-ferret", "small-fedavg"] if TOY else small:
            for dtype in ("float32",) if TOY else ("float32", "bfloat16"):
                one_run(report, name, base, dtype)


def tiny_base(folder: Path) -> str:
    """A base that the interpreter is through with in seconds."""
    tokenizer = load_model("small")[1]
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
    }
    config = LlamaConfig(
        **sizes,
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def one_run(report: Report, name: str, base: str, dtype: str) -> None:
    """Two rounds of a recipe, shortened."""
    settings = read_recipe(name).method.model_dump()
    short = [f"method.{key}=2" for key in ("steps",) if key in settings]
    short += ["method.training.steps=2"] * ("training" in settings)
    if TOY:
        short += ["rounds=1", "evaluation.every=1"]
    alone = ["task.clients=1", "federation.per_round=1"] if name == "small-mezo" or TOY else []
    overrides = [
        f"model.base={base}",
        f"model.device={DEVICE.type}",
        f"model.dtype={dtype}",
        "rounds=2",
        "evaluation.every=2",
        "task.clients=3",
        "federation.per_round=2",
        "task.examples=8",
        "task.evaluation=2",
        "task.unseen=0",
        "evaluation.max_new_tokens=2",
        *alone,
        *short,
    ]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        summary = Federation.from_file(name, overrides, out=out).run().summary
        spent = time.perf_counter() - begin
        path = out / "model.orbit"
        if path.exists():
            chosen, os.environ["FEDSEED_KERNELS"] = os.environ.get("FEDSEED_KERNELS", ""), ""
            orbit = Orbit.open(path)
            digest = orbit.replay(orbit.equip(load_model(base, dtype)[0]))
            os.environ["FEDSEED_KERNELS"] = chosen
            fits = digest == summary["weights_digest"]
            report.check(f"orbit of {name}, {dtype}", fits)
            verdict = "same digest" if fits else "**differs**"
        else:
            verdict = "whole weights: no orbit"
    report.row(summary["method"], dtype, f"{spent:.1f}", f"{summary['final']['loss']:.3f}", verdict)


# -- speed
# ------------------------------------------------------------------------------------------------


def random_model(size: str, dtype: str = "bfloat16") -> Any:
    """A model of a size with random weights, made on the device."""
    torch.manual_seed(0)
    with DEVICE:
        return AutoModelForCausalLM.from_config(SIZES[size](), dtype=getattr(torch, dtype)).eval()


def examples(count: int) -> list[Tokens]:
    """Random token sequences, all of them response but for the first token."""
    words = np.random.default_rng(1).integers(5, 60, (count, LENGTH)).tolist()
    return [Tokens(tuple(row), 1) for row in words]


def torch_direction(
    weights: Sequence[torch.Tensor], use: Callable[[torch.Tensor, torch.Tensor], Any]
) -> None:
    """One normal direction as the published code makes it; `use` gets each tensor and its part."""
    torch.manual_seed(7)
    for w in weights:
        use(w, torch.normal(0.0, 1.0, w.shape, device=w.device, dtype=w.dtype))


def forget_peak() -> None:
    """Let `peak_on` count from here on."""
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats(DEVICE)


def lines(size: str) -> Iterator[tuple[str, float, str]]:
    """(operation, seconds, note) at a size."""
    forget_peak()
    model = random_model(size)
    space = ParameterSpace(model)
    weights = [p.data for p in space.parameters]
    bare = seconds(lambda: [w.add_(1e-9) for w in weights])
    yield f"**{size}**: {space.size:,} parameters; a memory pass (w += 1e-9)", bare, ""
    plain = seconds(lambda: torch_direction(weights, lambda w, z: w.add_(z, alpha=1e-9)), 2)
    yield "torch: one normal direction added", plain, f"{plain / bare:.1f} passes"
    for name in BASES:
        spent = seconds(lambda n=name: space.add(Basis(n, 7), [1.0], 1e-12))
        yield (
            f"one {name} direction added",
            spent,
            f"{spent / bare:.1f} passes, {plain / spent:.1f} times torch",
        )
    coefficients = np.full(REBUILT, 1e-3, dtype=np.float32)
    space.keep_base()
    change = Rebuild([Term(Basis("hadamard", 7, size=REBUILT), coefficients)], 1e-9)
    spent = seconds(lambda: space.apply(change))
    space.release_base()
    yield (
        f"rebuild from {REBUILT:,} hadamard directions",
        spent,
        f"**{spent / bare:.2f} passes** (goal: 3), {plain * REBUILT / spent:,.0f} times torch",
    )
    along = Basis("hadamard", 3, size=PROJECTED), [PROJECTED]
    spent = seconds(partial(project_change, space.vector, space.snapshot(), *along))
    yield f"projection on {PROJECTED:,} hadamard directions", spent, f"{spent / bare:.1f} passes"
    spent = digest = seconds(space.digest, 1)
    yield "digest of the weights", spent, f"{space.layout.dense_bytes / spent / 1e9:.2f} GB/s"
    if (held := peak_on([DEVICE])) is not None:
        yield (
            "peak memory of all this",
            0,
            f"{held / 1e9:.1f} GB, {held / space.layout.dense_bytes:.2f} times weights",
        )
    yield from steps(model)
    yield from ferret_round(model, digest)


def a_round(method: Method, model: Any, clients: int = 1) -> tuple[Callable[[int], Any], Worker]:
    """What makes a whole round of one client, with messages, and applies the step."""
    worker = Worker(model, method, Ready(), 1)
    coordinator = Coordinator(method, worker.space.layout, 1, [4 * BATCH] * clients, clients)
    items = examples(4 * BATCH)

    def act(number: int) -> Any:
        coordinator.open(number)
        answer = worker.train(coordinator.plan(0), 0, items)
        assert answer.message is not None, answer.reason
        coordinator.receive(answer.message, 0)
        worker.apply(coordinator.close().encode())
        return answer

    return act, worker


def steps(model: Any) -> Iterator[tuple[str, float, str]]:
    """A zeroth-order step beside two forward passes, in turn."""
    objective, items = Ready(), examples(BATCH)

    @torch.no_grad()
    def forward() -> None:
        float(objective.losses(model, items).sum())

    for basis in ("rademacher",) if TOY else ("rademacher", "hadamard", "normal"):
        act, _ = a_round(FeedSign(basis=basis, learning_rate=1e-9, batch=BATCH), model)
        act(1)
        forward()
        pairs = []
        for number in range(2, 2 + (1 if TOY else 2 * RUNS)):
            wait()
            begin = time.perf_counter()
            forward()
            forward()
            middle = time.perf_counter()
            act(number)
            wait()
            pairs.append((time.perf_counter() - middle, middle - begin))
        spent = median(step for step, _ in pairs)
        ratio = median(step / two for step, two in pairs)
        yield (
            f"a FeedSign step, {basis}, batch {BATCH} x {LENGTH}",
            spent,
            f"**{ratio:.2f} times two forward passes** (goal: 1.2)",
        )
    count = 1 if TOY else 4
    act, worker = a_round(
        FedKSeed(
            basis="hadamard", candidates=REBUILT, learning_rate=1e-9, steps=count, batch=BATCH
        ),
        model,
    )
    spent = seconds(lambda: act(1), 2) if TOY else seconds(lambda: act(1))
    two = 2 * seconds(forward)
    yield (
        f"a FedKSeed round of {count} steps",
        spent,
        f"{spent / count / two:.2f} times two forward passes a step",
    )
    worker.space.release_base()


def ferret_round(model: Any, digest: float) -> Iterator[tuple[str, float, str]]:
    """A Ferret round of ten iterations: what projection, rebuild and digest are of it."""
    for streaming in (False, True):
        training = LocalTraining(learning_rate=1e-6, steps=ITERATIONS, batch=BATCH, accumulation=1)
        method = Ferret(
            directions=PROJECTED,
            basis="hadamard",
            blocks="one",
            allocation="size",
            seeds="shared",
            training=training,
            streaming=streaming,
        )
        forget_peak()
        act, worker = a_round(method, model)
        act(1)
        wait()
        begin = time.perf_counter()
        answer = act(2)
        whole = time.perf_counter() - begin
        parts = answer.cost.seconds
        held = peak_on([DEVICE])
        memory = (
            ""
            if held is None
            else f"; peak {held / worker.space.layout.dense_bytes:.2f} times weights"
        )
        kind = "streaming" if streaming else "ordinary"
        note = (
            f"projection {parts['projection'] / whole:.1%}, a digest would be "
            f"{digest / whole:.1%} (goal: 1%){memory}"
        )
        yield (
            f"a Ferret round, {kind}, {ITERATIONS} x {BATCH} x {LENGTH}, K = {PROJECTED:,}",
            whole,
            note,
        )


def speed(report: Report, args: argparse.Namespace) -> None:
    """Seconds and memory."""
    report.table("operation", "time", "")
    for size in ["toy"] if TOY else args.sizes:
        if over(args):
            report.say(f"(size {size} left out: the budget of {args.budget:.0f} s is spent)")
            continue
        for name, spent, note in lines(size):
            report.row(name, milliseconds(spent) if spent else "", note)
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()


# -- all of it
# ------------------------------------------------------------------------------------------------

PARTS = {"same": same, "perturbed": perturbed, "rounds": rounds, "speed": speed}


def over(args: argparse.Namespace) -> bool:
    """Whether the time is spent."""
    return time.perf_counter() - began > args.budget


def main() -> int:
    """Run the parts that are asked for; 1 if bits differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument(
        "--sizes",
        nargs="+",
        choices=[s for s in SIZES if s != "toy"],
        default=["125m", "1.3b", "3b"],
    )
    parser.add_argument(
        "--budget", type=float, default=420.0, help="seconds after which nothing more is begun"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-report.md"), help="the report's file")
    parser.add_argument("--toy", action="store_true", help="on a CPU, through Triton's interpreter")
    args = parser.parse_args()
    # Triton and the choice of kernels look at the environment when they are imported
    if args.toy and not TOY:
        os.environ.update(TRITON_INTERPRET="1", FEDSEED_KERNELS="triton")
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if not TOY and not torch.cuda.is_available():
        print(
            "No GPU here (torch finds none): `--toy` tries the command on a CPU.", file=sys.stderr
        )
        return 2
    report = Report(args.out)
    name = f"Triton's interpreter, {platform.machine()}" if TOY else torch.cuda.get_device_name()
    command = f"python benchmarks/gpu.py {' '.join(sys.argv[1:])}".strip()
    report.say(f"# {name}\n\n{datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, `{command}`")
    for part in args.parts or PARTS:
        report.say(f"\n## {part}\n")
        if over(args):
            report.say(f"(left out: the budget of {args.budget:.0f} s is spent)")
            continue
        PARTS[part](report, args)
    report.say(f"\n{time.perf_counter() - began:.0f} s in all; {report.wrong} comparisons differ.")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
