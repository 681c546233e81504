"""Checks of `kill_index.py`: what an index or a training holds after a kill, and what is wrong."""

import hashlib
import json
import os
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kill_verbs import EXPORTS, TRAIN, colour_model, tiny_model

import ucofia
from ucofia.index.index import Index
from ucofia.index.search import preview
from ucofia.index.search.preview import Preview
from ucofia.index.search.search import Searcher
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.location import exists
from ucofia.train import optim
from ucofia.train.run_folder import RunFolder


@dataclass(frozen=True)
class Problem:
    """What is wrong after a trial."""

    kind: str  # lost, doubled or false
    what: str


def content(folder: Path, verb: str) -> dict[str, Any]:
    """Everything an index or a run says, in an order of its own."""
    empty = {"files": {}, "bank": None, "wrong": [], "exports": {}}
    if verb == "train":
        return empty | run_content(folder / "run")
    if not exists(folder / "index"):
        return empty
    opened = Index.open(folder / "index", colour_model())
    wrong = opened.verify()
    files: dict[str, list[str]] = {}
    for row in sorted(opened._store.rows(), key=lambda row: (row.file.path, row.number)):
        name = os.path.relpath(row.file.path, folder)
        digest = hashlib.blake2b(row.patches.tobytes() + row.frames.tobytes(), digest_size=8)
        files.setdefault(name, []).append(digest.hexdigest())
    held = opened.newest()
    collection = held.collection
    biases = {
        f"{os.path.relpath(info.path, folder)} {info.number}": [
            round(float(values[row]), 3) for values in collection.biases.values()
        ]
        for row, info in enumerate(collection.segments)
    }
    if held.preview is not None and not is_anew(held.preview, collection):
        wrong.append("the preview is not of these vectors")
    texts = ["a red", "some green"]
    right = Searcher(collection).brute_force(held.prepare_queries(texts), top=5)
    hits = opened.search_many(texts, top=5, grouped=False)
    for found, ranking in zip(hits, right, strict=True):
        ids = [collection.segments[row].id for row in ranking.rows.tolist()]
        if [hit.segment for hit in found] != ids:
            wrong.append("exact search is not brute force")
    return {
        "files": files,
        "biases": biases,
        "scores": [[round(hit.score, 3) for hit in found] for found in hits],
        "bank": len(opened.bank_texts()),
        "preview": held.preview is not None,
        "wrong": wrong,
        "exports": {name: exported(folder / name) for name in EXPORTS},
    }


def is_anew(found: Preview, collection: Collection) -> bool:
    """Tell whether a preview, grown and copied, is what it would be if it were made now."""
    made = preview.build(collection, found.axes)
    return all(
        np.array_equal(array, made.quantised[unit].arrays()[name])
        for unit, quantised in found.quantised.items()
        for name, array in quantised.arrays().items()
    )


def run_content(run: Path) -> dict[str, Any]:
    """Load what a training has written; weights and log count only at its end."""
    folder, model, wrong = RunFolder(run), tiny_model(), list[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a checkpoint that does not fit its checksums
        try:
            folder.load(model, optim.optimiser(model, TRAIN))
        except Exception as error:
            wrong.append(f"checkpoint: {error}")
    if (run / "model.safetensors").exists() and (run / "config.json").exists():
        ucofia.load(run)
    if folder.result() is None:
        return {"wrong": wrong}
    log = [f"{line['kind']} {line['step']} {line.get('loss')}" for line in folder.lines()]
    files = [run / "model.safetensors", *sorted((run / "checkpoints").glob("*/*.safetensors"))]
    weights = [
        f"{os.path.relpath(f, run)} {hashlib.sha256(f.read_bytes()).hexdigest()}" for f in files
    ]
    kept = sorted(os.path.relpath(path, run) for path in run.rglob("*"))
    return {"wrong": wrong, "log": log, "weights": weights, "kept": kept}


def exported(path: Path) -> int | None:
    """Count the rows of an export, all of which can be read; None where there is none."""
    if not path.exists():
        return None
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return len(parquet.read_table(path))
    lines = path.read_text().splitlines()
    if path.suffix == ".jsonl":
        return len([json.loads(line) for line in lines])
    return len({line.count(",") for line in lines}) and len(lines) - 1


def judged(left: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> list[Problem]:
    """Compare what a killed verb left with what was and what should be."""
    found = [Problem("false", text) for text in left["wrong"]]
    for name, rows in left["files"].items():
        allowed = [side["files"].get(name, []) for side in (before, after)]
        if rows not in allowed:
            kind = "doubled" if len(rows) > max(map(len, allowed)) > 0 else "false"
            kind = "lost" if len(rows) < min(map(len, allowed)) else kind
            found.append(Problem(kind, f"{name} is neither as before nor as after"))
    kept = before["files"].keys() & after["files"].keys()
    found += [Problem("lost", name) for name in kept - left["files"].keys()]
    if left["bank"] not in (before["bank"], after["bank"]):
        found.append(Problem("lost", f"a bank of {left['bank']} texts is neither"))
    for name, rows in left["exports"].items():
        if rows not in (before["exports"].get(name), after["exports"].get(name)):
            found.append(Problem("false", f"{name} has {rows} rows"))
    return found


def completed(end: dict[str, Any], after: dict[str, Any]) -> list[Problem]:
    """Compare what a verb left that was killed and done again with an undisturbed one."""
    found = judged(end, after, after)
    differs = [name for name in after if end.get(name) != after[name]]
    found += [Problem("false", f"{name} differs from an undisturbed run") for name in differs]
    for line, count in Counter(end.get("log", [])).items():
        if count > 1:
            found.append(Problem("doubled", f"log line {line}"))
    missing = {*after.get("log", [])} - {*end.get("log", [])}
    return [*found, *(Problem("lost", f"log line {line}") for line in missing)]
