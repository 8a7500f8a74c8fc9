"""Golden orbits, one per method and way of packing: python tests/orbit/golden/make.py writes what
NEW asks for.

None is ever written anew: files of older formats must be read for good. So what their steps were
made of is not kept; from its first day on a golden's steps are the file's. Nothing depends on a
machine: the base's weights are made of exact arithmetic, no training takes place."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from fedseed import Orbit, ParameterSpace
from fedseed.orbit import NO_DIGEST, Header, OrbitWriter, Record
from fedseed.weights.digest import base_digest
from fedseed.weights.layout import Layout

FOLDER = Path(__file__).parent
DIGESTS = FOLDER / "digests.json"
# of a new method: name -> (the method, its steps as messages); the line may go when the file is
# there
NEW = {}


def model(dtype):
    """The base: 29 weights, multiples of 1/64."""
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.Linear(3, 3), torch.nn.LayerNorm(1)
    ).to(dtype)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(((torch.arange(p.numel()) * 37 % 101) / 64 - 0.75).reshape(p.shape))
    return net


def opened(name):
    return Orbit.open(FOLDER / f"{name}.orbit")


def dtype_of(name):
    """The dtype of a golden orbit's base."""
    return getattr(torch, opened(name).header.dtype)


def rewrite(name, path, dtype=None, start=None):
    """Write a golden orbit's steps once more, onto a base of its own dtype or another one.

    See `write`.
    """
    golden = opened(name)
    header = golden.header if dtype is None else replace(golden.header, dtype=dtype)
    return write(path, header, [record.payload for record in golden.steps()], start)


def write(path, header, payloads, start=None):
    """Write an orbit as a run does: each step is decoded, applied and encoded again.

    Returns the digests, base first.

    Base and layout of the header are made here. `start` are bytes to begin with instead of the
    header as it is encoded here: compressors differ."""
    net, method = model(getattr(torch, header.dtype)), header.method
    digest, space = base_digest(net), ParameterSpace(net, method.blocks)
    header = replace(header, base_digest=digest, layout=space.layout)
    if start is not None:
        path.write_bytes(start)
    writer = OrbitWriter(path, header, resume=start is not None)
    if method.from_base:
        space.keep_base()
    state, digests = header.start(), [space.digest()]
    for number, payload in enumerate(payloads, start=1):
        step = method.decode_step(state, payload)
        space.apply(method.change(state, step))
        state = method.advance(state, step)
        digests.append(space.digest())
        known = not method.stepwise or number == len(payloads)
        writer.append(Record(number, step.encode(), digests[-1] if known else NO_DIGEST))
    writer.close()
    return digests


if __name__ == "__main__":
    digests = json.loads(DIGESTS.read_text())
    for name, (method, payloads) in NEW.items():
        header = Header("golden", "", "float32", Layout((), (0,)), method, 7)
        digests[name] = write(FOLDER / f"{name}.orbit", header, payloads)
    DIGESTS.write_text(json.dumps(digests, indent=1) + "\n")
