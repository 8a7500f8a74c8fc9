"""What the run is, before its log fixes it: what most clients say.

Nobody decides it by coming first.

A process says in its hello which base, layout and first weights it has, and what it makes of texts.
Clients count, not
processes. Once one opinion has more than half of all clients, or more than half of those that the
start waits for, it is the run's.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedseed.federation.fingerprint import Fingerprint
from fedseed.federation.protocol import listed
from fedseed.orbit import Header
from fedseed.orbit.header import START


@dataclass(frozen=True)
class Claim:
    """What a process says.

    Its header is kept as bytes: there may be as many of them as clients, each large.
    """

    # the orbit's header as it would begin, encoded; what the base is called there does not matter
    start: bytes
    # that name, the base's folder, and the libraries that named its tensors
    called: tuple[str, str, str]
    # hex digest of the trained tensors before the first step; None: it does not say
    weights: str | None
    names: tuple[str, ...] | None  # all clients, where nobody else knows them; None: they are known
    fingerprint: Fingerprint | None = None  # what it makes of texts; None: it does not say

    @classmethod
    def of(
        cls,
        header: Header,
        weights: str | None,
        names: tuple[str, ...] | None,
        fingerprint: Fingerprint | None = None,
    ) -> "Claim":
        """Return what a process says that has this header."""
        start = replace(header, base="", base_folder="", first=1, libraries="").encode()
        called = header.base, header.base_folder, header.libraries
        return cls(start, called, weights, names, fingerprint)

    @property
    def header(self) -> Header:
        """Return the header, decoded anew."""
        base, base_folder, libraries = self.called
        header = Header.decode(self.start[START.size :])
        return replace(header, base=base, base_folder=base_folder, libraries=libraries)

    def __str__(self) -> str:
        header = self.header
        said = f"base {header.base_digest}, {header.layout.size:,} parameters that train"
        said += "" if self.weights is None else f" and begin as {self.weights}"
        if self.fingerprint is not None:
            said += f", tokens {self.fingerprint.tokens} ({self.fingerprint.describe_versions()})"
        return said + ("" if self.names is None else f", the clients {listed(self.names)}")


@dataclass
class Agreement:
    """Collects what processes say, until it is clear what the run is."""

    claims: dict[str, Claim] = field(default_factory=dict)  # what each process said last

    def groups(self, clients: Mapping[str, int]) -> list[tuple[int, list[str]]]:
        """Return how many clients each opinion has, and its processes, the largest first.

        Args:
            clients: of each process, how many it speaks for; others do not count.
        """
        found: dict[object, list[str]] = {}
        for host, claim in self.claims.items():
            if clients.get(host):
                opinion = (claim.start, claim.weights, claim.names, claim.fingerprint)
                found.setdefault(opinion, []).append(host)
        return sorted(
            ((sum(clients[h] for h in hosts), hosts) for hosts in found.values()),
            key=lambda one: -one[0],
        )

    def decided(self, clients: Mapping[str, int], everybody: int, wanted: int) -> Claim | None:
        """Return what the run is; None: it can't be said yet.

        Args:
            clients: as for `groups`.
            everybody: how many clients there are; 0: not known.
            wanted: how many must be there for the start; 0: not known.
        """
        groups = self.groups(clients)
        if not groups:
            return None
        most, hosts = groups[0]
        claims = [self.claims[host] for host in hosts]
        if (names := claims[0].names) is not None:  # as far as this opinion knows
            everybody, wanted = len(names), wanted or len(names)
        heard = sum(count for count, _ in groups)
        if not (2 * most > everybody > 0 or (wanted and heard >= wanted and 2 * most > heard)):
            return None
        called = Counter(claim.called[0] for claim in claims)
        # most of them call the base so
        return max(claims, key=lambda claim: called[claim.called[0]])
