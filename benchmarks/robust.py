"""What an aggregation rule costs the coordinator: seconds and memory, beside a whole round of its
work with the mean.

    python benchmarks/robust.py [--clients 1000] [--coefficients 8192] [--liars 100] [--repeats 3]

A round of Ferret with a shared seed, at the coordinator alone: updates of random numbers are
received (decoded, checked, counted) and combined, and the step is encoded and read again. Medians
of the processor's seconds. Memory is what NumPy takes at its peak while the round is closed,
besides the updates, which are held anyway.
"""

import argparse
import time
import tracemalloc
from statistics import median

import numpy as np

from fedseed.aggregation import (
    AggregationRule,
    CentredClipping,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NormBound,
    TrimmedMean,
)
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.federation.messages import Message, MessageKind
from fedseed.methods import Ferret
from fedseed.methods.ferret import Coefficients
from fedseed.weights.layout import Layout, TensorEntry

PARAMETERS = 1_000_000


def rules(liars: int) -> list[tuple[str, AggregationRule]]:
    """What is measured, by name."""
    plain: list[AggregationRule] = [
        Mean(),
        Median(),
        TrimmedMean(liars=liars),
        GeometricMedian(),
        CentredClipping(),
        NormBound(),
        Krum(liars=liars),
        MultiKrum(liars=liars),
    ]
    before: list[AggregationRule] = [
        Median(liars=liars, before=["arc"]),
        Median(before=["bucketing"]),
        Median(liars=liars, before=["nearest-neighbours"]),
        TrimmedMean(liars=liars, before=["arc", "nearest-neighbours"]),
    ]
    named = [(rule.name, rule) for rule in plain]
    return named + [("+".join([*rule.before, rule.name]), rule) for rule in before]  # type: ignore[attr-defined]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--coefficients", type=int, default=8192)
    parser.add_argument("--liars", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    n, k = args.clients, args.coefficients
    layout = Layout((TensorEntry("w", (PARAMETERS,), "float32"),), (0, PARAMETERS))
    method = Ferret(directions=k, seeds="shared", blocks="one", allocation="uniform")
    draw = np.random.default_rng(0)
    coefficients = (draw.normal(size=(n, k)) * 1e-3).astype(np.float32)
    print(f"{n} clients, {k} coefficients each, {args.liars} liars")
    usual = 0.0
    for name, rule in rules(args.liars):
        received, closed, peak = [], [], 0
        for repeat in range(args.repeats):
            coordinator = Coordinator(method, layout, 1, [1] * n, n, rule)
            picked = coordinator.open(1)
            seed = method.round_seed(coordinator.state, 1)
            messages = [
                Message(
                    MessageKind.UPDATE,
                    method.code,
                    1,
                    c,
                    Coefficients(seed, (coefficients[c],)).encode(),
                ).encode()
                for c in picked
            ]
            start = time.process_time()
            for client, message in zip(picked, messages, strict=True):
                coordinator.receive(message, client)
            coordinator.screen()
            middle = time.process_time()
            if repeat == 0:  # memory in a turn of its own: looking at it takes time
                tracemalloc.start()
                coordinator.close()
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                continue
            coordinator.close()
            received.append(middle - start)
            closed.append(time.process_time() - middle)
        one, all_ = median(closed), median(received) + median(closed)
        usual = usual or all_
        print(
            f"{name:>32}: {one:7.3f} s to combine, {one / usual:6.1%} of a round with the mean "
            f"({usual:.3f} s), {peak / 1e6:6.1f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
