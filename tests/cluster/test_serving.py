"""`serve --cluster`: the pages of several indexes in front of shards answer like plain ones."""

import io
from pathlib import Path
from typing import Any

import pytest
from fakes import COLOURS, clip, colour_model
from PIL import Image
from test_ingest import BANK

from ucofia.index.index import Index

pytestmark = pytest.mark.slow
HERE = "http://127.0.0.1:8642"


def answers(indexes: dict[str, Index]) -> dict[str, Any]:
    """What a server says to some requests, without the time it took."""
    testing = pytest.importorskip("fastapi.testclient", reason="the extra `serve` is missing")
    from ucofia.serve.app import create_app

    found: dict[str, Any] = {}
    with testing.TestClient(create_app(indexes), base_url=HERE) as client:
        for name in indexes:
            for question in ("search?text=red", "search?text=blue white&top=3", "info"):
                said = client.get(f"/{name}/api/{question}")
                assert said.status_code == 200, said.text
                found[f"{name} {question}"] = said.json()
            body = io.BytesIO()
            Image.new("RGB", (70, 40), COLOURS["blue"]).save(body, "PNG")
            head = {"Content-Type": "image/png"}
            said = client.post(f"/{name}/api/search", content=body.getvalue(), headers=head)
            assert said.status_code == 200, said.text
            found[f"{name} upload"] = said.json()
            segment = found[f"{name} search?text=red"]["hits"][0]["segment"]
            why = client.get(f"/{name}/api/explain", params={"text": "red", "segment": segment})
            assert why.status_code == 200, why.text
            found[f"{name} explain"] = why.json()
    for value in found.values():
        value.pop("seconds", None)
    return found


def test_two_indexes_behind_one_server(
    tmp_path: Path, videos: Path, ray_local: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ucofia.cli.serve import _sharded
    from ucofia.serve.settings import ServeSettings

    monkeypatch.setattr("ucofia.serve.api.cache_folder", lambda: tmp_path / "cache")
    clip(tmp_path / "more" / "red.mp4", ["red", "white"])
    clip(tmp_path / "more" / "blue.mp4", ["blue"])
    plain = {
        name: Index.create(tmp_path / name, colour_model(), bank=BANK) for name in ("one", "two")
    }
    plain["one"].add(videos)
    plain["two"].add(tmp_path / "more")
    with _sharded(plain, ServeSettings(cluster="local")) as spread:
        assert [type(index).__name__ for index in spread.values()] == ["ShardedIndex"] * 2
        assert answers(spread) == answers(plain)
    with _sharded(plain, ServeSettings()) as same:
        assert same is plain
