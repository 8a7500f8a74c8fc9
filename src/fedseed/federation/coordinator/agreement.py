"""Lets the clients' majority decide what a run is, before its log fixes it. It does not matter who
comes first.

In its hello a process claims a base, a layout, first weights and a tokenizer's fingerprint. Clients
are counted, not processes. A claim becomes the run's when it has more than half of all clients, or
more than half of those that the start waits for.
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
    """A process's claim about the run.

    The header is kept as bytes: there may be as many claims as clients, and headers are large.
    """

    # The beginning of the orbit's header, encoded without the names in `base_names`, because
    # parties may name the base differently.
    start: bytes
    # the base's name, its folder, and the libraries that determined its tensors' names
    base_names: tuple[str, str, str]
    # hex digest of the trained tensors before the first step; None: not given
    weights: str | None
    names: tuple[str, ...] | None  # names of all clients; None: the coordinator knows them already
    fingerprint: Fingerprint | None = None  # fingerprint of the tokenizer; None: not given

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
        """Decode and return the header."""
        base, base_folder, libraries = self.base_names
        header = Header.decode(self.start[START.size :])
        return replace(header, base=base, base_folder=base_folder, libraries=libraries)

    def __str__(self) -> str:
        header = self.header
        text = f"base {header.base_digest}, {header.layout.size:,} parameters that train"
        if self.weights is not None:
            text += f" with the first weights {self.weights}"
        if self.fingerprint is not None:
            text += f", tokens {self.fingerprint.tokens} ({self.fingerprint.describe_versions()})"
        if self.names is not None:
            text += f", the clients {list_names(self.names)}"
        return text


@dataclass
class Agreement:
    """Collects the claims of processes until a majority settles what the run is."""

    claims: dict[str, Claim] = field(default_factory=dict)  # the newest claim of each process

    def groups(self, clients: Mapping[str, int]) -> list[tuple[int, list[str]]]:
        """Group processes by claim, the claim with the most clients first.

        Args:
            clients: how many clients each process speaks for; other processes do not count.

        Returns:
            The number of clients of each claim, and its processes.
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
        """Return the claim with a majority; None if there is none yet.

        Args:
            clients: as for `groups`.
            total: number of all clients; 0: not known.
            required: number of clients that the start waits for; 0: not known.
        """
        groups = self.groups(clients)
        if not groups:
            return None
        largest, hosts = groups[0]
        claims = [self.claims[host] for host in hosts]
        names = claims[0].names
        # a claim that lists the clients also gives their number
        if names is not None:
            total = len(names)
            required = required or len(names)
        counted = sum(count for count, _ in groups)
        has_majority = 2 * largest > total > 0
        has_start_majority = required > 0 and counted >= required and 2 * largest > counted
        if not has_majority and not has_start_majority:
            return None
        # processes with equal claims may name the base differently: use the most frequent name
        base_names = Counter(claim.base_names[0] for claim in claims)
        return max(claims, key=lambda claim: base_names[claim.base_names[0]])
