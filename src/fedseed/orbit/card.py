"""The model card of a folder that a replay writes: what the model is made of, and how to make it again."""

import json

from fedseed.orbit.file import Orbit


def card(orbit: Orbit, step: int, digest: str, name: str) -> str:
    """README.md of a replayed model.

    Args:
        orbit: what was replayed.
        step: up to which step.
        digest: the weights' digest.
        name: the orbit file's name.
    """
    header = orbit.header
    layout = header.layout
    base = header.base.rstrip("/").rsplit("/", 1)[-1] if _is_path(header.base) else header.base
    settings = "\n".join(f"| {key} | `{json.dumps(value)}` |" for key, value in header.method.model_dump().items())
    upto = "" if step == orbit.last else f" --upto {step}"
    kind = "" if header.digest_kind == "blake2b" else f" ({header.digest_kind}, as are all digests here)"
    front = f"base_model: {base}\n" if "/" in base else ""
    return f"""---
{front}tags:
- fedseed
---

# {base or "model"} + {name}

This model is the base `{base}` plus an orbit: {step:,} steps of `{header.method.name}` ({header.method.about}). The
weights are those of the federated run, bit for bit; the digest says so.

| | |
|---|---|
| base | `{base}`, {header.dtype}, digest `{header.base_digest}`{kind} |
| trained | {layout.size:,} parameters in {len(layout.tensors)} tensors{_patterns(header.trainable)} |
| steps | {step:,} of {orbit.last:,} |
| orbit | {orbit.size:,} bytes; the trained weights have {layout.dense_bytes:,} |
| seed of the run | {header.seed} |
| digest of the trained weights | `{digest}` |

Settings of the method:

| setting | value |
|---|---|
{settings}

Made with `fedseed orbit replay {name}{upto} --out FOLDER`.
"""


def _is_path(base: str) -> bool:
    return base.startswith((".", "/", "~")) or base.count("/") > 1


def _patterns(trainable: tuple[str, ...] | None) -> str:
    return "" if trainable is None else f" (those named {', '.join(f'`{p}`' for p in trainable)})"
