"""Lay out MSVD as `ucofia data check msvd` expects it, from what a public repository carries.

    python scripts/prepare_msvd.py MIRRORS ANNOTATIONS OUT

MIRRORS holds a bare clone named OWNER+NAME of the repository below; ANNOTATIONS the files
train_list.txt, val_list.txt, test_list.txt and captions_msvd.json (or raw-captions.pkl). OUT gets
`annotations` (copies, complete) and `clips` (ID.avi). Clips that are too large to be in the
snapshot stay in the lists and are reported as missing. Research use only.
"""

import argparse
import shutil
from pathlib import Path

from git_snapshot import blobs, contents, repository

from ucofia.atomic import write_atomic

CLIPS = ("KunalSinha1125/CLIP-video-search", "0814ff5")
LISTS = ("train_list.txt", "val_list.txt", "test_list.txt")
CAPTIONS = ("raw-captions.pkl", "captions_msvd.json")


def main() -> None:
    """Prepare the folder and count what is in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("mirrors", "annotations", "out"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    copied, clips = given.out / "annotations", given.out / "clips"
    for folder in (copied, clips):
        folder.mkdir(parents=True, exist_ok=True)
    captions = [name for name in CAPTIONS if (given.annotations / name).is_file()]
    for name in (*LISTS, *captions[:1]):
        shutil.copyfile(given.annotations / name, copied / name)
    listed = {name: (copied / name).read_text().split() for name in LISTS}
    wanted = {f"YouTubeClips/{id}.avi" for ids in listed.values() for id in ids}
    done = {f"YouTubeClips/{path.name}" for path in clips.glob("*.avi")}
    git, commit = repository(given.mirrors, CLIPS[0]), CLIPS[1]
    todo = {path: blob for path, blob in blobs(git, commit).items() if path in wanted - done}
    for path, content in contents(git, todo):
        write_atomic(clips / Path(path).name, content)
    there = {path.stem for path in clips.glob("*.avi")}
    for name, ids in listed.items():
        print(f"{name}: {len(there & set(ids)):,} of {len(ids):,} clips")


if __name__ == "__main__":
    main()
