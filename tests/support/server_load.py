"""Many clients at once for `fedseed serve-model`: good ones, bad requests, clients who leave, and
orbits that come and go.

    PYTHONPATH=src:tests python -m support.server_load --seconds 300 --clients 50

starts a server of tiny bases on this machine, asks nobody else, and ends with a report: answers by
kind and status, what was wrong, and how long the health page took.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from support import tool_bases
from support.serving import Plain, serving, tuned
from support.tool_bases import GREETING, QUESTION, WEATHER

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
PROMPTS = ["Hello", "What is the weather", "It is", "Köln", "a"]
STABLE = ("ash", "birch", "cedar")
CHANGING = ("day", "night")  # in a folder from which they go and to which they come
MOST_REQUESTS = 200_000
TOKENS = 12


def completion(**asked):
    return {"model": "ash", "prompt": "Hello", "max_tokens": 4, "temperature": 0, **asked}


def chat(**asked):
    return {"model": "ash", "messages": GREETING, "max_tokens": 4, "temperature": 0, **asked}


def tool_turn(**changes):
    (call,) = tool_bases.call()["tool_calls"]
    function = {**call["function"], **changes}
    return {"role": "assistant", "content": None, "tool_calls": [{**call, "function": function}]}


BAD = {  # path, body (bytes as they are), and the status that is right
    "no JSON": (COMPLETIONS, b"{", 400),
    "nothing": (COMPLETIONS, b"", 400),
    "no object": (COMPLETIONS, b"[1, 2]", 400),
    "no UTF-8": (COMPLETIONS, b'{"model": "ash", "prompt": "\xff"}', 400),
    "half a surrogate pair": (COMPLETIONS, b'{"model": "ash", "prompt": "\\ud83d"}', 400),
    "nested too deeply": (COMPLETIONS, b'{"model": ' + b"[" * 100_000, 400),
    "a huge number": (COMPLETIONS, b'{"model": "ash", "seed": ' + b"9" * 5000 + b"}", 400),
    "too large": (COMPLETIONS, completion(prompt="a" * (1 << 21)), 413),
    "too long for the model": (COMPLETIONS, completion(prompt="a b " * 5000), 400),
    "a megabyte of one word": (COMPLETIONS, completion(prompt="x" * 1_000_000), 400),
    "an unknown model": (COMPLETIONS, completion(model="oak"), 404),
    "a model's path": (COMPLETIONS, completion(model="../../etc/passwd"), 404),
    "an unknown key": (COMPLETIONS, completion(echo=True), 400),
    "a negative temperature": (COMPLETIONS, completion(temperature=-1), 400),
    "no number": (COMPLETIONS, b'{"model": "ash", "prompt": "a", "temperature": NaN}', 400),
    "top_p of nothing": (COMPLETIONS, completion(top_p=0), 400),
    "a seed of 64 bits": (COMPLETIONS, completion(seed=1 << 63), 400),
    "too many tokens": (COMPLETIONS, completion(max_tokens=1_000_000), 400),
    "two answers": (COMPLETIONS, completion(n=2), 400),
    "seventeen stops": (COMPLETIONS, completion(stop=["a"] * 17), 400),
    "no prompt": (COMPLETIONS, completion(prompt=[]), 400),
    "65 prompts": (COMPLETIONS, completion(prompt=["a"] * 65), 400),
    "no messages": (CHAT, chat(messages=[]), 400),
    "a message of nothing": (CHAT, chat(messages=[{"role": "user", "content": None}]), 400),
    "a forced call": (CHAT, chat(tools=[WEATHER], tool_choice="required"), 400),
    "a tool without a name": (CHAT, chat(tools=[{"type": "function", "function": {}}]), 400),
    "arguments that are no JSON": (
        CHAT,
        chat(messages=[*QUESTION, tool_turn(arguments="{")], tools=[WEATHER]),
        400,
    ),
    "another template": (CHAT, chat(chat_template_kwargs={"chat_template": "{{ 1 / 0 }}"}), 400),
    "an unknown option": (CHAT, chat(chat_template_kwargs={"pace": 1}), 400),
    "another page": ("/v1/embeddings", completion(), 404),
}
LEAVING = ("at once", "in a stream", "in the request", "with no HTTP")


@dataclass
class Report:
    """What clients have seen."""

    answers: Counter = field(default_factory=Counter)  # by kind and status
    wrong: list = field(default_factory=list)  # what should not have been
    health_seconds: list = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, kind, status):
        with self.lock:
            self.answers[kind, status] += 1

    def blame(self, *what):
        with self.lock:
            self.wrong.append(what)

    def total(self, kind, status=None):
        return sum(
            number
            for (one, code), number in self.answers.items()
            if one == kind and status in (None, code)
        )


class Asker:
    """A client who asks at random until the time is over."""

    def __init__(self, address, expected, report, seed, allowed):
        self.address = address
        self.expected = expected
        self.report = report
        self.random = random.Random(seed)
        self.allowed = allowed  # a semaphore: how many requests there may be in all

    def work(self, end):
        kinds = [self.ask_well, self.ask_well, self.ask_for_a_call, self.ask_badly, self.leave]
        while time.monotonic() < end and self.allowed.acquire(blocking=False):
            act = self.random.choice(kinds)
            try:
                act()
            except Exception as error:
                self.report.blame(act.__name__, repr(error))

    def ask(self, path, body):
        """A request's status and answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(*self.address, timeout=120)
        try:
            # refused before all was sent, which the answer says
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request("POST", path, data)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Retry-After"), answer.read()
        finally:
            connection.close()

    def ask_well(self):
        name = self.random.choice([*STABLE, *CHANGING])
        prompts = self.random.sample(PROMPTS, self.random.choice([1, 1, 1, 3]))
        stream = self.random.random() < 0.5
        asked = completion(model=name, prompt=prompts, max_tokens=TOKENS, stream=stream)
        status, retry, data = self.ask(COMPLETIONS, asked)
        kind = "changing" if name in CHANGING else "good"
        self.report.count(kind, status)
        if status == 200:
            texts = self.texts(data, len(prompts), stream)
            if texts != [self.expected[name][prompt] for prompt in prompts]:
                self.report.blame(kind, name, prompts, texts)
        elif status != 503 and not (kind == "changing" and status == 404):
            self.report.blame(kind, name, status, data[:300])
        elif status == 503 and not retry:
            self.report.blame(kind, "no Retry-After")

    def texts(self, data, count, stream):
        if not stream:
            return [choice["text"] for choice in json.loads(data)["choices"]]
        texts = [""] * count
        *events, last = data.decode().strip().split("\n\n")
        assert last == "data: [DONE]", last
        for event in events:
            (choice,) = json.loads(event.removeprefix("data: "))["choices"]
            texts[choice["index"]] += choice["text"]
        return texts

    def ask_for_a_call(self):
        name = self.random.choice(STABLE)
        asked = chat(model=name, messages=QUESTION, tools=[WEATHER], max_tokens=60)
        status, _, data = self.ask(CHAT, asked)
        self.report.count("call", status)
        if status == 200:
            (choice,) = json.loads(data)["choices"]
            calls = choice["message"].get("tool_calls") or [{}]
            function = calls[0].get("function")
            if function is None or json.loads(function["arguments"]) != tool_bases.ARGUMENTS:
                self.report.blame("call", name, choice)
        elif status != 503:
            self.report.blame("call", name, status, data[:300])

    def ask_badly(self):
        kind = self.random.choice(list(BAD))
        path, body, right = BAD[kind]
        try:
            status, _, data = self.ask(path, body)
        except (ConnectionError, http.client.HTTPException):
            if right != 413:  # the server does not read to the end what is too large
                raise
            status, data = right, b""
        self.report.count(kind, status)
        if status not in (right, 503):
            self.report.blame(kind, status, data[:300])

    def leave(self):
        kind = self.random.choice(LEAVING)
        self.report.count(kind, "left")
        asked = completion(
            model=self.random.choice(STABLE),
            prompt=["Hello"] * 64,
            max_tokens=60,
            stream=kind == "in a stream" or self.random.random() < 0.5,
        )
        data = json.dumps(asked).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"
        if kind == "in the request":
            data = data[: len(data) // 2]
        if kind == "with no HTTP":
            head, data = "no HTTP\r\n\r\n", b""
        with socket.create_connection(self.address, timeout=120) as connection:
            connection.sendall(head.encode() + data)
            if kind == "in a stream":
                connection.recv(1)


def change_orbits(folder, originals, end, seed):
    """Deletes, restores and damages the orbits of a folder until the time is over."""
    chance = random.Random(seed)
    while time.monotonic() < end:
        name, path = chance.choice(list(originals.items()))
        served = folder / name / "model.orbit"
        act = chance.choice(["delete", "restore", "restore", "damage"])
        if act == "delete":
            shutil.rmtree(served.parent, ignore_errors=True)
        else:
            served.parent.mkdir(exist_ok=True)
            data = path.read_bytes()
            served.write_bytes(data if act == "restore" else data[: len(data) // 2])
        time.sleep(chance.uniform(0.05, 0.5))


def watch_health(address, seconds, told):
    """Asks for the health page in a process of its own; puts the times into a queue."""
    end, times, faults = time.monotonic() + seconds, [], []
    while time.monotonic() < end:
        start = time.monotonic()
        try:
            connection = http.client.HTTPConnection(*address, timeout=30)
            connection.request("GET", "/health")
            answer = connection.getresponse()
            body = json.loads(answer.read())
            if answer.status != 200 or body["status"] not in ("ok", "full"):
                faults.append(("health", answer.status, body))
            connection.close()
        except Exception as error:
            faults.append(("health", repr(error)))
        times.append(time.monotonic() - start)
        time.sleep(0.1)
    told.put((times, faults))


def put_under_load(folder, seconds, clients, seed=0):
    """Starts a server and puts it under load.

    Args:
        folder: an empty folder.
        seconds: how long.
        clients: how many at a time.
        seed: of what clients do.

    Returns:
        The report.
    """
    base = str(tool_bases.tool_base(folder / "base", "qwen"))
    names = [*STABLE, *CHANGING]
    runs = {
        name: tuned(base, folder / name, number, ["Hello, how are you?"], rate=5e-4)
        for number, name in enumerate(names)
    }
    expected = {}
    for name, run in runs.items():
        plain = Plain(base, run, folder / f"{name}-exported")
        expected[name] = {prompt: plain.after(prompt, TOKENS)[0] for prompt in PROMPTS}
    originals = {name: runs[name] / "model.orbit" for name in CHANGING}
    shelf = folder / "shelf"
    for name, path in originals.items():
        (shelf / name).mkdir(parents=True)
        shutil.copy(path, shelf / name)

    report = Report()
    spawning = multiprocessing.get_context("spawn")
    told = spawning.Queue()
    with serving(*(runs[name] for name in STABLE), shelf, "--max-tokens", 100) as client:
        address = (client.base_url.host, client.base_url.port)
        assert address[0] == "127.0.0.1"
        allowed = threading.Semaphore(MOST_REQUESTS)
        watcher = spawning.Process(target=watch_health, args=(address, seconds, told))
        watcher.start()
        end = time.monotonic() + seconds
        askers = [Asker(address, expected, report, f"{seed} {n}", allowed) for n in range(clients)]
        threads = [threading.Thread(target=asker.work, args=(end,)) for asker in askers]
        changing = (shelf, originals, end, seed)
        threads.append(threading.Thread(target=change_orbits, args=changing))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report.health_seconds, faults = told.get(timeout=120)
        watcher.join()
        report.wrong += faults
        final = Asker(address, expected, report, seed, allowed)
        for name in STABLE:  # it still answers, and as before
            status, _, data = final.ask(COMPLETIONS, completion(model=name, max_tokens=TOKENS))
            if status != 200 or final.texts(data, 1, False) != [expected[name]["Hello"]]:
                report.blame("after the load", name, status, data[:300])
    return report


def main():
    """Put a server under load, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        report = put_under_load(folder, min(given.seconds, 3600), given.clients, given.seed)
    finally:
        shutil.rmtree(folder)
    for (kind, status), number in sorted(report.answers.items(), key=str):
        print(f"{kind:28} {status!s:5} {number:7,}")
    times = sorted(report.health_seconds)
    print(f"health: {len(times):,} asked, median {times[len(times) // 2] * 1000:.0f} ms, longest")
    print(f"{times[-1] * 1000:.0f} ms, {sum(one > 1 for one in times)} above a second")
    print(f"{len(report.wrong)} wrong")
    for one in report.wrong[:20]:
        print(*one)
    return 1 if report.wrong or times[-1] > 1 else 0


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.exit(main())
