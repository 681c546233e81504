"""A warm process that forks a fresh one per job, so that tests can kill, starve and race writers.

Run as a script it imports the package once (never touching Lance, whose threads do not survive a
fork) and then reads jobs from stdin, one JSON object per line; a job's answer is a file.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Nursery:
    """The parent's side."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "forked.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, **job: Any) -> int:
        """Begin a job in a process of its own; returns its id."""
        return int(self._ask({"do": "start", **job}))

    def wait(self, pid: int) -> int:
        """Wait for a job; returns its exit code, negative when it was killed."""
        return int(self._ask({"do": "wait", "pid": pid}))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _ask(self, message: dict[str, Any]) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


def run(job: dict[str, Any]) -> None:
    import resource

    from fakes import colour_model

    from ucofia.errors import UCoFiAError
    from ucofia.index.index import Index

    if job.get("file_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_bytes"], job["file_bytes"]))
    try:
        Index.open(job["index"], colour_model()).add(job["videos"])
        said = "done"
    except UCoFiAError as error:
        said = str(error)
    Path(job["answer"]).write_text(said)


def _say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def main() -> None:
    sys.path.insert(0, str(HERE.parent))
    import fakes  # noqa: F401

    import ucofia.index.index  # noqa: F401

    for line in sys.stdin:
        job = json.loads(line)
        if job["do"] == "wait":
            _, status = os.waitpid(job["pid"], 0)
            _say(os.waitstatus_to_exitcode(status))
            continue
        pid = os.fork()
        if pid == 0:
            os.close(0)
            try:
                run(job)
            except BaseException:
                os._exit(9)
            os._exit(0)
        _say(pid)


if __name__ == "__main__":
    main()
