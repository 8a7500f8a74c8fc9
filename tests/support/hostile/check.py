"""What must be true of a federation, whatever hostile keys did beside it."""

import re

MEMORY = 150 * 10**6  # bytes of the coordinator
COMPUTED = 1.0  # its processor seconds between a question for the status and the answer: the clock is the machine's
SAID = 200_000  # characters on its terminal
NOBODY = ("watcher", "a watcher", "a consumer", "somebody")  # the server's own words and deliveries prove no author
PERHAPS = ("somebody at ", "somebody as ")  # an address, or a name that nobody has proven
LATE = re.compile(  # what is said of an honest client's answer that comes twice, or when its round is over
    r"has answered round|no round is open|round \d+ was expected, round \d+ came|round \d+ attempt \d+ is not open"
    r"|attempt \d+ is open, this answers|is being closed|it came when its round was over"
)


def refusals(ended):
    """How many refusals each name has."""
    return {name: sum(reasons.values()) for name, reasons in ended.summary["refusals"].items()}


def differences(one, other):
    """What is not the same, in a few lines."""
    lines = [(a, b) for a, b in zip(one.lines, other.lines, strict=False) if a != b][:2]
    same = one.model == other.model
    return f"model {same}, digests {one.digests} {other.digests}, {len(one.lines)} {len(other.lines)} lines: {lines}"


def check(ended, expected):
    """Compare with the same federation in which nobody is hostile.

    Args:
        ended: what became of it (`federation.Ended`).
        expected: the result of the other (`federation.undisturbed`).
    """
    assert ended.result == expected, differences(ended.result, expected)
    watched = ended.watched
    assert watched.memory < MEMORY, f"{watched.memory:,} bytes"
    assert watched.unanswered == 0 and len(watched.answers) > 2
    assert max(watched.computed) < COMPUTED, f"{max(watched.computed):.2f} s, {max(watched.answers):.2f} s by the clock"
    assert len(ended.said) < SAID and "Traceback" not in ended.said, ended.said[-5000:]
    assert not any(c in ended.said for c in "\x1b\x07\u202e"), "control characters"
    refused = ended.summary["refusals"]
    others = {name: reasons for name, reasons in refused.items() if name not in (ended.hostile.name, *NOBODY)}
    others = {name: reasons for name, reasons in others.items() if not name.startswith(PERHAPS)}
    assert all(LATE.search(reason) for reasons in others.values() for reason in reasons), others
    counted = sum(refusals(ended).get(name, 0) for name in (ended.hostile.name, f"somebody as {ended.hostile.name}"))
    least = 0 if ended.let_go else ended.hostile.certain  # what the server has thrown away nobody can count
    assert least <= counted <= ended.hostile.sent + ended.hostile.foreign * 2 + 100, (
        f"{ended.hostile.certain} of {ended.hostile.sent} messages had to be refused, {counted} were"
    )
