"""A run's files that were altered, by a disk or by somebody: going on is refused, and figures are not told."""

import pytest

from fedseed import FedAvg
from fedseed.errors import FedseedError, OrbitError
from fedseed.reports.results import RoundLine, read_metrics
from fedseed.runs.folder import RunFolder
from fedseed.runs.store import read_weights

pytestmark = pytest.mark.usefixtures("quickly")


def going(problem, out, rounds):
    """A run whose coordinator remembers Adam's moments."""
    method = FedAvg(training=problem.training, global_rate=0.05, server="adam")
    return problem.federation(method, rounds=rounds, out=out)


def test_a_flip_anywhere_in_a_checkpoint_is_found(problem, tmp_path):
    going(problem, tmp_path / "run", 2).run()
    path = tmp_path / "run" / "model.safetensors"
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for position in (*range(start, len(data), (len(data) - start) // 97), len(data) - 1):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(OrbitError, match=r"digest differs|not as it was written"):
            read_weights(path)
    said = b'\\"round\\": 2'
    assert data.count(said) == 1
    for other in (data.replace(said, b'\\"round\\": 1'), data + b"x"):
        path.write_bytes(other)
        with pytest.raises(OrbitError):
            read_weights(path)


def test_altered_moments_are_refused(problem, tmp_path):
    """What the server's optimiser keeps, which no digest of weights covers."""
    going(problem, tmp_path / "run", 2).run()
    assert {path.name for path in (tmp_path / "run").glob("kept-*.npz")} == {"kept-1.npz", "kept-2.npz"}
    path = tmp_path / "run" / "kept-2.npz"
    data = path.read_bytes()
    path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    with pytest.raises(FedseedError, match=r"kept-2\.npz: what the coordinator has kept of round 2 can't be read"):
        going(problem, tmp_path / "run", 3).run(resume=True, extend=True)


@pytest.mark.parametrize(
    ("line", "said", "other"),
    [(1, '"loss": ', '"loss": 1'), (2, '"bytes_up": ', '"bytes_up": 1'), (1, '"loss"', '"lost"')],
)
def test_altered_figures_are_refused(problem, tmp_path, line, said, other):
    run = tmp_path / "run"
    going(problem, run, 2).run()
    before = read_metrics(run)
    assert "sum" not in before[0]
    texts = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert said in texts[line - 1]
    texts[line - 1] = texts[line - 1].replace(said, other, 1)
    (run / "metrics.jsonl").write_text("".join(texts))
    for act in (lambda: read_metrics(run), lambda: going(problem, run, 3).run(resume=True, extend=True)):
        with pytest.raises(FedseedError, match=f"line {line} is not valid: it is not as it was written"):
            act()


def test_altered_progress_is_refused(tmp_path):
    folder = RunFolder(tmp_path)
    folder.add_metrics(RoundLine(0, metrics={"loss": 4.0}))
    for number in (1, 2):
        folder.add_progress(RoundLine(number, taking_part=3, bytes_up=8.0))
    folder.release()
    path = tmp_path / "progress.jsonl"
    path.write_text(path.read_text().replace('"bytes_up": 8.0', '"bytes_up": 9.0'))
    folder = RunFolder(tmp_path, resume=True)
    with pytest.raises(FedseedError, match=r"progress.jsonl: line 1 is not valid: it is not as it was written"):
        folder.take_up(2)
    folder.release()
