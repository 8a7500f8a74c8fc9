"""A recipe's settings of secure sums, and the methods and rules that they fit."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator

from fedseed.aggregation import AggregationRule, Mean
from fedseed.hinting import Hinting
from fedseed.methods import Method
from fedseed.methods.base import add_remedy
from fedseed.privacy import settings_of
from fedseed.privacy.secure.fixed import FixedPoint

FEWEST = 3  # least number of clients: in a sum of two, each knows the other's part
MOST_ROUNDS = 1024  # the most rounds for which keys are agreed on at once
MOST_CLIENTS = 4096
_DER = bytes.fromhex("302a300506032b6570032100")  # the beginning of a public Ed25519 key (RFC 8410)
_KEY_BYTES = 32


def identity_text(key: bytes) -> str:
    """Return a public Ed25519 key of 32 bytes as the base64 line of its PEM file."""
    return b64encode(_DER + key).decode()


def identity_of(text: str) -> bytes:
    """Return the inverse of `identity_text`. Raises ValueError if it is not such a key."""
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        data = b""
    if not data.startswith(_DER) or len(data) != len(_DER) + _KEY_BYTES:
        raise ValueError(
            f"{text[:80]!r} is not a public Ed25519 key: give the middle line of the .pub file "
            "that `fedseed orbit keygen` writes"
        )
    return data[len(_DER) :]


class SecureSums(BaseModel, metaclass=Hinting):
    """The coordinator learns only the sum of a round's answers (docs/secure-sums.md).

    Args:
        threshold: number of clients needed to open a sum, more than half of a round's. With fewer,
            no sum is opened, and the round begins again. If c clients may cooperate with the
            coordinator, set it higher than (clients of a round + c) / 2, and to at least c + 2. A
            sum always has at least 3 clients.
        fraction_bits: numbers are rounded to multiples of 2^-fraction_bits before they are added
            up.
        most_clients: the largest number of clients in a round, for which 64-bit sums reserve room:
            a client's numbers, including its weight, are limited to 2^(63 - fraction_bits) /
            most_clients.
        ahead: number of rounds for which keys are agreed on at once, if the same clients take part
            in them.
        identities: over a network, each client's public key, by name: the line of base64 in the
            .pub file that `fedseed orbit keygen` writes. Clients accept only these keys from each
            other; `join --identity` gives the file of a client's own private key. Empty: clients
            trust the coordinator for the others' keys.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    threshold: Annotated[int, Field(ge=2, le=MOST_CLIENTS)]
    fraction_bits: Annotated[int, Field(ge=0, le=48)] = 32
    most_clients: Annotated[PositiveInt, Field(ge=FEWEST, le=MOST_CLIENTS)] = 128
    ahead: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] = 16
    identities: dict[str, str] = Field(default_factory=dict)

    @field_validator("identities")
    @classmethod
    def _keys(cls, identities: dict[str, str]) -> dict[str, str]:
        owners: dict[bytes, str] = {}
        for name, text in identities.items():
            try:
                owner = owners.setdefault(identity_of(text), name)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            if owner != name:
                raise ValueError(
                    f"{name}: this is also the key of {owner}; each client needs its own key"
                )
        return identities

    @property
    def least(self) -> int:
        """Return the least number of clients whose vectors a sum must have."""
        return max(self.threshold, FEWEST)

    def public_keys(self, numbers: Mapping[str, int]) -> dict[int, bytes] | None:
        """Return the clients' public keys by number; None if the recipe has none.

        Args:
            numbers: the numbers of all clients, by name.
        """
        if not self.identities:
            return None
        return {
            numbers[name]: identity_of(text)
            for name, text in self.identities.items()
            if name in numbers
        }

    def missing_key(self, names: Iterable[str]) -> str | None:
        """Describe a client whose key is missing in a recipe with keys; None if no key is
        missing.
        """
        missing = [name for name in names if name not in self.identities] if self.identities else []
        if not missing:
            return None
        return (
            f"secure_sums.identities: {missing[0]} has no key; give a key for each client, or for "
            "none"
        )

    def form(self, counted: bool) -> FixedPoint:
        """Return the encoding of numbers.

        Args:
            counted: whether the numbers are whole and have no weights, such as votes.
        """
        bits, fraction = (32, 0) if counted else (64, self.fraction_bits)
        return FixedPoint(bits, fraction, self.most_clients)

    def problem(self, per_round: int) -> str | None:
        """Return the reason why a round can't have `per_round` clients; None if it can."""
        round_text = f"a round has {per_round} clients (federation.per_round)"
        if per_round < FEWEST:
            return (
                f"secure_sums: {round_text}, but in a sum of fewer than {FEWEST} each client "
                "knows the others' part"
            )
        if self.threshold > per_round:
            return f"secure_sums.threshold = {self.threshold}: {round_text}"
        if 2 * self.threshold <= per_round:
            minimum = per_round // 2 + 1
            return (
                f"secure_sums.threshold = {self.threshold}: {round_text}; set at least {minimum}, "
                "more than half of them; otherwise two groups could open different sums of a round"
            )
        if per_round > self.most_clients:
            return (
                f"secure_sums.most_clients = {self.most_clients}: {round_text}; set at least "
                f"{per_round}"
            )
        return None


def secure_problem(
    settings: SecureSums, method: Method, rule: AggregationRule, per_round: int | None
) -> str | None:
    """Return the reason why secure sums are not possible; None if they are.

    Args:
        settings: the recipe's settings.
        method: the method.
        rule: the rule that combines clients' vectors.
        per_round: number of clients in a round; None: not known yet.
    """
    if not getattr(rule, "linear", isinstance(rule, Mean)):
        return (
            f'secure_sums: aggregation.name = "{rule.name}" needs single answers, but no party '
            "sees them; leave out one of the two"
        )
    privacy = settings_of(method)
    if privacy is not None and privacy.level == "client":
        return (
            'secure_sums: privacy.level = "client": the coordinator would have to bound each '
            'answer, but can\'t read single answers; set privacy.level = "example", or leave out '
            "one of the two"
        )
    reason = method.needs_each
    if reason is not None:
        return f"secure_sums: {method.name}: {add_remedy(reason)}"
    return None if per_round is None else settings.problem(per_round)
