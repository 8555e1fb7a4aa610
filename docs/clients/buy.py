#!/usr/bin/env python3
"""Buys in a flash sale, and asks again until it is known what became of it. Needs nothing but Python's own library.

    FLASHSALE_URL=http://127.0.0.1:8080 FLASHSALE_TOKEN=… buy.py SALE_ID SKU [QUANTITY [KEY]]

Prints the order as JSON. Exit code 0: there is an order. 1: refused, and why. 2: wrong usage. 3: not known within
BUY_PATIENCE seconds (60): ask again with the KEY that was printed at the start, and with no other.
"""

import http.client
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
import uuid

# Longer than the two seconds within which the server answers: whatever it was asked is over by then.
ANSWER_SECONDS = 5
BACKOFF_SECONDS, BACKOFF_MAX_SECONDS = 0.2, 5


class Refused(Exception):
    """The server said no, and the same request will be told so again."""

    def __init__(self, problem):
        super().__init__(f"{problem.get('code')}: {problem.get('detail')}")
        self.code = problem.get("code")


class NotKnown(Exception):
    """Time is up, and there may be an order: ask again with the same key."""


def buy(url, token, sale_id, sku, quantity, key, patience=60):
    """The order, as a dict. `key` is one for one wish to buy: keep it until this has returned or raised `Refused`."""
    request = urllib.request.Request(
        f"{url}/v1/sales/{sale_id}/orders",
        data=json.dumps({"sku": sku, "quantity": quantity}).encode(),
        headers={"Authorization": f"Bearer {token}", "Idempotency-Key": key, "Content-Type": "application/json"},
    )
    give_up = time.monotonic() + patience
    backoff = BACKOFF_SECONDS
    while True:
        after = 0
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            last = error.code
            if last != 429 and last < 500:
                raise Refused(problem_of(error)) from None
            after = seconds(error.headers.get("Retry-After"))
        except (OSError, http.client.HTTPException, ValueError) as error:
            # No connection, no answer in time, half an answer.
            last = error
        # What the server asks for, and a little by chance, so that not all come back at once.
        wait = after + random.uniform(0, backoff)
        if time.monotonic() + wait >= give_up:
            raise NotKnown(f"not known (last answer: {last}); ask again with the key {key}")
        time.sleep(wait)
        backoff = min(backoff * 2, BACKOFF_MAX_SECONDS)


def problem_of(error):
    """The problem that an answer carries; a proxy in between may answer something else."""
    try:
        problem = json.load(error)
    except (OSError, http.client.HTTPException, ValueError):
        problem = None
    return problem if isinstance(problem, dict) else {"code": f"HTTP {error.code}", "detail": error.reason}


def seconds(text):
    """`Retry-After` in seconds."""
    return int(text) if text and text.isdecimal() else 0


def main(arguments):
    token = os.environ.get("FLASHSALE_TOKEN")
    if not 2 <= len(arguments) <= 4 or not token:
        print("usage: FLASHSALE_TOKEN=… buy.py SALE_ID SKU [QUANTITY [KEY]]", file=sys.stderr)
        return 2
    sale_id, sku, quantity, key = arguments + ["1", str(uuid.uuid4())][len(arguments) - 2 :]
    print(f"key {key}", file=sys.stderr, flush=True)
    url = os.environ.get("FLASHSALE_URL") or "http://127.0.0.1:8080"
    try:
        order = buy(url, token, sale_id, sku, int(quantity), key, float(os.environ.get("BUY_PATIENCE") or 60))
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 1
    except NotKnown as not_known:
        print(not_known, file=sys.stderr)
        return 3
    print(json.dumps(order))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
