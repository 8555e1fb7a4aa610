"""The systems that are compared: how each is installed, started in production mode, bought from and counted."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from generator import Answer, Connection, Outcome, Request
from servers import Command, Failure, Postgres, Processes, Redis, free_port, run

HERE = Path(__file__).parent
PROCESSORS = os.cpu_count() or 1
START_SECONDS = 180
# Seconds of the hold that expires.
HOLD_SECONDS = 5
# How long an expired hold may take to come back.
RETURN_SECONDS = 30
# Without the cron job, an order of pretix is shown to hold its unit this long after its deadline.
BEFORE_CRON_SECONDS = 5


@dataclass(frozen=True)
class Counts:
    """What the system's own tables say after a rush."""

    orders: int
    # Units for which the system has an order that holds stock.
    sold: int
    # Payments, or orders, beyond one for each shopper.
    twice: int


@dataclass(frozen=True)
class Folders:
    """`cache` keeps what is installed; `data` is empty at the start and removed at the end."""

    cache: Path
    data: Path
    program: Path


class System(ABC):
    name = ""

    def __init__(self, folders: Folders, processes: Processes) -> None:
        self.folders = folders
        self.processes = processes
        self.port = free_port()
        self.application: list[Any] = []
        self.log = folders.data / f"{self.name}.log"

    @abstractmethod
    def install(self) -> str:
        """Installs what is missing, and returns name and version."""

    @abstractmethod
    def prepare(self, stocks: list[int]) -> list[str]:
        """Starts databases, makes tables, and one sale for each stock; their ids."""

    @abstractmethod
    def start(self) -> None:
        """Starts the processes of the application, without waiting for them."""

    @abstractmethod
    async def fill_cart(self, connection: Connection, sale: str, shopper: str) -> Request | Outcome: ...

    @abstractmethod
    def judge(self, answer: Answer) -> Outcome: ...

    @abstractmethod
    def count(self, sale: str) -> Counts: ...

    @property
    @abstractmethod
    def health(self) -> str: ...

    async def expired_hold(self, sale: str) -> str:
        """How long after its deadline a held unit can be bought again."""
        return "holds nothing before the order"

    def spawn(self, name: str, command: Command, cwd: Path, env: dict[str, str]) -> None:
        self.application.append(self.processes.start(f"{self.name}-{name}", command, cwd, env))

    def kill(self) -> None:
        for process in self.application:
            self.processes.kill(process)
        self.application.clear()

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.health}", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_ready(self) -> None:
        self.processes.wait_ready(f"{self.name}-server", self.application[0], self.is_ready, START_SECONDS)

    async def first_sale(self, sale: str, deadline: float, limit: float) -> float | None:
        """Seconds from the deadline until a shopper gets the unit, if within the limit."""
        connection = Connection(self.port)
        try:
            while (now := time.time()) < deadline + limit:
                request = await self.fill_cart(connection, sale, f"late-{now}")
                if isinstance(request, Request) and self.judge(await connection.ask(request)) is Outcome.ACCEPTED:
                    return time.time() - deadline
                await asyncio.sleep(0.05)
        finally:
            connection.close()
        return None


def call(port: int, method: str, path: str, key: str, body: Any = None) -> Any:
    """A request of the operator."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, method=method)
    request.add_header("Authorization", f"Bearer {key}")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


class Flashsale(System):
    """This program as `serve`, with its own Redis on disk, as its guide asks."""

    name = "flashsale"
    health = "/readyz"

    def install(self) -> str:
        version = subprocess.run([self.folders.program, "--version"], capture_output=True, text=True, check=True)
        return f"Flashsale {version.stdout.split()[-1]}"

    def prepare(self, stocks: list[int]) -> list[str]:
        self.postgres = Postgres(self.processes, self.name)
        self.admin, self.jwt = os.urandom(32).hex(), os.urandom(32).hex()
        self.env = {
            "FLASHSALE_LISTEN": f"127.0.0.1:{self.port}",
            "FLASHSALE_REDIS_URL": Redis(self.processes, self.name, durable=True).url,
            "FLASHSALE_DATABASE_URL": self.postgres.url,
            "FLASHSALE_ADMIN_KEY": self.admin,
            "FLASHSALE_JWT_SECRET": self.jwt,
            "FLASHSALE_WEBHOOK_SECRET": f"whsec_{base64.b64encode(os.urandom(32)).decode()}",
            "FLASHSALE_LOG": "warn",
            # The whole crowd comes from one address.
            "FLASHSALE_ADDRESS_RATE": "0",
            "FLASHSALE_ADDRESS_CONNECTIONS": "0",
        }
        run([self.folders.program, "migrate"], self.log, self.folders.data, self.env)
        self.start()
        self.wait_ready()
        return [self.make_sale(stock, HOLD_SECONDS if stock == 1 else 900) for stock in stocks]

    def make_sale(self, stock: int, window: int) -> str:
        now = datetime.now(timezone.utc)
        item = {
            "sku": "phone",
            "name": "Phone",
            "price_minor": 1000,
            "currency": "EUR",
            "stock": stock,
            "per_user_limit": 1,
        }
        sale = {
            "name": "Peers",
            "starts_at": (now - timedelta(minutes=1)).isoformat(),
            "ends_at": (now + timedelta(days=1)).isoformat(),
            "payment_window_seconds": window,
            "items": [item],
        }
        made: str = call(self.port, "POST", "/v1/admin/sales", self.admin, sale)["id"]
        call(self.port, "POST", f"/v1/admin/sales/{made}/preload", self.admin)
        return made

    def start(self) -> None:
        self.spawn("server", [self.folders.program, "serve"], self.folders.data, self.env)

    def token(self, shopper: str) -> str:
        now = int(time.time())
        parts = ({"alg": "HS256", "typ": "JWT"}, {"sub": shopper, "iat": now, "exp": now + 3600})
        signed = b".".join(encoded(json.dumps(part).encode()) for part in parts)
        return (signed + b"." + encoded(hmac.digest(self.jwt.encode(), signed, hashlib.sha256))).decode()

    async def fill_cart(self, connection: Connection, sale: str, shopper: str) -> Request | Outcome:
        headers = {"Authorization": f"Bearer {self.token(shopper)}", "Idempotency-Key": str(uuid.uuid4())}
        return Request(f"/v1/sales/{sale}/orders", {"sku": "phone", "quantity": 1}, headers)

    def judge(self, answer: Answer) -> Outcome:
        if answer.status in (200, 201):
            return Outcome.ACCEPTED
        return Outcome.REFUSED if answer.status == 409 and b'"sold_out"' in answer.body else Outcome.UNKNOWN

    def count(self, sale: str) -> Counts:
        for _ in range(300):
            if call(self.port, "GET", f"/v1/admin/sales/{sale}/stats", self.admin)["undrained_events"] == 0:
                break
            time.sleep(0.1)
        having = f"from orders where sale_id = '{sale}' and state in ('reserved', 'paid')"
        (orders,) = self.postgres.numbers(f"select count(*) {having}")
        (twice,) = self.postgres.numbers(f"select count(*) - count(distinct user_id) {having}")
        return Counts(orders, orders, twice)

    async def expired_hold(self, sale: str) -> str:
        connection = Connection(self.port)
        request = await self.fill_cart(connection, sale, "holder")
        assert isinstance(request, Request)
        order = (await connection.ask(request)).json()
        connection.close()
        deadline = datetime.fromisoformat(order["expires_at"]).timestamp()
        await asyncio.sleep(max(0, deadline - time.time()))
        after = await self.first_sale(sale, deadline, RETURN_SECONDS)
        return shown(after)


def encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def shown(seconds: float | None) -> str:
    return f"more than {RETURN_SECONDS} s" if seconds is None else f"{seconds:.1f} s"


class Pretix(System):
    """gunicorn with the flags of pretix's container, and Celery. A purchase is an order by the API, unpaid."""

    name = "pretix"
    health = "/healthcheck/"

    def install(self) -> str:
        folder = self.folders.cache / self.name
        wanted = (HERE / "pretix" / "requirements.txt").read_text()
        self.python = folder / "venv" / "bin" / "python"
        if is_new(folder, wanted):
            run([sys.executable, "-m", "venv", "--clear", folder / "venv"], self.log, folder)
            run(
                [self.python, "-m", "pip", "install", "-q", "-r", HERE / "pretix" / "requirements.txt"],
                self.log,
                folder,
            )
            note(folder, wanted)
        return wanted.split()[0].replace("==", " ")

    def prepare(self, stocks: list[int]) -> list[str]:
        self.postgres = Postgres(self.processes, self.name)
        redis = Redis(self.processes, self.name, durable=False)
        self.home = self.folders.data / "pretix"
        self.home.mkdir()
        (self.home / "pretix.cfg").write_text(
            f"[pretix]\nurl=http://127.0.0.1:{self.port}\ndatadir={self.home}\n"
            f"[database]\nbackend=postgresql\nname=shop\nuser=peers\nhost=127.0.0.1\nport={self.postgres.port}\n"
            f"[redis]\nlocation={redis.url}/0\nsessions=true\n"
            f"[celery]\nbackend={redis.url}/1\nbroker={redis.url}/2\n"
        )
        self.env = {"PRETIX_CONFIG_FILE": str(self.home / "pretix.cfg"), "DJANGO_SETTINGS_MODULE": "pretix.settings"}
        run([self.python, "-m", "pretix", "migrate"], self.log, self.home, self.env)
        made = run([self.python, HERE / "pretix" / "populate.py", *map(str, stocks)], self.log, self.home, self.env)
        shop = json.loads(made.splitlines()[-1])
        self.items = shop["events"]
        self.headers = {"Authorization": f"Token {shop['token']}"}
        self.start()
        self.wait_ready()
        return list(self.items)

    def start(self) -> None:
        programs = self.python.parent
        gunicorn: Command = [programs / "gunicorn", "pretix.wsgi", "--name", "pretix", "--workers", str(2 * PROCESSORS)]
        gunicorn = [*gunicorn, "--max-requests", "1200", "--max-requests-jitter", "50", "--log-level", "warning"]
        self.spawn("server", [*gunicorn, "--bind", f"127.0.0.1:{self.port}"], self.home, self.env)
        celery: Command = [programs / "celery", "-A", "pretix.celery_app", "worker", "-l", "warning", "-c", "1"]
        self.spawn("worker", celery, self.home, self.env)

    async def fill_cart(self, connection: Connection, sale: str, shopper: str) -> Request | Outcome:
        return self.order(sale, shopper)

    def order(self, sale: str, shopper: str, **more: Any) -> Request:
        body = {
            "email": f"{shopper}@example.com",
            "locale": "en",
            "sales_channel": "web",
            "status": "n",
            "payment_provider": "banktransfer",
            "positions": [{"item": self.items[sale], "variation": None, "price": "10.00"}],
            **more,
        }
        return Request(self.path(sale, "orders"), body, self.headers | {"X-Idempotency-Key": str(uuid.uuid4())})

    def path(self, sale: str, what: str) -> str:
        return f"/api/v1/organizers/peers/events/{sale}/{what}/"

    def judge(self, answer: Answer) -> Outcome:
        if answer.status == 201:
            return Outcome.ACCEPTED
        return Outcome.REFUSED if answer.status == 400 and b"quota" in answer.body else Outcome.UNKNOWN

    def count(self, sale: str) -> Counts:
        having = (
            "from pretixbase_order o join pretixbase_event e on e.id = o.event_id join pretixbase_orderposition p on "
            f"p.order_id = o.id where e.slug = '{sale}' and o.status in ('n', 'p') and not p.canceled"
        )
        (orders,) = self.postgres.numbers(f"select count(*) {having}")
        (twice,) = self.postgres.numbers(f"select count(*) - count(distinct o.email) {having}")
        return Counts(orders, orders, twice)

    async def expired_hold(self, sale: str) -> str:
        """First of a cart, then of an unpaid order, whose units come back by the next cron job."""
        connection = Connection(self.port)
        deadline = datetime.now(timezone.utc) + timedelta(seconds=HOLD_SECONDS)
        cart = {"item": self.items[sale], "variation": None, "price": "10.00", "expires": deadline.isoformat()}
        held = await connection.ask(Request(self.path(sale, "cartpositions"), cart, self.headers))
        if held.status != 201:
            raise Failure(f"pretix holds no ticket: {held}")
        await asyncio.sleep(max(0, deadline.timestamp() - time.time()))
        for _ in range(RETURN_SECONDS):
            expires = datetime.now(timezone.utc) + timedelta(seconds=HOLD_SECONDS)
            answer = await connection.ask(self.order(sale, "holder", expires=expires.isoformat()))
            if self.judge(answer) is Outcome.ACCEPTED:
                break
        else:
            raise Failure(f"pretix frees no cart: {answer}")
        cart_back = f"cart {time.time() - deadline.timestamp():.1f} s"
        connection.close()
        await asyncio.sleep(max(0, expires.timestamp() - time.time()))
        alone = await self.first_sale(sale, expires.timestamp(), BEFORE_CRON_SECONDS)
        if alone is not None:
            return f"{cart_back}, order {shown(alone)}"
        start = time.time()
        command: Command = [self.python, "-m", "pretix", "runperiodic"]
        await asyncio.to_thread(run, command, self.log, self.home, self.env)
        return (
            f"{cart_back}, order {shown(await self.first_sale(sale, start, RETURN_SECONDS))} after the cron job starts"
        )


def is_new(folder: Path, wanted: str) -> bool:
    """Whether the folder lacks what is wanted."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / "installed"
    return not mark.exists() or mark.read_text() != wanted


def note(folder: Path, wanted: str) -> None:
    (folder / "installed").write_text(wanted)


class NodeSystem(System):
    package = ""

    def install(self) -> str:
        node = shutil.which("node")
        version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout if node else ""
        if not node or int(version[1:].split(".")[0]) < 20:
            raise Failure(f"{self.name} needs Node.js 20.19 or later; install it from https://nodejs.org")
        self.home = self.folders.cache / self.name
        shutil.copytree(HERE / self.name, self.home, dirs_exist_ok=True)
        wanted = (self.home / "package.json").read_text() + version
        if is_new(self.home, wanted):
            run(
                ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"],
                self.log,
                self.home,
            )
            note(self.home, wanted)
        manifest = json.loads((self.home / "node_modules" / self.package / "package.json").read_text())
        return f"{self.name.capitalize()} {manifest['version']}"


class Vendure(NodeSystem):
    """A cluster of servers and a job worker. A purchase is a guest's checkout: the item, one document with all up to the
    payment, then the payment by the built-in dummy provider, which settles at once."""

    name = "vendure"
    health = "/health"
    package = "@vendure/core"
    extra = 0

    def prepare(self, stocks: list[int]) -> list[str]:
        self.postgres = Postgres(self.processes, self.name)
        self.env = {
            "NODE_ENV": "production",
            "DATABASE_URL": self.postgres.url,
            "PORT": str(self.port),
            "SECRET": os.urandom(16).hex(),
            "WORKERS": str(PROCESSORS),
        }
        command: Command = ["node", "populate.js", *map(str, stocks)]
        made = run(command, self.log, self.home, self.env | {"SYNCHRONIZE": "1"})
        self.start()
        self.wait_ready()
        return [str(it) for it in json.loads(made.rsplit("variants=", 1)[1].splitlines()[0])]

    def start(self) -> None:
        self.spawn("server", ["node", "server.js"], self.home, self.env)
        self.spawn("worker", ["node", "worker.js"], self.home, self.env)

    async def fill_cart(self, connection: Connection, sale: str, shopper: str) -> Request | Outcome:
        error = "{ __typename ... on ErrorResult { errorCode message } }"
        add = f'mutation {{ addItemToOrder(productVariantId: "{sale}", quantity: 1) {error} }}'
        answer = await connection.ask(Request("/shop-api", {"query": add}))
        session = {"Authorization": f"Bearer {answer.headers.get('vendure-auth-token')}"}
        if b"errorCode" not in answer.body:
            customer = f'{{ firstName: "A", lastName: "B", emailAddress: "{shopper}-{sale}@example.com" }}'
            address = '{ streetLine1: "Street 1", city: "Berlin", postalCode: "1", countryCode: "DE" }'
            rest = f"""mutation {{
                setCustomerForOrder(input: {customer}) {error}
                setOrderShippingAddress(input: {address}) {error}
                setOrderShippingMethod(shippingMethodId: ["1"]) {error}
                transitionOrderToState(state: "ArrangingPayment") {error}
            }}"""
            answer = await connection.ask(Request("/shop-api", {"query": rest}, session))
        if b"INSUFFICIENT_STOCK" in answer.body or b"insufficient stock" in answer.body.lower():
            return Outcome.REFUSED
        if answer.status != 200 or b"errorCode" in answer.body or b'"errors"' in answer.body:
            raise OSError(str(answer))
        pay = 'mutation { addPaymentToOrder(input: { method: "dummy", metadata: {} }) '
        pay += "{ __typename ... on Order { code state } ... on ErrorResult { errorCode message } } }"
        return Request("/shop-api", {"query": pay}, session)

    def judge(self, answer: Answer) -> Outcome:
        # A session has no active order after its payment, so a repeated request learns that the first one succeeded.
        if b'"PaymentSettled"' in answer.body or b"NO_ACTIVE_ORDER" in answer.body:
            return Outcome.ACCEPTED
        return Outcome.REFUSED if b"INSUFFICIENT_STOCK" in answer.body else Outcome.UNKNOWN

    def count(self, sale: str) -> Counts:
        (orders,) = self.postgres.numbers(
            'select count(distinct o.id) from "order" o join order_line l on l."orderId" = o.id '
            f"where l.\"productVariantId\" = {int(sale)} and o.state = 'PaymentSettled'"
        )
        # Some second payments belong to no order, so all are counted, and those of earlier rushes taken off.
        payments, settled = self.postgres.numbers(
            "select (select count(*) from payment where state = 'Settled'), "
            "(select count(*) from \"order\" where state = 'PaymentSettled')"
        )
        twice = payments - settled - self.extra
        self.extra += twice
        return Counts(orders, orders, twice)


class Medusa(NodeSystem):
    """A cluster of servers that also run the jobs, with Redis for cache, events, workflows and locks. A purchase is a
    guest's checkout: cart, payment collection, payment session, completion. Its product needs no shipping."""

    name = "medusa"
    health = "/health"
    package = "@medusajs/medusa"

    def prepare(self, stocks: list[int]) -> list[str]:
        self.postgres = Postgres(self.processes, self.name)
        self.env = {
            "NODE_ENV": "production",
            "DATABASE_URL": self.postgres.url,
            "REDIS_URL": Redis(self.processes, self.name, durable=False).url,
            "SECRET": os.urandom(16).hex(),
            "STOCKS": ",".join(map(str, stocks)),
            "MEDUSA_DISABLE_TELEMETRY": "true",
        }
        self.command: Command = ["node", "node_modules/@medusajs/cli/cli.js"]
        run([*self.command, "db:migrate"], self.log, self.home, self.env)
        made = run([*self.command, "exec", "./src/scripts/populate.js"], self.log, self.home, self.env)
        shop = json.loads(made.rsplit("shop=", 1)[1].splitlines()[0])
        self.headers, self.region = {"x-publishable-api-key": shop["key"]}, shop["region"]
        self.start()
        self.wait_ready()
        return list(shop["variants"])

    def start(self) -> None:
        start: Command = ["start", "--host", "127.0.0.1", "--port", str(self.port), "--cluster", str(PROCESSORS)]
        self.spawn("server", [*self.command, *start], self.home, self.env)

    async def fill_cart(self, connection: Connection, sale: str, shopper: str) -> Request | Outcome:
        cart = {
            "region_id": self.region,
            "email": f"{shopper}-{sale}@example.com".lower(),
            "items": [{"variant_id": sale, "quantity": 1}],
        }
        answer = await connection.ask(Request("/store/carts", cart, self.headers))
        if self.judge(answer) is Outcome.REFUSED:
            return Outcome.REFUSED
        cart_id = member(answer, "cart")
        answer = await connection.ask(Request("/store/payment-collections", {"cart_id": cart_id}, self.headers))
        path = f"/store/payment-collections/{member(answer, 'payment_collection')}/payment-sessions"
        answer = await connection.ask(Request(path, {"provider_id": "pp_system_default"}, self.headers))
        member(answer, "payment_collection")
        return Request(f"/store/carts/{cart_id}/complete", {}, self.headers)

    def judge(self, answer: Answer) -> Outcome:
        if answer.status == 200 and b'"type":"order"' in answer.body:
            return Outcome.ACCEPTED
        lacks = b"inventory" in answer.body or b"stock" in answer.body
        return Outcome.REFUSED if answer.status == 400 and lacks else Outcome.UNKNOWN

    def count(self, sale: str) -> Counts:
        having = (
            'from "order" o join order_item i on i.order_id = o.id join order_line_item l on l.id = i.item_id '
            f"where l.variant_id = '{sale}' and o.canceled_at is null"
        )
        orders, twice = self.postgres.numbers(f"select count(*), count(*) - count(distinct o.email) {having}")
        (sold,) = self.postgres.numbers(
            "select coalesce(sum(r.quantity), 0) from reservation_item r join product_variant_inventory_item v "
            f"on v.inventory_item_id = r.inventory_item_id where v.variant_id = '{sale}' and r.deleted_at is null"
        )
        return Counts(orders, sold, twice)


def member(answer: Answer, name: str) -> str:
    if answer.status != 200:
        raise OSError(str(answer))
    found: str = answer.json()[name]["id"]
    return found


SYSTEMS: list[type[System]] = [Pretix, Vendure, Medusa, Flashsale]
