"""Orbits are put into folders and repositories of a hub, and got again, bit for bit."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

from fedseed.errors import RecipeError
from fedseed.orbit.sharing import folder_of
from support.command import refused, well
from support.problem import Problem


@pytest.fixture(scope="module")
def orbits(tmp_path_factory):
    """Two finished orbits, of one step and of two."""
    folder, problem = tmp_path_factory.mktemp("orbits"), Problem()
    for rounds in (1, 2):
        out = folder / str(rounds)
        problem.federation(problem.ferret(directions=20), rounds=rounds, out=out).run()
    return folder / "1" / "model.orbit", folder / "2" / "model.orbit"


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_folder_takes_an_orbit_and_gives_it_again(form, orbits, tmp_path):
    one, two = orbits
    place = form.format(tmp_path / "shared")
    well("orbit", "push", one, place)
    well("orbit", "push", one, place)
    refused(
        1, "is another orbit: choose another place, or give --force", "orbit", "push", two, place
    )
    said = well("orbit", "pull", place, "--out", tmp_path / "got" / "one.orbit").stdout
    assert "1 step on" in said
    assert (tmp_path / "got" / "one.orbit").read_bytes() == one.read_bytes()
    refused(1, "exists already", "orbit", "pull", place, "--out", tmp_path / "got" / "one.orbit")
    well("orbit", "push", two, place, "--force")
    assert (tmp_path / "shared" / "model.orbit").read_bytes() == two.read_bytes()


def test_what_is_no_whole_orbit_is_not_shared_and_not_taken(orbits, tmp_path):
    whole = orbits[1].read_bytes()
    (tmp_path / "model.orbit").write_bytes(whole[:-9])
    words = ["orbit", "push", tmp_path / "model.orbit", tmp_path / "shared"]
    assert "fedseed:" in refused_text(1, *words)
    assert not (tmp_path / "shared").exists()
    (tmp_path / "model.orbit").write_bytes(b"something else")
    words = ["orbit", "pull", tmp_path, "--out", tmp_path / "got.orbit"]
    text = refused_text(1, *words)
    assert str(tmp_path) in text and ".part" not in text
    assert not list(tmp_path.glob("got*"))
    refused(1, "there is no such file", "orbit", "pull", tmp_path / "nowhere")


def refused_text(code, *words):
    from support.command import fedseed

    done = fedseed(*words)
    assert done.returncode == code
    return done.stderr


@pytest.mark.parametrize("place", ["name", "a/b/c", "http://a/b", "file://host/folder", "/b", "a/"])
def test_what_is_a_place(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if place == "/b":
        assert str(folder_of(place)) == "/b"
        return
    with pytest.raises(RecipeError):
        folder_of(place)
    assert folder_of("owner/name") is None


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as a small file needs, with what it was sent in memory."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    requests: list[str] = []  # noqa: RUF012

    def log_message(self, *_):
        pass

    def answer(self, body, status=200, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(data), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        name = path.rpartition("/")[2]
        if "/resolve/" not in path:
            self.answer({"id": "owner/name", "sha": "0" * 40, "siblings": []})
        elif name not in self.files:
            self.answer({}, 404, X_Error_Code="EntryNotFound", X_Error_Message="no such file")
        else:
            data = self.files[name]
            tag = hashlib.sha1(data).hexdigest()
            self.answer(data, ETag=f'"{tag}"', X_Repo_Commit="0" * 40)

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        path = urlsplit(self.path).path
        self.requests.append(f"{path} {body}")
        host = f"http://{self.headers['Host']}"
        if path.endswith("/create"):
            self.answer({"url": f"{host}/owner/name", "name": "owner/name"})
        elif "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            files = [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]
            self.answer({"files": files})
        else:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    self.files[value["path"]] = base64.b64decode(value["content"])
            self.answer({"commitUrl": f"{host}/owner/name/commit/1", "commitOid": "1" * 40})


@pytest.mark.long
def test_a_repository_of_a_hub_takes_one_and_gives_it_again(orbits, tmp_path):
    Hub.files.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": "hf_test",
        "HF_HUB_DISABLE_XET": "1",
    }

    def call(*words):
        return subprocess.run(
            [sys.executable, "-m", "fedseed", "orbit", *map(str, words)],
            env=environment,
            capture_output=True,
            text=True,
        )

    try:
        one, two = orbits
        done = call("push", one, "owner/name", "--private")
        assert done.returncode == 0, done.stderr
        assert Hub.files["model.orbit"] == one.read_bytes()
        assert any("private" in request for request in Hub.requests), Hub.requests
        done = call("push", two, "owner/name")
        assert done.returncode == 1 and "has another orbit" in done.stderr
        done = call("pull", "owner/name", "--out", tmp_path / "got.orbit")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "got.orbit").read_bytes() == one.read_bytes()
        Hub.files.clear()
        done = call("pull", "owner/name", "--out", tmp_path / "none.orbit")
        assert done.returncode == 1 and "model.orbit can't be downloaded" in done.stderr
    finally:
        server.shutdown()
        server.server_close()
