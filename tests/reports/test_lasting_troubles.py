"""A trouble that lasts is shown at once, and then at growing intervals."""

from fedseed.reports import progress
from fedseed.reports.progress import LastingTroubles


def shown_seconds(troubles, clock, shown, seconds, report):
    """Report every two seconds; return the seconds at which a line was shown."""
    times = []
    for second in range(0, seconds, 2):
        clock[0], before = float(second), len(shown)
        report(troubles, second)
        if len(shown) > before:
            times.append(second)
    return times


def test_a_trouble_without_end_is_shown_at_growing_intervals():
    clock, shown = [0.0], []
    troubles = LastingTroubles(shown.append, lambda: clock[0])

    def report(troubles, second):
        troubles.report("north", f"north can't be answered now: round {second}")
        troubles.report("south", "south can't be answered now")

    # a minute later, then two more, four more, ...
    assert shown_seconds(troubles, clock, shown, 2000, report) == [0, 60, 180, 420, 900, 1860]
    assert len(shown) == 12 and shown[:2] == [
        "north can't be answered now: round 0",
        "south can't be answered now",
    ]


def test_an_interval_has_a_limit_and_a_trouble_that_comes_back_is_shown_at_once():
    clock, shown = [0.0], []
    troubles = LastingTroubles(shown.append, lambda: clock[0])
    times = shown_seconds(
        troubles, clock, shown, 30_000, lambda troubles, _: troubles.report("north", "no room")
    )
    assert times[-2] - times[-3] == times[-1] - times[-2] == progress.MOST_INTERVAL_SECONDS
    clock[0] = 30_000.0 + progress.FIRST_INTERVAL_SECONDS
    count = len(shown)
    troubles.report("north", "no room")
    assert len(shown) == count + 1
    # another trouble of the same party
    troubles.report("north", "no such stream")
    assert len(shown) == count + 2


def test_troubles_take_bounded_memory(monkeypatch):
    monkeypatch.setattr(progress, "MOST_TROUBLES", 3)
    shown = []
    troubles = LastingTroubles(shown.append, lambda: 0.0)
    for name in "abcdefa":
        troubles.report(name, f"{name} can't be answered now")
    assert len(shown) == 7 and len(troubles._troubles) == 3
