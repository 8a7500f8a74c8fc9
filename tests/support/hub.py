"""A hub of one process that has nothing: the real huggingface_hub asks it over HTTP on this
machine.
"""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Hub:
    """Keeps what it is asked, and says to everything that there is no such repository."""

    def __init__(self):
        self.asked = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *words):
                pass

            def do_GET(self):
                outer.asked.append((self.command, urlsplit(self.path).path))
                self.send_response(401)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_HEAD = do_POST = do_GET  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
