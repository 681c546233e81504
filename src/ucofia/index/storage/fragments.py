"""Pieces of the segments table that one process writes and another commits.

A Lance fragment is a data file that no version names yet. Workers write them, on any machine; the
holder of their description commits them. A commit carries the keys of the parts of work it stands
for (`transaction_properties`), so that a commit whose answer was lost is recognised, not repeated.

Lance lets two concurrent appends both succeed. On a disk the index's lock keeps the look-up and
the commit together; in an object store there is no lock, so a commit looks back at what came in
between and takes its own copy of a doubled file out again.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import lance
import pyarrow as pa
from lance.commit import CommitConflictError
from lance.file import LanceFileReader
from lance.fragment import FragmentMetadata, write_fragments

from ucofia.errors import IndexWriteError
from ucofia.index.storage import schema as arrow
from ucofia.index.storage.location import (
    STORAGE_VERSION,
    is_conflict,
    is_one_of,
    open_table,
    reading,
    table_path,
    writing,
)
from ucofia.index.storage.schema import FileIdentity, SegmentRow
from ucofia.index.storage.store import Store
from ucofia.index.storage.vectors import VectorCache

Fragment: TypeAlias = dict[str, Any]  # what Lance says about a data file, as plain JSON values
Lance: TypeAlias = Any  # Lance has no types

COMMITTED_PARTS = "ucofia.parts"
IDENTITY = ("path", "size_bytes", "mtime_ns", "content_hash")
CONFLICT_ATTEMPTS = 20  # of a commit that meets others which change the same fragments


@dataclass(frozen=True)
class Batch:
    """What one commit adds and takes away."""

    parts: tuple[str, ...]  # keys of the parts of work it stands for
    fragments: tuple[Fragment, ...]
    files: tuple[FileIdentity, ...]  # whose rows the fragments hold
    replacing: tuple[FileIdentity, ...] = ()  # whose rows go, unless these are others by now
    since: int = 0  # a version before which none of the parts can have been committed


def write(store: Store, rows: Sequence[SegmentRow]) -> list[Fragment]:
    """Write rows as data files that no version names yet."""
    table = arrow.table_of(rows, store.settings)
    with writing(store.path):
        return _written(store.path, table)


def has_files(path: str, fragments: Iterable[Fragment]) -> bool:
    """Return whether the data files of some fragments are still there and whole."""
    try:
        for fragment in fragments:
            rows = sum(LanceFileReader(uri).num_rows() for uri in _data_files(path, fragment))
            if rows != fragment["physical_rows"]:
                return False
    except (OSError, ValueError, RuntimeError):
        return False
    return True


def commit(path: str, batch: Batch, *, seen: frozenset[int] = frozenset()) -> bool:
    """Make fragments part of the table, once; False where all of it had been there before.

    `seen` are fragments that are known to hold none of the files. A caller that can
    holds the lock of the index meanwhile.
    """
    with writing(path):
        for _ in range(CONFLICT_ATTEMPTS):
            dataset = open_table(path)
            fresh = _without_present(path, dataset, batch, seen)
            if fresh is None:  # its committer may have died before it looked back
                _drop_doubled(path, batch.files)
                return False
            try:
                committed = _commit(dataset, fresh)
            except CommitConflictError:
                continue
            if committed.version > dataset.version + 1:
                _drop_doubled(path, batch.files)
            return True
    raise IndexWriteError(
        path, f"{CONFLICT_ATTEMPTS} commits met writers that change the same rows"
    )


def committed_parts(path: str, *, since: int) -> set[str]:
    """List the parts of work that were committed after a version."""
    with reading(path):
        return _parts(open_table(path), since)


def files_in(
    path: str, *, seen: frozenset[int] = frozenset()
) -> tuple[dict[str, FileIdentity], frozenset[int]]:
    """List the files of fragments that were not seen yet, and the ids of all fragments now."""
    with reading(path):
        dataset = open_table(path)
        fragments = dataset.get_fragments()
        new = [fragment for fragment in fragments if fragment.fragment_id not in seen]
        return _files(dataset, new), frozenset(f.fragment_id for f in fragments)


def files_at(path: str, paths: Sequence[str]) -> dict[str, FileIdentity]:
    """What the table holds at some paths."""
    with reading(path):
        return _files(open_table(path), None, paths)


def rows_per_fragment(store: Store) -> list[tuple[int, int]]:
    """List the fragments of a store's version in the order of its rows, and how many each has."""
    with reading(store.path):
        fragments = store._segments.get_fragments()
        return [(fragment.fragment_id, fragment.count_rows()) for fragment in fragments]


class FragmentStore(Store):
    """One version of an index of which only some fragments are seen."""

    _fragments: tuple[int, ...] = ()

    @classmethod
    def at(
        cls, path: str, version: int, fragments: Sequence[int], vectors: VectorCache | None = None
    ) -> "FragmentStore":
        """Open some fragments of a version."""
        settings = Store.open(path).settings
        with reading(path):
            dataset = open_table(path, version=version)
        store = cls(path, settings, dataset, vectors)
        store._fragments = tuple(fragments)
        return store

    def __len__(self) -> int:
        return sum(fragment.count_rows() for fragment in self._fragments_seen())

    def _fragments_seen(self) -> list[Lance]:
        return [self._segments.get_fragment(number) for number in self._fragments]

    def table(self, columns: Sequence[str], *, with_row_address: bool = False) -> Any:
        """Read some columns of the segments that are seen, in their order."""
        with reading(self.path):
            scanner = self._segments.scanner(
                columns=list(columns),
                fragments=self._fragments_seen(),
                with_row_address=with_row_address,
                scan_in_order=True,
            )
            return scanner.to_table()


def _written(path: str, table: Any) -> list[Fragment]:
    made = write_fragments(
        table, table_path(path), mode="append", data_storage_version=STORAGE_VERSION
    )
    return [fragment.to_json() for fragment in made]


def _commit(dataset: Lance, batch: Batch) -> Lance:
    new = [_metadata(fragment) for fragment in batch.fragments]
    updated, emptied = _cleared(dataset, [file.path for file in batch.replacing])
    if updated or emptied:
        operation = lance.LanceOperation.Update(
            removed_fragment_ids=emptied, updated_fragments=updated, new_fragments=new
        )
    else:
        operation = lance.LanceOperation.Append(new)
    return lance.LanceDataset.commit(
        dataset,
        lance.Transaction(
            read_version=dataset.version,
            operation=operation,
            transaction_properties={COMMITTED_PARTS: " ".join(batch.parts)},
        ),
    )


def _cleared(dataset: Lance, paths: Sequence[str]) -> tuple[list[Lance], list[int]]:
    """Delete paths from the fragments that hold them; return changed and emptied fragments."""
    updated: list[Lance] = []
    emptied: list[int] = []
    rows = _rows_at(dataset, ["path"], None, paths)
    for number in sorted({address >> 32 for address in rows["_rowaddr"].to_pylist()}):
        changed = dataset.get_fragment(number).delete(is_one_of("path", paths))
        if changed is None:
            emptied.append(number)
        else:
            updated.append(changed)
    return updated, emptied


def _without_present(
    path: str, dataset: Lance, batch: Batch, seen: frozenset[int]
) -> Batch | None:
    """Leave out what the table holds already; None when that is everything.

    A path that another writer has added or changed meanwhile stays as it is there.
    """
    if {*batch.parts} <= _parts(dataset, batch.since):
        return None
    new = [f for f in dataset.get_fragments() if f.fragment_id not in seen]
    held = _files(dataset, new, [file.path for file in batch.files])

    def is_needed(file: FileIdentity) -> bool:
        other = held.get(file.path)
        return other is None or (other != file and other in batch.replacing)

    gone = {file.path for file in batch.files if not is_needed(file)}
    if gone:
        files = tuple(file for file in batch.files if file.path not in gone)
        kept = tuple(_rewritten(path, batch.fragments, gone)) if files else ()
        batch = replace(batch, fragments=kept, files=files)
    old = _files(dataset, None, [file.path for file in batch.replacing])
    replacing = tuple(f for f in batch.replacing if old.get(f.path) == f and f.path not in gone)
    return replace(batch, replacing=replacing) if batch.fragments or replacing else None


def _files(
    dataset: Lance, fragments: Sequence[Lance] | None, paths: Sequence[str] | None = None
) -> dict[str, FileIdentity]:
    """What some fragments, or all, hold: at some paths, or at all."""
    rows = _rows_at(dataset, IDENTITY, fragments, paths)
    table = rows.group_by(list(IDENTITY)).aggregate([])
    found: dict[str, FileIdentity] = {}
    for row in zip(*(table.column(name).to_pylist() for name in IDENTITY), strict=True):
        # Two contents at one path: like no file, so that it is looked at again (`Store.files`).
        found[row[0]] = FileIdentity(row[0], -1, -1, "") if row[0] in found else FileIdentity(*row)
    return found


def _rows_at(
    dataset: Lance,
    columns: Sequence[str],
    fragments: Sequence[Lance] | None,
    paths: Sequence[str] | None,
) -> Any:
    """Read columns, and the addresses, of the rows at some paths; None for all of them."""
    is_none = fragments == [] or paths == []
    scanner = dataset.scanner(
        columns=list(columns),
        filter="false" if is_none else None if paths is None else is_one_of("path", paths),
        fragments=fragments or None,
        with_row_address=True,
        scan_in_order=True,
    )
    return scanner.to_table()


def _rewritten(path: str, fragments: Iterable[Fragment], gone: set[str]) -> list[Fragment]:
    """Write data files again without some paths; no version names the old ones yet."""
    schema = open_table(path).schema
    kept: list[Fragment] = []
    for fragment in fragments:
        for uri in _data_files(path, fragment):
            table = LanceFileReader(uri).read_all().to_table()
            is_kept = pa.array([name not in gone for name in table["path"].to_pylist()])
            table = table.filter(is_kept).cast(schema)
            kept += _written(path, table) if len(table) else []
    return kept


def _drop_doubled(path: str, files: Sequence[FileIdentity]) -> None:
    """Without a lock another writer may have added the same files: the rows that came first stay.

    All writers find the same rows to be the doubled ones.
    """
    for _ in range(CONFLICT_ATTEMPTS):
        dataset = open_table(path)
        doubled = _doubled(dataset, [file.path for file in files])
        if not doubled:
            return
        ids, addresses = zip(*doubled, strict=True)
        predicate = f"{is_one_of('id', {*ids})} AND _rowaddr IN ({', '.join(map(str, addresses))})"
        try:
            dataset.delete(predicate, conflict_retries=0)  # addresses are those of one version
            return
        except OSError as error:
            if not is_conflict(error):
                raise
    raise IndexWriteError(path, f"{CONFLICT_ATTEMPTS} attempts to take out rows met other writers")


def _doubled(dataset: Lance, paths: Sequence[str]) -> list[tuple[str, int]]:
    """List the ids and addresses of rows whose path, or segment, an earlier row has already."""
    table = _rows_at(dataset, [*IDENTITY, "id"], None, paths).sort_by("_rowaddr")
    first: dict[str, tuple[Any, ...]] = {}
    known: set[str] = set()
    doubled: list[tuple[str, int]] = []
    columns = (table.column(name).to_pylist() for name in (*IDENTITY, "id", "_rowaddr"))
    for *identity, name, address in zip(*columns, strict=True):
        is_first = first.setdefault(identity[0], tuple(identity)) == tuple(identity)
        if not is_first or name in known:
            doubled.append((name, address))
        known.add(name)
    return doubled


def _parts(dataset: Lance, since: int) -> set[str]:
    """The parts of work that versions after `since` have committed."""
    found: set[str] = set()
    for transaction in dataset.get_transactions(max(0, dataset.version - since)):
        properties = (transaction and transaction.transaction_properties) or {}
        found |= {*properties.get(COMMITTED_PARTS, "").split()}
    return found


def _metadata(fragment: Fragment) -> FragmentMetadata:
    return FragmentMetadata.from_json(json.dumps(fragment))


def _data_files(path: str, fragment: Fragment) -> list[str]:
    return [f"{table_path(path)}/data/{file['path']}" for file in fragment["files"]]
