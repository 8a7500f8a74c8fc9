"""Lines of a nats-server's log; tests/federation/test_network_security.py reads those of a real one."""

import pytest

from fedseed.errors import FedseedError
from fedseed.transport.server_log import ServerLog, key_names

HEAD = "[7] 2026/11/21 17:07:54.117465 [ERR] 10.0.0.5:47260 - cid:"
FOREIGN = HEAD + '6 - "v2:python3:fedseed north" - Publish Violation - Nkey "UA", Subject "fedseed.r.up.south.update"\n'
LARGE = HEAD + '6 - "v2:python3:fedseed north" - maximum payload exceeded: 104857600 vs 1048576\n'


def test_who_was_refused_what(tmp_path):
    path = tmp_path / "log"
    path.write_text(FOREIGN)
    log = ServerLog(path, {"UA": "north"})
    assert list(log.new()) == []  # from before
    with open(path, "a") as file:
        file.write(LARGE.replace("cid:6", "cid:5"))
        file.write(FOREIGN + "[7] 2026/11/21 17:07:54.117465 [INF] Server is ready\n" + LARGE[:50])
        file.flush()
        assert list(log.new()) == [
            ("somebody at 10.0.0.5", "a message larger than the server takes, bytes: 104857600 vs 1048576"),
            ("north", "it may not publish to fedseed.r.up.south.update"),
        ]
        file.write(LARGE[50:] + FOREIGN.replace("UA", "UB").replace("cid:6", "cid:8"))
    assert [who for who, _ in log.new()] == ["north", "key UB"]
    path.write_text(HEAD + "9 - TLS handshake error: EOF\n")  # a new file after rotation
    assert list(log.new()) == [("somebody at 10.0.0.5", "no encrypted connection: EOF")]
    path.unlink()
    assert list(log.new()) == []


def test_a_name_with_a_line_in_it_speaks_for_nobody_else(tmp_path):
    path = tmp_path / "log"
    path.touch()
    log = ServerLog(path, {"UA": "north", "UM": "mallory"})
    inner = FOREIGN.rstrip().replace('"', '\\"')
    path.write_text(f'{HEAD}6 - "x\\n{inner}" - Publish Violation - Nkey "UM", Subject "secret"\n')
    assert list(log.new()) == [("mallory", "it may not publish to secret")]
    # a wrong key does not become the name of a connection
    path.write_text(f'{HEAD}7 - "x" - authentication error - Nkey "UA"\n' + LARGE.replace("cid:6", "cid:7"))
    assert {who for who, _ in log.new()} == {"somebody at 10.0.0.5"}


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FedseedError, match=r"--server-log .*none: can't be read: No such file"):
        ServerLog(tmp_path / "none")
    assert key_names(tmp_path) == {}
    (tmp_path / "keys.json").write_text("[1]")
    assert key_names(tmp_path) == {}
