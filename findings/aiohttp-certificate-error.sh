#!/bin/sh
# aiohttp 3.14.5 (and Python 3.11's ssl): the error of a certificate that is not trusted,
# ClientConnectorCertificateError, is an instance of ssl.SSLCertVerificationError, and has none of
# that class' attributes: reading verify_message, verify_code or reason raises AttributeError. Code
# that asks isinstance(error, ssl.SSLCertVerificationError), as is usual with urllib or asyncio, and
# then says why, fails on it. The real one is its __cause__.
#
# Output seen:
#   ClientConnectorCertificateError True verify_message: missing
#   its cause: SSLCertVerificationError verify_message: self-signed certificate
# Exits with 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet aiohttp==3.14.5
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost -keyout "$folder/key.pem" -out "$folder/cert.pem" 2>/dev/null
"$folder/venv/bin/python" - "$folder" <<'PYTHON' | tee "$folder/seen"
import asyncio
import ssl
import sys

import aiohttp
from aiohttp import web


def why(error):
    return getattr(error, "verify_message", "missing")


async def main(folder):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
    runner = web.AppRunner(web.Application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session:
        try:
            await session.get(f"https://localhost:{port}/")
        except ssl.SSLCertVerificationError as error:
            print(type(error).__name__, True, "verify_message:", why(error))
            cause = error.__cause__
            print("its cause:", type(cause).__name__, "verify_message:", why(cause))
    await runner.cleanup()


asyncio.run(main(sys.argv[1]))
PYTHON
grep -q '^ClientConnectorCertificateError True verify_message: missing$' "$folder/seen"
grep -q '^its cause: SSLCertVerificationError verify_message: self' "$folder/seen"
