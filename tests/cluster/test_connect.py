"""Ray that does not start, as on a machine that is busy; a stand-in of this process."""

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from ucofia.cluster import connect
from ucofia.errors import ClusterError


class Node:
    """The processes of a Ray; the first ones do not come up in time."""

    running: ClassVar[set["Node"]] = set()
    failures = 0

    def __init__(self) -> None:
        Node.running.add(self)
        if Node.failures:
            Node.failures -= 1
            raise Exception("timed out during startup")

    def kill_all_processes(self, **_: Any) -> None:
        Node.running.discard(self)


@pytest.mark.parametrize(("failures", "running"), [(0, 1), (2, 1), (3, 0)])
def test_nothing_is_left_of_a_ray_that_did_not_start(
    monkeypatch: pytest.MonkeyPatch, failures: int, running: int
) -> None:
    private = SimpleNamespace(worker=SimpleNamespace(), node=SimpleNamespace(Node=Node))
    stand_in = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **_: Node(),
        shutdown=lambda: None,
        _private=private,
    )
    monkeypatch.setattr(connect, "ray", lambda: stand_in)
    Node.running, Node.failures = set(), failures
    if running:
        with connect.connected("local"):
            assert len(Node.running) == running
    else:
        with pytest.raises(ClusterError, match="very busy"), connect.connected("local"):
            raise AssertionError
        assert not Node.running
