"""Decides what a run is before its log fixes it: by majority, not by who comes first.

A process says in its hello which base, layout and first weights it has, and which tokens it makes
of texts. Clients are counted, not processes. An opinion becomes the run's once it has more than
half of all clients, or more than half of those that the start waits for.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedseed.federation.fingerprint import Fingerprint
from fedseed.federation.protocol import list_names
from fedseed.orbit import Header
from fedseed.orbit.header import START


@dataclass(frozen=True)
class Claim:
    """What a process claims the run to be.

    The header is kept as bytes: there may be as many claims as clients, and headers are large.
    """

    # The orbit's header as it would begin, encoded without the names in `base_names`: what a
    # party calls the base does not matter.
    start: bytes
    # the base's name, its folder, and the libraries that named its tensors
    base_names: tuple[str, str, str]
    # hex digest of the trained tensors before the first step; None: not given
    weights: str | None
    names: tuple[str, ...] | None  # all clients; None: the coordinator knows them already
    fingerprint: Fingerprint | None = None  # None: not given

    @classmethod
    def from_header(
        cls,
        header: Header,
        weights: str | None,
        names: tuple[str, ...] | None,
        fingerprint: Fingerprint | None = None,
    ) -> "Claim":
        """Return the claim of a process with this header."""
        start = replace(header, base="", base_folder="", first=1, libraries="").encode()
        base_names = (header.base, header.base_folder, header.libraries)
        return cls(start, base_names, weights, names, fingerprint)

    @property
    def header(self) -> Header:
        """Return the header, decoded anew."""
        base, base_folder, libraries = self.base_names
        header = Header.decode(self.start[START.size :])
        return replace(header, base=base, base_folder=base_folder, libraries=libraries)

    def __str__(self) -> str:
        header = self.header
        text = f"base {header.base_digest}, {header.layout.size:,} parameters that train"
        if self.weights is not None:
            text += f" and begin as {self.weights}"
        if self.fingerprint is not None:
            text += f", tokens {self.fingerprint.tokens} ({self.fingerprint.describe_versions()})"
        if self.names is not None:
            text += f", the clients {list_names(self.names)}"
        return text


@dataclass
class Agreement:
    """Collects the claims of processes until a majority settles what the run is."""

    claims: dict[str, Claim] = field(default_factory=dict)  # the newest of each process

    def groups(self, clients: Mapping[str, int]) -> list[tuple[int, list[str]]]:
        """Group processes by opinion, the one with the most clients first.

        Args:
            clients: how many clients each process speaks for; other processes do not count.

        Returns:
            The number of clients of each opinion, and its processes.
        """
        hosts_by_opinion: dict[object, list[str]] = {}
        for host, claim in self.claims.items():
            if clients.get(host):
                opinion = (claim.start, claim.weights, claim.names, claim.fingerprint)
                hosts_by_opinion.setdefault(opinion, []).append(host)
        groups = []
        for hosts in hosts_by_opinion.values():
            groups.append((sum(clients[host] for host in hosts), hosts))
        return sorted(groups, key=lambda group: -group[0])

    def find_majority(self, clients: Mapping[str, int], total: int, required: int) -> Claim | None:
        """Return the claim that has a majority; None while none has.

        Args:
            clients: as for `groups`.
            total: how many clients there are; 0: not known.
            required: how many the start waits for; 0: not known.
        """
        groups = self.groups(clients)
        if not groups:
            return None
        largest, hosts = groups[0]
        claims = [self.claims[host] for host in hosts]
        names = claims[0].names
        # an opinion that lists the clients says how many there are
        if names is not None:
            total = len(names)
            required = required or len(names)
        counted = sum(count for count, _ in groups)
        has_majority = 2 * largest > total > 0
        has_start_majority = required > 0 and counted >= required and 2 * largest > counted
        if not has_majority and not has_start_majority:
            return None
        # processes that agree may call the base differently: take the most frequent name
        base_names = Counter(claim.base_names[0] for claim in claims)
        return max(claims, key=lambda claim: base_names[claim.base_names[0]])
