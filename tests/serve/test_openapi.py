"""The server does what its OpenAPI description says, whatever is asked."""

from collections.abc import Iterator

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from scenes import BASE_URL
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.types import Receive, Scope, Send

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
    "GET /api/examples",
    "GET /api/videos",
    "GET /api/info",
    "POST /api/index",
    "POST /api/session",
    "GET /media/{name}",
    "GET /media/{name}/frames/{frame}",
    "GET /media/{name}/thumbnail",
]
STARTS_A_PROCESS = ("POST /api/search", "POST /api/describe")  # for each upload
ASKS_NOTHING = ("GET /api/info", GenerationMode.NEGATIVE)  # so nothing can be asked wrongly
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def described(index: Index) -> Iterator[BaseSchema]:
    app = create_app(index)

    async def running(scope: Scope, receive: Receive, send: Send) -> None:
        # Every single request would start and end the server otherwise.
        if scope["type"] == "http":
            await app(scope, receive, send)
            return
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    with TestClient(app, base_url=BASE_URL):
        yield schemathesis.openapi.from_asgi(
            "/openapi.json", running, headers={"Host": "localhost"}
        )


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        (label, mode)
        for label in LABELS
        for mode in GenerationMode
        if (label, mode) != ASKS_NOTHING
    ],
)
def test_answers_are_as_described(described: BaseSchema, label: str, mode: GenerationMode) -> None:
    operations = (result.ok() for result in described.get_all_operations())
    operation = next(operation for operation in operations if operation.label == label)

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=2 if label in STARTS_A_PROCESS else 8,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],  # shrinking takes longer than reading the case
        suppress_health_check=list(HealthCheck),
    )
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(headers={"Host": "localhost"}, checks=CHECKS)

    check()


def test_the_description_names_every_question(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    found = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert sorted(found) == sorted(LABELS)
