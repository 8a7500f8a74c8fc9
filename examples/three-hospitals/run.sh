#!/usr/bin/env bash
# A federation on one machine, each party a process of its own: nats-server with TLS and keys, a coordinator that has
# neither model nor data, three hospitals, each in a folder with its own data and nobody else's. A few minutes; ends with
# three equal digests, three models that transformers loads, and held-out figures of each hospital.
#
#   examples/three-hospitals/run.sh [FOLDER]        (default: runs/three-hospitals; must be new)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH=$here/../../.venv/bin:$PATH  # what `make setup` has made
out=${1:-runs/three-hospitals}
port=${PORT:-4333}
declare -A data=([north]=north.jsonl [south]=south.jsonl [east]=east.csv)

command -v nats-server >/dev/null || { echo "nats-server is missing: apt-get install nats-server" >&2; exit 1; }
[ ! -e "$out" ] || { echo "$out is there already: give another folder" >&2; exit 1; }
mkdir -p "$out"
out=$(cd "$out" && pwd)

# 1. keys: the recipe says for whom
fedseed keys "$here/recipe.toml" --run hospitals --out "$out/keys" --port "$port"

# 2. each hospital gets the recipe, its own key and the certificate; its data is there already
for name in "${!data[@]}"; do
  mkdir -p "$out/$name"
  cp "$here/recipe.toml" "$out/keys/$name.nk" "$out/keys/ca.pem" "$here/data/${data[$name]}" "$out/$name"
done

started=()
trap 'kill "${started[@]}" 2>/dev/null || true' EXIT

# 3. the server
nats-server -c "$out/keys/nats-server.conf" &
started+=($!)
for _ in $(seq 100); do (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break; sleep 0.1; done

# 4. the hospitals, each in its folder
reach=(--run hospitals --nats "tls://localhost:$port")
joined=()
for name in "${!data[@]}"; do
  (cd "$out/$name" && exec fedseed join recipe.toml "${reach[@]}" --key "$name.nk" --ca ca.pem --client "$name" \
    --data "${data[$name]}" --out model) >"$out/$name.log" 2>&1 &
  started+=($!) joined+=($!)
done

# 5. the coordinator
fedseed serve "$here/recipe.toml" "${reach[@]}" --key "$out/keys/coordinator.nk" --ca "$out/keys/ca.pem" --out "$out/run"
for process in "${joined[@]}"; do wait "$process"; done

# what came of it
grep -H '^weights digest' "$out"/*.log
[ "$(cat "$out"/*.log | grep -c '^weights digest')" = 3 ] &&
  [ "$(cat "$out"/*.log | grep '^weights digest' | sort -u | wc -l)" = 1 ] || { echo "digests differ" >&2; exit 1; }
echo "three equal digests"
for name in "${!data[@]}"; do
  python "$here/ask.py" "$out/$name/model"
done
