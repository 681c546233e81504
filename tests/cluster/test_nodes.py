"""A head and two nodes, of which one dies; drivers that race and die; an S3 server on loopback."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import colour_model
from ray_start import add_node, head_and_two_nodes
from s3_start import s3_bucket
from test_ingest import BANK, same_answers
from test_parts import rows_of, same_rows

from ucofia.index.index import Index
from ucofia.index.journal import Journal

pytestmark = pytest.mark.slow
WAITED_SECONDS = 25.0  # by a search for a node that died; Ray, as it is set here, learns later
DRIVER = Path(__file__).parent / "driver.py"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The name of a bucket; the environment says where it is."""
    pytest.importorskip("moto.server", reason="moto is not installed")
    with s3_bucket() as bucket:
        yield bucket


@pytest.fixture(scope="module")
def cluster(s3: str) -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    made = head_and_two_nodes()
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, videos: Path) -> Index:
    index = Index.create(tmp_path_factory.mktemp("plain") / "index", colour_model(), bank=BANK)
    index.add(videos)
    return index


def drive(cluster: Any, index: Index, videos: object, *death: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(DRIVER), cluster.address, index.path, str(videos), *death]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
    )


def test_searching_goes_on_when_a_node_dies(cluster: Any, tmp_path: Path) -> None:
    from test_spread import filled, same_everything

    from ucofia.cluster.search import sharded

    index = filled(tmp_path / "index", parts=(700, 900, 800, 800))
    with sharded(index, cluster.address, actors=2) as spread:
        same_everything(index, spread)
        cluster.remove_node(cluster.workers.pop(), allow_graceful=False)
        began = time.monotonic()
        assert spread.search("red green") == index.search("red green")
        waited = time.monotonic() - began
        assert waited < WAITED_SECONDS, f"the answer came after {waited:.0f} s"
        same_everything(index, spread)
    add_node(cluster)


def test_sources_and_index_in_an_object_store(
    cluster: Any, s3: str, plain: Index, videos: Path, tmp_path: Path
) -> None:
    import boto3

    from ucofia.cluster.ingest import add
    from ucofia.cluster.search import sharded

    client = boto3.client("s3")
    for file in sorted(videos.iterdir()):
        client.upload_file(str(file), s3, f"videos/{file.name}")
    index = Index.create(f"s3://{s3}/index", colour_model(), bank=BANK)
    report = add(index, [f"s3://{s3}/videos"])
    assert report.added == 12
    assert [failure.path for failure in report.failed] == [f"s3://{s3}/videos/broken.mp4"]
    found = {(row.file.path.rsplit("/", 1)[1], row.number): row for row in rows_of(index).values()}
    expected = {(Path(row.file.path).name, row.number): row for row in rows_of(plain).values()}
    assert found.keys() == expected.keys()
    for name, row in found.items():
        assert (row.patches == expected[name].patches).all()
        assert row.thumbnails == expected[name].thumbnails
        assert row.file.path.startswith(f"s3://{s3}/videos/")
    again = add(index, [f"s3://{s3}/videos"])
    assert (again.added, again.unchanged) == (0, 12)
    names = [hit.path.rsplit("/", 1)[1] for hit in index.search("red", top=12)]
    assert names == [Path(hit.path).name for hit in plain.search("red", top=12)]
    with sharded(index, cluster.address, actors=2) as spread:
        for asked in ({}, {"top": 3, "grouped": False}, {"min_confidence": 0.5}):
            texts = ["red", "blue white"]
            assert spread.search_many(texts, **asked) == index.search_many(texts, **asked)
        assert len(spread.newest().shards._shards) >= 2
    client.delete_object(Bucket=s3, Key="videos/clip00.mp4")
    assert add(index, [f"s3://{s3}/videos"], prune=True).removed == 1


@pytest.mark.parametrize("where", ["disk", "s3"])
def test_two_drivers_at_once(
    cluster: Any, s3: str, plain: Index, videos: Path, tmp_path: Path, where: str
) -> None:
    place = tmp_path / "index" if where == "disk" else f"s3://{s3}/shared"
    index = Index.create(place, colour_model(), bank=BANK)
    drivers = [drive(cluster, index, videos) for _ in range(2)]
    said = [driver.communicate(timeout=900) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], said
    same_rows(plain, index)
    same_answers(plain, index)
    assert not Journal(index.path).keys()


@pytest.mark.parametrize("where", ["disk", "s3"])
@pytest.mark.parametrize("death", ["before", "after"])
def test_a_driver_that_is_killed_around_its_commit(
    cluster: Any, s3: str, plain: Index, videos: Path, tmp_path: Path, death: str, where: str
) -> None:
    from ucofia.cluster.ingest import add

    place = tmp_path / "index" if where == "disk" else f"s3://{s3}/killed-{death}"
    index = Index.create(place, colour_model(), bank=BANK)
    driver = drive(cluster, index, videos, death)
    driver.communicate(timeout=900)
    assert driver.returncode == -9
    assert index.info().pending_parts >= 1
    assert bool(rows_of(index)) == (death == "after")
    add(index, [videos])
    same_rows(plain, index)
    same_answers(plain, index)
    assert index.info().pending_parts == 0


def test_a_node_dies_while_indexing(
    cluster: Any, plain: Index, videos: Path, tmp_path: Path
) -> None:
    from ucofia.cluster.ingest import add

    index = Index.create(tmp_path / "index", colour_model(), bank=BANK)
    left = [cluster.workers.pop()]

    def progress(what: str, done: int, total: int | None) -> None:
        if done >= 2 and left:
            cluster.remove_node(left.pop(), allow_graceful=False)

    report = add(index, [videos], progress=progress)
    assert not left
    assert report.added == 12 and len(report.failed) == 1
    same_rows(plain, index)
    same_answers(plain, index)
    index.compact()
    same_rows(plain, index)
    add_node(cluster)
