"""Every kernel is compiled for GPUs as the launchers launch it, and each of its operations rounds
by itself.

No GPU is needed to compile: real launchers run, and compile in place of a launch. Triton's
interpreter does not show what its compiler refuses. A process of its own calls `build`, because
TRITON_INTERPRET must be unset when the kernels' modules are imported."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("triton.backends.nvidia")
KERNELS = {
    "_add_up",
    "_draw",
    "_products",
    "_squares",
    "_fold",
    "_add_rows",
    "_fill",
    "_sum",
    "_along",
    "_down_columns",
    "_add_factors",
}
TARGETS = [("cuda", 90, 32), ("cuda", 80, 32), ("cuda", 100, 32), ("hip", "gfx942", 64)]


@pytest.mark.long
@pytest.mark.parametrize(
    "target",
    [TARGETS[0], *(pytest.param(target, marks=pytest.mark.slow) for target in TARGETS[1:])],
    ids=str,
)
def test_every_launch_compiles_and_rounds_each_operation(target, tmp_path):
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        "TRITON_DUMP_PTXAS_LOG": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    to = tmp_path / "found.json"
    code = f"import sys; from test_compiles import build; build(sys.argv[1], *{target!r})"
    done = subprocess.run(
        [sys.executable, "-c", code, to],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(to.read_text())
    assert not found["failed"]
    assert {name for name, *_ in found["kernels"]} == KERNELS
    assert not [kernel for kernel in found["kernels"] if kernel[1]]
    assert "TRITON_INTERPRET" in found["refused"]  # tensors on a CPU
    assert all(found["seen"])  # a deliberate `tl.fma`
    # `to` of an argument that is 1, which the interpreter takes
    assert [*found["unseen"]] == ["an integer of 1"]
    if target[0] == "cuda":
        assert any(root for name, _, root in found["kernels"] if name == "_add_up")
        assert len(found["spills"]) >= len(found["kernels"])
        assert max(found["spills"]) <= 16  # bytes


WRONG = r"\S*\bfma\.\S*|\S*[.]approx\S*|(?<!sqrt[.]rn)[.]ftz|div[.]\S*f32"
# AMD's code divides whole numbers by fused operations: what is asked of its compiler is looked at
WRONG_ON_AMD = (
    r"llvm[.]fma\S*|fmuladd\S*|\bf(?:mul|add|sub|div) (?:\w+ )*(?:contract|fast|afn|reassoc)\b"
)


def wrong(asm):
    """What rounds otherwise than the reference: fused operations, approximations, denormals lost.

    `sqrt` may flush (old Triton asks it to): its argument is zero or above 1e-7.
    """
    return sorted(
        set(re.findall(*((WRONG, asm["ptx"]) if "ptx" in asm else (WRONG_ON_AMD, asm["llir"]))))
    )


def launchers():
    """(what it is, the call) of every variant that the launchers have."""
    import numpy as np
    import torch

    from fedseed import Basis
    from fedseed.randomness.kernels import load
    from fedseed.randomness.kernels.factors_reference import FactorJob
    from fedseed.randomness.kernels.reference import SQUARES, Job, Operand, Part
    from fedseed.randomness.matrices import Matrices
    from support.bits import FLAT

    kernels = load("triton")

    def part(name, count=3, on=None):
        basis = Basis(name, 12345678901234567, size=64)
        return Part(
            basis.spec if on is None else Basis(name, 5, rank=2).spec_on(on),
            61,
            np.ones(count, np.float32),
        )

    def moved(parts, dtype, start, count, length, rounding=None):
        w = torch.empty(count, dtype=getattr(torch, dtype))
        kernels.move_all([Job(w, w, dtype, kernels.prepare(parts, length), start)], 0.5, rounding)

    def added(shape, width, dtype, rounding=None):
        w = torch.empty(shape[0] * shape[1], dtype=getattr(torch, dtype))
        left, right = np.ones((shape[0], width), np.float32), np.ones((width, shape[1]), np.float32)
        kernels.add_factors([FactorJob(w, w, dtype, left, right, 2**33)], 0.5, rounding)

    def projected(spec, directions, start, count, length):
        kernels.project(spec, 1, directions, torch.zeros(count), start, length)

    def changed(spec, before, after):
        """Of two tensors at once, as a change is projected."""
        ends = [torch.zeros(4096, dtype=getattr(torch, dtype)) for dtype in (before, after)]
        runs = [Operand(*ends, start, 0, 128, 8192) for start in (0, 4096)]
        kernels.project_all(spec, 0, runs)
        kernels.project_all(SQUARES, 0, runs)

    dtypes = ["float32", "bfloat16", "float16"]
    for i, name in enumerate(FLAT):
        yield name, "moved", lambda n=name, d=dtypes[i % 3]: moved([part(n)], d, 0, 4096, 5000)
        yield name, "a few", lambda n=name, d=dtypes[i % 3 - 2]: moved([part(n)], d, 16, 33, 5000)
        yield (
            name,
            "drawn",
            lambda n=name, d=dtypes[1 + i % 2]: moved([part(n)], d, 0, 4096, 5000, (1, 2)),
        )
        yield name, "128 products", lambda n=name: projected(part(n).spec, 128, 5, 4099, 5000)
        yield (
            name,
            "one element",
            lambda n=name, d=dtypes[i % 3 - 1]: moved([part(n)], d, 3, 1, 5000),
        )
        yield name, "one product", lambda n=name: projected(part(n).spec, 1, 2**33, 1, 5000)
        yield name, "direction", lambda n=name: kernels.direction(part(n).spec, 3, 1, 300, 5000)
        yield (
            name,
            "a change",
            lambda n=name, d=dtypes[i % 3], e=dtypes[i % 2]: changed(part(n).spec, d, e),
        )
    values = torch.zeros(5)
    for dtype in dtypes[1:]:
        out = torch.empty(5, dtype=getattr(torch, dtype))
        yield (
            dtype,
            "values drawn",
            lambda o=out, d=dtype: kernels.draw(o, values, d, (1, 2**32 - 1), 2**33),
        )
    yield (
        "rademacher",
        "2^31 and more",
        lambda: moved([part("rademacher")], "bfloat16", 2**33, 2**31 + 5, 2**34),
    )
    for dtype in dtypes:
        for shape in [(1, 257), (257, 1), (9, 1600), (30, 33)]:
            on = Matrices([shape, (5,)])
            whole, name = shape[0] * shape[1], f"lowrank {dtype} {shape}"
            yield (
                name,
                "moved",
                lambda o=on, d=dtype, n=whole: moved([part("lowrank", on=o)], d, 0, n, o.size),
            )
            if dtype == "float32":
                yield (
                    name,
                    "products",
                    lambda o=on, n=whole: projected(part("lowrank", on=o).spec, 4, 0, n, o.size),
                )
    on = Matrices([(32, 64)])
    yield (
        "lowrank",
        "drawn",
        lambda: moved([part("lowrank", on=on)], "bfloat16", 0, 2048, 2048, (1, 2)),
    )
    for dtype in dtypes:
        for shape in [(1, 257), (257, 1), (30, 33), (64, 128)]:
            for width in (1, 16):
                yield (
                    f"factors {dtype} {shape} {width}",
                    "added",
                    lambda s=shape, w=width, d=dtype: added(s, w, d),
                )
    yield "factors", "drawn", lambda: added((64, 128), 16, "bfloat16", (1, 2))
    far = Matrices([(2**31 + 16,), (40, 48)])
    yield (
        "lowrank",
        "far out",
        lambda: moved([part("lowrank", on=far)], "bfloat16", 2**31 + 16, 1920, far.size),
    )


def build(to, *target):
    """Builds all variants for a kind of GPU, and writes to a file what was found, as JSON.

    Args:
        to: the file.
        target: ("cuda", 90, 32), say: backend, what it has, threads of a warp.
    """
    import torch
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    from fedseed.randomness.kernels import factors_triton, lowrank_triton
    from fedseed.randomness.kernels import triton as flat

    target = GPUTarget(*target)
    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: target,
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
        )
    )
    run, launch, built, reports = JITFunction.run, flat.launch, {}, io.StringIO()

    def compile_only(self, *args, grid, warmup, **options):
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        built[kernel.hash] = self.__name__, kernel.asm

    def launch_elsewhere(kernel, grid, first, *args, **options):
        """The real launcher, whose first tensor says that it lies on no CPU."""
        there = SimpleNamespace(
            device=torch.device("meta"), dtype=first.dtype, data_ptr=first.data_ptr
        )
        launch(kernel, grid, there, *args, **options)

    JITFunction.run = compile_only
    try:
        launch(flat._add_up, (1,), torch.zeros(1))
        refused = ""
    except RuntimeError as error:
        refused = str(error)
    flat.launch = lowrank_triton.launch = factors_triton.launch = launch_elsewhere
    failed, failed_on_purpose = {}, {}

    def fuses(x, y):
        at = tl.arange(0, 8)
        tl.store(x + at, tl.fma(tl.load(x + at), y, 1.0))

    def converts(x, rows):
        tl.store(x, rows.to(tl.int64).to(tl.float32))

    with contextlib.redirect_stdout(reports):  # Triton prints what ptxas says
        for name, what, call in launchers():
            try:
                call()
            except Exception as error:  # a test shows it
                failed[f"{name}, {what}"] = f"{type(error).__name__}: {error}"[-1500:]
        spilt = [int(n) for n in re.findall(r"(\d+) bytes spill stores", reports.getvalue())]
        # noticed?
        for name, kernel, args in (("fused", fuses, (1.5,)), ("an integer of 1", converts, (1,))):
            try:
                triton.jit(kernel)[(1,)](torch.zeros(8), *args, **flat.OPTIONS)
            except Exception as error:
                failed_on_purpose[name] = str(error)[-300:]
    found = {
        "seen": [wrong(asm) for name, asm in built.values() if name == "fuses"],
        "unseen": failed_on_purpose,
        "refused": refused,
        "failed": failed,
        "kernels": [
            (name, wrong(asm), "sqrt.rn" in asm.get("ptx", ""))
            for name, asm in built.values()
            if name not in ("fuses", "converts")
        ],
        "spills": spilt,
    }
    Path(to).write_text(json.dumps(found))
