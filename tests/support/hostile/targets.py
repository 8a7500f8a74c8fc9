"""Where a message, a reply, or what a consumer delivers could do harm."""


def targets(subjects, honest):
    """Subjects that a hostile key would like somebody else to publish to.

    Args:
        subjects: the run's.
        honest: a client that is somebody else.
    """
    api, down = "$JS.API", f"OBJ_{subjects.bucket()}"
    theirs = subjects.bucket(honest)
    return [
        *[subjects.log] * 8, *[subjects.down] * 3, subjects.status,
        subjects.up(honest, "update"), subjects.up(honest, "hello"), subjects.up(honest, "report"),
        f"{subjects.inbox(honest)}.x.y", f"{subjects.inbox('coordinator')}.x.y", f"{subjects.inbox('watcher')}.x.y",
        f"$O.{subjects.bucket()}.M.c3RlcC0x", f"$O.{subjects.bucket()}.C.x", f"$O.{theirs}.M.dXBkYXRl",
        f"{api}.STREAM.DELETE.{subjects.stream}", f"{api}.STREAM.PURGE.{subjects.stream}",
        f"{api}.STREAM.DELETE.{down}", f"{api}.STREAM.PURGE.{down}", f"{api}.STREAM.DELETE.OBJ_{theirs}",
        f"{api}.STREAM.UPDATE.{subjects.stream}", f"{api}.STREAM.MSG.DELETE.{subjects.stream}",
        f"{api}.CONSUMER.CREATE.{subjects.stream}", f"{api}.CONSUMER.CREATE.{subjects.stream}.x",
        f"{api}.STREAM.CREATE.x", f"{api}.INFO",
        f"$JS.FC.{subjects.stream}.x.y", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING", "fedseed", "x.y.z",
    ]  # fmt: skip


def filled(pattern, rng):
    """A subject that fits a pattern."""
    parts = []
    for part in pattern.split("."):
        if part == ">":
            parts += rng.choice([["x"], ["x", "y"], ["M", "eA=="], ["C", "x"], ["update"], ["hello"], ["report"],
                                 ["a" * 200], [f"n{rng.randrange(10**6)}"], ["up", "down", "log"]])  # fmt: skip
        else:
            parts.append("x" if part == "*" else part)
    return ".".join(parts)
