"""What a round costs one client, as the papers' tables count: seconds of its work, and parameters exchanged.

Seconds in lines of metrics are sums over a round's clients; of those, local work and projection are a client's own, so
they are divided by the clients. The coordinator combines the answers once a round. Rebuilding, the step's change of the
weights, is done by every client for itself: a simulation does it once for all of them, on a network each process does.
"Local update" in Ferret's Tables 4, 5 and 10 is local work and projection; "global aggregation" is the other two.
"""

from collections.abc import Sequence

from fedseed.methods.content import NUMBERS, Content, total
from fedseed.reports.results import PHASES, RoundLine

Lines = Sequence[RoundLine]


def exchanged(
    clients: int, updates: int, received: Sequence[Content], planned: Content, fetched: Sequence[Content]
) -> dict[str, float]:
    """Numbers that one client sends and receives in a round: means over those who take part.

    Args:
        clients: how many take part.
        updates: how many sent an update, also one within another's message, or one that was refused.
        received: what each message that counts held.
        planned: what a plan held.
        fetched: what each client caught up on.
    """
    up, down = total(received), total(fetched)
    sent, many = updates / max(1, len(received)), max(1, clients)  # updates that are not known are like the others
    numbers = {f"{name}_up": getattr(up, name) * sent / many for name in NUMBERS}
    plan = clients / many
    return numbers | {f"{n}_down": getattr(down, n) / many + getattr(planned, n) * plan for n in NUMBERS}


def mean_exchanged(lines: Lines) -> dict[str, float]:
    """The mean over the rounds of some lines; nothing if none is known, as in lines of an earlier fedseed."""
    known = [(line.exchanged, line.rounds) for line in lines if line.exchanged]
    rounds = sum(count for _, count in known)
    names = known[0][0] if known else ()
    return {name: sum(found[name] * count for found, count in known) / rounds for name in names}


def seconds_per_client(lines: Lines) -> dict[str, float]:
    """Mean seconds by phase of one client in a round in which it takes part.

    Args:
        lines: of metrics, without round 0.
    """
    rounds = sum(line.rounds for line in lines)
    taking_part = sum(line.taking_part for line in lines)
    found = {}
    for phase in PHASES:
        own = phase in ("local", "projection")
        spent = sum(line.seconds.get(phase, 0.0) / _processes(phase, line) for line in lines)
        found[phase] = spent / max(1, taking_part if own else rounds)
    return found


def _processes(phase: str, line: RoundLine) -> int:
    """How many have rebuilt the weights; what else takes time is told apart by the clients."""
    return max(1, line.processes or 1) if phase == "rebuild" else 1
