"""Make a base of random weights in the shapes of a published model: sharded safetensors, a shard at
a time.

    python scripts/make_random_base.py tinyllama-1.1b --out DIR
    python scripts/make_random_base.py opt-125m --out DIR --dtype float32
    python scripts/make_random_base.py opt-125m --out DIR --config-only
    python scripts/make_random_base.py --config FOLDER --out DIR --set num_hidden_layers=4

It learns nothing and says nothing sensible: it is for trying whether a machine can hold and tune a
model of that size. The same arguments give the same bytes on every machine; no more memory is taken
than a shard. The tokenizer is that of the project's small base, so texts can be read, and the
embeddings have rows beyond its tokens that nobody looks up.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from fedseed.models.loading import locate
from fedseed.randomness import Basis, Domain, derive

# shapes of published models; what is not named is what transformers takes for the type
SHAPES: dict[str, dict[str, Any]] = {
    "opt-125m": {"model_type": "opt"},
    "opt-1.3b": {
        "model_type": "opt",
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "ffn_dim": 8192,
        "word_embed_proj_dim": 2048,
    },
    "tinyllama-1.1b": {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
    },
    "llama-3b": {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 3200,
        "intermediate_size": 8640,
        "num_hidden_layers": 26,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
}
SPREAD = 0.02  # standard deviation of matrices; vectors are ones (norms' weights) or zeros
PIECE = 1 << 22  # elements that are drawn at a time
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def tensors_of(config: Any) -> tuple[str, list[tuple[str, tuple[int, ...]]]]:
    """A model's class, and names and shapes of what its checkpoint holds: tied tensors once."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return type(model).__name__, [(name, tuple(p.shape)) for name, p in model.named_parameters()]


def make(
    name: str, shape: tuple[int, ...], number: int, seed: int, dtype: torch.dtype
) -> torch.Tensor:
    """One tensor: N(0, SPREAD^2) from the shared stream, or what a vector starts as."""
    if len(shape) < 2:
        value = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        return torch.full(shape, value, dtype=dtype)
    out = torch.empty(prod(shape), dtype=dtype)
    basis = Basis("normal", derive(seed, Domain.HEAD, 0, number))
    for lo in range(0, len(out), PIECE):
        hi = min(lo + PIECE, len(out))
        out[lo:hi].copy_(torch.from_numpy(basis.direction(0, lo, hi)) * SPREAD)
    return out.view(shape)


def shards(
    tensors: list[tuple[str, tuple[int, ...]]], item: int, largest: int
) -> Iterator[list[tuple[int, str, tuple[int, ...]]]]:
    """Tensors in their order, dealt out to files of at most `largest` bytes (or one tensor)."""
    part: list[tuple[int, str, tuple[int, ...]]] = []
    size = 0
    for number, (name, shape) in enumerate(tensors):
        here = prod(shape) * item
        if part and size + here > largest:
            yield part
            part, size = [], 0
        part.append((number, name, shape))
        size += here
    yield part


def write(
    out: Path, tensors: list[tuple[str, tuple[int, ...]]], seed: int, dtype: str, shard_bytes: int
) -> int:
    """Write the weights; returns their bytes."""
    parts = list(shards(tensors, DTYPES[dtype], shard_bytes))
    where: dict[str, str] = {}
    total = 0
    for at, part in enumerate(parts, 1):
        file = (
            "model.safetensors"
            if len(parts) == 1
            else f"model-{at:05d}-of-{len(parts):05d}.safetensors"
        )
        made = {
            name: make(name, shape, number, seed, getattr(torch, dtype))
            for number, name, shape in part
        }
        save_file(made, out / file, {"format": "pt"})
        where.update(dict.fromkeys(made, file))
        total += sum(t.numel() * t.element_size() for t in made.values())
        print(f"{file}: {len(made)} tensors", flush=True)
        del made  # before the next shard's are drawn
    if len(parts) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (out / "model.safetensors.index.json").write_text(
            json.dumps(index, indent=1), encoding="utf-8"
        )
    return total


def configuration(args: argparse.Namespace) -> Any:
    """The model's configuration. Raises SystemExit if the arguments do not name one."""
    if (args.shape is None) == (args.config is None):
        raise SystemExit(f"give one of {', '.join(SHAPES)}, or --config FOLDER")
    if args.config is not None:
        config = AutoConfig.from_pretrained(args.config)
    else:
        shape = dict(SHAPES[args.shape])
        config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    for pair in args.set:
        key, _, value = pair.partition("=")
        setattr(config, key, json.loads(value))
    return config


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "shape", nargs="?", choices=sorted(SHAPES), help="a published model's shapes"
    )
    parser.add_argument("--config", type=Path, help="a folder with a config.json, instead")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a value of it, as JSON"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the base")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard-bytes", type=int, default=1 << 29, help="largest file")
    parser.add_argument(
        "--config-only", action="store_true", help="no weights: for `fedseed bench`"
    )
    args = parser.parse_args()

    config = configuration(args)
    small = Path(locate("small"))
    args.out.mkdir(parents=True, exist_ok=True)
    names = json.loads((small / "config.json").read_text(encoding="utf-8"))
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):  # the tokenizer's
        setattr(config, key, names[key])
    config.dtype = args.dtype
    name, tensors = tensors_of(config)
    config.architectures = [name]
    config.save_pretrained(args.out)
    for file in TOKENIZER_FILES:
        shutil.copy(small / file, args.out / file)
    if args.config_only:
        print(f"{args.out}: a configuration and a tokenizer")
        return
    total = write(args.out, tensors, args.seed, args.dtype, args.shard_bytes)
    print(f"{args.out}: {total:,} bytes of weights")


if __name__ == "__main__":
    main()
