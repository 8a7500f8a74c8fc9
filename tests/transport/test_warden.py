"""What a server says of its consumers is not always what it should be (what it does with them: test_foreign.py)."""

import asyncio
import json
from types import SimpleNamespace

from fedseed.transport import warden
from fedseed.transport.warden import Warden


class Server:
    """Answers lists of consumers, one after the other, and remembers what is deleted."""

    def __init__(self, *answers):
        self.answers, self.deleted = list(answers), []

    def jetstream(self, timeout):
        return self

    async def request(self, subject, asked, timeout):
        assert subject == "$JS.API.CONSUMER.LIST.log" and json.loads(asked) == {"offset": 0}
        return SimpleNamespace(data=self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])

    async def delete_consumer(self, stream, name):
        self.deleted.append(name)


def listed(*consumers):
    return json.dumps({"consumers": consumers}).encode()


FOREIGN = {"name": "foreign", "config": {"deliver_subject": "run.log"}}
OWN = {"name": "own", "config": {"deliver_subject": "_INBOX.client-0.x"}}
FETCHED = {"name": "fetched", "config": {}}


def test_a_consumer_that_goes_while_it_is_listed_is_passed_over():
    server, ended = Server(listed(None, OWN, FOREIGN, FETCHED, None)), []
    looks = Warden(server, ["log"], "_INBOX.", lambda: ended.append(1))
    assert asyncio.run(looks.look("log")) == 4
    assert server.deleted == ["foreign"] and ended == [1]


def test_an_answer_that_nobody_understands_ends_no_looking(monkeypatch):
    monkeypatch.setattr(warden, "LOOK_SECONDS", 0)
    server, said, ended = Server(b"\xff{", b'{"consumers": 3}', listed(FOREIGN)), [], asyncio.Event()

    async def looks():
        asyncio.get_running_loop().set_exception_handler(lambda loop, about: said.append(about["message"]))
        one = Warden(server, ["log"], "_INBOX.", ended.set)
        one.begin()
        await ended.wait()
        await one.stop()

    asyncio.run(looks())
    assert said == ["the consumers of log can't be looked at"] * 2 and "foreign" in server.deleted
