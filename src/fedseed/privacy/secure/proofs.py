"""Keeps why clients are barred from secure sums in files, for a coordinator that is started again and for anybody."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path

from fedseed.durable import write_whole
from fedseed.errors import MessageError
from fedseed.privacy.secure.messages import Terms, unframed
from fedseed.privacy.secure.summing import Proof, convicted


def keep(folder: Path, client: int, proof: Proof) -> None:
    """Writes a proof into the file of its client's number. Raises StorageError."""
    heard = [{str(one): b64encode(answer).decode() for one, answer in answers.items()} for answers in proof.heard]
    about = {"reason": proof.reason, "terms": b64encode(proof.terms.encode()).decode(), "heard": heard}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{client}.json", json.dumps({**about, "opening": proof.opening}).encode())


def kept(folder: Path, known: Mapping[int, bytes] | None) -> tuple[dict[int, Proof], list[Path]]:
    """Reads the proofs in a folder, and holds the conversation of each again.

    Args:
        folder: where `keep` has written them; it need not be there.
        known: the public keys that sign for clients, by number; None: whatever they say.

    Returns:
        The proofs by client, and the files that show nothing.
    """
    found, others = {}, []
    for path in sorted(folder.glob("*.json")):
        try:
            about = json.loads(path.read_bytes())
            _, setup, terms = unframed(b64decode(about["terms"]))
            heard = [{int(one): b64decode(text) for one, text in answers.items()} for answers in about["heard"]]
            opening = about["opening"] and (*about["opening"][:2], tuple(about["opening"][2]))
            proof = Proof(str(about["reason"]), Terms.decode(setup, terms), tuple(heard), opening)
            if int(path.stem) not in convicted(proof, known):
                raise ValueError("it shows nothing")
            found[int(path.stem)] = proof
        except (MessageError, ValueError, TypeError, KeyError, AttributeError):
            others.append(path)
    return found, others
