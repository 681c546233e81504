"""Print the counts of the data sets as read here beside the published ones, as a table.

    python scripts/dataset_counts.py ANNOTATIONS [MSVD]

ANNOTATIONS holds msrvtt/, activitynet/, didemo/ and splits/ as they circulate; MSVD the features
folder. Files that are absent are said to be absent; nothing is guessed.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from ucofia.datasets import activitynet, didemo, feature_files, lsmdc, msrvtt, msvd, vatex
from ucofia.datasets.annotations import VideoFiles, read_json, read_list, read_table
from ucofia.datasets.splits import PublishedCounts

Row = tuple[str, str, PublishedCounts, int | None, int | None, str]
NOWHERE = VideoFiles(Path(), {}, {})


def msrvtt_rows(folder: Path, splits: Path) -> Iterator[Row]:
    for part in ("9k", "7k"):
        path = folder / f"MSRVTT_train.{part}.csv"
        count = len(read_table(path, needs=["video_id"])) if path.exists() else None
        yield f"msrvtt {part}", "train", msrvtt.PUBLISHED[part]["train"], count, None, path.name
    path = folder / "MSRVTT_JSFUSION_test.csv"
    count = len(read_table(path, needs=["video_id", "sentence"])) if path.exists() else None
    yield "msrvtt 9k, 7k", "test", msrvtt.PUBLISHED["9k"]["test"], count, count, path.name
    for name, published in msrvtt.PUBLISHED["full"].items():
        path = splits / f"{name}_list_full.txt"
        count = len(read_list(path)) if path.exists() else None
        yield "msrvtt full", name, published, count, None, path.name


def activitynet_rows(folder: Path) -> Iterator[Row]:
    for name, file in (("train", "train.json"), ("test", "val_1.json")):
        path = folder / file
        count = None
        if path.exists():
            items, paragraphs = activitynet.parse(file, read_json(path), None, NOWHERE)
            assert len(items) == len(paragraphs)
            count = len(items)
        yield "activitynet", name, activitynet.PUBLISHED[name], count, count, file


def didemo_rows(folder: Path, splits: Path) -> Iterator[Row]:
    for name, published in didemo.PUBLISHED.items():
        listed, data = splits / f"{name}_list.txt", folder / f"{name}_data.json"
        ids = read_list(listed) if listed.exists() else None
        texts = None
        if ids is not None and data.exists():
            texts = len(didemo.parse(data.name, read_json(data), ids))
        files = listed.name + (f", {data.name}" if data.exists() else "")
        yield "didemo", name, published, None if ids is None else len(ids), texts, files


def msvd_rows(folder: Path) -> Iterator[Row]:
    if not folder.is_dir():
        yield from (("msvd", name, p, None, None, "") for name, p in msvd.PUBLISHED.items())
        return
    dataset, _ = feature_files.load(folder)
    for split in dataset.splits:
        published = msvd.PUBLISHED[split.name]
        files = f"{split.name}_list.txt, captions_msvd.json"
        yield "msvd", split.name, published, len(split.videos), len(split.texts), files


def absent_rows() -> Iterator[Row]:
    for data_set, published in (("vatex", vatex.PUBLISHED), ("lsmdc", lsmdc.PUBLISHED)):
        yield from ((data_set, name, counts, None, None, "") for name, counts in published.items())


def main() -> None:
    annotations = Path(sys.argv[1])
    features_folder = Path(sys.argv[2]) if len(sys.argv) > 2 else annotations.parent / "msvd"
    splits = annotations / "splits"
    rows = [
        *msrvtt_rows(annotations / "msrvtt", splits / "msrvtt"),
        *msvd_rows(features_folder),
        *activitynet_rows(annotations / "activitynet"),
        *didemo_rows(annotations / "didemo", splits / "didemo"),
        *absent_rows(),
    ]
    print("| data set | split | videos published | read | texts published | read | from |")
    print("|---|---|--:|--:|--:|--:|---|")
    for data_set, split, published, videos, texts, files in rows:
        cells = (published.videos, videos, published.texts, texts)
        shown = [f"{cell:,}" if cell is not None else "-" for cell in cells]
        differs = videos not in (None, published.videos) or (
            texts is not None and published.texts not in (None, texts)
        )
        mark = " **differs**" if differs else ""
        print(f"| {data_set} | {split} | {' | '.join(shown)} | {files or 'no file here'}{mark} |")


if __name__ == "__main__":
    main()
