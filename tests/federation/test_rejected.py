from fedseed.federation import rejected as refusals
from fedseed.federation.membership import Attendance
from fedseed.federation.rejected import Refusals
from fedseed.reports.progress import Silent


class Heard(Silent):
    def __init__(self):
        self.warnings = []

    def warn(self, text):
        self.warnings.append(text)


def test_all_are_counted_in_bounded_memory_and_the_first_are_told(monkeypatch):
    monkeypatch.setattr(refusals, "MOST_SENDERS", 20)
    heard = Heard()
    counted = Refusals(heard, "run")
    for reason in range(80):
        for _ in range(2):
            counted.add("mallory", f"reason {reason}")
    assert len(heard.warnings) == refusals.MOST_TOLD + 1 and "fedseed status run" in heard.warnings[-1]
    assert heard.warnings[0] == "a message of mallory is refused: reason 0"
    for sender in range(100):
        counted.add(f"sender {sender}", "garbage")
    counts = counted.counts()
    assert counts["mallory"]["reason 0"] == 2 and counts["mallory"]["others"] == 2 * (80 - refusals.MOST_REASONS)
    assert len(counts) <= 21 and counts["others"] == {"garbage": 81}
    assert counted.since() == 260 == sum(sum(reasons.values()) for reasons in counts.values())
    assert counted.since() == 0


def test_who_is_there():
    attendance = Attendance(dead_after=60)
    attendance.attach("b", "a")
    assert attendance.clients() == [] and attendance.host_of("b") == "a" and attendance.host_of("c") == "c"
    attendance.hello("a", 7)
    attendance.attach("a", "a")
    assert sorted(attendance.clients()) == ["a", "b"] and attendance.alive()["a"].at == 7
    attendance.hosts["a"].heard -= 61
    assert attendance.clients() == [] and attendance.alive() == {}
    attendance.hello("a", 9)
    assert attendance.alive()["a"].at == 9
