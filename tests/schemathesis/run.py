"""Opens sales, runs schemathesis on them, then sells out the rest, pays every order and counts: the paid orders
of all shoppers have as many units as the sale, no order is there twice, and every sale balances. Expects an instance at
BASE_URL, and its secrets. Ends with 1 when anything is not as it should be."""

import base64
import hashlib
import hmac
import json
import os
import subprocess
import sys
import time
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path

import requests

URL = os.environ["BASE_URL"]
OPERATOR = {"Authorization": f"Bearer {os.environ['ADMIN_KEY']}"}
WEBHOOK_KEY = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
HERE = Path(__file__).parent

SKU, STOCK = "TSHIRT-M", 400
# Shoppers of the end, who buy the rest.
CROWD = 20
# So many seconds may pass until the ledger has drained everything.
PATIENCE = 60


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(user):
    now = int(time.time())
    parts = [{"alg": "HS256", "typ": "JWT"}, {"sub": user, "iat": now, "exp": now + 6 * 3600}]
    signed = ".".join(encoded(json.dumps(part).encode()) for part in parts)
    digest = hmac.new(os.environ["JWT_SECRET"].encode(), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{encoded(digest)}"


def ask(method, path, good, headers=OPERATOR, **more):
    response = requests.request(method, URL + path, headers=headers, timeout=20, **more)
    if response.status_code not in good:
        sys.exit(f"{method} {path}: {response.status_code} {response.text}")
    return response


def create_sale(name, guards):
    now = datetime.now(timezone.utc)
    sale = {
        "name": name,
        "starts_at": (now - timedelta(minutes=1)).isoformat(),
        "ends_at": (now + timedelta(days=1)).isoformat(),
        "payment_window_seconds": 86_400,
        "purchase_rate": {"limit": 1000, "window_ms": 1},
        "guards": guards,
        "items": [
            {"sku": SKU, "name": "T-shirt", "price_minor": 2500, "currency": "EUR", "stock": STOCK, "per_user_limit": 100_000}
        ],
    }
    return ask("POST", "/v1/admin/sales", [201], json=sale).json()["id"]


def open_sale(name, guards):
    sale_id = create_sale(name, guards)
    ask("POST", f"/v1/admin/sales/{sale_id}/preload", [200])
    return sale_id


def buy(user, sale_id, quantity):
    """Buys, and asks again with the same key for as long as there is no answer."""
    headers = {"Authorization": f"Bearer {token(user)}", "Idempotency-Key": uuid.uuid4().hex}
    body = {"sku": SKU, "quantity": quantity}
    for _ in range(PATIENCE):
        response = ask("POST", f"/v1/sales/{sale_id}/orders", [200, 201, 409, 503], headers, json=body)
        if response.status_code != 503:
            return response
        time.sleep(int(response.headers["Retry-After"]))
    sys.exit(f"no purchase is answered any more: {response.text}")


def sell_out(sale_id):
    """Buys one unit after the other until there is none, and returns how many those were."""
    for sold in range(10 * STOCK):
        answer = buy(f"crowd-{sold % CROWD}", sale_id, 1)
        if answer.status_code == 409:
            if answer.json()["code"] != "sold_out":
                sys.exit(f"the sale does not sell out: {answer.text}")
            return sold
    sys.exit("the sale sells more than it may have")


def pay(order):
    body = json.dumps(
        {
            "type": "payment.succeeded",
            "timestamp": datetime.now(timezone.utc).isoformat(),
            "data": {
                "payment_id": f"end-{order['id']}",
                "order_id": order["id"],
                "amount_minor": order["amount_minor"],
                "currency": order["currency"],
            },
        }
    ).encode()
    name, now = f"msg_{uuid.uuid4().hex}", str(int(time.time()))
    digest = hmac.new(WEBHOOK_KEY, f"{name}.{now}.".encode() + body, hashlib.sha256).digest()
    signature = {"webhook-id": name, "webhook-timestamp": now, "webhook-signature": "v1," + base64.b64encode(digest).decode()}
    outcome = ask("POST", "/v1/webhooks/payments", [200], signature, data=body).json()["outcome"]
    if outcome not in ("applied", "pending"):
        sys.exit(f"order {order['id']}: {outcome}")


def orders_of(sale_id):
    """Everybody's orders in a sale."""
    orders = []
    for user in ["schemathesis", *(f"crowd-{number}" for number in range(CROWD))]:
        answer = ask("GET", f"/v1/orders?sale_id={sale_id}", [200], {"Authorization": f"Bearer {token(user)}"})
        orders += answer.json()["data"]
    return orders


def settled(sale_id):
    """The sale's numbers when nothing is held, on its way or waiting any more."""
    for _ in range(PATIENCE):
        stats = ask("GET", f"/v1/admin/sales/{sale_id}/stats", [200]).json()
        item = stats["items"][0]
        if not (item["held"] or item["in_transit"] or stats["undrained_events"]):
            break
        time.sleep(1)
    return stats


def audited(sale_id):
    for _ in range(PATIENCE):
        audit = ask("GET", f"/v1/admin/sales/{sale_id}/audit", [200]).json()
        if audit["balanced"]:
            return
        time.sleep(1)
    sys.exit(f"sale {sale_id} does not balance: {audit['differences']}")


def look_at_alerts():
    """The stream that schemathesis leaves out: it begins at once, and refuses invalid requests."""
    path = "/v1/admin/alerts/stream"
    with requests.get(URL + path, headers=OPERATOR, stream=True, timeout=20) as response:
        kind = response.headers.get("Content-Type")
        head = next(response.iter_content(64))
        if response.status_code != 200 or kind != "text/event-stream" or not head.startswith(b"retry: "):
            sys.exit(f"{path}: {response.status_code} {kind} {head}")
    ask("GET", path, [401], {"Authorization": "Bearer wrong"})
    ask("GET", path, [400], OPERATOR | {"Last-Event-ID": "none"})


def main():
    sale_id, other_id = open_sale("For everybody", {}), open_sale("To be closed", {})
    guards = {"waiting_room": True, "purchase_token": True, "challenge": "captcha"}
    guarded_id = open_sale("Guarded", guards)
    paused_id = open_sale("To be resumed", {})
    ask("POST", f"/v1/admin/sales/{paused_id}/pause", [200])
    environment = os.environ | {
        "SALE_ID": sale_id,
        "OTHER_SALE_ID": other_id,
        "GUARDED_SALE_ID": guarded_id,
        "PAUSED_SALE_ID": paused_id,
        "DRAFT_SALE_ID": create_sale("To be changed", {}),
        "SKU": SKU,
        "SHOPPER": "schemathesis",
        "TOKEN": token("schemathesis"),
    }
    program = Path(sys.executable).with_name("schemathesis")
    command = [program, "--config-file", "schemathesis.toml", "run", f"{URL}/openapi.json", "--checks", "all", *sys.argv[1:]]
    code = subprocess.run(command, cwd=HERE, env=environment).returncode
    look_at_alerts()

    # Other requests may have paused it.
    if ask("GET", f"/v1/admin/sales/{sale_id}", [200]).json()["state"] == "paused":
        ask("POST", f"/v1/admin/sales/{sale_id}/resume", [200])
    in_the_end = sell_out(sale_id)
    for order in orders_of(sale_id):
        if order["state"] == "reserved":
            pay(order)
    stats = settled(sale_id)
    item = stats["items"][0]
    for each in (sale_id, other_id, guarded_id, paused_id):
        audited(each)
    print(f"{item['total']} units: {item['total'] - in_the_end} sold by schemathesis, {in_the_end} after it; {json.dumps(item)}")
    if (item["sold"], item["available"], item["held"], item["in_transit"]) != (item["total"], 0, 0, 0):
        sys.exit("the sale has not sold exactly its stock")
    orders = orders_of(sale_id)
    if len({order["id"] for order in orders}) != len(orders):
        sys.exit("an order is listed twice")
    paid = sum(order["quantity"] for order in orders if order["state"] == "paid")
    if paid != item["total"]:
        sys.exit(f"the paid orders have {paid} units of {item['total']}")
    if stats["orders"]["revoked"] or any(stats["alerts"][name] for name in ("dead_letters", "failed_releases", "lost_orders")):
        sys.exit(f"something went wrong on the way: {json.dumps(stats)}")
    sys.exit(code)


main()
