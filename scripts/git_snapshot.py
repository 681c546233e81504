"""Files out of a bare git directory, without a work tree: for data that lies in a repository.

A snapshot may list files whose content did not arrive with it; those are left out and counted by
the caller.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path


def paths(git: Path, commit: str) -> list[str]:
    """List every file of a commit."""
    command = ["git", f"--git-dir={git}", "ls-tree", "-r", "-z", "--name-only", commit]
    listed = subprocess.run(command, check=True, capture_output=True).stdout
    return [path.decode() for path in listed.split(b"\0") if path]


def contents(git: Path, commit: str, wanted: list[str]) -> Iterator[tuple[str, bytes]]:
    """Read files in the order asked for; what is not in the snapshot is passed over."""
    command = ["git", f"--git-dir={git}", "cat-file", "--batch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        for path in wanted:
            process.stdin.write(f"{commit}:{path}\n".encode())
            process.stdin.flush()
            head = process.stdout.readline().split()
            if head[-1] == b"missing":
                continue
            content = process.stdout.read(int(head[-1]))
            process.stdout.read(1)  # the newline behind it
            yield path, content


def repository(mirrors: Path, name: str) -> Path:
    """Find the bare directory of owner/name below a folder: OWNER+NAME, itself or its `repo`."""
    folder = mirrors / name.replace("/", "+")
    for git in (folder / "repo", folder, folder.with_suffix(".git")):
        if (git / "HEAD").is_file():
            return git
    raise SystemExit(f"{name} is not below {mirrors}: clone it bare as {folder}")
