"""Fits schemathesis's requests to a server with sales: valid requests get the ids of existing things, and keep to
rules that no schema can express. Requests that are meant to be wrong stay as they were drawn."""

import base64
import hashlib
import hmac
import os
import re
import time
import zlib
from datetime import datetime, timezone

import requests
import schemathesis
from schemathesis.core.parameters import ParameterLocation

# The sale that sells, the one that is closed and rebuilt, and the one with every guard.
SALE, OTHER, GUARDED = os.environ["SALE_ID"], os.environ["OTHER_SALE_ID"], os.environ["GUARDED_SALE_ID"]
# A sale that is never loaded, so that it can be changed.
DRAFT = os.environ["DRAFT_SALE_ID"]
# A sale that is paused, and paused again after each resume.
PAUSED = os.environ["PAUSED_SALE_ID"]
SKU = os.environ["SKU"]
SHOPPER = os.environ["SHOPPER"]
WEBHOOK_KEY = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
OPERATOR = f"Bearer {os.environ['ADMIN_KEY']}"
PAUSING = f"{os.environ['BASE_URL']}/v1/admin/sales/{PAUSED}/pause"
# The placeholder of a signature in schemathesis.toml.
TO_BE_SIGNED = "to be signed"

# Operators' changes that leave a sale selling. Every other one gets a sale that no other request needs.
HARMLESS = {"preloadSale", "openSale", "resumeSale", "restockSale", "changeSale", "deleteSale", "settleDeadLetter"}
ASKING_FOR_GUARDS = {"askWaitingRoom", "followWaitingRoom", "askChallenge", "getPurchaseToken"}

# Requests a second, or page views a minute, that this run never reaches.
ENOUGH = 100_000

# Orders that were made.
orders = []
# Ids in answers, by the member's name: `payment_id` and any others.
seen = {}
SEEN_MAX = 50


class Signature(requests.auth.AuthBase):
    """Signs the body as in Standard Webhooks."""

    def __call__(self, request):
        message, sent_at = request.headers.get("webhook-id"), request.headers.get("webhook-timestamp")
        if message is None or sent_at is None:
            return request
        # A time that could be one is made to be now; anything else is left to be refused.
        text = sent_at if isinstance(sent_at, str) else sent_at.decode("latin-1")
        if text.isascii() and text.isdigit():
            request.headers["webhook-timestamp"] = text = str(int(time.time()))
        name = message.encode("latin-1", "replace") if isinstance(message, str) else message
        body = request.body or b""
        signed = name + b"." + text.encode("latin-1", "replace") + b"." + (body.encode() if isinstance(body, str) else body)
        digest = hmac.new(WEBHOOK_KEY, signed, hashlib.sha256).digest()
        request.headers["webhook-signature"] = "v1," + base64.b64encode(digest).decode()
        return request


def drawn(case, choices):
    """One of these, by which case it is."""
    return choices[zlib.crc32(case.id.encode()) % len(choices)]


def remember(value):
    """Keeps the ids of an answer, the newest of each name."""
    if isinstance(value, list):
        for item in value:
            remember(item)
    elif isinstance(value, dict):
        for name, member in value.items():
            if isinstance(member, str) and name.endswith("_id"):
                known = seen.setdefault(name, [])
                if member not in known:
                    known.append(member)
                    del known[:-SEEN_MAX]
            else:
                remember(member)


def fitting(text, limit):
    """A text of at most so many bytes: a schema counts characters."""
    return text if len(text.encode()) <= limit else text.encode()[:limit].decode(errors="ignore")


def instant(text):
    return datetime.fromisoformat(text.upper().replace("Z", "+00:00"))


def written_as_integers(value):
    """The same with each whole number written as one: to a schema 4.0 is an integer, to the API it is not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [written_as_integers(item) for item in value]
    if isinstance(value, dict):
        return {name: written_as_integers(member) for name, member in value.items()}
    return value


def fit_sale(body):
    """Rules of a sale that a schema cannot express: its end comes after its start, each SKU is there once, an option has a group
    and is there once in it, a challenge needs a token, and this Redis has no replica."""
    try:
        in_order = instant(body["starts_at"]) < instant(body["ends_at"]) and instant(body["starts_at"]).year >= 1970
    except ValueError:
        # A leap second, or an hour before the first year.
        in_order = False
    if not in_order:
        body |= {"starts_at": "2026-01-01T00:00:00Z", "ends_at": "2036-01-01T00:00:00Z"}
    seen = set()
    body["items"] = [item for item in body["items"] if not (item["sku"] in seen or seen.add(item["sku"]))]
    variants = set()
    for item in body["items"]:
        variant = tuple((item.get(name) or "").strip() for name in ("group", "option"))
        if not variant[0] or variant in variants:
            item |= {"group": None, "option": None}
        variants.add(variant)
    if body.get("durability") == "replica":
        body["durability"] = "postgres"
    guards = body.get("guards", {})
    if guards.get("challenge", "none") != "none":
        guards["purchase_token"] = True


def between(least, value, most):
    return max(least, min(value, most))


def fit_guards(body):
    """Guards that let this run through, and fit each other and earlier settings: none refuses, or bans, below
    what this run can ask. Accounts may raise warnings from the first page view on."""
    for name in ("address_rate", "instance_rate", "shared_rate", "adaptive_max_rate", "browsing_ban_above"):
        if isinstance(body.get(name), dict):
            body[name]["value"] = max(body[name]["value"], ENOUGH)
        elif body.get(name):
            body[name] = max(body[name], ENOUGH)
    if isinstance(body.get("browsing_alert_above"), dict):
        # A warning refuses nobody.
        body["browsing_alert_above"]["shadow"] = False
    if body.get("browsing_ban_seconds") is not None:
        body["browsing_ban_seconds"] = between(1, body["browsing_ban_seconds"], 366 * 86_400)
    if any(body.get(name) is not None for name in body if name.startswith("adaptive_")):
        # All four at once: the least rate must not be above a highest one of earlier.
        most = body["adaptive_max_rate"] = body.get("adaptive_max_rate") or 0
        body["adaptive_min_rate"] = between(ENOUGH, body.get("adaptive_min_rate") or 0, most or ENOUGH)
        body["adaptive_latency_ms"] = between(1, body.get("adaptive_latency_ms") or 200, 60_000)
        body["adaptive_in_flight"] = max(1, body.get("adaptive_in_flight") or 64)


def fit_amendment(body):
    """Stages that let purchases of this run through, and that any of its sales may have."""
    guards = body.get("guards") or {}
    guards.pop("challenge", None)
    for name, most in (("holds_max", 100_000), ("unpaid_cooldown_seconds", 86_400)):
        if guards.get(name):
            guards[name] |= {"value": between(0, guards[name]["value"], most), "percent": 0, "shadow": False}
    for name in ("waiting_room", "purchase_token"):
        if guards.get(name):
            guards[name]["shadow"] = True


def fit_body(case, body):
    body.update(written_as_integers(body))
    match case.operation.definition.raw["operationId"]:
        case "createSale" | "changeSale":
            fit_sale(body)
        case "changeGuards":
            fit_guards(body)
        case "amendSale":
            fit_amendment(body)
        case "buy":
            body["sku"] = drawn(case, [SKU, SKU, SKU, body["sku"]])
            body["quantity"] = drawn(case, [1, 2, 3, body["quantity"]])
        case "restockSale":
            body["sku"] = drawn(case, [SKU, SKU, SKU, body["sku"]])
            body["quantity"] = drawn(case, [-2, -1, 1, 2])
        case "askChallenge":
            body["sale_id"] = drawn(case, [GUARDED, GUARDED, SALE, body["sale_id"]])
        case "banAccount" | "liftBan":
            body["user"] = fitting(body["user"], 128)
            if body["user"] == SHOPPER:
                body["user"] += "-not"
            until = body.get("until")
            try:
                lies_ahead = until is None or instant(until) > datetime.now(timezone.utc)
            except ValueError:
                lies_ahead = False
            if not lies_ahead:
                body["until"] = "2099-12-31T00:00:00Z"
        case "signIn":
            body["key"] = drawn(case, [os.environ["ADMIN_KEY"], os.environ["ADMIN_KEY"], body["key"]])
            if body.get("name"):
                body["name"] = fitting(body["name"], 64)
        case "settlePayment":
            body["payment_id"] = fitting(body["payment_id"], 255)
            if "payment_id" in seen:
                known = drawn(case, seen["payment_id"])
                body["payment_id"] = drawn(case, [known, known, body["payment_id"]])
        case "tellPayment":
            data = body["data"]
            data["payment_id"] = fitting(data["payment_id"], 255)
            data["order_id"] = fitting(data["order_id"], 255)
            data["currency"] = fitting(data["currency"], 16)
            if orders and drawn(case, [True, True, False]):
                order = drawn(case, orders)
                data |= {"order_id": order["id"], "amount_minor": order["amount_minor"], "currency": order["currency"]}
        case _:
            # A request about a thing with an id mostly names an existing one.
            for member in body.keys() & seen.keys():
                body[member] = drawn(case, [drawn(case, seen[member]), drawn(case, seen[member]), body[member]])


def ends_sale(case, name):
    operation = case.operation
    return operation.path.startswith("/v1/admin/sales/{id}") and operation.method.upper() != "GET" and name not in HARMLESS


def fit_path(case, name):
    parameters = case.path_parameters or {}
    for parameter in parameters.keys() & seen.keys():
        parameters[parameter] = drawn(case, [drawn(case, seen[parameter]), parameters[parameter]])
    if "id" not in parameters:
        return
    if "/sales/{id}" not in case.operation.path and "/orders/{id}" not in case.operation.path:
        return
    if "/orders/{id}" in case.operation.path:
        if orders:
            parameters["id"] = drawn(case, [drawn(case, orders)["id"], parameters["id"]])
    elif ends_sale(case, name):
        parameters["id"] = OTHER
    elif name == "changeSale":
        parameters["id"] = drawn(case, [DRAFT, DRAFT, SALE, parameters["id"]])
    elif name == "resumeSale":
        parameters["id"] = drawn(case, [PAUSED, PAUSED, SALE, parameters["id"]])
    elif name in ASKING_FOR_GUARDS:
        parameters["id"] = drawn(case, [GUARDED, GUARDED, SALE, parameters["id"]])
    else:
        parameters["id"] = drawn(case, [SALE, SALE, OTHER, parameters["id"]])


def fit_headers(case):
    """Leaves out an optional header that does not match its pattern. Schemathesis judges a request again once another
    part of it was fitted here, and then takes such a header for a right one; that a wrong one is refused is in
    tests/it/http."""
    for parameter in case.operation.definition.raw.get("parameters", []):
        name, pattern = parameter.get("name"), parameter.get("schema", {}).get("pattern")
        if parameter.get("in") != "header" or parameter.get("required") or not pattern or name not in case.headers:
            continue
        if not re.search(pattern, str(case.headers[name])):
            del case.headers[name]


@schemathesis.hook
def before_call(context, case, kwargs):
    name = case.operation.definition.raw["operationId"]
    wrong_at = {place for place in ParameterLocation if case.meta and case.meta.is_negative_at(place)}
    # A value that a link has carried over from another answer stays.
    if ParameterLocation.PATH not in wrong_at and not (case.meta and case.meta.phase.name.value == "stateful"):
        fit_path(case, name)
    if ParameterLocation.QUERY not in wrong_at and case.query:
        if "sale_id" in case.query:
            case.query["sale_id"] = drawn(case, [SALE, SALE, case.query["sale_id"]])
        if name == "listBans" and "starting_after" in case.query:
            case.query["starting_after"] = fitting(case.query["starting_after"], 128)
    # A request whose key is made up is wrong in that, and stays so.
    if case.headers.get("Authorization", OPERATOR) == OPERATOR:
        fit_headers(case)
    if ParameterLocation.BODY not in wrong_at and isinstance(case.body, dict):
        fit_body(case, case.body)
    if case.headers.get("webhook-signature") == TO_BE_SIGNED:
        kwargs["auth"] = Signature()
    # A request must not end the sales that others need.
    if ends_sale(case, name) and case.path_parameters.get("id") in (SALE, GUARDED):
        case.path_parameters["id"] = OTHER


@schemathesis.hook
def after_call(context, case, response):
    name = case.operation.definition.raw["operationId"]
    if name == "resumeSale" and response.status_code == 200 and case.path_parameters.get("id") == PAUSED:
        requests.post(PAUSING, headers={"Authorization": OPERATOR}, timeout=20).raise_for_status()
    kind = response.headers.get("content-type", [""])[0]
    if response.status_code not in (200, 201) or not kind.startswith("application/json"):
        return
    remember(response.json())
    if name == "buy" and response.status_code == 201:
        orders.append(response.json())
