"""Keys for a federation: NKEYs, a certificate authority of its own, and the configuration of a
nats-server that uses them.

A client's key may publish only under fedseed.RUN.up.CLIENT and into its own object store. It may
read the run's log, the coordinator's object store and broadcasts, and gets replies in an inbox of
its own. In a mesh a node's key may publish only under fedseed.RUN.node.NODE, and reads all nodes.
The key files list the signatures to accept (signatures.py).
"""

import ipaddress
import json
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nkeys
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedseed.errors import FedseedError, RecipeError
from fedseed.text import show_text
from fedseed.transport.base import check_run
from fedseed.transport.nats_address import bracket_host
from fedseed.transport.nats_server import (
    LOCAL,
    PROGRAM,
    check_quotable,
    find_server,
    jetstream_block,
    server_version,
)
from fedseed.transport.signatures import key_file
from fedseed.transport.subjects import Subjects, name_problem, token

MOST_DAYS = 36_500  # the years in a certificate's dates have four digits
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}")


def make(
    run: str,
    folder: Path,
    clients: Sequence[str],
    hosts: Sequence[str],
    port: int,
    days: int = 365,
    recipe: str = "recipe.toml",
    own_data: bool = False,
) -> list[str]:
    """Write keys, certificates and configuration into a new folder.

    Returns:
        Lines for a shell: comments, and the commands that each party types.

    Args:
        run: the run's name.
        folder: the new folder.
        clients: names; "NAME=A,B" makes one key, called NAME, for a process that hosts clients A
            and B.
        hosts: names and addresses of the server, for its certificate.
        port: the server's port.
        days: validity of the certificates, from 1 to 36,500.
        recipe: the recipe's file, for the commands.
        own_data: whether each client has data of its own, for the commands.

    Raises:
        FedseedError: the folder exists.
        RecipeError: the run's or a client's name is not valid, or is used twice; a host, the port
            or the days are not valid.
    """
    check_run(run)
    hosted = _hosted(clients)
    hosts = _make_folder(folder, hosts, port, days)
    seeds, public = _make_nkeys(["coordinator", "watcher", *hosted])
    signers = [(client, public[name]) for name, part in hosted.items() for client in part]
    key_files = {name: key_file(seed, public["coordinator"]) for name, seed in seeds.items()}
    key_files["coordinator"] = key_file(seeds["coordinator"], None, signers)
    for name, content in key_files.items():
        _write_secret(folder / f"{name}.nk", content.encode())
    _certificates(folder, hosts, days)
    program = find_server()
    version = None if program is None else server_version(program)
    text = configuration(Subjects(run), public, hosted, port, folder.resolve(), version)
    if set(hosts) <= LOCAL:  # the default is to listen on all of the machine's addresses
        text = f'host: "{hosts[0]}"\n{text}'
    _write_secret(folder / "nats-server.conf", text.encode())
    reach = ["--run", run, "--nats", f"tls://{bracket_host(hosts[0])}:{port}"]
    ca_file = folder / "ca.pem"
    lines = [
        "# the server",
        _command(_as_typed(program), "-c", folder / "nats-server.conf"),
        "# the coordinator",
        _command(
            *("fedseed", "serve", recipe, *reach),
            *("--key", folder / "coordinator.nk", "--ca", ca_file),
        ),
    ]
    for name, clients_of in hosted.items():
        lines += _join_lines(name, clients_of, Path(recipe).name, reach, own_data)
    lines.append("# anybody who has watcher.nk and ca.pem")
    watcher = ("--key", folder / "watcher.nk", "--ca", ca_file, "--watch")
    lines.append(_command("fedseed", "status", run, *reach[2:], *watcher))
    lines.append(
        f"# Give each client {Path(recipe).name}, its .nk file and ca.pem, over a secure channel; "
        "keep the other files here."
    )
    return lines


def make_for_mesh(
    run: str,
    folder: Path,
    nodes: Sequence[str],
    hosts: Sequence[str],
    port: int,
    days: int = 365,
    recipe: str = "recipe.toml",
) -> list[str]:
    """Write keys, certificates and configuration for nodes without a coordinator.

    Each node's key file has its own seed and the public keys of all nodes. A server of this
    configuration lets each node write under its own subject alone, and keeps nothing.

    Returns:
        Lines for a shell: comments, and the commands that each node types.

    Args:
        run: the run's name.
        folder: the new folder.
        nodes: names.
        hosts: names and addresses of the server, or of all servers, for the certificate.
        port: the servers' port.
        days: validity of the certificates, from 1 to 36,500.
        recipe: the recipe's file, for the commands.

    Raises:
        FedseedError: the folder exists.
        RecipeError: the run's or a node's name is not valid, or is used twice; a host, the port or
            the days are not valid.
    """
    check_run(run)
    names = list(_hosted(nodes))
    hosts = _make_folder(folder, hosts, port, days)
    seeds, public = _make_nkeys(names)
    for name in names:
        text = key_file(seeds[name], None, public.items())
        _write_secret(folder / f"{name}.nk", text.encode())
    _certificates(folder, hosts, days)
    subjects = Subjects(run)
    allowed = {
        name: (
            [f"{subjects.root}.node.{token(name)}.>"],
            [f"{subjects.root}.node.>", f"{subjects.inbox(name)}.>"],
        )
        for name in names
    }
    text = _server_configuration(subjects, public, allowed, port, folder.resolve())
    if set(hosts) <= LOCAL:
        text = f'host: "{hosts[0]}"\n{text}'
    _write_secret(folder / "nats-server.conf", text.encode())
    lines = [
        "# a server, for all or at each site",
        _command(_as_typed(find_server()), "-c", folder / "nats-server.conf"),
    ]
    server = f"tls://{bracket_host(hosts[0])}:{port}"
    for name in names:
        lines += [
            f"# {name}, in a folder with {Path(recipe).name}, {name}.nk and ca.pem",
            _command(
                *("fedseed", "mesh", Path(recipe).name, "--run", run, "--node", name),
                *("--nats", server, "--key", f"{name}.nk", "--ca", "ca.pem"),
            ),
        ]
    lines.append(
        f"# Give each node {Path(recipe).name}, its .nk file and ca.pem, over a secure channel; "
        "for a server, also give server.pem, server.key and nats-server.conf, too."
    )
    return lines


def _make_folder(folder: Path, hosts: Sequence[str], port: int, days: int) -> list[str]:
    """Make the new folder, and return the checked hosts; the arguments are those of `make`."""
    checked_hosts = [_checked_host(host) for host in hosts]
    if not 0 < port < 1 << 16:
        raise RecipeError(f"--port {port}: from 1 to 65535")
    if not 1 <= days <= MOST_DAYS:
        raise RecipeError(f"--days {days}: a number of days from 1 to {MOST_DAYS} is expected")
    check_quotable(folder, "--out")  # the configuration contains its path
    if folder.exists():
        raise FedseedError(f"{folder} exists already: keys are not overwritten")
    folder.mkdir(parents=True, mode=0o700)
    return checked_hosts


def _make_nkeys(names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return new seeds and their public keys, each by name."""
    seeds = {
        name: nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER).decode()
        for name in names
    }
    public = {
        name: nkeys.from_seed(seed.encode()).public_key.decode() for name, seed in seeds.items()
    }
    return seeds, public


def _join_lines(
    name: str, clients: Sequence[str], recipe: str, reach: Sequence[str], own_data: bool
) -> list[str]:
    """Return the comment and the command of the process that has the key `name`."""
    client_options = [word for client in clients for word in ("--client", client)]
    data: list[str] = []
    data_hint = ""
    if own_data:
        data = ["--data", f"{name}.jsonl" if clients == [name] else name]
        data_hint = f", and its data ({data[1]}, say)"
    return [
        f"# {name}, in a folder with {recipe}, {name}.nk, ca.pem{data_hint}",
        _command(
            *("fedseed", "join", recipe, *reach),
            *("--key", f"{name}.nk", "--ca", "ca.pem"),
            *client_options,
            *data,
            *("--out", f"model-{name}"),
        ),
    ]


def _checked_host(host: str) -> str:
    """Check and return a server's name or address, without the brackets of an IPv6 address.

    Raises RecipeError: it is neither.
    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_valid = bool(_HOST.fullmatch(bare))
    if is_valid and ":" in bare:
        try:
            is_valid = ipaddress.ip_address(bare).version == 6
        except ValueError:
            is_valid = False
    if not is_valid:
        raise RecipeError(
            f"--host {show_text(host)}: a server's name or address is expected (the port goes to "
            "--port)"
        )
    return bare


def _hosted(clients: Sequence[str]) -> dict[str, list[str]]:
    """Return the clients that each key may speak for, by the key's name.

    Raises RecipeError: a name is not valid, or used twice.
    """
    hosted: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for text in clients:
        name, equals, list_text = text.partition("=")
        hosts = [part for part in list_text.split(",") if part] if equals else [name]
        for word in dict.fromkeys((name, *hosts)):
            problem = name_problem(word)
            if problem is not None:
                raise RecipeError(f"--client {show_text(text)}: {problem}")
        if not hosts or name in hosted:
            raise RecipeError(
                f"--client {show_text(text)}: the name is used twice, or names no client: change it"
            )
        for client in hosts:
            if client in owner:
                raise RecipeError(
                    f"--client {show_text(text)}: {client} has the key {owner[client]}.nk already"
                )
            owner[client] = name
        hosted[name] = hosts
    return hosted


def _as_typed(program: Path | None) -> str | Path:
    """Return a program's name if a shell finds the program by it; otherwise its path."""
    first = shutil.which(PROGRAM)
    if program is None or (first is not None and Path(first).resolve() == program.resolve()):
        return PROGRAM
    return program


def _command(*words: str | Path) -> str:
    return shlex.join(map(str, words))


def _write_secret(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def permissions(subjects: Subjects, clients: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the subjects that a process with some clients may publish and subscribe to.

    Args:
        subjects: the run's subjects.
        clients: the clients; replies and the object store use the name of the first in the
            recipe's order, so each of them is allowed.
    """
    publish = [
        f"$JS.API.STREAM.MSG.GET.{stream}"
        for stream in (subjects.stream, f"OBJ_{subjects.bucket()}")
    ]
    subscribe = [subjects.down, subjects.entries]
    for client in clients:
        bucket = subjects.bucket(client)
        publish += [subjects.from_client(client, ">"), f"$O.{bucket}.>"]
        publish += [f"$JS.API.STREAM.{action}.OBJ_{bucket}" for action in ("INFO", "PURGE")]
        subscribe.append(subjects.inbox(client) + ".>")
    return publish, subscribe


def configuration(
    subjects: Subjects,
    public: dict[str, str],
    hosted: dict[str, list[str]],
    port: int,
    folder: Path,
    version: tuple[int, ...] | None = None,
) -> str:
    """Return the configuration of a nats-server.

    subjects: the run's subjects.
    public: all public keys, by name.
    hosted: the clients that each key may speak for.
    port: the port to listen on.
    folder: the folder with the certificates; it also gets store and log.
    version: the server's; None: not known.
    """
    root, info = subjects.root, f"$JS.API.STREAM.INFO.{subjects.stream}"
    stores = [f"$O.{subjects.bucket(None)}.>"]
    for client_names in hosted.values():
        stores += [f"$O.{subjects.bucket(client)}.>" for client in client_names]
    replies = {name: f"{subjects.inbox(name)}.>" for name in ("coordinator", "watcher")}
    allowed = {  # subjects to publish and to subscribe to
        "coordinator": (
            [f"{root}.>", *stores, "$JS.API.>", "$JS.FC.>"],
            [f"{root}.up.>", subjects.status, replies["coordinator"]],
        ),
        "watcher": ([subjects.status, info], [replies["watcher"]]),
        **{name: permissions(subjects, clients) for name, clients in hosted.items()},
    }
    streams = jetstream_block(folder / "store", version)
    return _server_configuration(subjects, public, allowed, port, folder, streams)


def _server_configuration(
    subjects: Subjects,
    public: dict[str, str],
    allowed: dict[str, tuple[list[str], list[str]]],
    port: int,
    folder: Path,
    streams: str = "",
) -> str:
    """Return a configuration with the rights of each key.

    Args:
        subjects: the run's subjects.
        public: all public keys, by name.
        allowed: the subjects to publish and to subscribe to, by name.
        port: the port to listen on.
        folder: the folder with the certificates; it also gets the log.
        streams: the part about streams; "": the server keeps none.
    """
    users = [
        f"    # {name}\n    {{ nkey: {public[name]}\n      permissions: {{\n"
        f"        publish: {json.dumps(publish)}\n        subscribe: {json.dumps(subscribe)} }} "
        f"}}\n"
        for name, (publish, subscribe) in allowed.items()
    ]
    return (
        f"# nats-server for the run {subjects.run}, made by `fedseed keys`\n"
        f"port: {port}\n"
        "max_payload: 1MB          # larger messages go through the object store\n"
        "write_deadline: 10s\n"
        f'log_file: "{folder / "nats-server.log"}"\n'
        f"{streams}"
        f'tls {{\n  cert_file: "{folder / "server.pem"}"\n  key_file: "{folder / "server.key"}"\n  '
        f"timeout: 5\n}}\n"
        "authorization {\n  users: [\n" + "".join(users) + "  ]\n}\n"
    )


def _certificates(folder: Path, hosts: Sequence[str], days: int) -> None:
    """Write an authority's certificate, and the server's, which it has signed.

    The authority's key is not stored.
    """
    start = datetime.now(UTC) - timedelta(minutes=5)
    end = start + timedelta(days=days)

    authority, server = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())

    def certificate(
        subject: str, key: ec.EllipticCurvePrivateKey, *extensions: tuple[x509.ExtensionType, bool]
    ) -> x509.Certificate:
        # a common name has at most 64 characters
        common = (text[:64] for text in ("fedseed authority", subject))
        issuer, owner = (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in common
        )
        builder = x509.CertificateBuilder(issuer, owner, key.public_key())
        builder = (
            builder.serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(authority, hashes.SHA256())

    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    basic = x509.BasicConstraints(ca=True, path_length=0)
    root = certificate(
        "fedseed authority", authority, (basic, True), (usage, True), (identifier, False)
    )
    alternatives: list[x509.GeneralName] = []
    for host in hosts:
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            alternatives.append(x509.DNSName(host))
    leaf = certificate(
        hosts[0],
        server,
        (x509.SubjectAlternativeName(alternatives), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False),
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(root.public_bytes(pem))
    (folder / "server.pem").write_bytes(leaf.public_bytes(pem))
    no_password = serialization.NoEncryption()
    _write_secret(
        folder / "server.key",
        server.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password),
    )
