"""Work as tasks: everything is done once, errors arrive, and a task that dies is done again."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
from brief_setup import BriefSetup

from ucofia.errors import SettingError
from ucofia.research.ablate.job import Job
from ucofia.research.ablate.shapes_setup import Size

SMALL = Size(train=4, val=1, test=2)


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


@pytest.mark.slow
def test_tasks_on_a_cluster(
    tmp_path: Path, ray_local: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ucofia.cluster.tasks import spread

    monkeypatch.chdir(tmp_path)
    assert sorted(spread(partial(work, tmp_path), range(9))) == [(n, n**2) for n in range(9)]
    assert {file.name for file in tmp_path.glob("*.txt")} == {f"{n}.txt" for n in range(9)}
    with pytest.raises(SettingError, match="it must not be negative"):
        list(spread(partial(work, tmp_path), [1, -1]))

    one, other = make_job(tmp_path / "one"), make_job(tmp_path / "other")
    names = ["video", "video+frame"]
    assert len(list(one.run(names, [0]))) == 2
    found = sorted(other.run(names, [0], spread=spread))
    assert found == [("video", 0, False), ("video+frame", 0, False)]
    same_results(one, other, *names)
    assert sorted(other.run(names, [0], spread=spread)) == [(n, 0, True) for n in names]
