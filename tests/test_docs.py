"""What the documents say is held against what is there."""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

from waystation.agents.base import BaseAgent
from waystation.config import Settings
from waystation.serving import DRAIN_MARGIN_S

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
TEST_SERVICES = {"WAYSTATION_TEST_POSTGRES_URL", "WAYSTATION_TEST_REDIS_URL", "WAYSTATION_TEST_PGBOUNCER"}
SETTINGS = {f"WAYSTATION_{name.upper()}" for name in Settings.model_fields}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_setting_that_a_document_names_exists(document: Path) -> None:
    named = set(re.findall(r"\bWAYSTATION_[A-Z_]*[A-Z]\b", document.read_text()))
    assert named - TEST_SERVICES <= SETTINGS


def test_the_readme_names_every_setting() -> None:
    rows = re.findall(r"^\| `(WAYSTATION_[A-Z_]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(SETTINGS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_to_files_resolve(document: Path) -> None:
    prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not _leads_somewhere(document, link)] == []


def _leads_somewhere(document: Path, link: str) -> bool:
    place, _, anchor = link.partition("#")
    target = (document.parent / place).resolve() if place else document
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(document: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_holds_agents(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location(f"example_{example.stem}", example)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert module.agents and all(isinstance(agent, BaseAgent) for agent in module.agents)


def test_the_changelog_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(rf"^## \[?{re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in sorted(ROOT.glob("docs/decisions/*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_compose_waits_longer_for_the_end_of_a_process_than_the_process_may_take() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    grace, drain = re.search(r"stop_grace_period: (\d+)s", text), re.search(r'WAYSTATION_DRAIN_S: "(\d+)"', text)
    assert grace and drain
    assert int(grace[1]) > int(drain[1]) + DRAIN_MARGIN_S
