"""A hub of one process: repositories in memory, spoken to by the real huggingface_hub over HTTP on this machine."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Hub:
    """What `HfApi(endpoint=hub.url)` needs to make repositories, commit small files, list and download them."""

    def __init__(self):
        self.repositories = {}
        self.asked = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *words):
                pass

            def do_GET(self):
                outer.answer(self)

            do_HEAD = do_POST = do_GET  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request):
        path = urlsplit(request.path).path
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        self.asked.append((request.command, path))
        parts = path.strip("/").split("/")
        if path == "/api/repos/create":
            about = json.loads(body)
            name = "/".join(filter(None, (about.get("organization"), about["name"])))
            self.repositories.setdefault(name if "/" in name else f"me/{name}", {})
            return self._json(request, {"url": f"{self.url}/{name}"})
        if path == "/api/whoami-v2":
            return self._json(request, {"name": "me", "type": "user", "orgs": []})
        if path == "/api/validate-yaml":
            return self._json(request, {"errors": [], "warnings": []})
        if parts[0] == "api" and len(parts) < 4:
            return self._json(request, {"error": "Not found"}, 404)
        name = "/".join(parts[2:4]) if parts[0] == "api" else "/".join(parts[:2])
        files = self.repositories.get(name)
        if files is None:
            return self._json(request, {"error": "Repository not found"}, 401, {"X-Error-Code": "RepoNotFound"})
        if parts[0] == "api" and parts[4:5] == ["preupload"]:
            wanted = json.loads(body)["files"]
            return self._json(
                request,
                {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in wanted]},
            )
        if parts[0] == "api" and parts[4:5] == ["commit"]:
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            made = {"commitUrl": f"{self.url}/{name}/commit/{self._commit(files)}", "commitOid": self._commit(files)}
            return self._json(request, {"success": True, **made})
        if parts[0] == "api":
            siblings = [{"rfilename": path} for path in files]
            return self._json(request, {"id": name, "modelId": name, "sha": self._commit(files), "siblings": siblings})
        data = files.get("/".join(parts[4:]))
        if data is None:
            return self._json(request, {"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": self._commit(files)}
        return self._send(request, data, 200, headers)

    def _commit(self, files):
        return hashlib.sha1(json.dumps(sorted((k, v.hex()) for k, v in files.items())).encode()).hexdigest()

    def _json(self, request, about, status=200, headers=None):
        self._send(request, json.dumps(about).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, request, data, status, headers):
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(data)
