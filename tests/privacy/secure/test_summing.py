"""Secure sums without a federation: what comes out, with whom gone; who is refused.

What the coordinator hears.
"""

import struct
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedseed.errors import MessageError, StorageError
from fedseed.federation.client.secure import Masking, answer_ask
from fedseed.federation.secure import OPENED, SOMETHING
from fedseed.methods import ZOFedSGD
from fedseed.privacy.secure import LostError, OpenedBeforeError, TooFewError, keys
from fedseed.privacy.secure.client import SecureClient
from fedseed.privacy.secure.dealing import Fault, deal
from fedseed.privacy.secure.fixed import FixedPoint
from fedseed.privacy.secure.messages import (
    Phase,
    Terms,
    frame,
    numbers,
    pieces,
    read_numbers,
    round_ask,
)
from fedseed.privacy.secure.settings import SecureSums
from fedseed.privacy.secure.shamir import (
    PRIME,
    SHARE_BYTES,
    factors,
    read_share,
    recover_secret,
    split,
)
from fedseed.privacy.secure.summing import replay_proof
from support.secure import FORM, LIES, UNPROVEN, Room

VALUES = {c: FORM.encode(np.array([1.5, -2.25, 1e3 * c, 0.0, -c])) for c in range(9)}


def plain(clients):
    return sum((VALUES[c] for c in clients), start=np.zeros(5, FORM.dtype))


def opened(room, *about, **more):
    """Whose vectors are in the sum of a whole round, which is the plain one."""
    total, survivors = room.total(VALUES, *about, **more)
    assert (total == plain(survivors)).all()
    return survivors


# -- the parts
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("holders", "threshold"), [(3, 2), (5, 3), (9, 9), (4, 1)])
def test_threshold_shares_give_the_secret_back_and_fewer_nothing(holders, threshold):
    secret = bytes(range(16))
    shares = dict(
        zip(
            range(1, holders + 1),
            map(read_share, split(secret, range(1, holders + 1), threshold)),
            strict=True,
        )
    )
    chosen = list(shares)[-threshold:]
    assert recover_secret({x: shares[x] for x in chosen}) == secret
    assert recover_secret({x: shares[x] for x in chosen}, factors(chosen)) == secret
    if threshold > 1:
        assert recover_secret({x: shares[x] for x in chosen[1:]}) != secret


def test_what_is_no_share_is_refused():
    for data in (b"", bytes(16), PRIME.to_bytes(SHARE_BYTES, "little"), b"\xff" * SHARE_BYTES):
        with pytest.raises(MessageError, match="a share that is not a number"):
            read_share(data)
    # 130 bits, and 128
    assert (
        recover_secret({1: 1 << 128}) is None
        and recover_secret({1: (1 << 128) - 1}) == b"\xff" * 16
    )
    for at, threshold in (((1, 1), 1), ((0, 1), 1), ((1, 2), 3), ((1, 2), 0)):
        with pytest.raises(ValueError, match="not possible"):
            split(bytes(16), at, threshold)


@pytest.mark.parametrize(
    "form", [FixedPoint(64, 32, 128), FixedPoint(64, 20, 3), FixedPoint(32, 0, 1000)]
)
def test_words_add_up_exactly_and_never_over(form):
    random = np.random.default_rng(1)
    made = random.normal(size=50) * 100
    assert np.abs(form.decode(form.encode(made)) - made).max() <= 0.5 / 2**form.fraction
    assert (
        form.decode(form.encode(made, 3))
        == np.rint(made * 3 * 2.0**form.fraction) / 2**form.fraction
    ).all()
    most = 2.0 ** (form.bits - 1 - form.fraction)
    huge = np.array([np.finfo(float).max, -np.finfo(float).max, 2 * most / form.clients])
    total = sum((form.encode(huge) for _ in range(form.clients)), start=np.zeros(3, form.dtype))
    assert (np.sign(form.decode(total)) == [1, -1, 1]).all()
    assert np.allclose(np.abs(form.decode(total)), most, rtol=1e-2)


def test_words_by_hand():
    """Halves go to the even number, and what is too large to the largest whole number below (2^31 -
    1) / n.
    """
    form = FixedPoint(32, 0, 1)
    assert form.encode(np.array([0.5, 1.5, -1.0, 3e9, -3e9])).tolist() == [
        0,
        2,
        2**32 - 1,
        2**31 - 2,
        2**31 + 2,
    ]
    assert form.decode(np.array([3, 2**31 - 1, 2**31, 2**32 - 1], dtype=np.uint32)).tolist() == [
        3,
        2**31 - 1,
        -(2**31),
        -1,
    ]
    assert FixedPoint(32, 4, 3).encode(np.array([1.25, 9e9]), 2).tolist() == [40, 715_827_882]
    assert FixedPoint(64, 1, 1).encode(np.array([-1.5])).dtype == np.dtype("<u8")


def test_masks_cancel_and_a_key_is_needed():
    one, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    key, same = (
        keys.pair_key(mine, keys.public(theirs), b"r", 0)
        for mine, theirs in ((one, other), (other, one))
    )
    up, down = keys.pair_mask(key, 1, 2, 7, FORM), keys.pair_mask(same, 2, 1, 7, FORM)
    assert not (up + down).any() and up.any()
    assert key == same != keys.pair_key(one, keys.public(other), b"s", 0)
    assert key != keys.pair_key(one, keys.public(other), b"r", 1)
    with pytest.raises(MessageError, match="an unusable public key"):
        keys.check_public(bytes(32))
    key = bytes(32)
    assert keys.unseal(key, keys.seal(key, b"text", b"about"), b"about") == b"text"
    for wrong in ((bytes(31) + b"1", b"about"), (key, b"other")):
        with pytest.raises(MessageError, match="not encrypted"):
            keys.unseal(wrong[0], keys.seal(key, b"text", b"about"), wrong[1])


# -- sums, whoever goes when
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [Phase.KEYS, Phase.SHARES, "vector", Phase.CONFIRM])
def test_below_the_threshold_nothing_is_opened_and_the_round_can_be_repeated(moment):
    room = Room()
    room.gone = {moment: [1, 3, 4]}
    with pytest.raises(TooFewError, match=r"2 clients .*, but 3 are needed: no sum is opened"):
        room.total(VALUES)
    # nobody was even asked for a share
    assert not any(phase is Phase.OPEN for _, phase, _ in room.heard)
    room.gone = {}
    assert opened(room, attempt=1) == [0, 1, 2, 3, 4]


def test_a_round_is_lost_if_too_few_say_their_shares_and_the_next_one_goes_on():
    room, asks = Room(), []
    room.gone = {Phase.OPEN: [1, 3, 4]}
    room.asked = lambda client, phase, ask: asks.append((client, phase)) or ask
    with pytest.raises(
        LostError, match=r"2 clients have revealed their shares, but 3 are needed.*no other attempt"
    ):
        room.total(VALUES)
    assert asks.count((0, Phase.OPEN)) == 1  # who has answered is not asked again
    room.gone = {}
    with pytest.raises(OpenedBeforeError):
        room.prepare(1, 1)
    assert opened(room, 2) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("moment", [Phase.KEYS, Phase.SHARES, "vector"])
def test_a_threshold_of_two_opens_no_sum_of_two_and_no_client_signs_one(moment):
    room = Room(3, 2)
    room.gone = {moment: [2]}
    with pytest.raises(TooFewError, match=r"2 clients .*, but 3 are needed"):
        room.total(VALUES)
    room.gone = {Phase.OPEN: [2]}
    assert opened(room, attempt=1) == [0, 1, 2]  # two say their shares: of a sum of three
    room, _ = ready(clients=3, threshold=2)
    with pytest.raises(MessageError, match="2 survivors, but 3 are needed"):
        signed_by(room, [0], [0, 1])


def test_keys_last_for_some_rounds_and_serve_once():
    room = Room(ahead=3)
    setups = set()
    for round in range(1, 8):
        room.gone = {"vector": [2]} if round == 2 else {}
        setups.add(room.prepare(round).terms.setup)
        opened(room, round)
        # whoever comes back may have lost its keys
        assert (room.summing.setup is None) == (round == 2)
    assert len(setups) == 3
    with pytest.raises(MessageError, match="another vector was masked"):
        room.clients[0].mask_words(7, 0, VALUES[1])
    assert room.clients[0].mask_words(7, 0, VALUES[0]) == room.clients[0].mask_words(
        7, 0, VALUES[0]
    )
    # others: new keys, though there were some left
    assert opened(room, 8, clients=[0, 2, 3]) == [0, 2, 3]
    assert room.summing.setup.terms.setup not in setups


# -- who breaks the rules
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", LIES)
def test_each_lie_is_found_and_shown_and_costs_the_others_nothing(lie):
    """One of five, three rounds: every sum is there, in at most two attempts, and everybody can see
    who lies.
    """
    room = Room(known=True)
    room.lies(2, lie)
    without = [0, 1, 3, 4]
    for round in (1, 2, 3):
        total, members, attempts = room.round(VALUES, round)
        assert set(without) <= set(members) and (total == plain(members)).all() and attempts <= 2
    assert list(members) == without
    if lie in UNPROVEN:
        assert not room.summing.barred
        return
    ((client, proof),) = room.summing.barred.items()
    assert client == 2 and replay_proof(proof, room.known) == {2}
    # what others have said was tampered with: it shows nothing of them
    for round, answers in enumerate(proof.heard):
        for other in answers.keys() - {2}:
            for made in (
                flip(answers[other], -1),
                flip(answers[other], len(answers[other]) // 2),
                answers[other][:-9],
            ):
                heard = [*proof.heard]
                heard[round] = {**answers, other: made}
                assert replay_proof(replace(proof, heard=tuple(heard)), room.known) <= {2}


@pytest.mark.parametrize(
    "lie", ["another share", "wrong shares", "wrong shares to one", "accuses all", "another secret"]
)
def test_eight_of_seventeen_lie(lie):
    room = Room(17, 9, known=True)
    for liar in range(8):
        room.lies(2 * liar, lie)
    values = {client: VALUES[client % 9] for client in range(17)}
    total, members, attempts = room.round(values)
    assert (
        total == sum((values[c] for c in members), start=np.zeros(5, FORM.dtype))
    ).all() and attempts <= 9
    assert set(range(1, 17, 2)) | {16} <= set(members) and room.summing.barred.keys() <= set(
        range(0, 16, 2)
    )
    total, members, _ = room.round(values, 2)
    assert set(members) >= {16, *range(1, 17, 2)} and room.summing.barred


def flip(data, at):
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_a_coordinator_that_tampers_with_what_it_carries_frames_nobody():
    """It seals shares of its own in another's name: whoever holds them says them, and that shows
    nothing.
    """
    room = Room(known=True)
    attacker = SecureClient(1, 3, FORM)

    def asked(client, phase, ask):
        if (client, phase) != (0, Phase.DELIVER):
            return ask
        members, rest = read_numbers(ask[9:])
        parts = pieces(rest, len(members))
        bundles = room.clients[0]._setups[ask[1:9]].bundles
        secrets = [bytes(16), bytes(16)]
        parts[1] = deal(secrets, ask[1:9], attacker.number, bundles, 3)[0][1].encode()
        return ask[:9] + numbers(members) + b"".join(parts)

    room.asked = asked
    opened(room)
    assert not room.summing.barred
    assert room.summing.doubted == {0: "its answer is not signed with its key"}


def test_a_dealer_shows_no_part_of_which_its_holder_has_not_said_that_it_cant_read_it():
    room = Room()
    room.prepare()
    setup = room.summing.setup
    receipt, name = setup.heard[2][1], setup.terms.setup
    forged = receipt[:-64][:9] + numbers([0]) + bytes(32) + bytes(64)
    for answer in (receipt, forged, setup.heard[1][1]):
        with pytest.raises(MessageError, match=r"client 1 has (not )?accused|a list of clients"):
            room.clients[0].answer(
                frame(Phase.REVEAL, name, numbers([1]) + setup.delivered[1] + answer)
            )


def test_nobody_disowns_an_honest_dealer():
    room, _ = ready()
    setup = room.summing.setup
    shares = {
        holder: room.clients[holder]._setups[setup.terms.setup].shares[4][1] for holder in (0, 1, 2)
    }
    for wrong in (shares, {**shares, 1: bytes(17)}, {0: shares[0], 1: shares[1]}):
        fault = Fault(4, True, wrong, setup.heard[1][4])
        with pytest.raises(MessageError, match="no proof that client 4 has dealt wrongly"):
            room.clients[0].answer(round_ask(Phase.DISOWN, setup.terms.setup, 1, 0, fault.encode()))


# -- what a client does, whoever asks
# --------------------------------------------------------------------------------


def ready(**settings):
    room = Room(**settings)
    room.prepare()
    return room, room.vectors(VALUES)


def signed_by(room, who, survivors):
    """Signatures of clients' own, as a coordinator gets them that asks each of them."""
    setup = room.summing.setup
    ask = round_ask(
        Phase.CONFIRM, setup.terms.setup, 1, 0, numbers(setup.members) + numbers(survivors)
    )
    return {client: room.clients[client].answer(ask)[-64:] for client in who}


def opening(room, signatures):
    body = numbers(sorted(signatures)) + b"".join(signatures[c] for c in sorted(signatures))
    return round_ask(Phase.OPEN, room.summing.setup.terms.setup, 1, 0, body)


def test_a_coordinator_that_names_different_survivors_to_different_clients_gets_no_share():
    """With both lists it would have shares of both secrets of client 4."""
    room, _ = ready()
    everybody, without = [0, 1, 2, 3, 4], [0, 1, 2]
    first, second = signed_by(room, [3, 4], everybody), signed_by(room, [0, 1, 2], without)
    with pytest.raises(MessageError, match=r"a different ask for .* came before"):
        signed_by(room, [0], everybody)
    for client, signatures in ((3, first), (3, {**first, **second}), (3, second), (0, first)):
        with pytest.raises(MessageError, match="have signed these survivors, but 3 must"):
            room.clients[client].answer(opening(room, signatures))
    room.clients[0].answer(opening(room, second))  # the one list that three have signed


def test_signatures_are_of_this_round_and_of_its_members():
    room, _ = ready()
    everybody = [0, 1, 2, 3, 4]
    signatures = signed_by(room, everybody, everybody)
    stranger = Ed25519PrivateKey.generate().sign(b"anything")
    for wrong in (
        {0: signatures[0], 1: signatures[0], 2: signatures[0]},
        {0: signatures[0], 1: stranger, 2: stranger},
    ):
        with pytest.raises(MessageError, match="1 have signed these survivors, but 3 must"):
            room.clients[0].answer(opening(room, wrong))


def test_signatures_are_of_the_keys_of_this_setup(monkeypatch):
    """Who signs is known, and so are keys of an earlier run, whose secrets may have been told
    since: a coordinator that
    names its setup as it did then can't pass its signatures on."""
    monkeypatch.setattr("fedseed.privacy.secure.summing.token_bytes", bytes)
    first, everybody, told = Room(known=True), [0, 1, 2, 3, 4], []
    for _ in range(2):
        room = Room()
        room.clients = {
            n: SecureClient(n, 3, FORM, c.identity, first.known) for n, c in first.clients.items()
        }
        room.prepare()
        room.vectors(VALUES)
        told.append((room, signed_by(room, everybody, everybody)))
    (_, before), (room, now) = told
    with pytest.raises(MessageError, match="1 have signed these survivors, but 3 must"):
        room.clients[0].answer(opening(room, {**before, 0: now[0]}))
    room.clients[0].answer(opening(room, now))


@pytest.mark.parametrize("survivors", [range(5), range(4)])
def test_a_round_is_opened_once(survivors):
    """Whoever is in the sum: neither keys nor vectors are to be had for another attempt."""
    room, vectors = ready()
    assert (room.open(vectors) == plain(range(5))).all()
    assert (room.open(vectors) == plain(range(5))).all()  # the same ask is answered alike
    with pytest.raises(OpenedBeforeError, match="two sums would reveal their difference"):
        room.prepare(1, 1, list(survivors))


def through_talk(room):
    """The room's clients as a process over a transport has them."""
    masking = Masking(SecureSums(threshold=3), ZOFedSGD(seeds="shared"), dict.fromkeys(range(5), 1))
    room.clients, room.form, room.summing.form = masking.clients, masking.form, masking.form

    def say(client, ask):
        said = answer_ask(masking, client, ask)
        if said[17] == OPENED:
            raise OpenedBeforeError(said[18:].decode())
        assert said[17] == SOMETHING
        return said[18:]

    room.say = say


@pytest.mark.parametrize("way", ["client", "talk"])
@pytest.mark.parametrize("later", [0, 4])
def test_two_sums_of_a_round_that_differ_by_one_client_are_not_to_be_had(way, later):
    """Vectors of an attempt are kept, it is called failed, the next one opened.

    Rounds later the first is asked for.
    """
    room = Room(ahead=8)
    if way == "talk":
        through_talk(room)
    first = room.prepare()
    vectors = room.vectors(VALUES)
    room.total(VALUES, 1, 1)
    for round in range(2, 2 + later):
        room.total(VALUES, round)
    del vectors[4]
    room.summing.setup = first
    with pytest.raises(OpenedBeforeError):
        room.open(vectors)


def test_an_attempt_that_a_later_one_has_replaced_is_not_opened_by_others():
    """Two groups could open an attempt each, with everybody's vectors in both, before any client
    has opened two.
    """
    room = Room()
    first = room.prepare()
    vectors = room.vectors(VALUES)
    room.prepare(1, 1)
    room.vectors(VALUES, 1, 1)
    room.summing.setup = first
    room.clients[0].mask_words(1, 0, VALUES[0])  # said again, and nothing is opened by it
    with pytest.raises(MessageError, match="masked a vector for a later attempt"):
        room.open(vectors)


def test_attempts_are_masked_in_their_order():
    """Or half of the clients would open the first, and the others the second, with all vectors in
    both.
    """
    room = Room()
    room.prepare(1, 1)
    room.vectors(VALUES, 1, 1)
    room.prepare()
    with pytest.raises(MessageError, match="masked for this attempt, or for a later one"):
        room.vectors(VALUES)
    room.prepare(1, 1)  # with other keys
    with pytest.raises(MessageError, match="masked for this attempt, or for a later one"):
        room.vectors(VALUES, 1, 1)


def start_again(room, folder):
    room.clients = {
        number: SecureClient(number, 3, FORM, place=folder / str(number)) for number in range(5)
    }


def test_a_client_that_is_started_again_remembers_what_it_has_opened(tmp_path):
    room = Room(ahead=3)
    start_again(room, tmp_path / "run")
    for round in (1, 2, 3):
        room.total(VALUES, round)
    start_again(room, tmp_path / "run")
    assert {client.opened for client in room.clients.values()} == {3}
    for round in (1, 3):
        with pytest.raises(
            OpenedBeforeError, match=f"round {round} or a later one was opened before"
        ):
            room.prepare(round, 1, [0, 1, 2, 3])
    assert opened(room, 4) == [0, 1, 2, 3, 4]


def test_what_cant_be_remembered_is_not_opened(tmp_path, monkeypatch):
    room = Room()
    start_again(room, tmp_path)
    room.prepare()
    vectors = room.vectors(VALUES)

    def full(path, data):
        raise StorageError(f"{path}: can't be written: No space left on device")

    monkeypatch.setattr("fedseed.privacy.secure.client.write_whole", full)
    with pytest.raises(StorageError, match="No space left"):
        room.open(vectors)
    (tmp_path / "0").write_text("three")
    with pytest.raises(StorageError, match="holds the newest round that a client has opened"):
        SecureClient(0, 3, FORM, place=tmp_path / "0")


@pytest.mark.parametrize(
    ("clients", "threshold", "asked"),
    [(5, 3, 2), (6, 3, 3), (2, 2, 2), (5, 3, 6)],
    ids=["own", "half", "two", "all"],
)
def test_terms_that_protect_too_little_are_refused(clients, threshold, asked):
    """Below the client's own threshold, no majority, of two, above all of them."""
    terms = Terms(bytes(8), 1, 0, 1, asked, tuple(range(clients)))
    with pytest.raises(MessageError, match="a majority, of at least 3 clients"):
        SecureClient(0, threshold, FORM).answer(terms.encode())


def test_known_identities_stop_a_coordinator_that_speaks_for_the_others():
    """A coordinator between the clients has keys of its own for each.

    Only who knows theirs can tell.
    """
    room = Room(3, 2, known=True)
    room.summing.known = None  # this coordinator does not know
    opened(room)
    room.clients[2] = SecureClient(2, 2, FORM)
    with pytest.raises(
        MessageError, match="client 2 signs with a key that differs from the known one"
    ):
        room.total(VALUES, 2)


@pytest.mark.parametrize(
    "ask",
    [
        b"",
        b"\x09" + bytes(8),
        frame(Phase.KEYS, bytes(8)),
        frame(Phase.SHARES, bytes(8)),
        frame(Phase.KEYS, bytes(8), struct.pack("<IHHH", 1, 0, 5000, 3) + numbers([0, 1, 2])),
        frame(Phase.KEYS, bytes(8), struct.pack("<IHHH", 1, 0, 1, 3) + struct.pack("<I", 1 << 30)),
    ],
)
def test_asks_that_are_none_are_refused(ask):
    with pytest.raises(MessageError):
        SecureClient(0, 3, FORM).answer(ask)


# -- what the coordinator hears
# --------------------------------------------------------------------------------------


FORM8 = FixedPoint(64, 8, 8)


def world(first, second, rounds):
    """Mean bits of all that came from clients 0 and 1, by client and phase.

    The same had nobody masked; and vectors.

    Client 2 has nothing to add, and two of three open a sum.
    """
    room, bits, seen = Room(3, 2, FORM8, ahead=100), defaultdict(list), []
    for round in range(1, rounds + 1):
        values = {0: first, 1: second, 2: FORM8.encode(np.zeros(2))}
        room.heard = []
        total, _ = room.total(values, round)
        assert (total == FORM8.encode(np.array([1.0, -1.0]))).all()
        for client, phase, data in room.heard:
            if client == 2 or phase not in ("vector", Phase.CONFIRM, Phase.OPEN):
                continue
            body = data[8 if phase == "vector" else 9 :]
            bits[client, phase].append(np.frombuffer(body, np.uint8))
            if phase == "vector":
                seen.append(body)
                bits[client, "unmasked"].append(np.frombuffer(values[client].tobytes(), np.uint8))
    means = {
        key: np.unpackbits(np.array(found), axis=1).mean(axis=0) for key, found in bits.items()
    }
    return means, np.frombuffer(b"".join(seen), np.uint8)


@pytest.mark.parametrize("rounds", [120, pytest.param(1000, marks=pytest.mark.slow)])
def test_what_is_heard_of_a_client_does_not_depend_on_its_vector(rounds):
    """Two worlds with the same sum: in one client 0 has (1, -1) and client 1 (0, 0), in the other
    the other way round.

    Of each bit of everything that comes from one of them the mean over the rounds is compared
    between the worlds and, in masked vectors, with a fair coin's; masked bytes are as even as
    chance. Had nobody masked, this would see it."""
    one, none = FORM8.encode(np.array([1.0, -1.0])), FORM8.encode(np.zeros(2))
    (here, seen), (there, _) = world(one, none, rounds), world(none, one, rounds)
    deviation = 0.5 / rounds**0.5  # of a fair bit's mean
    apart = {key: np.abs(here[key] - there[key]).max() / (deviation * 2**0.5) for key in here}
    unfair = [np.abs(w[c, "vector"] - 0.5).max() / deviation for w in (here, there) for c in (0, 1)]
    # of 6,000 bits: once in 100,000 runs
    assert max(value for key, value in apart.items() if key[1] != "unmasked") < 6
    assert max(unfair) < 6 and min(apart[c, "unmasked"] for c in (0, 1)) > 10
    counts = np.bincount(seen, minlength=256)
    expected = len(seen) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * (2 * 255) ** 0.5
