#!/usr/bin/env bash
# A federation on one machine, each party a process of its own: nats-server with TLS and keys, a coordinator that has
# neither model nor data, three hospitals. About a minute; ends with three equal digests.
#
#   examples/three-hospitals/run.sh [FOLDER]        (default: runs/three-hospitals; must be new)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH=$here/../../.venv/bin:$PATH  # what `make setup` has made
out=${1:-runs/three-hospitals}
port=${PORT:-4333}
recipe=$here/recipe.toml
clients=(client-01 client-02 client-03)  # as the recipe's task calls them

command -v nats-server >/dev/null || { echo "nats-server is missing: apt-get install nats-server" >&2; exit 1; }
[ ! -e "$out" ] || { echo "$out is there already: give another folder" >&2; exit 1; }
mkdir -p "$out"
fedseed keys hospitals --out "$out/keys" --port "$port" "${clients[@]/#/--client=}"

started=()
trap 'kill "${started[@]}" 2>/dev/null || true' EXIT

nats-server -c "$out/keys/nats-server.conf" &
started+=($!)
for _ in $(seq 100); do (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break; sleep 0.1; done

reach=(--run hospitals --nats "tls://localhost:$port" --ca "$out/keys/ca.pem")
for client in "${clients[@]}"; do
  fedseed join "$recipe" "${reach[@]}" --client "$client" --key "$out/keys/$client.nk" >"$out/$client.log" 2>&1 &
  started+=($!)
done
fedseed serve "$recipe" "${reach[@]}" --key "$out/keys/coordinator.nk" --server-log "$out/keys/nats-server.log" --out "$out/run"

for _ in $(seq 300); do
  [ "$(cat "$out"/client-*.log | grep -c '^weights digest')" = 3 ] && break
  sleep 0.1
done
grep -H '^weights digest' "$out"/client-*.log
digests=$(grep -h '^weights digest' "$out"/client-*.log)
[ "$(echo "$digests" | wc -l)" = 3 ] && [ "$(echo "$digests" | sort -u | wc -l)" = 1 ] || { echo "digests differ" >&2; exit 1; }
echo "three equal digests"
