#!/bin/sh
# Measures the limiters on a private Redis without an append-only file: lua/limit/fixed_window.lua, sliding_window.lua
# and token_bucket.lua. It compares the requests a second with pipelined SET in the same run. It also reads the memory
# of a key with an exhausted limit. Prints one line for each limiter and round.
#
# usage: loadtest/limits.sh [ROUNDS]
set -eu

rounds=${1:-3}
case $rounds in
'' | *[!0-9]* | 0*)
    printf 'usage: loadtest/limits.sh [ROUNDS], at least 1, not %s\n' "$rounds" >&2
    exit 2
    ;;
esac
# So many ids, each limited to ten requests a minute. Each sends twice as many.
ids=20000
calls=$((ids * 20))
lua=$(cd "$(dirname "$0")/../lua" && pwd)
. "$(dirname "$0")/lib/private_redis.sh"

rate() { benchmark -n "$calls" -r "$ids" "$@"; }
memory() { field memory used_memory; }

# Measures one limiter. Arguments: name, key, arguments of the script.
limiter() {
    name=$1
    key=$2
    shift 2
    redis FLUSHALL >/dev/null
    before=$(memory)
    script=$(redis SCRIPT LOAD "$(cat "$lua/limit/$name.lua")")
    its_rate=$(rate EVALSHA "$script" 1 "{limit:7d3c9f52-9b1e-4c57-a4c1-__rand_int__}:$key" "$@")
    keys=$(redis DBSIZE)
    awk -v name="$name" -v set="$set_rate" -v rate="$its_rate" -v keys="$keys" -v bytes="$(($(memory) - before))" \
        'BEGIN { printf "%-15s %7.0f/s, %.3f of SET (%.0f/s), %4.0f bytes a key\n", name, rate, rate / set, set, bytes / keys }'
}

round=0
while [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    redis FLUSHALL >/dev/null
    set_rate=$(rate SET key:__rand_int__ value)
    limiter fixed_window counter 10 60000 1
    limiter sliding_window window 10 60000 "req-__rand_int__"
    limiter token_bucket bucket 0.1 10 1 1
done
