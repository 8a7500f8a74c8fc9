"""A base's digest is remembered as long as its files are what they were, and not a moment longer."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import pytest
import torch

from fedseed import Orbit
from fedseed.errors import OrbitError, RecipeError
from fedseed.models import base_files
from fedseed.models.base_files import SAMPLE_BYTES, BaseFiles, look, remembered_in
from fedseed.models.heads import Head
from fedseed.models.loading import load_model
from fedseed.runs.assembly import build
from fedseed.runs.joining import Loading
from fedseed.runs.recipe import read_recipe
from fedseed.weights.digest import base_digest
from support.tiers import mark

KINDS = ["blake2b", "blake2b-tree"]


@pytest.fixture
def base(tmp_path, small):
    """The folder of a small base of the test's own."""
    folder = tmp_path / "base"
    for part in small:
        part.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Where digests are remembered, also of small bases."""
    monkeypatch.setenv("FEDSEED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSEED_VERIFY_BASE", raising=False)
    monkeypatch.setattr(base_files, "SMALLEST_BYTES", 0)
    return tmp_path / "cache" / "base-digests"


@pytest.fixture
def hashed(monkeypatch):
    """The kinds by which a whole base was hashed, once for each time."""
    kinds = []
    hash_tensors = base_files.hash_tensors

    def noted(named, kind):
        kinds.append(kind)
        return hash_tensors(named, kind)

    monkeypatch.setattr(base_files, "hash_tensors", noted)
    return kinds


def start(base, kind="blake2b", dtype="float32", trust=False, head=None, between=None):
    """What the start of a run does with its base; returns the digest."""
    files = BaseFiles.before(str(base), dtype, trust, None, head)
    model, _ = load_model(str(base), dtype, trust, head=head)
    if between is not None:
        between()
    return files.digest(model, kind)


def change(folder, at=-1):
    """Change a byte of the weights, and let the file seem as old as it was."""
    weights = folder / "model.safetensors"
    about = weights.stat()
    data = bytearray(weights.read_bytes())
    data[at] ^= 1
    with weights.open("r+b") as file:  # in place: the same inode
        file.write(data)
    os.utime(weights, ns=(about.st_atime_ns, about.st_mtime_ns))
    now = weights.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (about.st_size, about.st_mtime_ns, about.st_ino)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unchanged_base_is_hashed_once(base, hashed, kind):
    expected = base_digest(load_model(str(base))[0], kind)
    assert [start(base, kind) for _ in range(3)] == [expected] * 3
    assert hashed == [kind]


def test_what_else_decides_the_bits_is_told_apart(base, hashed):
    found = {start(base), start(base, "blake2b-tree"), start(base, dtype="bfloat16")}
    assert len(found) == len(hashed) == 3
    assert {start(base), start(base, "blake2b-tree"), start(base, dtype="bfloat16")} == found and len(hashed) == 3


def test_heads_of_two_seeds_are_two_bases(image_base, hashed):
    folder = image_base("vit")
    heads = [Head(tuple(f"class {i}" for i in range(10)), seed) for seed in (1, 2, 1, 2)]
    found = [start(folder, head=head) for head in heads]
    assert found[:2] == found[2:] and found[0] != found[1] and len(hashed) == 2


CHANGED = ["tail", "middle", "length", "another file", "more files", "fewer files", "touched"]


@pytest.mark.parametrize("which", mark(CHANGED, lambda which: which not in ("middle", "touched"), "long"))
def test_a_changed_base_is_hashed_again(base, hashed, which):
    before = start(base)
    weights = base / "model.safetensors"
    if which == "tail":
        change(base)
    elif which == "middle":
        change(base, weights.stat().st_size // 2)
    elif which == "length":
        weights.write_bytes(weights.read_bytes() + b"\0")
        with pytest.raises(RecipeError):  # the header of such a file does not fit
            start(base)
        return
    elif which == "another file":
        change(base)
        config = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps(config))
    elif which == "more files":
        (base / "notes.txt").write_text("new")
    elif which == "fewer files":
        (base / "generation_config.json").unlink()
    else:
        weights.touch()
    changed = which in ("tail", "middle", "another file")
    after = start(base)
    assert len(hashed) == 2 and (after != before) == changed
    assert after == base_digest(load_model(str(base))[0])
    assert start(base) == after and len(hashed) == 2


def test_a_byte_that_no_time_tells_of_is_seen_in_a_sample(base, hashed, monkeypatch):
    """As on a file system that keeps no times."""
    fstat = os.fstat

    def timeless(handle):
        about = fstat(handle)
        return os.stat_result((*about[:7], 0, 0, 0), {"st_mtime_ns": 0, "st_ctime_ns": 0})

    monkeypatch.setattr(base_files.os, "fstat", timeless)
    before = start(base)
    assert start(base) == before and len(hashed) == 1
    change(base)
    assert start(base) != before and len(hashed) == 2


def test_samples_lie_all_over_a_file(tmp_path):
    size = 100 * SAMPLE_BYTES + 7
    path = tmp_path / "file"
    seen = set()
    for at in (None, 0, SAMPLE_BYTES - 1, size - SAMPLE_BYTES, size - 1):
        data = bytearray(size)
        if at is not None:
            data[at] = 1
        path.write_bytes(data)
        seen.add(look(tmp_path)[0][-1])
    assert len(seen) == 5
    for short in (0, 1, SAMPLE_BYTES, SAMPLE_BYTES + 1):
        path.write_bytes(bytes(short))
        assert look(tmp_path)[0][:2] == ["file", short]


def test_other_versions_and_other_tensors_are_not_believed(base, hashed, monkeypatch):
    before = start(base)
    monkeypatch.setattr(base_files, "version", lambda name: "9" if name == "transformers" else version(name))
    assert start(base) == before and len(hashed) == 2
    files = BaseFiles.before(str(base), "float32", False, None, None)
    model, _ = load_model(str(base))
    model.register_buffer("more", torch.zeros(1))
    assert files.digest(model) == base_digest(model) != before and len(hashed) == 3


def test_a_base_that_is_changed_while_it_is_loaded_is_not_remembered(base, hashed, cache):
    start(base, between=lambda: (base / "notes.txt").write_text("new"))
    assert len(hashed) == 1 and not list(cache.glob("*.json"))


def test_a_copy_of_a_base_is_another_one(base, hashed, tmp_path):
    before = start(base)
    shutil.copytree(base, tmp_path / "copy")
    assert start(tmp_path / "copy") == before and len(hashed) == 2
    (tmp_path / "link").symlink_to(base)
    assert start(tmp_path / "link") == before and len(hashed) == 2


def test_code_of_its_own_and_adapters_of_other_bases_are_hashed(base, hashed, cache):
    start(base, trust=True)
    start(base, trust=True)
    assert len(hashed) == 2
    files = BaseFiles.before(str(base), "float32", False, None, None)
    assert files.folder == base.resolve()
    (base / "adapter_config.json").write_text("{}")
    assert BaseFiles.before(str(base), "float32", False, None, None).folder is None
    assert not cache.exists()


def test_who_wants_to_verify_has_it_hashed(base, hashed, monkeypatch, cache):
    before = start(base)
    (entry,) = cache.iterdir()
    entry.write_text(entry.read_text().replace(before, "ab" * 16))  # damaged: the check says so
    assert start(base) == before and len(hashed) == 2
    monkeypatch.setenv("FEDSEED_VERIFY_BASE", "1")
    assert start(base) == before and len(hashed) == 3
    monkeypatch.delenv("FEDSEED_VERIFY_BASE")
    assert start(base) == before and len(hashed) == 3


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 300, b"{}", b"[]", b'{"key": 1, "digest": [], "check": 2}', b"\xff", b"[" * 100_000],
    ids=["empty", "zeros", "table", "list", "types", "bytes", "deep"],
)
def test_a_damaged_memory_is_none(base, hashed, cache, content):
    before = start(base)
    (entry,) = cache.iterdir()
    entry.write_bytes(content)
    assert start(base) == before and len(hashed) == 2
    assert start(base) == before and len(hashed) == 2  # it has been written anew


def test_where_nothing_can_be_remembered_a_base_is_hashed(base, hashed, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDSEED_CACHE", str(tmp_path / "file"))
    assert start(base) == start(base) and len(hashed) == 2
    entry = tmp_path / "cache" / "base-digests"
    monkeypatch.setenv("FEDSEED_CACHE", str(tmp_path / "cache"))
    start(base)
    (path,) = entry.iterdir()
    path.unlink()
    path.mkdir()  # it can't be replaced by a file
    assert start(base) == start(base) and len(hashed) == 5
    assert [p.name for p in entry.iterdir()] == [path.name]  # nothing is left of what could not be written


def test_where_it_is_remembered(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSEED_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/users")
    monkeypatch.setenv("HOME", "/home/user")
    assert str(remembered_in()) == "/own/base-digests"
    monkeypatch.delenv("FEDSEED_CACHE")
    assert str(remembered_in()) == "/users/fedseed/base-digests"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert str(remembered_in()) == "/home/user/.cache/fedseed/base-digests"


def test_many_may_remember_at_the_same_time(base, cache):
    files = BaseFiles.before(str(base), "float32", False, None, None)
    model, _ = load_model(str(base))
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: files.digest(model), range(40)))
    assert found == {base_digest(model)}
    assert [path.suffix for path in cache.iterdir()] == [".json"]


def test_a_small_base_is_not_worth_it(base, hashed, cache, monkeypatch):
    monkeypatch.setattr(base_files, "SMALLEST_BYTES", 1 << 30)
    assert start(base) == start(base)
    assert len(hashed) == 2 and not cache.exists()


def test_a_base_of_the_hub_lies_in_its_cache(base, hashed, monkeypatch, tmp_path):
    import huggingface_hub

    places = {"a/base": str(base / "config.json")}
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: places.get(name))
    model, _ = load_model(str(base))

    def digest(name):
        return BaseFiles.before(name, "float32", False, None, None).digest(model)

    assert digest("a/base") == digest("a/base") and len(hashed) == 1
    assert digest("b/missing") == digest("b/missing") and len(hashed) == 3
    (base / "model.safetensors").rename(base / "pytorch_model.bin")  # a converted copy may come from elsewhere
    digest("a/base")
    digest("a/base")
    assert len(hashed) == 5


RECIPE = """
rounds = 2
[model]
base = "{base}"
digest = "{kind}"
[task]
clients = 2
examples = 4
evaluation = 1
unseen = 0
[method]
name = "ferret"
directions = 20
training.steps = 1
training.learning_rate = 1e-2
[evaluation]
every = 1
rouge = false
"""


@pytest.mark.parametrize("kind", mark(KINDS, lambda kind: kind != "blake2b"))
def test_runs_remember_and_refuse_a_changed_base(base, hashed, tmp_path, without_pictures, kind):
    """At its start, when it is taken up, and where it is joined; and a replay hashes in any case."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(base=base, kind=kind))
    read = read_recipe(recipe)

    def run(out, resume=False):
        return build(read, out=tmp_path / out).run(resume=resume)

    whole = run("whole")
    again = run("again")
    assert hashed == [kind] and again.summary["weights_digest"] == whole.summary["weights_digest"]
    assert Loading(read, ["*"])().header == Orbit.open(tmp_path / "again" / "model.orbit").header
    for name in ("summary.json", "metrics.jsonl"):
        (tmp_path / "again" / name).unlink()
    orbit = tmp_path / "again" / "model.orbit"
    kept = orbit.read_bytes()
    start_of = Orbit.open(orbit).start
    orbit.write_bytes(start_of)  # as if it had been stopped in round 1
    assert run("again", resume=True).summary["weights_digest"] == whole.summary["weights_digest"]
    assert orbit.read_bytes() == kept and hashed == [kind]
    assert Orbit.open(orbit).replay(load_model(str(base))[0], check_all=True) == whole.summary["weights_digest"]
    change(base)
    (tmp_path / "again" / "summary.json").unlink()
    with pytest.raises(OrbitError, match="another run: base_digest"):
        run("again", resume=True)
    assert hashed == [kind, kind]
    with pytest.raises(OrbitError, match="another base: its digest is"):
        Orbit.open(orbit).replay(load_model(str(base))[0])
    assert Loading(read, ["*"])().header != Orbit.open(orbit).header
