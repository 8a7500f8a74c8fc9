"""`fedseed serve-model` with clients who leave, bad requests, and orbits that come and go."""

import json
import math
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fedseed import Orbit
from fedseed.errors import NonFiniteError, RecipeError
from fedseed.models.loading import load_model
from fedseed.objectives.generation import Writer

openai = pytest.importorskip("openai", reason="the package `openai` (extra dev) asks")
pytest.importorskip("uvicorn", reason="the extra `serve` answers")
from starlette.testclient import TestClient  # noqa: E402

from fedseed.own import server  # noqa: E402
from support.serving import Plain, serving, serving_process, tuned  # noqa: E402

ASKED = {"prompt": "the film", "max_tokens": 6, "temperature": 0}


def made(base, folder, name, seed=1, rate=3e-2):
    return tuned(base, folder / name, seed, ["the film was great"], rate)


def asks(runs, folders=()):
    """A client of a service of some runs, in this process."""
    sources = server.name_sources([str(run) for run in runs])
    return TestClient(server.Service(sources, folders=folders).app())


def answer(client, name, **asked):
    return client.post("/v1/completions", json={**ASKED, "model": name, **asked})


def text(client, name):
    got = answer(client, name)
    assert got.status_code == 200, got.text
    return got.json()["choices"][0]["text"]


def address_of(client):
    return client.base_url.host, client.base_url.port


def request_bytes(body):
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def health_of(client):
    got = client._client.get(f"http://{client.base_url.host}:{client.base_url.port}/health")
    assert got.status_code == 200
    return got.json()


def wait_until_idle(client, seconds=60):
    """Waits until no request is in the queue. Writing all that was asked would take far longer."""
    end = time.monotonic() + seconds
    while health_of(client)["queue"]["length"]:
        assert time.monotonic() < end, health_of(client)
        time.sleep(0.05)


@pytest.mark.long
def test_nothing_is_written_for_clients_who_have_left(base, tmp_path):
    run = made(base, tmp_path, "run")
    plain = Plain(base, run, tmp_path / "exported")
    body = {"model": "run", "prompt": ["the film"] * 64, "max_tokens": 400, "temperature": 1}
    with serving(run) as client:
        # an answer that takes a while: the run's positions allow so many tokens
        lengths = ((seed, answer_length(client, {**body, "seed": seed})) for seed in range(50))
        body["seed"] = next(seed for seed, length in lengths if length > 20)
        for stream in (False, True):
            for _ in range(64):
                with socket.create_connection(address_of(client)) as connection:
                    connection.sendall(request_bytes({**body, "stream": stream}))
            wait_until_idle(client)
            got = client.completions.create(model="run", **ASKED)
            assert got.choices[0].text == plain.after(ASKED["prompt"], 6)[0]

        # in the middle of a stream
        stream = client.completions.create(**body, stream=True)
        next(iter(stream))
        stream.close()
        wait_until_idle(client)


@pytest.mark.long
def test_a_servers_end_is_told_to_who_waits(base, tmp_path):
    run = made(base, tmp_path, "run")
    body = {"model": "run", "prompt": ["the film"] * 64, "max_tokens": 400, "temperature": 1}
    with serving_process(run) as (process, client), ThreadPoolExecutor(20) as threads:
        stream = client.completions.create(**body, stream=True)
        next(iter(stream))  # the model writes
        asked = [threads.submit(client.completions.create, **body) for _ in range(19)]
        while health_of(client)["queue"]["length"] < 20:
            time.sleep(0.05)
        process.terminate()
        try:
            list(stream)  # there may be time enough to finish it
        except openai.APIError as error:
            assert "the server ends" in str(error)
        told = [one.exception() for one in asked]
        ended = [error for error in told if error is not None]
        assert len(ended) > 10
        assert {error.status_code for error in ended} == {503}
        assert "the server ends" in str(ended[0])


def answer_length(client, body):
    got = client.completions.create(**{**body, "prompt": "the film"})
    return got.usage.completion_tokens


def test_health_says_what_is_served_and_how_many_wait(base, tmp_path, monkeypatch):
    runs = [made(base, tmp_path, name, seed) for seed, name in enumerate(("a", "b"))]
    client = asks(runs)
    told = client.get("/health").json()
    assert told["status"] == "ok" and told["models"] == told["loaded"] == ["a", "b"]
    assert told["queue"] == {"length": 0, "limit": 64, "working_seconds": 0}
    text(client, "b")
    assert client.get("/health").json()["active"] == "b"
    assert client.head("/health").status_code == 200
    monkeypatch.setattr(server, "MOST_WAITING", 0)
    assert client.get("/health").json()["status"] == "full"
    full = answer(client, "a")
    assert full.status_code == 503 and 1 <= int(full.headers["Retry-After"]) <= 60


def test_orbits_come_go_and_change(base, tmp_path):
    runs = [made(base, tmp_path, name, seed) for seed, name in enumerate(("a", "b"))]
    client = asks(runs)
    texts = [text(client, name) for name in "ab"]
    assert texts[0] != texts[1]
    orbit = runs[0] / "model.orbit"
    data = orbit.read_bytes()

    orbit.unlink()
    gone = answer(client, "a")
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "model_not_found"
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["b"]
    assert client.get("/v1/models/a").status_code == 404
    assert text(client, "b") == texts[1]
    assert client.get("/health").json()["loaded"] == ["b"]

    orbit.write_bytes(data[:-7])  # it is being copied
    for _ in range(2):
        torn = answer(client, "a")
        assert torn.status_code == 503 and torn.headers["Retry-After"] == "1"
        assert torn.json()["error"]["message"].startswith("a can't be read now: ")
    assert text(client, "b") == texts[1]
    orbit.write_bytes(data)
    assert [text(client, name) for name in "ab"] == texts

    shutil.copy(runs[1] / "model.orbit", orbit)  # another run's, under the same name
    assert [text(client, name) for name in "ab"] == [texts[1]] * 2
    orbit.write_bytes(data)
    assert text(client, "a") == texts[0]


def test_a_chat_template_that_a_run_gets_later_is_taken(base, tmp_path):
    run = made(base, tmp_path, "a")
    client = asks([run])
    asked = {"model": "a", "messages": [{"role": "user", "content": "film"}], "max_tokens": 3}
    assert client.post("/v1/chat/completions", json=asked).status_code == 400
    (run / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert client.post("/v1/chat/completions", json=asked).status_code == 200


def test_a_folders_runs_and_orbits_are_served_as_they_come_and_go(base, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    kept = made(base, folder, "kept")
    other = made(base, tmp_path, "other", 2)
    (folder / "notes.txt").write_text("nothing to serve")
    client = asks([], [folder])
    assert client.get("/health").json()["models"] == ["kept"]
    first = text(client, "kept")
    shutil.copy(other / "model.orbit", folder / "late.orbit")
    assert text(client, "late") != first
    assert text(client, "kept") == first
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["kept", "late"]
    shutil.rmtree(kept)
    assert answer(client, "kept").status_code == 404
    for name in ("../other", "other", "", ".", "notes", "notes.txt"):
        assert answer(client, name).status_code == 404
    (folder / "torn.orbit").write_bytes(b"fedorbit")
    assert answer(client, "torn").status_code == 503
    assert answer(client, "late").status_code == 200


def test_a_folder_without_an_orbit_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="no orbit to serve"):
        server.Service({}, folders=[tmp_path])


BAD_NUMBERS = {
    "temperature": [math.nan, math.inf, -1, 1e400, 101, "hot"],
    "top_p": [0, -1, 1.1, math.nan],
    "seed": [-1, 1 << 63, 1.5, 10**400],
    "max_tokens": [0, -1, 1.5, 10**400],
    "n": [2, 0],
    "stop": [[""], ["a"] * 17, [1]],
}


@pytest.mark.parametrize("key", BAD_NUMBERS)
def test_values_out_of_bounds_are_refused_by_their_key(key, base, tmp_path):
    client = asks([made(base, tmp_path, "a")])
    for value in BAD_NUMBERS[key]:
        body = json.dumps({**ASKED, "model": "a", key: value})
        got = client.post("/v1/completions", content=body)
        assert got.status_code == 400, (value, got.text)
        assert got.json()["error"]["param"].startswith(key)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "prompt": "\\ud83d"}',
        b'{"model": "\\udc00", "prompt": "a"}',
        b'{"model": "a", "prompt": "a", "stop": "\\ud83d\\ud83d"}',
        b'{"model": "a", "prompt": "a", "\\ud83d": 1}',
        b'{"model": "a", "prompt": "\xff"}',
        b"[" * 100_000,
        b'{"model": "a", "prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'"a"',
        b"[1]",
        b"",
        b'{"model": "a", "prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_text_or_no_object_is_refused(body, base, tmp_path):
    got = asks([made(base, tmp_path, "a")]).post("/v1/completions", content=body)
    assert got.status_code == 400 and got.json()["error"]["message"]


def test_a_temperature_next_to_nothing_is_that_of_the_likeliest_token(base, tmp_path):
    client = asks([made(base, tmp_path, "a")])
    greedy = text(client, "a")
    for temperature in (1e-320, 5e-324, 1e-40, 1e-9, 1e-5):
        got = answer(client, "a", temperature=temperature, top_p=1e-320)
        assert got.status_code == 200 and got.json()["choices"][0]["text"] == greedy
    assert answer(client, "a", temperature=100, top_p=1e-320).status_code == 200


def test_a_diverged_model_is_told_as_one(base, tmp_path):
    model, tokenizer = load_model(base)
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with pytest.raises(NonFiniteError, match="its run has diverged"):
        Writer(model, tokenizer, 3, temperature=1).continue_prompt("the film")


def test_an_unforeseen_error_is_told_without_its_words(base, tmp_path, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("something private")

    run = made(base, tmp_path, "a")
    service = server.Service(server.name_sources([str(run)]))
    client = TestClient(service.app(), raise_server_exceptions=False)
    monkeypatch.setattr(service.swapper, "to", fail)
    got = answer(client, "a")
    assert got.status_code == 500 and "private" not in got.text
    assert got.json()["error"]["type"] == "server_error"


def test_the_pieces_of_a_stream_are_never_taken_back(base, tmp_path):
    model, tokenizer = load_model(base)
    Orbit.open(made(base, tmp_path, "a") / "model.orbit").replay(model)
    for stops in ([], ["film"], ["good the", "great great"], ["bad a fine story, and so on"]):
        for seed in range(5):
            writer = Writer(model, tokenizer, 12, 1.5, seed=seed, stops=stops)
            ids, pieces = writer.prompt_ids("the film"), []
            written = writer.write(ids, pieces.append)
            assert "".join(pieces) == written.text == writer.write(ids).text
