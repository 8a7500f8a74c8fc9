"""The answers of each client, kept in a run's folder so that parties can verify them
(`verification`). This module does not need torch.

A run's log has the steps. A step is mostly a sum over clients, so it does not show what each client
sent. With `federation.answers = true` the folder also has answers.jsonl. Its first line has the
clients' names in the order of their numbers. Each later line is about one round: the clients that
were asked, the payload of each answer that counted, and the clients without such an answer.
"""

from collections.abc import Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from fedseed.durable import is_irregular
from fedseed.errors import FedseedError
from fedseed.federation.coordinator.coordinator import Coordinator
from fedseed.methods import Method
from fedseed.methods.fedkseed import Pairs
from fedseed.methods.feedsign import Votes
from fedseed.methods.ferret import Coefficients
from fedseed.methods.subspace import CodedEntries, FactorEntries, FloatEntries
from fedseed.methods.zofedsgd import Projections
from fedseed.privacy import mechanism_of

FILE = "answers.jsonl"


class Line(BaseModel):
    """One line of answers.jsonl. The first line has the clients' names. Every other line has a
    round's asked clients and, by client, the number of examples it claims and the payload of its
    answer.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    round: NonNegativeInt
    clients: list[str] = []
    asked: list[NonNegativeInt] = []
    answers: dict[NonNegativeInt, tuple[NonNegativeInt, bytes]] = {}
    # clients that were asked but have no answer that counts; None: the line was written by a
    # fedseed 0.x that did not record them
    silent: list[NonNegativeInt] | None = None

    @property
    def complete(self) -> bool:
        """Return whether every client that was asked has an answer or is listed as silent."""
        without_answer = set(self.asked) - set(self.answers)
        return self.silent is None or without_answer == set(self.silent)


def encode_lines(number: int, coordinator: Coordinator, names: Sequence[str]) -> list[bytes]:
    """Return two lines: the file's first line, and the line of the round that is about to close."""
    current = coordinator.current
    counted = {
        client: (coordinator.examples[client], update.encode())
        for client, update in current.updates.items()
    }
    lines = (
        Line(round=0, clients=list(names)),
        Line(
            round=number,
            asked=list(current.clients),
            answers=counted,
            silent=[client for client in current.clients if client not in counted],
        ),
    )
    return [line.model_dump_json(exclude_defaults=True).encode() + b"\n" for line in lines]


class AnswerRecord(NamedTuple):
    """The file's content: the clients' names, a line for each round, and a hash of all its
    bytes.
    """

    names: list[str]
    lines: dict[int, Line]
    digest: bytes


def read_answers(path: Path) -> AnswerRecord:
    """Return a run's answers. Raises FedseedError if the file is missing or malformed."""
    if is_irregular(path):
        raise FedseedError(
            f"{path}: not a regular file but a pipe or a device, which may never end"
        )
    try:
        data = path.read_bytes()
        first, *rest = (Line.model_validate_json(text) for text in data.splitlines())
    except FileNotFoundError as error:
        raise FedseedError(
            f"{path}: not found, and steps do not show what a single client sent: run with "
            "federation.answers = true"
        ) from error
    except (OSError, ValidationError, ValueError) as error:
        raise FedseedError(f"{path}: not a run's answers, or damaged: {error}") from error
    rounds, count = [line.round for line in rest], len(first.clients)
    numbers = set(chain.from_iterable((*line.asked, *line.answers) for line in rest))
    if first.round or len(set(first.clients)) < count or rounds != sorted({*rounds, *rounds} - {0}):
        raise FedseedError(
            f"{path}: not a run's answers: the clients' names or the rounds are out of order"
        )
    if max(numbers, default=-1) >= count:
        raise FedseedError(
            f"{path}: client {max(numbers)} has an answer, but the number of clients is {count}"
        )
    return AnswerRecord(
        first.clients, dict(zip(rounds, rest, strict=True)), blake2b(data, digest_size=16).digest()
    )


def find_obstacle(method: Method, secure_sums: bool) -> str | None:
    """Return the reason why a party can't verify the answers it sent; None if it can."""
    if secure_sums:
        return (
            "secure_sums: the coordinator never sees a single client's answer, so it can't keep any"
        )
    if mechanism_of(method) is not None:
        return (
            f"{method.name} is private in this run: its noise is secret, so nobody can recompute "
            "an answer"
        )
    update = method.update_type
    settings: Any = method  # has the keys of its own kind of update, too
    if issubclass(update, CodedEntries):
        return (
            f"method.up_bits = {settings.up_bits}: a code does not show how near an entry is to "
            "the next code, so a forged entry looks like float noise; up_bits = 32 can be verified"
        )
    if issubclass(update, FactorEntries) and settings.training.optimizer != "sgd":
        return (
            f'method.training.optimizer = "{settings.training.optimizer}": this optimizer divides '
            "by the gradient's size, so an entry whose gradient is only float noise moves by a "
            'whole step; "sgd" can be verified'
        )
    if not issubclass(update, Votes | Projections | Pairs | Coefficients | FloatEntries):
        return (
            f"answers of {method.name} can't be verified; those of FeedSign, ZO-FedSGD, FedKSeed "
            "and Ferret can, and those of subspace if it sends floats"
        )
    if getattr(method, "normalize", "none") != "none":
        return (
            "method.normalize: it divides the difference of losses by a number that can be as "
            "small as float noise"
        )
    if getattr(method, "scalars", "") == "bit":
        return 'method.scalars = "bit": a sign does not show how near to zero a coefficient is'
    return None
