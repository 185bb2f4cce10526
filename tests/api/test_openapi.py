"""The OpenAPI document: pinned, and sound in itself."""

import json
import re
from pathlib import Path
from typing import Any

from waystation.main import Waystation

SNAPSHOT = Path(__file__).parent / "openapi.json"
VERBS = {"get", "post", "put", "patch", "delete"}


def document() -> dict[str, Any]:
    return json.loads(json.dumps(Waystation(agents=[]).app.openapi()))  # type: ignore[no-any-return]


def test_the_document_changes_only_on_purpose() -> None:
    known = json.loads(SNAPSHOT.read_text())
    assert document() == known, "if this change is meant: `waystation openapi > tests/api/openapi.json`"


def test_every_operation_has_an_id_of_its_own() -> None:
    found = [operation["operationId"] for path in document()["paths"].values() for verb, operation in path.items() if verb in VERBS]
    assert len(found) == len(set(found)) > 30 and all(re.fullmatch("[a-z_]+", name) for name in found)


def test_every_reference_leads_somewhere_and_the_version_is_3_1() -> None:
    made = document()
    assert made["openapi"].startswith("3.1")
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(made))):
        place: Any = made
        for step in reference.split("/"):
            place = place[step]
        assert isinstance(place, dict)


def test_the_routes_of_runs_declare_their_streams_fields_and_codes() -> None:
    paths = document()["paths"]
    create = paths["/agents/{agent_id}/runs"]["post"]
    assert set(create["requestBody"]["content"]) == {"multipart/form-data", "application/x-www-form-urlencoded", "application/json"}
    assert {"200", "202", "400", "404", "409", "413", "415", "422", "429", "501", "503"} <= set(create["responses"])
    assert "files" in create["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    for path, verb in (("", "post"), ("/{run_id}/events", "get"), ("/{run_id}/resume", "post"), ("/{run_id}/continue", "post")):
        assert "text/event-stream" in paths[f"/agents/{{agent_id}}/runs{path}"][verb]["responses"]["200"]["content"]
