"""Processes of a comparison: databases and applications. All end when `Processes` closes, and when this process ends,
however that ends."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

# Below the ephemeral ports, so that no client's connection takes the port of an application that was killed.
PORTS = iter(range(15_200, 32_000))
STOP_SECONDS = 15

Command = Sequence[str | Path]


class Failure(Exception):
    """Ends the comparison, or its part about one system. The message says what to do next."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def free_port() -> int:
    for port in PORTS:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise Failure("no port between 15200 and 32000 is free")


def run(command: Command, log: Path, cwd: Path, env: dict[str, str] | None = None, limit: int = 900) -> str:
    """Runs a command to its end, and returns what it printed. Its messages go to the log."""
    with log.open("a") as messages:
        try:
            done = subprocess.run(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                cwd=cwd,
                env=os.environ | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            raise Failure(f"{command[0]} takes longer than {limit} s; see {log}") from None
        messages.write(done.stdout)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command[:4]))} failed; see {log}")
    return done.stdout


class Processes:
    """The processes that run now, each with its children in a group of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(
        self, name: str, command: Command, cwd: Path, env: dict[str, str] | None = None, user: str | None = None
    ) -> subprocess.Popen[bytes]:
        identity = [f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                ["setpriv", *identity, "--pdeathsig", "KILL", "--", *map(str, command)],
                cwd=cwd,
                env=os.environ | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGKILL) -> None:
        """Signals a process and its children, and waits for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process in self.running:
            self.running.remove(process)

    def wait_ready(self, name: str, process: subprocess.Popen[bytes], ready: Callable[[], bool], limit: int) -> None:
        end = time.monotonic() + limit
        while not ready():
            if process.poll() is not None or time.monotonic() > end:
                log = self.folder / f"{name}.log"
                tail = log.read_text(errors="replace")[-2000:]
                raise Failure(f"{name} did not start; the end of {log}:\n{tail}")
            time.sleep(0.1)

    def close(self) -> None:
        for process in reversed(self.running.copy()):
            self.kill(process)

    @contextlib.contextmanager
    def opened(self) -> Iterator["Processes"]:
        try:
            yield self
        finally:
            self.close()


class Postgres:
    """A server with each commit on disk. Postgres refuses to run as root; then it runs as its own user."""

    def __init__(self, processes: Processes, name: str) -> None:
        self.programs = postgres_programs()
        self.port = free_port()
        folder = processes.folder / f"{name}-postgres"
        folder.mkdir()
        self.user = "postgres" if os.geteuid() == 0 else None
        if self.user:
            shutil.chown(folder, self.user)
        identity = [f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"] if self.user else []
        initdb: Command = [self.programs / "initdb", "-D", folder / "data", "-U", "peers", "-A", "trust", "-E", "UTF8"]
        # Postgres must be able to enter its working folder. Every user may enter the root folder.
        root = Path("/")
        log = processes.folder / f"{name}-postgres.log"
        run(["setpriv", *identity, "--", *initdb, "--locale=C.UTF-8"], log, root)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "shared_buffers": "512MB",
            "max_connections": 200,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        process = processes.start(
            f"{name}-postgres", [self.programs / "postgres", "-D", folder / "data", *options], root, user=self.user
        )
        probe: Command = [self.programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        processes.wait_ready(f"{name}-postgres", process, lambda: subprocess.run(probe).returncode == 0, 60)
        self.query("create database shop", "postgres")

    @property
    def url(self) -> str:
        return f"postgres://peers@127.0.0.1:{self.port}/shop"

    def query(self, statement: str, database: str = "shop") -> str:
        """The rows as lines, with `|` between columns."""
        command: Command = [self.programs / "psql", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1"]
        command = [*command, "-p", str(self.port), "-U", "peers", "-d", database, "-c", statement]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise Failure(f"Postgres refuses a query: {done.stderr}")
        return done.stdout.strip()

    def numbers(self, statement: str) -> list[int]:
        return [int(float(it or 0)) for it in self.query(statement).replace("\n", "|").split("|")]


class Redis:
    def __init__(self, processes: Processes, name: str, durable: bool) -> None:
        self.port = free_port()
        folder = processes.folder / f"{name}-redis"
        folder.mkdir()
        durability = ["--appendonly", "yes", "--appendfsync", "always", "--aof-load-truncated", "no"] if durable else []
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        command += ["--maxmemory-policy", "noeviction", *durability]
        process = processes.start(f"{name}-redis", command, folder)
        processes.wait_ready(f"{name}-redis", process, lambda: listens(self.port), 30)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def postgres_programs() -> Path:
    """Debian keeps the server's programs outside of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda it: float(it.parts[4]))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    if not initdb:
        raise Failure("Postgres is missing; install it with: apt-get install postgresql")
    return Path(initdb).parent
