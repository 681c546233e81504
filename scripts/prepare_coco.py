"""Lay out captioned COCO photographs for `starter_pairs.py coco` from public repositories.

    python scripts/prepare_coco.py MIRRORS OUT

MIRRORS holds bare clones named OWNER+NAME of the four repositories below. OUT gets `photos`
(ID.jpg, 256 pixels wide and high) and `captions.json` in COCO's own annotation format. The
captions are COCO's (CC BY 4.0).
"""

import argparse
import csv
import io
import json
from pathlib import Path

from git_snapshot import blobs, contents, repository

from ucofia.atomic import write_atomic

PHOTOS = ("hai4h/cnn-edge-detection", "a2978a7048f2", "train2017")
# COCO's own format; blobs, because they are in the history only
CAPTIONS = ("Elsa1024/ece285_final_project", ("9d4ce18b61", "0319215ab5"))
# tables: repository, commit, file, the column of captions
TABLES = (
    ("natalie125/Deep-learning", "f6dc168", "coco_captions.csv", "caption"),
    ("rohitgandikota/erasing", "25613d2", "data/coco_30k.csv", "prompt"),
)


def main() -> None:
    """Prepare the folder and count what is in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mirrors", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    said: dict[tuple[int, str], None] = {}  # in order, each once
    git = repository(given.mirrors, CAPTIONS[0])
    for _, content in contents(git, {blob: blob for blob in CAPTIONS[1]}):
        for row in json.loads(content)["annotations"]:
            said[row["image_id"], " ".join(row["caption"].split())] = None
    for name, commit, file, column in TABLES:
        git = repository(given.mirrors, name)
        ((_, content),) = contents(git, {file: blobs(git, commit)[file]})
        for row in csv.DictReader(io.StringIO(content.decode())):
            said[int(row["image_id"]), " ".join(row[column].split())] = None
    photos = given.out / "photos"
    photos.mkdir(parents=True, exist_ok=True)
    name, commit, folder = PHOTOS
    git = repository(given.mirrors, name)
    wanted = {f"{folder}/{number:012}.jpg" for number, _ in said}
    there = {f"{folder}/{path.name}" for path in photos.glob("*.jpg")}
    listed = blobs(git, commit)
    todo = {path: listed[path] for path in sorted(wanted & listed.keys() - there)}
    for path, content in contents(git, todo):
        write_atomic(photos / Path(path).name, content)
    known = {int(path.stem) for path in photos.glob("*.jpg")}
    rows = [{"image_id": number, "caption": text} for number, text in said if number in known]
    write_atomic(given.out / "captions.json", json.dumps({"annotations": rows}))
    print(f"{len(known):,} photographs, {len(rows):,} captions")


if __name__ == "__main__":
    main()
