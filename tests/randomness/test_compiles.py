"""Every kernel is compiled for GPUs as the launchers launch it, and each of its operations rounds by itself.

No GPU is needed to compile. Triton's interpreter does not show what its compiler refuses: see `support.gpu_builds`.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton.backends.nvidia")
KERNELS = {"_add_up", "_draw", "_products", "_squares", "_fold", "_add_rows", "_fill", "_sum", "_along", "_down"}
TARGETS = [("cuda", 90, 32), ("cuda", 80, 32), ("cuda", 100, 32), ("hip", "gfx942", 64)]


@pytest.mark.long
@pytest.mark.parametrize(
    "target", [TARGETS[0], *(pytest.param(target, marks=pytest.mark.slow) for target in TARGETS[1:])], ids=str
)
def test_every_launch_compiles_and_rounds_each_operation(target, tmp_path):
    environment = os.environ | {
        "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache"), "TRITON_DUMP_PTXAS_LOG": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    to = tmp_path / "found.json"
    code = f"import sys; from support.gpu_builds import build; build(sys.argv[1], *{target!r})"
    done = subprocess.run(
        [sys.executable, "-c", code, to],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(to.read_text())
    assert not found["failed"]
    assert {name for name, *_ in found["kernels"]} == KERNELS
    assert not [kernel for kernel in found["kernels"] if kernel[1]]
    assert "TRITON_INTERPRET" in found["refused"]  # tensors on a CPU
    assert all(found["seen"])  # a deliberate `tl.fma`
    assert [*found["unseen"]] == ["an integer of 1"]  # `to` of an argument that is 1, which the interpreter takes
    if target[0] == "cuda":
        assert any(root for name, _, root in found["kernels"] if name == "_add_up")
        assert len(found["spills"]) >= len(found["kernels"])
        assert max(found["spills"]) <= 16  # bytes
