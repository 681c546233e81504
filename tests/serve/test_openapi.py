"""The server does what its OpenAPI description says, whatever is asked."""

from collections.abc import Iterator

import pytest
import schemathesis
from conftest import HERE
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ucofia.index.index import Index
from ucofia.serve.app import create_app

LABELS = [
    "GET /api/search",
    "POST /api/search",
    "GET /api/similar",
    "GET /api/describe",
    "POST /api/describe",
    "GET /api/explain",
    "GET /api/timeline",
    "GET /api/info",
    "POST /api/index",
    "POST /api/session",
    "GET /media/{name}",
    "GET /media/{name}/frames/{frame}",
]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def described(index: Index) -> Iterator[BaseSchema]:
    app = create_app(index)
    with TestClient(app, base_url=HERE):
        yield schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Host": "localhost"})


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("label", LABELS)
def test_answers_are_as_described(described: BaseSchema, label: str, mode: GenerationMode) -> None:
    operations = (result.ok() for result in described.get_all_operations())
    operation = next(operation for operation in operations if operation.label == label)

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=8,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(headers={"Host": "localhost"}, checks=CHECKS)

    check()


def test_the_description_names_every_question(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    found = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert sorted(found) == sorted(LABELS)
