"""Has Prometheus, with the very files of observe/, read an instance that sells, then asks it: is every target up, is every
rule loaded and sound, does every expression of the dashboard answer with what its legend names, and does an alert fire when
the instance ends? Expects an instance at BASE_URL, its secrets, and a program in PROMETHEUS; INSTANCE_PID is the process
that is ended for the last question. Ends with 1 when anything is not as it should be."""

import base64
import hashlib
import hmac
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path

URL = os.environ["BASE_URL"].rstrip("/")
OPERATOR = {"Authorization": f"Bearer {os.environ['ADMIN_KEY']}"}
WEBHOOK_KEY = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
OBSERVE = Path(__file__).parents[2] / "observe"

# As it stands in prometheus.yml, for the compose profile.
TARGET = '"app:8080"'
# How long is sold: some readings more than the rates below look back.
SELLING_SECONDS = 45
# The values that Grafana inserts for its variables.
VARIABLES = {"$__rate_interval": "30s", "$instance": ".*"}
# How long anything else may take.
PATIENCE = 90

# Expressions without data for a healthy instance: a panel's title, and why.
MAY_BE_EMPTY = {
    "Runs that did not succeed": "no job has failed",
}

problems = []


def wrong(what):
    problems.append(what)
    print(f"WRONG: {what}", flush=True)


def asked(url, method="GET", headers=None, body=None):
    """Status and JSON of an answer."""
    headers = dict(headers or {})
    if body is not None and not isinstance(body, bytes):
        headers["Content-Type"], body = "application/json", json.dumps(body).encode()
    request = urllib.request.Request(url, method=method, headers=headers, data=body)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    try:
        return status, json.loads(text) if text else None
    except ValueError:
        return status, None


def operate(method, path, good, body=None):
    status, answer = asked(URL + path, method, OPERATOR, body)
    if status not in good:
        sys.exit(f"{method} {path}: {status} {answer}")
    return answer


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(user):
    now = int(time.time())
    parts = [{"alg": "HS256", "typ": "JWT"}, {"sub": user, "iat": now, "exp": now + 3600}]
    signed = ".".join(encoded(json.dumps(part).encode()) for part in parts)
    digest = hmac.new(os.environ["JWT_SECRET"].encode(), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{encoded(digest)}"


def open_sale(name, stock, **more):
    now = datetime.now(timezone.utc)
    sale = {
        "name": name,
        "starts_at": (now - timedelta(minutes=1)).isoformat(),
        "ends_at": (now + timedelta(hours=1)).isoformat(),
        "shards": 4,
        "payment_window_seconds": 5,
        "purchase_rate": {"limit": 1000, "window_ms": 1000},
        "items": [
            {"sku": "A", "name": "A", "price_minor": 100, "currency": "EUR", "stock": stock, "per_user_limit": 1000}
        ],
    } | more
    sale_id = operate("POST", "/v1/admin/sales", [201], sale)["id"]
    operate("POST", f"/v1/admin/sales/{sale_id}/preload", [200])
    return sale_id


def buy(user, sale_id, key=None):
    headers = {"Authorization": f"Bearer {token(user)}", "Idempotency-Key": key or uuid.uuid4().hex}
    return asked(f"{URL}/v1/sales/{sale_id}/orders", "POST", headers, {"sku": "A", "quantity": 1})


def pay(order):
    data = {"payment_id": f"pay-{order['id']}", "order_id": order["id"]}
    data |= {"amount_minor": order["amount_minor"], "currency": order["currency"]}
    event = {"type": "payment.succeeded", "timestamp": datetime.now(timezone.utc).isoformat(), "data": data}
    body = json.dumps(event).encode()
    name, now = f"msg_{uuid.uuid4().hex}", str(int(time.time()))
    digest = hmac.new(WEBHOOK_KEY, f"{name}.{now}.".encode() + body, hashlib.sha256).digest()
    headers = {
        "Content-Type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": now,
        "webhook-signature": "v1," + base64.b64encode(digest).decode(),
    }
    status, answer = asked(f"{URL}/v1/webhooks/payments", "POST", headers, body)
    if status != 200:
        sys.exit(f"a payment: {status} {answer}")


def sell():
    """Produces, for a while, most outcomes of a purchase."""
    plenty = open_sale("Plenty", 100_000)
    strict = open_sale("One each", 1000, purchase_rate={"limit": 1, "window_ms": 600_000})
    until, turn, sales, scarce = time.monotonic() + SELLING_SECONDS, 0, 0, None
    while time.monotonic() < until:
        if turn % 100 == 0:
            # Few units on four shards: home shards run short and borrow until all is sold.
            scarce = open_sale(f"Few {turn}", 12)
        user = f"shopper-{turn % 50}"
        status, order = buy(user, plenty)
        if status != 201:
            sys.exit(f"a purchase: {status} {order}")
        sales += 1
        # One in three is paid, one is cancelled, one expires.
        if turn % 3 == 0:
            pay(order)
        elif turn % 3 == 1:
            asked(f"{URL}/v1/orders/{order['id']}/cancel", "POST", {"Authorization": f"Bearer {token(user)}"})
        buy(user, scarce)
        buy("impatient", strict)
        turn += 1
        time.sleep(0.05)
    # And the gateway refuses some.
    operate("PATCH", "/v1/admin/guards", [200], {"instance_rate": 5})
    refused = sum(asked(f"{URL}/v1/sales")[0] == 503 for _ in range(40))
    operate("PATCH", "/v1/admin/guards", [200], {"instance_rate": None})
    if not refused:
        wrong("the gateway has refused nothing")
    print(f"sold {sales} orders of the first sale; {refused} requests were refused by the gateway", flush=True)


class Prometheus:
    """One that runs, with the files of observe/ but for the address of what it reads."""

    def __init__(self, folder):
        text = (OBSERVE / "prometheus.yml").read_text()
        if text.count(TARGET) != 1:
            sys.exit(f"prometheus.yml does not name {TARGET} once")
        (folder / "prometheus.yml").write_text(text.replace(TARGET, json.dumps(urllib.parse.urlsplit(URL).netloc)))
        (folder / "alerts.yml").write_text((OBSERVE / "alerts.yml").read_text())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.log = folder / "prometheus.log"
        command = [
            os.environ["PROMETHEUS"],
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.address}",
        ]
        self.process = subprocess.Popen(command, stdout=self.log.open("w"), stderr=subprocess.STDOUT)

    def get(self, path, **query):
        status, answer = asked(f"http://{self.address}{path}?{urllib.parse.urlencode(query)}")
        if status != 200:
            raise RuntimeError((answer or {}).get("error", status))
        return answer["data"]

    def wait_until(self, what, is_so):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if self.process.poll() is not None:
                sys.exit(f"Prometheus has ended:\n{self.log.read_text()}")
            try:
                if found := is_so():
                    return found
            except (OSError, RuntimeError):
                pass
            time.sleep(0.5)
        wrong(f"not within {PATIENCE} s: {what}")
        return None

    def rules(self):
        groups = self.get("/api/v1/rules")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=30)


def check_targets(prometheus):
    targets = prometheus.get("/api/v1/targets")["activeTargets"]
    for target in targets:
        if target["health"] != "up":
            wrong(f"{target['scrapeUrl']} is {target['health']}: {target['lastError']}")
    print(f"targets: {len(targets)}, up", flush=True)


def check_rules(prometheus):
    wanted = re.findall(r"^ *- alert: (\w+)$", (OBSERVE / "alerts.yml").read_text(), re.M)
    rules = prometheus.rules()
    if sorted(wanted) != sorted(rules):
        wrong(f"rules that are loaded and rules of the file differ: {sorted(set(wanted) ^ set(rules))}")
    for name, rule in rules.items():
        if rule["health"] != "ok" or rule.get("lastError"):
            wrong(f"rule {name} is {rule['health']}: {rule.get('lastError')}")
        if rule["state"] == "firing":
            wrong(f"{name} fires although all is well: {rule['alerts']}")
    print(f"rules: {len(rules)} loaded, evaluated and sound; none fires", flush=True)


def expressions():
    """Panel, expression and legend of all that the dashboard shows."""
    dashboard = json.loads((OBSERVE / "grafana" / "flashsale.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"], target.get("legendFormat", "")


def check_dashboard(prometheus):
    dashboard = json.loads((OBSERVE / "grafana" / "flashsale.json").read_text())
    for variable in dashboard["templating"]["list"]:
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
        if not found:
            wrong(f"variable {variable['name']}: this check does not know {variable['query']['query']}")
            continue
        if not prometheus.get(f"/api/v1/label/{found[2]}/values", **{"match[]": found[1]}):
            wrong(f"variable {variable['name']} has no values")
    count, answered, empty = 0, 0, set()
    for title, expression, legend in expressions():
        count += 1
        text = expression
        for name, value in VARIABLES.items():
            text = text.replace(name, value)
        if "$" in text:
            wrong(f"{title}: this check does not know a variable of {expression}")
        try:
            answer = prometheus.get("/api/v1/query", query=text)
        except RuntimeError as error:
            wrong(f"{title}: {expression}: {error}")
            continue
        series = answer["result"]
        if not series:
            empty.add(title)
            if title not in MAY_BE_EMPTY:
                wrong(f"{title}: {expression} answers nothing")
            continue
        answered += 1
        # Quantiles without any event are no number, but most events have happened.
        if all(math.isnan(float(one["value"][1])) for one in series):
            wrong(f"{title}: {expression} answers with no number")
        for label in re.findall(r"{{(\w+)}}", legend):
            if not all(label in one["metric"] for one in series):
                wrong(f"{title}: the legend names {label}, which {expression} does not answer with")
    print(f"dashboard: {count} expressions, {answered} of them answer", flush=True)
    for title in sorted(empty & set(MAY_BE_EMPTY)):
        print(f"  nothing to tell: {title}: {MAY_BE_EMPTY[title]}", flush=True)


def check_alarm(prometheus, pid):
    """Ends the instance: Prometheus has to say so, after as long as the rule says and not before."""
    os.kill(pid, signal.SIGTERM)
    state = lambda: prometheus.rules()["FlashsaleDown"]["state"]
    if prometheus.wait_until("FlashsaleDown is pending", lambda: state() == "pending"):
        since = time.monotonic()
        if prometheus.wait_until("FlashsaleDown fires", lambda: state() == "firing"):
            print(f"the instance was ended: FlashsaleDown fired after {time.monotonic() - since:.0f} s", flush=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        prometheus = Prometheus(Path(folder))
        try:
            prometheus.wait_until(
                "the instance is read",
                lambda: all(it["health"] == "up" for it in prometheus.get("/api/v1/targets")["activeTargets"]),
            )
            version = prometheus.get("/api/v1/status/buildinfo")["version"]
            print(f"Prometheus {version} reads {URL}", flush=True)
            sell()
            # The latest events are in the next reading, and a rule is evaluated after it.
            time.sleep(11)
            check_targets(prometheus)
            check_rules(prometheus)
            check_dashboard(prometheus)
            if pid := os.environ.get("INSTANCE_PID"):
                check_alarm(prometheus, int(pid))
        finally:
            prometheus.end()
    print(f"{len(problems)} problems" if problems else "all of it is as it should be")
    sys.exit(1 if problems else 0)


main()
