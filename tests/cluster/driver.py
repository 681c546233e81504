"""A driver in a process of its own: `driver.py ADDRESS INDEX VIDEOS [before|after|often]`.

`before` and `after` end it as a kill would: before or after the first commit of rows, with the
journal still as it was. `often` lets it commit often, for those who kill it themselves.
"""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import ray
from fakes import colour_model

from ucofia.cluster import ingest
from ucofia.index import journal
from ucofia.index.index import Index
from ucofia.index.storage import fragments


def main(address: str, index: str, videos: str, death: str = "") -> None:
    commit = fragments.commit

    def deadly(*args: object, **options: object) -> bool:
        # A part may have had nothing but broken files.
        if death == "after" and not commit(*args, **options):  # type: ignore[arg-type]
            return False
        os.kill(os.getpid(), signal.SIGKILL)
        return False

    if death:
        ingest.COMMIT_SECONDS = 0.0
    if death in ("before", "after"):
        journal.fragments.commit = deadly
    ray.init(address=address, log_to_driver=False)
    sys.stdout.write("begins\n")
    sys.stdout.flush()
    ingest.add(Index.open(index, colour_model()), [videos])


if __name__ == "__main__":
    main(*sys.argv[1:])
