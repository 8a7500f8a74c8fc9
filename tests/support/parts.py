"""What a process over a network would hold of a federation that is in one process and has not
run.
"""

from dataclasses import replace

from fedseed.runs.joining import match_names


def part_of(simulation, clients):
    """The part of some clients, by names or patterns."""
    whole = simulation.hosted
    return replace(
        whole, items={name: whole.items[name] for name in match_names(clients, whole.names)}
    )
