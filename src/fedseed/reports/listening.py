"""Open a port for one of the project's web servers."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def open_port(host: str, port: int) -> Iterator[tuple[socket.socket, str]]:
    """Return a listening socket and its address, such as "http://127.0.0.1:8080". The caller closes
    the socket.

    Args:
        host: the host's name or IP address, of version 4 or 6.
        port: the port; 0: any free one.

    Raises:
        OSError: the port is taken or not allowed.
    """
    name, family = host, socket.AF_INET
    if ":" in host:
        name, family = f"[{host}]", socket.AF_INET6
    with socket.create_server((host, port), family=family) as listening:
        yield listening, f"http://{name}:{listening.getsockname()[1]}"
