#!/bin/sh
# Buys in a flash sale, and asks again until it is known what became of it. Needs curl.
#
#     FLASHSALE_URL=http://127.0.0.1:8080 FLASHSALE_TOKEN=… buy.sh SALE_ID SKU [QUANTITY [KEY]]
#
# Prints the order as JSON. Exit code 0: there is an order. 1: refused, and why. 2: wrong usage. 3: not known within
# BUY_PATIENCE seconds (60): ask again with the KEY that was printed at the start, and with no other.
set -eu

url=${FLASHSALE_URL:-http://127.0.0.1:8080}
if [ $# -lt 2 ] || [ -z "${FLASHSALE_TOKEN:-}" ]; then
    echo 'usage: FLASHSALE_TOKEN=… buy.sh SALE_ID SKU [QUANTITY [KEY]]' >&2
    exit 2
fi
sale=$1 sku=$2 quantity=${3:-1}
# One key for one wish to buy, drawn before the first request and kept until the outcome is known.
key=${4:-$(cat /proc/sys/kernel/random/uuid)}
echo "key $key" >&2

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# A file, so that the token is in no list of processes.
printf 'header = "Authorization: Bearer %s"\n' "$FLASHSALE_TOKEN" >"$folder/token"
give_up=$(($(date +%s) + ${BUY_PATIENCE:-60}))
backoff=200

while :; do
    # Longer than the two seconds within which the server answers: whatever it was asked is over by then.
    status=$(curl -sS --max-time 5 -K "$folder/token" -D "$folder/head" -o "$folder/answer" -w '%{http_code}' \
        -H "Idempotency-Key: $key" -H 'Content-Type: application/json' \
        -d "{\"sku\":\"$sku\",\"quantity\":$quantity}" "$url/v1/sales/$sale/orders") || status=lost
    case $status in
    200 | 201)
        cat "$folder/answer"
        exit 0
        ;;
    lost | 429 | 5??) ;;
    *)
        cat "$folder/answer" >&2
        exit 1
        ;;
    esac

    # What the server asks for, and up to `backoff` milliseconds by chance, so that not all come back at once.
    after=0
    [ "$status" = lost ] || after=$(tr -d '\r' <"$folder/head" | sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9]\{1,9\}\)$/\1/p')
    chance=$(($(od -An -N2 -tu2 /dev/urandom) * backoff / 65536))
    wait=$((${after:-0} * 1000 + chance))
    if [ $(($(date +%s) + wait / 1000)) -ge "$give_up" ]; then
        echo "not known (last answer: $status); ask again with the key $key" >&2
        exit 3
    fi
    sleep "$((wait / 1000)).$(printf %03d $((wait % 1000)))"
    [ $backoff -ge 5000 ] || backoff=$((backoff * 2))
done
