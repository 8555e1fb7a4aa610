"""`./dev bench peers`: one rush on pretix, Vendure, Medusa and this program in turns, and one table. Each system has its
own servers, in a folder that is removed at the end. Figures of one run on one machine; see LIMITS."""

import argparse
import asyncio
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import quantiles
from typing import Any

from generator import Rush, rush
from servers import Failure, Processes, postgres_programs, say
from systems import SYSTEMS, Folders, System

# Seconds of the rush that warms a system up.
WARM_SECONDS = 20
# Fewer refusals after the last unit say nothing about their rate.
REFUSALS_MIN = 20
REPORT = "bench-peers"
RUSHES = ("rush", "twice", "kill")
# What the table says of each of them.
MEMBERS = ("oversold", "unsold", "twice", "errors")

LIMITS = """\
What the table does not say:

- It is one run. The crowd, one Python process, shares the processors with what it measures, and limits Flashsale.
- Accepted is an unpaid order at pretix, a paid checkout of three requests at Vendure, a checkout of four at Medusa, a
  reservation at Flashsale. The others also compute carts, prices and taxes, so they do more for each.
- No proxy stands before any, and no rate limit of an address applies. pretix sells by its API, not by its pages.
- Redis and Postgres are not killed. Redis is on disk at Flashsale alone, since its sales depend on it.
- A shopper repeats a request without a final answer for a minute, then counts as unanswered.
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench peers", description="Sends one rush to each system in turns.")
    names = [system.name for system in SYSTEMS]
    parser.add_argument("--only", help="systems, separated by commas: " + ", ".join(names), default=",".join(names))
    parser.add_argument("--shoppers", type=int, default=2000)
    parser.add_argument("--units", type=int, default=200)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=180, help="no shopper of a rush starts later than this")
    parser.add_argument("--out", type=Path, default=Path("loadtest/results"), help="folder of the reports")
    parser.add_argument("--cache", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--program", type=Path, required=True, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.only = chosen.only.split(",")
    unknown = [name for name in chosen.only if name not in names]
    if unknown or not 0 < chosen.units < chosen.shoppers or chosen.connections < 2:
        parser.error(
            f"there is no system {unknown[0]}"
            if unknown
            else "there must be more shoppers than units, and two connections"
        )
    return chosen


def version(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> dict[str, Any]:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processors": f"{os.cpu_count()} x {models[0].partition(':')[2].strip() if models else platform.machine()}",
        "kernel": platform.release(),
        "postgres": version(postgres_programs() / "postgres", "--version").split()[2],
        "redis": version("redis-server", "--version").split()[2].removeprefix("v="),
        "python": platform.python_version(),
        "node": version("node", "--version") if shutil.which("node") else None,
    }


def figures(counts: Rush, shoppers: int) -> dict[str, Any]:
    """The figures of a rush, of whose shoppers `accepted + refused + errors = asked`."""
    counts.check(shoppers)
    last = max((at for at, _ in counts.accepted), default=0.0)
    late = [at for at, _ in counts.refused if at > last]
    return {
        "asked": counts.asked,
        "accepted": len(counts.accepted),
        "refused": len(counts.refused),
        "errors": counts.errors,
        "first_error": counts.first_error,
        "accepted_per_second": len(counts.accepted) / last if last else None,
        "refused_per_second": len(late) / (max(late) - last) if len(late) >= REFUSALS_MIN else None,
        "accepted_ms": percentiles([took for _, took in counts.accepted]),
        "refused_ms": percentiles([took for _, took in counts.refused]),
        "pairs_of_answers": counts.pairs,
        "back_after_kill_seconds": counts.back,
    }


def percentiles(seconds: list[float]) -> dict[str, float] | None:
    if len(seconds) < 2:
        return None
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {"p50": cuts[49] * 1000, "p99": cuts[98] * 1000}


def measure(system: System, chosen: argparse.Namespace) -> dict[str, Any]:
    say(f"{system.name}: installing")
    measured: dict[str, Any] = {"version": system.install(), "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
    say(f"{measured['version']}: making tables and stock, starting")
    # The last sale has one unit, which is held until it expires.
    warm, *sales, single = system.prepare([chosen.connections, chosen.units, chosen.units, chosen.units, 1])

    def crowd(what: str, sale: str, shoppers: int, seconds: float, **more: Any) -> dict[str, Any]:
        say(f"{measured['version']}: {what}")
        load = os.getloadavg()[0]
        counts = asyncio.run(rush(system, sale, shoppers, chosen.connections, seconds, **more))
        own = system.count(sale)
        missing = max(0, min(chosen.units, counts.asked) - own.sold)
        result = figures(counts, shoppers) | asdict(own) | {"load_before": load}
        result |= {"oversold": max(0, own.sold - chosen.units), "unsold": missing}
        result["orders_without_stock"] = own.orders - own.sold
        say(
            f"{measured['version']}: asked {counts.asked}, sold {own.sold}, errors {counts.errors} {counts.first_error}"
        )
        return result

    def kill() -> None:
        system.kill()
        system.start()

    warmed = crowd("warming up", warm, 2 * chosen.connections, WARM_SECONDS)
    if not warmed["accepted"]:
        raise Failure(f"{measured['version']} sells nothing: {warmed['first_error']}")
    measured["rush"] = crowd("the rush", sales[0], chosen.shoppers, chosen.seconds)
    measured["twice"] = crowd("each request twice at once", sales[1], chosen.shoppers, chosen.seconds, copies=2)
    half = chosen.units // 2
    measured["kill"] = crowd(
        "kill -9 in the middle", sales[2], chosen.shoppers, chosen.seconds, kill_at=half, kill=kill
    )
    say(f"{measured['version']}: an expired hold")
    measured["expired_hold"] = asyncio.run(system.expired_hold(single))
    return measured


def table(results: dict[str, Any]) -> str:
    head = "| | accepted a second | refused a second | accepted p50 / p99, ms | refused p50 / p99, ms | oversold "
    head += "| left unsold | charged twice | unanswered | sells after `kill -9` | expired hold sells after |"
    lines = [head, "|" + " --- |" * 11]

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"

    def span(value: dict[str, float] | None) -> str:
        return "–" if value is None else f"{number(value['p50'])} / {number(value['p99'])}"

    for name, it in results["systems"].items():
        if "failure" in it:
            lines.append(f"| {it.get('version', name)} | not measured: {it['failure'].splitlines()[0]} |" + " |" * 9)
            continue
        rushes = [it[name] for name in RUSHES]
        each = {member: ", ".join(str(one[member]) for one in rushes) for member in MEMBERS}
        back = it["kill"]["back_after_kill_seconds"]
        without = it["kill"]["orders_without_stock"]
        lines.append(
            f"| {it['version']} | {number(rushes[0]['accepted_per_second'])} | {number(rushes[0]['refused_per_second'])} "
            f"| {span(rushes[0]['accepted_ms'])} | {span(rushes[0]['refused_ms'])} | {each['oversold']} "
            f"| {each['unsold']} | {each['twice']} | {each['errors']} | {'never' if back is None else f'{back:.1f} s'}"
            f"{f'; {without} orders without stock' if without else ''} | {it['expired_hold']} |"
        )
    return "\n".join(lines + [""] + [conditions(it) for it in results["systems"].values() if "failure" not in it])


def conditions(measured: dict[str, Any]) -> str:
    """When a system was measured, beside which load, and how many shoppers asked before the time limit."""
    rushes = [measured[name] for name in RUSHES]
    loads = ", ".join(f"{one['load_before']:.1f}" for one in rushes)
    asked = ", ".join(f"{one['asked']:,}" for one in rushes)
    return f"- {measured['version']}, {measured['date']}: load average before each rush {loads}; {asked} shoppers asked"


def write(results: dict[str, Any], out: Path) -> str:
    of = results["machine"]
    given = results["given"]
    title = (
        f"{given['shoppers']} shoppers, {given['units']} units, {given['connections']} connections. "
        f"{of['processors']}, Postgres {of['postgres']}, Redis {of['redis']}, Python {of['python']}, Node {of['node']}.\n"
        "Three rushes each, separated by commas: plain, each request twice at once, with a kill at half of the units."
    )
    report = f"# Peers\n\n{title}\n\n{table(results)}\n\n{LIMITS}"
    out.mkdir(parents=True, exist_ok=True)
    (out / REPORT).with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")
    (out / REPORT).with_suffix(".md").write_text(report)
    return report


def kept(out: Path, results: dict[str, Any]) -> dict[str, Any]:
    """What an earlier run measured of the same rush with the same machine and servers. Each system has its own date."""
    try:
        last: dict[str, Any] = json.loads((out / REPORT).with_suffix(".json").read_text())
    except FileNotFoundError:
        return {}
    same = all(last[member] == results[member] for member in ("machine", "given"))
    return dict(last["systems"]) if same else {}


def main() -> int:
    chosen = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given = {name: getattr(chosen, name) for name in ("shoppers", "units", "connections", "seconds")}
    results: dict[str, Any] = {"machine": machine(), "given": given}
    results["systems"] = kept(chosen.out, results)
    folder = Path(tempfile.mkdtemp(prefix="flashsale-peers-"))
    # Postgres runs as another user if root runs this, and must reach its folder in here.
    folder.chmod(0o755)
    failed = False
    try:
        for kind in SYSTEMS:
            if kind.name not in chosen.only:
                continue
            with Processes(folder).opened() as processes:
                system = kind(Folders(chosen.cache.resolve(), folder, chosen.program.resolve()), processes)
                try:
                    measured = measure(system, chosen)
                except (Failure, OSError, subprocess.SubprocessError) as error:
                    failed = True
                    say(f"{kind.name}: {error}")
                    measured = {"failure": str(error)}
            systems = results["systems"] | {kind.name: measured}
            results["systems"] = {it.name: systems[it.name] for it in SYSTEMS if it.name in systems}
            report = write(results, chosen.out)
        print(report)
    except KeyboardInterrupt:
        say("interrupted; everything has ended")
        return 130
    finally:
        if not failed:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"the logs stay in {folder}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
