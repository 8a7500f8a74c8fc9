"""The live page, asked by a real client over a real socket."""

import json
import threading
import urllib.error
import urllib.request

import pytest

from fedseed.errors import FedseedError
from fedseed.reports.live import LiveServer
from fedseed.reports.view import RunView, stamp, view_folder
from support.page import Page


@pytest.fixture
def serve():
    made = []

    def start(look, **settings):
        server = LiveServer(look, **settings)
        thread = threading.Thread(target=server.serve)
        thread.start()
        made.append((server, thread))
        return server

    yield start
    for server, thread in made:
        server.stop()
        thread.join()


def ask(server, path="", **headers):
    names = {key.replace("_", "-"): value for key, value in headers.items()}
    request = urllib.request.Request(server.address + path, headers=names)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def test_the_page_follows_a_folder_beyond_the_runs_end(serve, tmp_path):
    (tmp_path / "recipe.toml").write_text('title = "Mine"\nrounds = 2\n[method]\nname = "ferret"\n')
    server = serve(lambda: (stamp(tmp_path), lambda: view_folder(tmp_path)))
    assert server.address.startswith("http://127.0.0.1:")
    code, text, headers = ask(server)
    assert code == 200 and Page(text).count("script") == 1 and "Mine" in text
    assert "default-src 'none'" in headers["Content-Security-Policy"]  # a browser would fetch nothing from elsewhere
    code, body, headers = ask(server, "body")
    assert code == 200 and "Nothing has been measured" in body
    assert ask(server, "body", If_None_Match=headers["ETag"])[:2] == (304, "")
    for number in range(3):
        with open(tmp_path / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"round": number, "loss": 3.0 - number, "seconds": {}}) + "\n")
        code, body, newer = ask(server, "body", If_None_Match=headers["ETag"])
        assert code == 200 and f"{3.0 - number:.3f}" in body and newer["ETag"] != headers["ETag"]
        headers = newer
    ended = {"method": "ferret", "baseline": {"loss": 3.0}, "final": {"loss": 1.0}, "payload_bytes_up": 8.0,
             "payload_bytes_down": 8.0, "parameters": 10, "clients": 2, "clients_per_round": 2,
             "weights_digest": "00ff"}  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps(ended))
    code, body, _ = ask(server, "body", If_None_Match=headers["ETag"])
    assert code == 200 and "badge finished" in body and "00ff" in body


def test_it_is_for_this_machine_only(serve):
    """A web page whose name leads here is turned away, and so is a wrong path."""
    server = serve(lambda: (1, lambda: RunView("r", [])))
    port = server.address.split(":")[2].strip("/")
    assert ask(server, Host=f"evil.example:{port}")[0] == 403 and ask(server, Host=f"localhost:{port}")[0] == 200
    assert ask(server, "../etc/passwd")[0] == 404
    with pytest.raises(FedseedError, match=f"--port {port}: .*choose another"):
        LiveServer(lambda: (1, lambda: RunView("r", [])), int(port))


def test_what_can_not_be_shown_is_said_and_looked_for_again(serve):
    answers = [FedseedError("gone"), 1]

    def look():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, lambda: RunView("back again", [])

    server = serve(look)
    assert ask(server)[:2] == (503, "gone\n")
    assert "back again" in ask(server)[1]
