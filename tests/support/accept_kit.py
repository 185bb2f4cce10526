"""Runs an acceptance kit against the scripted agents, on SQLite and on PostgreSQL: `python -m tests.support.accept_kit FOLDER`.

A check that this version can't meet yet stands by name in tests/accept_pending.txt. Any other failure fails the run, and so does a
pending check that passes: then its line must go.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from support import services  # noqa: E402
from support.server import clean_environment, running  # noqa: E402

PENDING = ROOT / "tests" / "accept_pending.txt"
LIMIT_S = 280


def pending() -> set[str]:
    lines = (line.split("#", 1)[0].strip() for line in PENDING.read_text().splitlines())
    return {line for line in lines if line}


def failures(kit: Path, bases: tuple[str, str], results: Path, *only: str) -> set[str]:
    """The names of the checks that failed, or were not run, against two servers of one store. Given names, only those are run, one
    after the other."""
    alone = ["--only", ",".join(only), "--jobs", "1"] if only else []
    base, second = bases
    command = [sys.executable, str(kit / "accept.py"), "--base", base, "--second", second, "--json", str(results), *alone]
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, env=clean_environment()
    )
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    print("\n".join(failed), done.stdout.strip().splitlines()[-1], sep="\n")
    if not results.exists():
        raise SystemExit(f"the kit gave no results: {done.stderr[-2000:]}")
    return {line.split()[1] for line in failed}


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1], "accept.py").is_file():
        raise SystemExit("usage: make accept KIT=<folder with accept.py>")
    kit, wrong = Path(sys.argv[1]).resolve(), 0
    with tempfile.TemporaryDirectory() as name, services.postgres() as server, services.database_of(server) as postgres_url:
        folder = Path(name)
        for kind, url in (("sqlite", f"sqlite:///{folder / 'accept.db'}"), ("postgresql", postgres_url)):
            with running(url, folder) as target, running(url, folder) as second:
                print(f"acceptance on {kind}")
                bases = (target.base, second.base)
                failed = failures(kit, bases, folder / f"{kind}.json")
                if unexpected := sorted(failed - pending()):
                    # Some checks measure times from outside, which the checks beside them disturb. What fails alone too is a fault.
                    print(f"again, alone: {', '.join(unexpected)}")
                    failed = (failed & pending()) | failures(kit, bases, folder / f"{kind}-again.json", *unexpected)
            unexpected, passed = failed - pending(), pending() - failed
            wrong += len(unexpected) + len(passed)
            for check in sorted(passed):
                print(f"{check} passes now: take it out of {PENDING.name}")
            for check in sorted(unexpected):
                print(f"{check} fails and is not in {PENDING.name}")
    print(json.dumps({"pending": len(pending()), "wrong": wrong}))
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
