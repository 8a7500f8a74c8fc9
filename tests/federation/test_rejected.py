from fedseed.federation import rejected
from fedseed.federation.membership import Membership, Roster
from fedseed.federation.rejected import Rejected
from fedseed.reports.progress import Silent


class Heard(Silent):
    def __init__(self):
        self.warnings = []

    def warn(self, text):
        self.warnings.append(text)


def test_all_are_counted_in_bounded_memory_and_the_first_are_told(monkeypatch):
    monkeypatch.setattr(rejected, "MOST_SENDERS", 20)
    heard = Heard()
    counted = Rejected(heard, "run")
    for reason in range(80):
        for _ in range(2):
            counted.add("mallory", f"reason {reason}")
    assert len(heard.warnings) == rejected.MOST_TOLD + 1 and "fedseed status run" in heard.warnings[-1]
    assert heard.warnings[0] == "a message of mallory is refused: reason 0"
    for sender in range(100):
        counted.add(f"sender {sender}", "garbage")
    counts = counted.counts()
    assert counts["mallory"]["reason 0"] == 2 and counts["mallory"]["others"] == 2 * (80 - rejected.MOST_REASONS)
    assert len(counts) <= 21 and counts["others"] == {"garbage": 81}
    assert counted.since() == 260 == sum(sum(reasons.values()) for reasons in counts.values())
    assert counted.since() == 0


def test_who_is_there():
    membership = Membership(dead_after=60)
    membership.attach("b", "a")
    assert membership.clients() == [] and membership.host_of("b") == "a" and membership.host_of("c") == "c"
    membership.hello("a", 7)
    membership.attach("a", "a")
    assert sorted(membership.clients()) == ["a", "b"] and membership.alive()["a"].at == 7
    membership.hosts["a"].heard -= 61
    assert membership.clients() == [] and membership.alive() == {}
    membership.hello("a", 9)
    assert membership.alive()["a"].at == 9


def test_a_roster_numbers_its_clients():
    roster = Roster(dead_after=60)
    assert roster.wanted(None) == 0 and roster.wanted(3) == 3  # not known yet
    roster.name(["a", "b", "c"])
    assert roster.wanted(None) == 3 and roster.wanted(2) == 2 and roster.wanted(9) == 9  # refused elsewhere
    roster.membership.hello("b", 0)
    for client in ("b", "c", "stranger"):
        roster.membership.attach(client, "b")
    assert roster.present() == {1, 2}
