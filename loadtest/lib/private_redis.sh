# Starts a private Redis under $dir, without an append-only file, for measurements of single scripts. It ends with the
# script that sources this file. Functions:
# - `redis` sends a command;
# - `field` reads one line of INFO;
# - `benchmark` prints the requests a second of redis-benchmark, with 50 clients and 32 requests in a pipeline.
dir=$(mktemp -d)
redis-server --port 0 --unixsocket "$dir/redis.sock" --dir "$dir" --save '' --appendonly no \
    --pidfile "$dir/pid" --daemonize yes >/dev/null
trap 'kill "$(cat "$dir/pid")"; rm -rf "$dir"' EXIT

redis() { redis-cli -s "$dir/redis.sock" "$@"; }
field() { redis INFO "$1" | tr -d '\r' | sed -n "s/^$2://p"; }
benchmark() {
    redis-benchmark -s "$dir/redis.sock" -P 32 -c 50 -q "$@" |
        tr '\r' '\n' | sed -n 's/.*: \([0-9.]*\) requests per second.*/\1/p' | tail -n 1
}

until [ "$(redis PING 2>/dev/null)" = PONG ]; do sleep 0.05; done
