"""A client's memory and step time: the method `subspace` beside peft's LoRA and FedAvg.

    python benchmarks/subspace.py                  # OPT-125M's shapes, bfloat16 and float32
    python benchmarks/subspace.py --shape 1.1b     # TinyLlama's shapes, bfloat16: 16 GiB of memory

LoRA has the same targets and the same rank, and is trained by a plain loop; FedAvg trains all
weights. All have AdamW and the same batch: 4 examples of 128 tokens. Memory is the peak of the
process's resident memory while it trains, less what it had with the weights loaded. Each
measurement is a process of its own; the weights are random.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

RANK, BATCH, LENGTH, STEPS = 16, 4, 128, 6
SHAPES = ("125m", "1.1b")
KINDS = ("subspace", "lora", "fedavg")


def build(shape: str, dtype: str) -> Any:
    """Return a language model with random weights."""
    import torch
    import transformers

    torch.set_default_dtype(getattr(torch, dtype))
    if shape == "125m":
        model = transformers.OPTForCausalLM(transformers.OPTConfig())
    else:
        config = transformers.LlamaConfig(
            vocab_size=32000,
            hidden_size=2048,
            intermediate_size=5632,
            num_hidden_layers=22,
            num_attention_heads=32,
            num_key_value_heads=4,
        )
        model = transformers.LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model.eval()


def steps_of(kind: str, model: Any, batches: list[Any]) -> tuple[Callable[[], None], int]:
    """Return a function that trains for one local round of len(batches) steps, and how many numbers
    it trains.
    """
    import torch

    from fedseed.models.targets import freeze_others, linear_parameters

    targets = linear_parameters(model)
    if kind == "lora":
        import peft

        names = sorted({name.split(".")[-2] for name in targets})
        config = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=names)
        tuned = peft.get_peft_model(model, config).train()
        trained = [p for p in tuned.parameters() if p.requires_grad]

        def train_lora() -> None:
            optimizer = torch.optim.AdamW(trained, lr=1e-4)
            for ids in batches:
                optimizer.zero_grad(set_to_none=True)
                tuned(input_ids=ids, labels=ids).loss.backward()
                optimizer.step()

        return train_lora, sum(p.numel() for p in trained)

    from fedseed import ParameterSpace
    from fedseed.training.client import LocalClient
    from fedseed.training.settings import LocalTraining
    from fedseed.weights.subspace import RandomSubspace

    class Language:
        """Makes losses of token sequences; each counts as one term."""

        differentiable = True

        def losses(self, model: Any, items: Any) -> Any:
            ids = torch.stack(list(items))
            return model(input_ids=ids, labels=ids).loss.expand(len(items))

        def weight(self, item: Any) -> int:
            return 1

    if kind == "subspace":
        freeze_others(model, targets)
    space = ParameterSpace(model)
    objective: Any = Language()
    training = LocalTraining(
        optimizer="adamw",
        learning_rate=1e-4,
        steps=len(batches),
        batch=BATCH,
        accumulation=1,
    )
    items = [ids for batch in batches for ids in batch]
    subspace = RandomSubspace(7, RANK)

    def train_client() -> None:
        client = LocalClient(space, objective, items, 1, 1, 0)
        if kind == "subspace":
            client.train_factors(training, subspace)
        else:
            client.first_order(training)
            client.put_back()

    numbers = sum(subspace.factor_sizes(space.layout)) if kind == "subspace" else space.size
    return train_client, numbers


def measure(kind: str, shape: str, dtype: str) -> dict[str, float]:
    """Return the peak beyond the loaded weights in bytes, and seconds of processor time a step."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build(shape, dtype)
    batches = [torch.randint(5, 30000, (BATCH, LENGTH)) for _ in range(2)]
    train, numbers = steps_of(kind, model, batches)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = resident("VmRSS")
    train()
    peak = resident("VmHWM")
    seconds = []
    for _ in range(STEPS // 2):
        begin = time.process_time()
        train()
        seconds.append((time.process_time() - begin) / len(batches))
    return {"extra": peak - before, "weights": before, "numbers": numbers, "seconds": min(seconds)}


def resident(field: str) -> int:
    """Return a field of this process's memory in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) << 10
    raise KeyError(field)


def main() -> None:
    """Measure each kind in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="125m")
    parser.add_argument("--dtype", nargs="*", default=None)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    dtypes = options.dtype or (["bfloat16", "float32"] if options.shape == "125m" else ["bfloat16"])
    titles = ["shape", "dtype", "trained", "numbers", "peak beyond weights", "of LoRA's"]
    print("|", " | ".join([*titles, "s a step", "of LoRA's"]), "|")
    print("|---|---|---|---|---|---|---|---|")
    for dtype in dtypes:
        found = {}
        for kind in KINDS:
            runs = []
            for _ in range(options.repeats):
                command = [sys.executable, __file__, "--one", kind, options.shape, dtype]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
            found[kind] = {key: median(run[key] for run in runs) for key in runs[0]}
        for kind, one in found.items():
            lora = found["lora"]
            print(
                f"| {options.shape} | {dtype} | {kind} | {one['numbers']:,.0f} "
                f"| {one['extra'] / 1e6:,.0f} MB | {one['extra'] / lora['extra']:.2f} "
                f"| {one['seconds']:.2f} | {one['seconds'] / lora['seconds']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
