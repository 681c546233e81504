"""Work as tasks: everything is done once, errors arrive, and a task that dies is done again."""

import json
import os
import sys
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from brief_setup import BriefSetup

from ucofia.cluster import connect
from ucofia.errors import ClusterError, SettingError
from ucofia.research.ablate.job import Job
from ucofia.research.ablate.shapes_setup import SplitSizes

SMALL = SplitSizes(train=4, val=1, test=2)


def work(marks: Path, number: int) -> int:
    """Square a number; the first time that 3 is tried its process dies."""
    if number == 3 and not (marks / "died").exists():
        (marks / "died").touch()
        os._exit(1)
    if number < 0:
        raise SettingError("number", number, "it must not be negative")
    Path(f"{number}.txt").touch()
    return number**2


def make_job(folder: Path) -> Job:
    return Job(folder / "results", folder / "work", BriefSetup(folder / "work", SMALL))


class Node:
    """One machine of a Ray; none of these was started."""


class Busy:
    """A Ray that does not start in time."""

    _private = SimpleNamespace(node=SimpleNamespace(Node=Node), worker=SimpleNamespace())

    def __init__(self, failures: int) -> None:
        self.failures, self.begun = failures, 0

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: object) -> None:
        self.begun += 1
        if self.begun <= self.failures:
            raise Exception("The current node timed out during startup. This could happen")

    def shutdown(self) -> None:
        pass


def test_ray_is_started_again_where_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    late, never = Busy(2), Busy(100)
    monkeypatch.setattr(connect, "ray", lambda: late)
    with connect.connected("local"):
        assert late.begun == 3
    assert not Busy._private.worker._worker_logs_enabled  # what Ray prints is no result
    monkeypatch.setattr(connect, "ray", lambda: never)
    with pytest.raises(ClusterError, match=r"timed out during startup.*very busy"):
        with connect.connected("local"):
            pass
    assert never.begun == 3


def test_rows_that_are_spread_have_the_results_of_rows_in_turn(tmp_path: Path) -> None:
    one, other = make_job(tmp_path / "one"), make_job(tmp_path / "other")
    assert list(one.run(["video"], [0])) == [("video", 0, False)]
    backwards = list(
        other.run(["video"], [0, 1], spread=lambda do, items: ((i, do(i)) for i in items[::-1]))
    )
    assert backwards == [("video", 1, False), ("video", 0, False)]
    same_results(one, other, "video")


def same_results(one: Job, other: Job, *names: str) -> None:
    for name in names:
        ours, theirs = (json.loads(j.file(name, 0).read_text()) for j in (one, other))
        for part in ("test", "kinds", "retrieved", "recipe", "parameters", "ranks"):
            assert ours[part] == theirs[part], (name, part)


class Broken:
    """An actor that cannot begin."""

    def __init__(self) -> None:
        raise ImportError("no module of that name here")

    def ready(self) -> bool:
        return True


@pytest.mark.slow
def test_actors_that_cannot_begin_are_an_error_and_not_a_wait(
    ray_local: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from ucofia.cluster import connect

    monkeypatch.setattr(connect, "SPARE_ACTORS", 1)
    make = ray.remote(num_cpus=1)(Broken).remote
    with pytest.raises(ClusterError, match=r"before they begin: .*no module of that name"):
        connect.started(make, 1, first=300.0, more=300.0)
    with pytest.raises(ClusterError, match="installed on every machine"):
        list(connect.Pool(make, 1).run(deque([1])))


@pytest.mark.slow
def test_tasks_on_a_cluster(
    tmp_path: Path, ray_local: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ucofia.cluster.tasks import spread

    monkeypatch.chdir(tmp_path)
    assert sorted(spread(partial(work, tmp_path), range(9))) == [(n, n**2) for n in range(9)]
    assert {file.name for file in tmp_path.glob("*.txt")} == {f"{n}.txt" for n in range(9)}
    with pytest.raises(SettingError, match="it must not be negative") as caught:
        list(spread(partial(work, tmp_path), [1, -1]))
    assert type(caught.value) is SettingError and "Traceback" not in str(caught.value)

    one, other = make_job(tmp_path / "one"), make_job(tmp_path / "other")
    names = ["video", "video+frame"]
    assert len(list(one.run(names, [0]))) == 2
    found = sorted(other.run(names, [0], spread=spread))
    assert found == [("video", 0, False), ("video+frame", 0, False)]
    same_results(one, other, *names)
    assert sorted(other.run(names, [0], spread=spread)) == [(n, 0, True) for n in names]


def test_only_drivers_that_were_killed_count_as_kills() -> None:
    pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    sys.path.insert(0, str(Path(__file__).parent.parent.parent / "scripts"))
    from kill_driver import summary

    none = {"parts_pending": 0, "lost": 0, "doubled": 0, "false": 0}
    found = [
        {"driver": "killed", "rows_left": 0, **none},
        {"driver": "killed", "rows_left": 3, **none},
        {"driver": "finished before", "rows_left": 24, **none},
    ]
    assert "3 trials: {'killed': 2, 'finished before': 1}; 1 of 2 killed left" in summary(found)
