"""Start Ray where other processes may keep it from starting in the time it gives itself."""

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ucofia.cluster import connect

T = TypeVar("T")

ATTEMPTS = 10
MEMORY = {"object_store_memory": 100 << 20}
# Without what nobody looks at here: of these processes one must be up a quarter of a minute later.
FEW = {"no_monitor": True, "include_log_monitor": False, "include_dashboard": False}


def persistently(start: Callable[[], T]) -> T:
    """Try again what fails because the machine is busy; Ray says so with a plain exception."""
    sys.modules["ray.dashboard.optional_deps"] = None  # type: ignore[assignment] # a quick agent
    for left in reversed(range(ATTEMPTS)):
        try:
            return start()
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise
            connect.end_failed_start(error)
            time.sleep(5)
    raise AssertionError


def head_and_two_nodes() -> Any:
    """A cluster on this machine; only its two nodes have a processor to give."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, **MEMORY, **FEW}
    made = persistently(lambda: Cluster(initialize_head=True, head_node_args=head))
    made.workers = []
    for _ in range(2):
        add_node(made)
    made.wait_for_nodes()
    return made


def add_node(cluster: Any) -> None:
    """Give a cluster another node, with one processor."""
    node = persistently(lambda: cluster.add_node(num_cpus=1, **MEMORY, **FEW))
    cluster.workers.append(node)
