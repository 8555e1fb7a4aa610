#!/bin/sh
# Buys in a flash sale, and retries until the outcome is known. Needs curl.
#
#     FLASHSALE_URL=http://127.0.0.1:8080 FLASHSALE_TOKEN=… buy.sh SALE_ID SKU [QUANTITY [KEY]]
#
# Prints the key on standard error, then the order as JSON. Exit codes: 0 an order, 1 no order, 2 wrong usage, 3 unknown.
# After 3, BUY_PATIENCE seconds (60) are over, or the last answer names something to correct first. Run it again with the
# printed KEY, and with no other. For a guarded sale, set FLASHSALE_ADMISSION and FLASHSALE_PURCHASE_TOKEN.
set -eu

wrong() {
    echo "buy.sh: $1" >&2
    exit 2
}

url=${FLASHSALE_URL:-http://127.0.0.1:8080}
if [ $# -lt 2 ] || [ $# -gt 4 ] || [ -z "${FLASHSALE_TOKEN:-}" ]; then
    echo 'usage: FLASHSALE_TOKEN=… buy.sh SALE_ID SKU [QUANTITY [KEY]]' >&2
    exit 2
fi
sale=$1 sku=$2 quantity=${3:-1} patience=${BUY_PATIENCE:-60}
# One key for one wish to buy, generated before the first request and kept until the outcome is known.
key=${4:-$(cat /proc/sys/kernel/random/uuid)}
case $sale in '' | *[!A-Za-z0-9-]*) wrong 'SALE_ID must be an id of a sale' ;; esac
case $sku in '' | *[!A-Za-z0-9._-]*) wrong 'SKU must be letters, digits, dots, underscores and hyphens' ;; esac
case $quantity in 0* | *[!0-9]* | ???????*) wrong 'QUANTITY must be a whole number from 1' ;; esac
[ ${#key} -le 64 ] || key=' '
case $key in ' '* | *' ' | *[!\ -~]*) wrong 'KEY must be 1 to 64 printable ASCII characters, no space at either end' ;; esac
case $patience in 0?* | *[!0-9]* | ???????*) wrong 'BUY_PATIENCE must be a whole number of seconds' ;; esac
echo "key $key" >&2

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# A file, so that the shopper's secrets appear in no list of processes.
{
    printf 'header = "Authorization: Bearer %s"\n' "$FLASHSALE_TOKEN"
    [ -z "${FLASHSALE_ADMISSION:-}" ] || printf 'header = "X-Admission: %s"\n' "$FLASHSALE_ADMISSION"
    [ -z "${FLASHSALE_PURCHASE_TOKEN:-}" ] || printf 'header = "X-Purchase-Token: %s"\n' "$FLASHSALE_PURCHASE_TOKEN"
} >"$folder/shown"
give_up=$(($(date +%s) + patience))
backoff=200
# Whether there may be an order. A new key has none until a request stays without an answer.
may_exist=
[ $# -lt 4 ] || may_exist=yes
# Until this time the server may still work on a request whose connection broke.
over_at=0

# Ends the program, because a retry cannot succeed by itself.
end() {
    if [ -n "$may_exist" ]; then
        echo "not known (last answer: $status${code:+ $code}); ask again with the key $key" >&2
        exit 3
    fi
    echo "nothing was bought ($status): $(cat "$folder/answer")" >&2
    exit 1
}

while :; do
    sent_at=$(date +%s)
    # Longer than the two seconds within which the server answers.
    answer=$(curl -sS --max-time 5 -K "$folder/shown" -D "$folder/head" -o "$folder/answer" \
        -w '%{http_code} %{content_type}' -H "Idempotency-Key: $key" -H 'Content-Type: application/json' \
        -d "{\"sku\":\"$sku\",\"quantity\":$quantity}" "$url/v1/sales/$sale/orders") || answer=lost
    status=${answer%% *} code= known=
    case $answer in
    '200 application/json'* | '201 application/json'*)
        cat "$folder/answer"
        echo
        exit 0
        ;;
    *' application/problem+json'*)
        code=$(sed -n 's/.*"code" *: *"\([a-z_]*\)".*/\1/p' "$folder/answer")
        ! grep -q '"key_has_order" *: *false' "$folder/answer" || known=yes
        ;;
    esac
    # While an earlier request may still be under way, the key may get an order after this answer.
    is_free=
    [ -z "$known" ] || [ "$sent_at" -lt "$over_at" ] || is_free=yes
    case $status:$code in
    4??:idempotency_key_reused)
        echo 'this key has an order of another item or quantity: ask for the original one, or use a new key' >&2
        exit 1
        ;;
    4??:rate_limited) [ -z "$is_free" ] || may_exist= ;;
    4??:?*)
        if [ -n "$is_free" ]; then
            cat "$folder/answer" >&2
            echo >&2
            exit 1
        fi
        [ -n "$known" ] || end
        ;;
    # No answer, an unknown outcome, or an answer of a proxy, which does not know the outcome.
    *) may_exist=yes over_at=$((sent_at + 4)) ;;
    esac

    # `Retry-After` and up to `backoff` random milliseconds, so that clients do not return together.
    after=0
    [ "$status" = lost ] ||
        after=$(tr -d '\r' <"$folder/head" | sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9]\{1,9\}\)$/\1/p' | tail -n 1)
    chance=$(($(od -An -N2 -tu2 /dev/urandom) * backoff / 65536))
    wait=$((${after:-0} * 1000 + chance))
    [ $(($(date +%s) + wait / 1000)) -lt "$give_up" ] || end
    sleep "$((wait / 1000)).$(printf %03d $((wait % 1000)))"
    [ $backoff -ge 5000 ] || backoff=$((backoff * 2))
done
