#!/bin/sh
# Measures lua/sell/purchase.lua on a private Redis without an append-only file. It compares the throughput with
# pipelined SET in the same run, and reads the memory that a purchase leaves after the drain. Prints one line a round.
#
# usage: loadtest/bench.sh [ROUNDS]     BENCH_CALLS: purchases a round, 300000
set -eu

rounds=${1:-5}
case $rounds in
'' | *[!0-9]* | 0*)
    printf 'usage: loadtest/bench.sh [ROUNDS], at least 1, not %s; to measure the program: %s\n' \
        "$rounds" './dev bench all|ceiling|compare|scale' >&2
    exit 2
    ;;
esac
calls=${BENCH_CALLS:-300000}
lua=$(cd "$(dirname "$0")/../lua" && pwd)
. "$(dirname "$0")/lib/private_redis.sh"
sale='{01a1fc08-8698-74a3-97cf-f5cf3001e397:3}'

# Keys that do not repeat.
rate() { benchmark -r 1000000000 "$@"; }
memory() { field memory used_memory; }

round=0
while [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    redis FLUSHALL >/dev/null
    set_rate=$(rate -n "$((calls * 3))" SET key:__rand_int__ value)
    redis FLUSHALL >/dev/null
    redis EVAL "$(cat "$lua/operate/preload.lua")" 3 "$sale:shard" "$sale:events" "$sale:item:SKU-1" \
        1 0 9999999999999 5 60000 900000000 5 >/dev/null
    redis EVAL "$(cat "$lua/operate/set_state.lua")" 1 "$sale:shard" 1 1 0 9999999999999 >/dev/null
    # The same name of a server as in src/stock/recover/permit.rs.
    server=$(field server run_id)-$(field replication master_replid)-$(field replication master_replid2)
    redis EVAL "$(cat "$lua/permit/permit.lua")" 3 "$sale:shard" "$sale:events" "$sale:halt" 1 60000 1000 60000 "$server" |
        grep -q PERMITTED || {
        echo 'the shard has no permit to sell' >&2
        exit 1
    }
    script=$(redis SCRIPT LOAD "$(cat "$lua/sell/purchase.lua")")
    before=$(memory)
    # An order's id has 16 bytes: 4 and a random number of 12 digits. Key and user are as long as UUIDs.
    purchase_rate=$(rate -n "$calls" EVALSHA "$script" 4 "$sale:shard" "$sale:item:SKU-1" \
        "$sale:buyer:7d3c9f52-9b1e-4c57-a4c1-__rand_int__" "$sale:events" "ordr__rand_int__" 1 \
        "0b0e9d5c-7a1d-4c51-8d1f-0f6c1a6f8f11
7d3c9f52-9b1e-4c57-a4c1-__rand_int__")
    orders=$(redis XLEN "$sale:events")
    # A few random numbers repeat. Any other missing order is a fault.
    [ "$orders" -gt $((calls * 99 / 100)) ] || {
        echo "only $orders of $calls requests were purchases" >&2
        exit 1
    }
    redis XTRIM "$sale:events" MAXLEN 0 >/dev/null
    after=$(memory)
    awk -v round="$round" -v set="$set_rate" -v purchase="$purchase_rate" -v orders="$orders" \
        -v bytes="$((after - before))" 'BEGIN {
            printf "round %d: SET %.0f/s, purchase %.0f/s, ratio %.3f, %.0f bytes a purchase (%d orders)\n",
                round, set, purchase, purchase / set, bytes / orders, orders }'
done
