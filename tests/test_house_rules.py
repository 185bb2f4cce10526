"""Rules of this repository that no linter knows."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "app" / "waystation"
FILES = sorted(PACKAGE.rglob("*.py"))

MOST_LINES = 400
MOST_FUNCTION_LINES = 60
LONGER_FILES = {"db/tables.py", "domain/event.py"}
CATCH_ALL = {
    "agents/claude/process.py",  # the owner of a foreign process: whatever happens, the process must go
    "agents/native/tools.py",  # a tool's thread: what it raises is carried over to the task that waits
    "api/errors.py",
    "container.py",  # the supervisor of loops
    "db/threads.py",  # a job: what it raises is carried over to whoever waits
    "db/engine.py",  # sorts outages from errors and raises again
    "db/postgres.py",  # likewise
    "runs/execution.py",  # the turn of an agent, and its interrupt
    "runs/executor.py",
    "worker/lease.py",  # the loop of the lease's thread
    "store/ledger.py",  # a batch: what fails alone is told to the one who asked for it
}
STATUS_WRITERS = {"store/accept.py", "store/line.py", "store/runs.py", "store/sessions.py", "store/step.py"}
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


def place(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def nodes(file: Path, kind: type[ast.AST]) -> Iterator[ast.AST]:
    return (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kind))


@pytest.mark.parametrize("file", FILES, ids=place)
def test_a_file_has_at_most_400_lines(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= MOST_LINES or place(file) in LONGER_FILES


@pytest.mark.parametrize("file", FILES, ids=place)
def test_a_function_has_at_most_60_lines(file: Path) -> None:
    functions = [*nodes(file, ast.FunctionDef), *nodes(file, ast.AsyncFunctionDef)]
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno - f.lineno + 1 > MOST_FUNCTION_LINES}
    assert long == {}


@pytest.mark.parametrize("file", FILES, ids=place)
def test_a_module_says_what_it_is(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text()))


@pytest.mark.parametrize("file", FILES, ids=place)
def test_a_catch_all_stands_only_where_it_is_allowed(file: Path) -> None:
    broad = [
        handler.lineno
        for handler in nodes(file, ast.ExceptHandler)
        if handler.type is None or (isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException"))
    ]  # fmt: skip
    assert broad == [] or place(file) in CATCH_ALL


@pytest.mark.parametrize("file", FILES, ids=place)
def test_a_status_is_written_only_by_the_run_store(file: Path) -> None:
    writes = re.findall(r"(?:update|insert)\(runs\)", file.read_text())
    assert writes == [] or place(file) in STATUS_WRITERS


@pytest.mark.parametrize("file", FILES, ids=place)
def test_a_task_that_is_created_has_an_owner(file: Path) -> None:
    unowned = [
        node.lineno
        for node in nodes(file, ast.Expr)
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith((".create_task", ".ensure_future"))
    ]  # fmt: skip
    assert unowned == []


def test_no_module_is_named_for_nothing_in_particular() -> None:
    named = {place(file) for file in FILES if file.stem in FORBIDDEN_NAMES}
    assert named == set()


def test_no_middleware_of_the_kind_that_ends_broken_streams_cleanly() -> None:
    imports = [place(file) for file in FILES if re.search(r"^\s*(from|import) .*BaseHTTPMiddleware", file.read_text(), re.M)]
    assert imports == []


def test_lock_files_hold_no_addresses() -> None:
    for name in ("requirements.lock", "requirements-dev.lock"):
        text = (ROOT / name).read_text()
        assert "://" not in text
        assert "--index-url" not in text and "--extra-index-url" not in text and "--find-links" not in text


def test_no_file_names_a_place_of_one_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    texts = {name: (ROOT / name).read_text(errors="replace") for name in tracked if (ROOT / name).is_file()}
    found = [name for name, text in texts.items() if str(ROOT.parent) + "/" in text]
    assert found == []
