"""Local steps and whole rounds beside the loops that people write themselves.

    python benchmarks/rounds.py [steps] [lora] [rounds] [--small] [--turns N]

Without names all parts run. The model is an encoder of 22.7 million parameters with random weights
(`--small`: of 0.3 million, to see that all parts work); a batch has 8 examples of 24 tokens; one
thread. Every row has processor and wall seconds, each the least of some turns, which are taken in
turn, so that a busy machine slows all rows alike; ratios are of processor seconds.

    steps    AdamW: a client of FedAvg, a plain loop with `fused=True`, transformers' Trainer
    lora     the same with LoRA of rank 8: a client of FedAvg on it, a plain loop over peft's model
    rounds   what a round costs besides the steps of its clients: FedAvg, Ferret in bits
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from fedseed import FedAvg, Federation, Ferret, ParameterSpace
from fedseed.methods import Method
from fedseed.objectives.losses import Supervised
from fedseed.training.client import LocalClient
from fedseed.training.settings import LocalTraining

SIZES: Mapping[bool, dict[str, int]] = {
    False: {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    True: {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "vocab_size": 12_000,
    },
}
CLASSES, BATCH, LENGTH, STEPS, ROUNDS, WARM = 12, 8, 24, 5, 4, 1
RATE = 1e-4
Seconds = tuple[float, float]  # processor, wall


class Classifier(torch.nn.Module):
    """A text classifier whose only input is token ids and whose only output is logits."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (batch, classes)."""
        logits: torch.Tensor = self.inner(input_ids=ids).logits
        return logits


def encoder(small: bool, lora: bool = False) -> Any:
    """Return the encoder with a classification head, without dropout; perhaps with LoRA."""
    torch.manual_seed(0)
    config = BertConfig(
        num_attention_heads=12,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **SIZES[small],
    )
    model = BertForSequenceClassification(config)
    if not lora:
        return model
    return get_peft_model(
        model, LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"], lora_dropout=0.0)
    )


def examples(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of random token ids and a class."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 10_000, (count, LENGTH), generator=generator)
    return list(zip(ids, torch.randint(0, CLASSES, (count,), generator=generator), strict=True))


def spent(work: Callable[[], Any]) -> Seconds:
    """Return what some work takes."""
    processor, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - wall


def least(rows: Mapping[str, Callable[[], Seconds]], turns: int) -> dict[str, Seconds]:
    """Return the least processor and wall seconds of each row, measured by turns."""
    found: dict[str, list[Seconds]] = {name: [] for name in rows}
    for _ in range(turns):
        for name, measure in rows.items():
            found[name].append(measure())
    return {
        name: (min(one[0] for one in seen), min(one[1] for one in seen))
        for name, seen in found.items()
    }


def show(title: str, rows: Mapping[str, Seconds], first: str) -> None:
    """Print a table; ratios are to the row called `first`."""
    print(f"\n{title}\n{'':34}processor   wall  ratio")
    for name, (processor, wall) in rows.items():
        print(f"{name:34}{processor:9.4f}{wall:7.3f}{processor / rows[first][0]:7.2f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the process so far: {peak:,.0f} MB", flush=True)


def client_steps(small: bool, lora: bool) -> Seconds:
    """Return the seconds of one of a client's steps: of six less of one, so without its set-up."""
    space = ParameterSpace(Classifier(encoder(small, lora)))
    objective = Supervised(torch.nn.CrossEntropyLoss(reduction="none"))
    items = objective.prepare(examples(64))

    def train(steps: int) -> Seconds:
        client = LocalClient(space, objective, items, seed=1, round=1, number=0)
        training = LocalTraining(
            optimizer="adamw", learning_rate=RATE, steps=steps, batch=BATCH, accumulation=1
        )
        try:
            return spent(lambda: client.first_order(training))
        finally:
            client.put_back()

    one, many = train(WARM), train(WARM + STEPS)
    return (many[0] - one[0]) / STEPS, (many[1] - one[1]) / STEPS


def plain_steps(small: bool, lora: bool) -> Seconds:
    """Return the seconds of one step of a plain loop with torch's fused AdamW."""
    model = Classifier(encoder(small, lora)).train()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=RATE, fused=True
    )
    data = examples(64)

    def train(steps: int) -> None:
        for number in range(steps):
            batch = [data[(number * BATCH + i) % len(data)] for i in range(BATCH)]
            ids, classes = (torch.stack(part) for part in zip(*batch, strict=True))
            torch.nn.functional.cross_entropy(model(ids), classes).backward()
            optimizer.step()
            optimizer.zero_grad()

    train(WARM)
    processor, wall = spent(lambda: train(STEPS))
    return processor / STEPS, wall / STEPS


def trainer_steps(small: bool) -> Seconds:
    """Return the seconds of one step of transformers' Trainer: of six less of one."""
    rows = [{"input_ids": ids, "labels": label} for ids, label in examples(64)]

    def train(steps: int) -> Seconds:
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=BATCH,
                learning_rate=RATE,
                lr_scheduler_type="constant",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                max_grad_norm=0.0,
            )
            trainer = Trainer(encoder(small), arguments, train_dataset=rows)
            return spent(trainer.train)

    one, many = train(WARM), train(WARM + STEPS)
    return (many[0] - one[0]) / STEPS, (many[1] - one[1]) / STEPS


def round_besides_steps(small: bool, method: Method) -> Seconds:
    """Return the seconds of a round with one client, less those of its local steps.

    The run writes its files and hashes its weights after every round, as by default.
    """
    local = [0.0, 0.0]
    plain = LocalClient.first_order

    def counted(client: LocalClient, training: LocalTraining) -> None:
        processor, wall = spent(lambda: plain(client, training))
        local[0], local[1] = local[0] + processor, local[1] + wall

    def run(rounds: int) -> Seconds:
        local[:] = 0.0, 0.0
        with tempfile.TemporaryDirectory() as folder:
            federation = Federation(
                Classifier(encoder(small)),
                [examples(16)],
                method,
                Supervised(torch.nn.CrossEntropyLoss(reduction="none")),
                rounds,
                out=folder,
                seed=1,
                progress=False,
            )
            processor, wall = spent(federation.run)
        return processor - local[0], wall - local[1]

    LocalClient.first_order = counted  # type: ignore[method-assign]
    try:
        run(1)  # imports and compiles what runs need
        one, many = run(1), run(1 + ROUNDS)
    finally:
        LocalClient.first_order = plain  # type: ignore[method-assign]
    return (many[0] - one[0]) / ROUNDS, (many[1] - one[1]) / ROUNDS


def main() -> None:
    """Measure the parts that are asked for and print their tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=("steps", "lora", "rounds", []), default=[])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    parts, small = given.parts or ["steps", "lora", "rounds"], given.small
    loop = "plain loop, fused AdamW"
    if "steps" in parts:
        rows = {
            loop: lambda: plain_steps(small, False),
            "a client of FedAvg": lambda: client_steps(small, False),
            "transformers' Trainer": lambda: trainer_steps(small),
        }
        show("a local step, AdamW", least(rows, given.turns), loop)
    if "lora" in parts:
        rows = {
            loop: lambda: plain_steps(small, True),
            "a client of FedAvg": lambda: client_steps(small, True),
        }
        show("a local step, LoRA of rank 8", least(rows, given.turns), loop)
    if "rounds" in parts:
        training: dict[str, Any] = {
            "learning_rate": RATE,
            "steps": 1,
            "batch": BATCH,
            "accumulation": 1,
        }
        space = ParameterSpace(Classifier(encoder(small)))
        bits = Ferret(
            directions=space.size // 100,
            basis="hadamard",
            blocks="one",
            seeds="shared",
            scalars="bit",
            training={**training, "optimizer": "sgd"},
        )
        fedavg = FedAvg(training={**training, "optimizer": "adamw"})
        rows = {
            "copy of the weights": lambda: spent(space.snapshot),
            "digest": lambda: spent(space.digest),
            "FedAvg, one client": lambda: round_besides_steps(small, fedavg),
            "Ferret in bits, one client": lambda: round_besides_steps(small, bits),
        }
        show("a round besides its local steps", least(rows, given.turns), "digest")


if __name__ == "__main__":
    main()
