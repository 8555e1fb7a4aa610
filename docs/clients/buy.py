#!/usr/bin/env python3
"""Buys in a flash sale, and retries until the outcome is known. Needs only Python's standard library.

    FLASHSALE_URL=http://127.0.0.1:8080 FLASHSALE_TOKEN=… buy.py SALE_ID SKU [QUANTITY [KEY]]

Prints the key on standard error, then the order as JSON. Exit codes: 0 an order, 1 no order, 2 wrong usage, 3 unknown.
After 3, BUY_PATIENCE seconds (60) are over, or the last answer names something to correct first. Run it again with the
printed KEY, and with no other. For a guarded sale, set FLASHSALE_ADMISSION and FLASHSALE_PURCHASE_TOKEN.
"""

import http.client
import json
import os
import random
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

# Longer than the two seconds within which the server answers.
ANSWER_SECONDS = 5
# For this long the server may still work on a request whose connection broke.
WORK_SECONDS = 3
BACKOFF_SECONDS, BACKOFF_MAX_SECONDS = 0.2, 5

class Refused(Exception):
    """The server refused, and the key has no order: drop it, or repeat it with what a guard's `code` asks for.

    `retry_after` is in seconds, or 0.
    """

    def __init__(self, problem, retry_after=0):
        super().__init__(said(problem))
        self.code = problem["code"]
        self.retry_after = retry_after


class KeyReused(Exception):
    """The key has an order of another item or quantity. A retry cannot succeed."""

    def __init__(self):
        super().__init__("this key has an order of another item or quantity: ask for the original one, or use a new key")


class NotBought(Exception):
    """Nothing was bought with a new key. Correct what the message names, or wait, and ask again with the same key."""


class NotKnown(Exception):
    """There may be an order: keep the key, correct what the message names, and ask again with it."""


def buy(url, token, sale_id, sku, quantity, key, patience=60, admission=None, purchase_token=None, is_new=False):
    """Returns the order as a dict. `key` stands for one wish to buy: keep it until this returns or raises `Refused`.
    `is_new` says that no earlier request can have used the key."""
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key, "Content-Type": "application/json"}
    if admission:
        headers["X-Admission"] = admission
    if purchase_token:
        headers["X-Purchase-Token"] = purchase_token
    request = urllib.request.Request(
        f"{url}/v1/sales/{urllib.parse.quote(sale_id, safe='')}/orders",
        data=json.dumps({"sku": sku, "quantity": quantity}).encode(),
        headers=headers,
    )
    give_up = time.monotonic() + patience
    backoff = BACKOFF_SECONDS
    may_exist, over_at = not is_new, 0
    while True:
        sent_at = time.monotonic()
        status, after, order, problem, last = ask(request)
        if order:
            return order
        # Anything but a problem of the API comes from a proxy, which does not know the outcome.
        is_no = bool(problem) and 400 <= status < 500
        if is_no and problem["code"] == "idempotency_key_reused":
            raise KeyReused()
        is_limited = is_no and problem["code"] == "rate_limited"
        # While an earlier request may still be under way, the key may get an order after this answer.
        is_known = is_no and problem.get("key_has_order") is False
        if is_known and sent_at >= over_at:
            if not is_limited:
                raise Refused(problem, after)
            may_exist = False
        if not is_no:
            may_exist, over_at = True, sent_at + WORK_SECONDS
        # The server's `Retry-After` and a random part, so that clients do not return together.
        wait = after + random.uniform(0, backoff)
        if (is_no and not is_known and not is_limited) or time.monotonic() + wait >= give_up:
            if may_exist:
                raise NotKnown(f"not known (last answer: {last}); ask again with the key {key}")
            raise NotBought(f"nothing was bought ({last})")
        time.sleep(wait)
        backoff = min(backoff * 2, BACKOFF_MAX_SECONDS)


def ask(request):
    """Sends one request. Returns status, seconds to wait, order or problem, and the answer as text for messages."""
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            status, headers, body = answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        try:
            status, headers, body = error.code, error.headers, error.read()
        except (OSError, http.client.HTTPException) as lost:
            return 0, 0, None, None, lost
    except (OSError, http.client.HTTPException) as lost:
        # No connection, no answer in time, half an answer.
        return 0, 0, None, None, lost
    after, kind = seconds(headers.get("Retry-After")), headers.get_content_type()
    try:
        body = json.loads(body)
    except ValueError:
        body = None
    if status in (200, 201) and kind == "application/json" and isinstance(body, dict):
        return status, after, body, None, status
    if kind == "application/problem+json" and isinstance(body, dict) and isinstance(body.get("code"), str):
        return status, after, None, body, f"{status} {said(body)}"
    return status, after, None, None, status


def said(problem):
    return f"{problem['code']}: {problem.get('detail')}"


def seconds(text):
    """`Retry-After` in seconds."""
    return int(text) if text and re.fullmatch("[0-9]{1,9}", text) else 0


def main(arguments):
    token = os.environ.get("FLASHSALE_TOKEN")
    if not 2 <= len(arguments) <= 4 or not token:
        print("usage: FLASHSALE_TOKEN=… buy.py SALE_ID SKU [QUANTITY [KEY]]", file=sys.stderr)
        return 2
    sale_id, sku, quantity, key = arguments + ["1", str(uuid.uuid4())][len(arguments) - 2 :]
    patience = os.environ.get("BUY_PATIENCE") or "60"
    for name, text, pattern, what in [
        ("QUANTITY", quantity, "[1-9][0-9]{0,5}", "a whole number from 1"),
        ("KEY", key, "[!-~]([ -~]{0,62}[!-~])?", "1 to 64 printable ASCII characters, no space at either end"),
        ("BUY_PATIENCE", patience, "[0-9]{1,6}", "a whole number of seconds"),
    ]:
        if not re.fullmatch(pattern, text):
            print(f"buy.py: {name} must be {what}", file=sys.stderr)
            return 2
    print(f"key {key}", file=sys.stderr, flush=True)
    try:
        order = buy(
            os.environ.get("FLASHSALE_URL") or "http://127.0.0.1:8080",
            token,
            sale_id,
            sku,
            int(quantity),
            key,
            patience=int(patience),
            admission=os.environ.get("FLASHSALE_ADMISSION"),
            purchase_token=os.environ.get("FLASHSALE_PURCHASE_TOKEN"),
            is_new=len(arguments) < 4,
        )
    except (Refused, KeyReused, NotBought) as no:
        print(no, file=sys.stderr)
        return 1
    except NotKnown as not_known:
        print(not_known, file=sys.stderr)
        return 3
    print(json.dumps(order))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
