"""What is written is on the disk when the call returns, and whole or not at all."""

import errno
import os
import re
import subprocess
import sys

import pytest
from safetensors import SafetensorError

from fedseed.durable import (
    Appender,
    append_to,
    explain_failed_write,
    find_system_error,
    finished_files,
    replacing,
    write_whole,
)
from fedseed.errors import StorageError


@pytest.fixture
def calls(monkeypatch):
    """What is asked of the system, in order, by (name, path)."""
    made = []

    def watch(name):
        original = getattr(os, name)

        def watched(first, *rest):
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)  # noqa: PTH115
            made.append((name, path))
            return original(first, *rest)

        monkeypatch.setattr(os, name, watched)

    for name in ("pwrite", "fsync", "ftruncate", "replace"):
        watch(name)
    return made


def test_an_append_is_on_disk_before_it_returns(tmp_path, calls):
    path = tmp_path / "a"
    file = Appender(path)
    assert calls == [("fsync", str(tmp_path))]  # the folder knows the new file
    calls.clear()
    file.append(b"one")
    assert calls == [("pwrite", str(path)), ("fsync", str(path))] and file.size == 3
    calls.clear()
    file.append(b"two", sync=False)
    assert calls == [("pwrite", str(path))]
    file.sync()
    assert calls[1:] == [("fsync", str(path))] and path.read_bytes() == b"onetwo"
    file.close()
    assert file.handle < 0 and not path.stat().st_mode & 0o111
    file.close()
    with pytest.raises(StorageError):
        file.append(b"three")
    calls.clear()
    again = Appender(path)
    assert calls == [] and again.size == 6  # it was there
    again.append(b"!")
    again.close()
    assert path.read_bytes() == b"onetwo!"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, ": make room there, then start this again"),
        (errno.EDQUOT, ": make room there, or raise the quota, then start this again"),
        (
            errno.EFBIG,
            r": raise the limit on the size of files \(ulimit -f\), then start this again",
        ),
        (errno.EIO, ""),
    ],
)
def test_what_a_disk_refuses_is_said_with_the_remedy(tmp_path, monkeypatch, number, remedy):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match=f"a: can't be written: {os.strerror(number)}{remedy}$"):
        write_whole(tmp_path / "a", b"data")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_recognised_in_errors_of_rust_libraries():
    quoted = SafetensorError("I/O error: No space left on device (os error 28)")
    cause = find_system_error(quoted)
    assert cause.errno == errno.ENOSPC
    assert explain_failed_write(cause) == (
        "No space left on device: make room there, then start this again"
    )
    assert find_system_error(SafetensorError("header too large")) is None
    assert find_system_error(cause) is cause


@pytest.mark.parametrize("failing", ["pwrite", "fsync"])
def test_a_failed_append_is_taken_back(tmp_path, monkeypatch, failing):
    file, original, count = Appender(tmp_path / "a"), getattr(os, failing), [0]
    file.append(b"kept")

    def fails(handle, *rest):
        count[0] += 1
        if count[0] == (2 if failing == "pwrite" else 1):
            raise OSError(errno.ENOSPC, "No space left on device")
        if failing == "pwrite":
            data, at = rest
            return original(handle, data[:2], at)
        return original(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fails)
        with pytest.raises(StorageError, match=r"a: can't be written: No space left on device"):
            file.append(b"lost")
    assert file.path.read_bytes() == b"kept" and file.size == 4
    file.append(b" more")
    file.close()
    assert file.path.read_bytes() == b"kept more"


def test_a_cut_is_on_disk_and_never_makes_a_file_longer(tmp_path, calls):
    file = Appender(tmp_path / "a")
    file.append(b"0123456789")
    calls.clear()
    file.cut(11)
    file.cut(10)
    assert calls == [] and file.size == 10
    file.cut(4)
    assert [name for name, _ in calls] == ["ftruncate", "fsync"] and file.size == 4
    file.append(b"x")
    assert file.path.read_bytes() == b"0123x"


def test_a_cut_or_a_write_that_fails_names_the_file(tmp_path, monkeypatch):
    file = Appender(tmp_path / "a")
    file.append(b"0123")
    monkeypatch.setattr(os, "fsync", lambda handle: (tmp_path / "nowhere").read_bytes())
    for act in (file.sync, lambda: file.cut(2)):
        with pytest.raises(StorageError, match=r"a: can't be written: No such file"):
            act()


def test_a_file_is_replaced_when_all_of_the_new_one_is_on_disk(tmp_path, calls):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    write_whole(path, b"new")
    part = calls[0][1]
    assert re.fullmatch(rf"{tmp_path}/a\.[0-9a-f]{{16}}\.part\.bin", part)
    assert calls == [("fsync", part), ("replace", part), ("fsync", str(tmp_path))]
    assert path.read_bytes() == b"new" and [p.name for p in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("failing", ["fsync", "replace", None])
def test_a_failed_replacement_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def fails(*_):
        raise OSError(errno.EIO, "Input/output error")

    if failing:
        monkeypatch.setattr(os, failing, fails)
        with pytest.raises(StorageError, match=r"a\.bin: can't be written: Input/output error"):
            write_whole(path, b"new")
    else:
        with pytest.raises(KeyError), replacing(path) as temporary:
            temporary.write_bytes(b"half")
            raise KeyError
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_nothing_is_written_through_a_planted_link(tmp_path):
    """Under a name that can be guessed, in the place of the file, dangling ones, folders: the
    victim stays as it is.
    """
    victim, path = tmp_path / "victim", tmp_path / "run" / "a.bin"
    path.parent.mkdir()
    victim.write_bytes(b"mine")
    for name in ("a.part.bin", "a.bin.part", "a.bin.tmp", "a.0000000000000000.part.bin", "a.bin"):
        path.with_name(name).symlink_to(victim)
    write_whole(path, b"new")
    assert victim.read_bytes() == b"mine" and not path.is_symlink() and path.read_bytes() == b"new"
    # nor is one followed to see whose it is
    assert path.with_name("a.0000000000000000.part.bin").is_symlink()
    with (
        pytest.raises(StorageError, match=r"a\.bin: can't be written: it is a link"),
        replacing(path) as temporary,
    ):
        temporary.unlink()
        temporary.symlink_to(victim)
    assert not path.is_symlink() and path.read_bytes() == b"new"
    for target in (victim, tmp_path / "nowhere"):
        path.unlink()
        path.symlink_to(target)
        with pytest.raises(StorageError, match=r"a\.bin: can't be written: it is a link"):
            Appender(path)
        with pytest.raises(OSError, match="symbolic links"):
            append_to(str(path), os.O_WRONLY)
    with open(tmp_path / "log", "a", opener=append_to) as log:
        log.write("said")
    assert (tmp_path / "log").read_text() == "said" and not (
        tmp_path / "log"
    ).stat().st_mode & 0o111
    assert victim.read_bytes() == b"mine" and not (tmp_path / "nowhere").exists()


def test_what_a_killed_process_has_left_is_removed_and_another_ones_is_not(tmp_path):
    path = tmp_path / "a.bin"
    code = (
        f"from fedseed.durable import *; import os\nwith replacing(Path({str(path)!r})): "
        "os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    (left,) = tmp_path.iterdir()
    other = tmp_path / "a.notes.part.bin"
    other.write_bytes(b"")
    with replacing(path) as busy:
        write_whole(path, b"second")
        assert busy.exists() and not left.exists()
        busy.write_bytes(b"first")
    assert path.read_bytes() == b"first" and sorted(tmp_path.iterdir()) == [path, other]


def test_finished_files_are_without_what_a_killed_process_has_left(tmp_path):
    (tmp_path / "kept-2.npz").touch()
    (tmp_path / "kept-a.part.npz").touch()  # somebody's, and no temporary file
    code = (
        f"from fedseed.durable import *; import os\nfolder = Path({str(tmp_path)!r})\n"
        "with replacing(folder / 'kept-3.npz'), replacing(folder / 'kept-4'):\n    os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    assert len(list(tmp_path.iterdir())) == 4
    names = [path.name for path in finished_files(tmp_path, "kept-*")]
    assert names == ["kept-2.npz", "kept-a.part.npz"]
    assert finished_files(tmp_path / "missing", "*") == []
