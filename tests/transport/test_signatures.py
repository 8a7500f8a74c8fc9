"""Who wrote a message, by its signature."""

import hashlib

import nkeys
import pytest

from fedseed.errors import RecipeError
from fedseed.transport import signatures
from fedseed.transport.keys import make
from fedseed.transport.signatures import HEADER, Chain, Signatures, seed_of, signature_in


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signed") / "keys"
    make("run", folder, ["a", "ward=b,c d", "again"], ["localhost"], 1)
    second = nkeys.from_seed(seed_of(folder / "again.nk").encode()).public_key.decode()
    with (folder / "coordinator.nk").open("a") as file:  # by hand: a client may have several keys
        file.write(f"client a {second}\n")
    return folder


def read(keys, name):
    return Signatures.from_key_file(keys / f"{name}.nk", coordinating=name == "coordinator")


def test_each_side_knows_the_other(keys):
    coordinator, a, ward, watcher = (
        read(keys, name) for name in ("coordinator", "a", "ward", "watcher")
    )
    said = coordinator.headers("s", b"data")
    for reader in (a, ward, watcher, coordinator):
        assert reader.of_coordinator("s", b"data", said)
        assert not reader.of_coordinator("s", b"data", ward.headers("s", b"data"))
        assert not reader.of_coordinator("s", b"data", None)
    for name in ("b", "c d"):
        assert coordinator.of_client(name, "s", b"data", ward.headers("s", b"data"))
        assert not coordinator.of_client(name, "s", b"data", a.headers("s", b"data"))
    for key in (a, read(keys, "again")):
        assert coordinator.of_client("a", "s", b"data", key.headers("s", b"data"))
    assert not coordinator.of_client("nobody", "s", b"data", a.headers("s", b"data"))
    first = min(bytes(key.own.verify_key) for key in (a, read(keys, "again")))
    assert (
        coordinator.line("a") == first
        and coordinator.line("nobody") is None
        and a.line("a") is None
    )


def test_a_signature_is_for_one_message_at_one_place(keys):
    coordinator, a = read(keys, "coordinator"), read(keys, "a")
    said = a.headers("subject", b"data", b"after")
    assert coordinator.of_client("a", "subject", b"data", said, b"after")
    for subject, data, after in (
        ("subjecs", b"data", b"after"),
        ("subject", b"dat", b"after"),
        ("subject", b"data", b""),
        ("rsubject", b"data", b"afte"),
        ("subject", b"dataafter", b""),
    ):
        assert not coordinator.of_client("a", subject, data, said, after)
    spaced = said[HEADER][:9] + "!\n" + said[HEADER][9:]  # one message, one text
    for broken in (
        {},
        *({HEADER: text} for text in ("", "x", "é" * 88, said[HEADER][:-4], spaced)),
    ):
        assert (
            not coordinator.of_client("a", "subject", b"data", broken, b"after")
            and signature_in(broken) is None
        )


def test_a_challenge_of_the_server_is_never_a_signature(keys):
    """A server has a key sign whatever text it likes."""
    a, coordinator = read(keys, "a"), read(keys, "coordinator")
    signed = signatures._signed_bytes("subject", b"data", b"after")
    digest = hashlib.blake2b(b"data", digest_size=32).digest()
    assert signed == b"\xfffedseed 1\0" + digest + b"\5\0\0\0" + b"after" + b"subject"
    kept = nkeys.from_seed(seed_of(keys / "a.nk").encode())
    assert signature_in(a.headers("subject", b"data", b"after")) == kept.sign(signed)
    signed = signatures._signed_bytes("subject", b"data", b"")
    with pytest.raises(UnicodeDecodeError):
        signed.decode()
    # so it would fit, if it were a text
    assert kept.sign(signed) == signature_in(a.headers("subject", b"data"))
    assert coordinator.of_client("a", "subject", b"data", a.headers("subject", b"data"))


def test_a_chain_takes_each_entry_once_and_in_its_place(keys):
    coordinator, a = read(keys, "coordinator"), read(keys, "a")
    writing = Chain(coordinator, "log")
    written = []
    for data in (b"one", b"two", b"two", b"three"):
        headers, writing.head = writing.sign(data)
        written.append((data, headers))
    other = Chain(coordinator, "log").sign(b"one more")[0]
    reading, found = Chain(a, "log"), []
    for data, headers in (
        (b"x", None),
        written[1],
        written[0],
        written[0],
        (b"one more", other),
        written[3],
        written[1],
        written[1],
        written[2],
        (b"forged", a.headers("log", b"forged", reading.head)),
        (b"thre", written[3][1]),
        written[3],
    ):
        if reading.take(data, headers):
            found.append(data)
    assert found == [b"one", b"two", b"two", b"three"] and reading.checks


def test_a_chain_knows_what_did_not_count_up_to_a_bound(keys, monkeypatch):
    monkeypatch.setattr(signatures, "MOST_OTHERS", 2)
    writing, reading = Chain(read(keys, "coordinator"), "log"), Chain(read(keys, "a"), "log")
    first, writing.head = writing.sign(b"one")
    assert not any(reading.take(data, None) for data in (b"x", b"x", b"y", b"z", b"z", b"x"))
    assert reading._rejected == {
        hashlib.blake2b(data, digest_size=16).digest() for data in (b"x", b"y")
    }
    assert (
        reading.take(b"one", first) and not reading.take(b"y", None) and len(reading._rejected) == 1
    )
    assert reading.take(b"two", writing.sign(b"two")[0])
    plain = Chain(Signatures(), "log")
    assert plain.take(b"one", first) and plain.head == signature_in(first)


def test_without_keys_nothing_is_checked(tmp_path, keys):
    nothing = Signatures.from_key_file(None)
    assert nothing.headers("s", b"") is None and nothing.of_coordinator("s", b"", None)
    assert nothing.of_client("a", "s", b"", None) and not Chain(nothing, "log").checks
    assert Chain(nothing, "log").take(b"", None)
    old = tmp_path / "old.nk"  # as `fedseed keys` wrote them before there were signatures
    old.write_text(seed_of(keys / "a.nk"))
    signing = Signatures.from_key_file(old)
    assert read(keys, "coordinator").of_client("a", "s", b"", signing.headers("s", b""))
    assert signing.of_coordinator("s", b"", None)
    assert Signatures.from_key_file(old, coordinating=True).clients is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no NKEY seed"),
        ("SUnothing", "not an NKEY seed"),
        ("{seed}\ncoordinator UABC", "line 2: not a"),
        ("{seed}\nclient a {public}X", "line 2: not a"),
        ("\xc3\xa9", "not a key file"),
        ("# mine\n\n{seed}\nclient a {other}", "line 4: not a public NKEY"),
    ],
)
def test_what_is_no_key_file(text, problem, tmp_path, keys):
    seed = seed_of(keys / "a.nk")
    public = nkeys.from_seed(seed.encode()).public_key.decode()
    path = tmp_path / "x.nk"
    other = public[:9] + ("A" if public[9] != "A" else "B") + public[10:]  # a character is wrong
    path.write_text(text.format(seed=seed, public=public, other=other), encoding="latin-1")
    with pytest.raises(RecipeError, match=problem):
        Signatures.from_key_file(path)
