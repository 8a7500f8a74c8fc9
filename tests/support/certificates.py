"""A certificate authority that makes a server's certificate anew, valid or expired."""

import ipaddress
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def named(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """Takes the place of the authority that `fedseed keys` has made in a folder, and of the
    server's key there.
    """

    def __init__(self, folder):
        self._folder = folder
        self._key, self._server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        self._write("ca.pem", "authority", self._key, 100)
        (folder / "server.key").write_bytes(
            self._server.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        self.write_server(days=100)

    def write_server(self, days):
        """Write the server's certificate; it ends in so many days."""
        self._write("server.pem", "server", self._server, days)

    def _write(self, file, name, key, days):
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder(named("authority"), named(name), key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=10))
            .not_valid_after(now + timedelta(days=days))
        )
        if name == "authority":
            basic = x509.BasicConstraints(ca=True, path_length=0)
            made = made.add_extension(basic, critical=True)
        else:
            here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            alternatives = x509.SubjectAlternativeName([x509.DNSName("localhost"), here])
            made = made.add_extension(alternatives, critical=False)
        signed = made.sign(self._key, hashes.SHA256())
        path = self._folder / file
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
