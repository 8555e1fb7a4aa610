"""The crowd: the same for every system. A shopper has a connection, and repeats a request without a final answer, as
its client would. asyncio and a small HTTP/1.1 client, since a library costs the two processors more than a request."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from servers import say

# A shopper gives up after this time.
PATIENCE_SECONDS = 60
# Wait before a request is repeated, in seconds: at random, so that shoppers do not come back at the same moment.
WAIT = (0.1, 0.4)
PROGRESS_SECONDS = 20


class Outcome(Enum):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    # No final answer, or one that asks to repeat.
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Request:
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def __str__(self) -> str:
        return f"{self.status} {self.body[:300].decode(errors='replace')}"


class Connection:
    """One connection, opened at need, kept while the server keeps it. A failed request closes it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Request) -> Answer:
        """Raises OSError, EOFError or TimeoutError without a whole answer."""
        body = b"" if request.body is None else json.dumps(request.body).encode()
        fields = {"Host": f"127.0.0.1:{self.port}", "Content-Length": str(len(body)), **request.headers}
        if body:
            fields["Content-Type"] = "application/json"
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                if self.streams is None:
                    self.streams = await asyncio.open_connection("127.0.0.1", self.port)
                reader, writer = self.streams
                writer.write(f"{request.method} {request.path} HTTP/1.1\r\n{head}\r\n".encode() + body)
                answer = await read_answer(reader)
        except BaseException:
            self.close()
            raise
        if answer.headers.get("connection", "").lower() == "close":
            self.close()
        return answer

    def close(self) -> None:
        if self.streams:
            self.streams[1].transport.abort()
        self.streams = None


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding") == "chunked":
        parts = []
        while size := int(await reader.readuntil(b"\r\n"), 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
        await reader.readuntil(b"\r\n")
        body = b"".join(parts)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Answer(int(lines[0].split()[1]), headers, body)


class Shop(Protocol):
    """How to buy at one system."""

    port: int

    async def fill_cart(self, connection: Connection, sale: str, shopper: str) -> Request | Outcome:
        """The last request of a purchase, which may be repeated, or a refusal before it."""

    def judge(self, answer: Answer) -> Outcome:
        """What the answer to that last request says."""


@dataclass
class Rush:
    """A crowd's counts. Times are in seconds since the start."""

    asked: int = 0
    accepted: list[tuple[float, float]] = field(default_factory=list)
    refused: list[tuple[float, float]] = field(default_factory=list)
    # Shoppers without a final answer.
    errors: int = 0
    first_error: str = ""
    # What both answers to a request were that was sent twice.
    pairs: Counter[str] = field(default_factory=Counter)
    # Seconds from the kill to the first acceptance of a shopper who came after it.
    back: float | None = None

    def check(self, shoppers: int) -> None:
        counted = len(self.accepted) + len(self.refused) + self.errors
        if counted != self.asked or self.asked > shoppers:
            raise AssertionError(f"{counted} outcomes of {self.asked} shoppers that asked, of {shoppers}")


async def rush(
    shop: Shop,
    sale: str,
    shoppers: int,
    connections: int,
    seconds: float,
    copies: int = 1,
    kill_at: int | None = None,
    kill: Callable[[], None] | None = None,
) -> Rush:
    """Sends all shoppers, or those that come within the time. With copies, each sends its last request several times at
    once. `kill` is called once, after `kill_at` acceptances."""
    counts = Rush()
    waiting = iter(range(shoppers))
    start = time.monotonic()
    killed: float | None = None
    reported = start

    async def one(lines: list[Connection], shopper: str) -> tuple[Outcome, str]:
        """The outcome, and why there is none."""
        final: Request | None = None
        trouble = ""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            try:
                if final is None:
                    made = await shop.fill_cart(lines[0], sale, shopper)
                    if made is Outcome.REFUSED:
                        return Outcome.REFUSED, ""
                    if isinstance(made, Outcome):
                        raise OSError("the cart is not filled")
                    final = made
                answers = await all_of([line.ask(final) for line in lines])
            except (OSError, EOFError, ValueError, TimeoutError) as error:
                trouble = repr(error)
            else:
                outcomes = [shop.judge(answer) for answer in answers]
                if copies > 1:
                    counts.pairs[", ".join(sorted(it.value for it in outcomes))] += 1
                for outcome in (Outcome.ACCEPTED, Outcome.REFUSED):
                    if outcome in outcomes:
                        return outcome, ""
                trouble = str(answers[0])
            await asyncio.sleep(random.uniform(*WAIT))
        return Outcome.UNKNOWN, trouble

    async def work() -> None:
        nonlocal killed, reported
        lines = [Connection(shop.port) for _ in range(copies)]
        try:
            for number in waiting:
                counts.asked += 1
                began = time.monotonic()
                outcome, trouble = await one(lines, f"shopper-{number}")
                now = time.monotonic()
                times = (now - start, now - began)
                if outcome is Outcome.ACCEPTED:
                    counts.accepted.append(times)
                    if killed is not None and counts.back is None and began > killed:
                        counts.back = now - killed
                elif outcome is Outcome.REFUSED:
                    counts.refused.append(times)
                else:
                    counts.errors += 1
                    counts.first_error = counts.first_error or trouble
                if kill and killed is None and len(counts.accepted) >= (kill_at or 0):
                    killed = time.monotonic()
                    kill()
                    # Shoppers of the time before may wait for a lock. One connection is for those who come after.
                    group.create_task(work())
                if now - reported > PROGRESS_SECONDS:
                    reported = now
                    say(f"  {len(counts.accepted)} accepted, {len(counts.refused)} refused, {counts.errors} unanswered")
                if now - start > seconds:
                    return
        finally:
            for line in lines:
                line.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections // copies):
            group.create_task(work())
    counts.check(shoppers)
    return counts


async def all_of(requests: list[Awaitable[Answer]]) -> list[Answer]:
    """All answers, or the error of one after the end of all."""
    ended = await asyncio.gather(*requests, return_exceptions=True)
    answers = [it for it in ended if isinstance(it, Answer)]
    for it in ended:
        if isinstance(it, BaseException) and (not answers or not isinstance(it, (OSError, EOFError))):
            raise it
    return answers
