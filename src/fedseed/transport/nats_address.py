"""Addresses of a NATS server: plain and encrypted, over TCP and over WebSocket."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from fedseed.errors import RecipeError

FORMS = "write nats://HOST:PORT or tls://HOST:PORT (over WebSocket: ws:// or wss://)"
DEFAULT_PORTS = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
ENCRYPTED = ("tls", "wss")
WEB_SOCKETS = ("ws", "wss")


def bracket_host(host: str) -> str:
    """Return a host as it is written in an address: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True)
class Address:
    """The address of a server."""

    scheme: str  # nats, tls, ws or wss
    host: str  # host, without brackets
    port: int
    path: str = ""  # path with its query, for WebSocket proxies

    @property
    def place(self) -> str:
        """Host and port as a text for people."""
        return f"{bracket_host(self.host)}:{self.port}"

    @property
    def encrypted(self) -> bool:
        """Whether the address asks for encryption."""
        return self.scheme in ENCRYPTED

    @property
    def over_web_socket(self) -> bool:
        """Whether the server is reached over WebSocket."""
        return self.scheme in WEB_SOCKETS

    def url(self, encrypted: bool) -> str:
        """Return the address for nats-py.

        Args:
            encrypted: whether encryption is required, whatever the scheme says.
        """
        scheme = self.scheme
        if not self.over_web_socket:
            scheme = "tls" if encrypted else "nats"
        return f"{scheme}://{self.place}{self.path if self.over_web_socket else ''}"


def read_address(url: str) -> Address:
    """Parse a server's address.

    Raises:
        RecipeError: it is not valid; the text says how to write it.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:  # brackets that do not match, or without an address inside
        raise RecipeError(f"{url}: {error}: {FORMS}") from error
    place = parts.netloc
    if "@" in place:
        raise RecipeError(
            f"{parts.scheme}://...@{place.rpartition('@')[2]}: a name and a password in an address "
            "are not used: leave them out, and give the key's file with --key"
        )
    if "," in place:
        raise RecipeError(f"{url}: give the address of one server: {FORMS}")
    if place.count(":") > 1 and not place.startswith("["):
        host, _, port = place.rpartition(":")
        raise RecipeError(
            f"{url}: an IPv6 address needs brackets: {parts.scheme}://[{place}], or with the port "
            f"{port}: {parts.scheme}://[{host}]:{port}"
        )
    try:
        port_given = parts.port
    except ValueError as error:
        raise RecipeError(f"{url}: {error}") from error
    if port_given == 0:
        raise RecipeError(f"{url}: a port is a number from 1 to 65535")
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise RecipeError(f"{url}: {FORMS}")
    port_number = DEFAULT_PORTS[parts.scheme] if port_given is None else port_given
    query = f"?{parts.query}" if parts.query else ""
    return Address(parts.scheme, parts.hostname, port_number, f"{parts.path}{query}")
