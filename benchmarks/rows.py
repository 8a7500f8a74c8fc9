"""A pass over a batch whose rows have weights of their own, against a plain pass of the same batch.

    python benchmarks/rows.py [--rows 16] [--tokens 128] [--rank 1] [--runs 7] [--dtype float32]
    [--device cpu]

OPT-125M's shapes with random weights, about three minutes on two cores. Plain passes and others
take turns, so that what else the machine does hits both; the ratio is the median of each pair's.
Processor time counts what this process computed, on all threads: it hardly changes where others
take turns on the cores.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from speed import opt_125m

from fedseed import Basis, ParameterSpace

SIZES = {
    "125m": {},
    "1.3b": {
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "ffn_dim": 8192,
        "num_attention_heads": 32,
        "word_embed_proj_dim": 2048,
    },
}


def seconds(act: Callable[[], object], device: str) -> tuple[float, float]:
    """(wall clock, processor time) of one call."""
    wall, busy = time.perf_counter(), time.process_time()
    act()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - busy


def main() -> None:
    """Time the passes and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--size", choices=list(SIZES), default="125m")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    model = opt_125m(getattr(torch, args.dtype), args.device, **SIZES[args.size])
    space = ParameterSpace(model)
    basis = Basis("lowrank", 1, rank=args.rank)
    ids = torch.randint(
        5, 50_000, (args.rows, args.tokens), generator=torch.Generator().manual_seed(1)
    ).to(args.device)
    mask = torch.ones_like(ids)
    at = iter(range(0, 1 << 30, args.rows))

    def plain() -> None:
        with torch.no_grad():
            model(input_ids=ids, attention_mask=mask, use_cache=False)

    def rows() -> None:
        first = next(at)
        with space.perturbed_rows(basis, range(first, first + args.rows), 1e-3) as used:
            model(input_ids=ids, attention_mask=mask, use_cache=False)
        assert used.reason is None, used.reason

    plain(), rows()
    pairs = [(seconds(plain, args.device), seconds(rows, args.device)) for _ in range(args.runs)]
    print(
        f"OPT-{args.size}, {args.dtype}, {args.rows} rows of {args.tokens} tokens, as many "
        f"directions, rank {args.rank}"
    )
    for column, name in enumerate(("wall clock", "processor time")):
        one, many = median(p[column] for p, _ in pairs), median(r[column] for _, r in pairs)
        ratio = median(r[column] / p[column] for p, r in pairs)
        print(f"  {name}: plain {one:.2f} s, rows {many:.2f} s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
