"""`make bench`: Waystation beside a bare FastAPI route and, after `make bench-peers`, AgentOS.

Each round measures every server once, in turn, so that a change of the machine's speed meets all of them; figures are medians over
the rounds. The machine should be otherwise idle. Writes benchmarks/results/<time>.json and prints tables in Markdown.
"""

import argparse
import asyncio
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.client import Sample, request, stream_times, submit_for
from benchmarks.servers import PEER_PYTHON, PORT, ROOT, Contender, Running, contenders

CALLERS = (1, 8, 32)
HI = {"message": "hi", "stream": "false"}
STREAM_HI = {"message": "hi", "stream": "true"}
STREAM_LONG = {"message": "chunks 2000", "stream": "true"}
PATH = "/agents/plain/runs"


def measure(contender: Contender, seconds: float) -> dict[str, Any]:
    """One server, from its start to its end."""
    server = Running(contender)
    try:
        figures: dict[str, Any] = {}
        asyncio.run(submit_for(PORT, request(PATH, HI), 8, 0.5))  # not counted
        for callers in CALLERS:
            before = server.cpu_s()
            sample = asyncio.run(submit_for(PORT, request(PATH, HI), callers, seconds))
            figures[f"submit {callers}"] = _submits(sample, server.cpu_s() - before)
        if contender.streams:
            sample = asyncio.run(stream_times(PORT, request(PATH, STREAM_HI), 1, 150))
            first = sample.first_event_s
            figures["first event"] = {
                "p50_ms": sample.percentile_ms(0.5, first), "p99_ms": sample.percentile_ms(0.99, first), "errors": sample.errors,
            }  # fmt: skip
            for streams in (1, 8):
                before = server.cpu_s()
                sample = asyncio.run(stream_times(PORT, request(PATH, STREAM_LONG), streams, 3))
                figures[f"events {streams}"] = {
                    "per_s": sample.events / sample.wall_s, "cpu_us": (server.cpu_s() - before) / sample.events * 1e6,
                    "worst_first_ms": max(sample.first_event_s) * 1000, "errors": sample.errors,
                }  # fmt: skip
        figures["memory_mb"] = server.memory_mb()
        return figures
    finally:
        server.stop()


def _submits(sample: Sample, cpu_s: float) -> dict[str, float]:
    count = len(sample.latencies_s)
    return {
        "per_s": count / sample.wall_s, "cpu_ms": cpu_s / count * 1000, "p50_ms": sample.percentile_ms(0.5),
        "p99_ms": sample.percentile_ms(0.99), "errors": sample.errors,
    }  # fmt: skip


def medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure over the rounds of one server."""
    first = rounds[0]
    return {
        key: medians([r[key] for r in rounds]) if isinstance(value, dict) else statistics.median(r[key] for r in rounds)
        for key, value in first.items()
    }  # fmt: skip


def errors_in(figures: dict[str, Any]) -> float:
    return sum(errors_in(v) if isinstance(v, dict) else v for k, v in figures.items() if isinstance(v, dict) or k == "errors")


def tables(found: dict[str, dict[str, Any]]) -> str:
    head = "| server | runs/s at 1 / 8 / 32 | CPU ms per run | p99 ms at 32 | memory MB |\n|---|---|---|---|---|\n"
    rows = [
        f"| {name} | {_three(f, 'per_s', '.0f')} | {_three(f, 'cpu_ms', '.2f')} | {f['submit 32']['p99_ms']:.1f} | {f['memory_mb']:.0f} |"
        for name, f in found.items()
    ]
    head2 = "| server | first event p50 / p99 ms | events/s, 1 / 8 streams of 2,000 | CPU µs per event | worst first event of 8, ms |\n"
    rows2 = [
        f"| {name} | {f['first event']['p50_ms']:.2f} / {f['first event']['p99_ms']:.2f} | {f['events 1']['per_s']:,.0f} / "
        f"{f['events 8']['per_s']:,.0f} | {f['events 1']['cpu_us']:.1f} / {f['events 8']['cpu_us']:.1f} | "
        f"{f['events 8']['worst_first_ms']:.0f} |"
        for name, f in found.items()
        if "events 1" in f
    ]
    return head + "\n".join(rows) + "\n\n" + head2 + "|---|---|---|---|---|\n" + "\n".join(rows2)


def _three(figures: dict[str, Any], name: str, form: str) -> str:
    return " / ".join(format(figures[f"submit {callers}"][name], form) for callers in CALLERS)


async def fresh_database(server: str, name: str) -> str:
    connection = await asyncpg.connect(f"{server}/postgres")
    try:
        await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        await connection.execute(f'CREATE DATABASE "{name}"')
    finally:
        await connection.close()
    return f"{server}/{name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one measurement")
    parser.add_argument("--postgres", default="postgresql://postgres@127.0.0.1:5432", help="a server, or 'none'")
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    peers = PEER_PYTHON.exists() and not options.no_peers
    rounds: dict[str, list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:

            def sqlite(name: str, folder: str = folder) -> str:
                return str(Path(folder) / f"{name}.db")

            def postgres(name: str) -> str:
                return asyncio.run(fresh_database(options.postgres, f"waystation_bench_{name}"))

            for contender in contenders(sqlite, None if options.postgres == "none" else postgres, peers=peers):
                figures = measure(contender, options.seconds)
                if wrong := errors_in(figures):
                    raise SystemExit(f"{contender.name}: {wrong} errors; the figures say nothing")
                rounds.setdefault(contender.name, []).append(figures)
                print(f"round {number + 1}: {contender.name}", flush=True)
    found = {name: medians(list_) for name, list_ in rounds.items()}
    results = ROOT / "benchmarks" / "results"
    results.mkdir(exist_ok=True)
    file = results / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    file.write_text(json.dumps({"machine": platform.platform(), "rounds": rounds, "medians": found}, indent=1))
    print(tables(found))
    print(f"\n{options.rounds} rounds, medians; raw figures in {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
