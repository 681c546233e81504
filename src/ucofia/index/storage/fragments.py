"""Pieces of the segments table that one process writes and another commits.

A Lance fragment is a data file that no version names yet. Workers write them, anywhere; whoever
holds their description commits them. A commit carries the keys of the parts of work it stands for
(`transaction_properties`), so that a commit whose answer was lost is recognised, not repeated.

Lance lets two concurrent appends both succeed. On a disk the index's lock keeps the look-up and
the commit together; in an object store there is no lock, so a commit looks back at what came in
between and takes its own copy of a doubled file out again.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import lance
import pyarrow as pa
from lance.file import LanceFileReader
from lance.fragment import FragmentMetadata, write_fragments

from ucofia.errors import IndexWriteError
from ucofia.index.storage import schema as arrow
from ucofia.index.storage.location import (
    STORAGE_VERSION,
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
    clearing: tuple[str, ...] = ()  # paths whose older rows go
    replacing: tuple[FileIdentity, ...] = ()  # what these rows are known to be of
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

    `seen` are fragments that are known to hold none of the files. Whoever can should hold the lock
    of the index meanwhile.
    """
    with writing(path):
        for _ in range(CONFLICT_ATTEMPTS):
            dataset = open_table(path)
            fresh = _without_present(path, dataset, batch, seen)
            if fresh is None:
                return False
            try:
                committed = _commit(dataset, fresh)
            except lance.commit.CommitConflictError:
                continue
            if committed.version > dataset.version + 1:
                _drop_doubled(path, dataset, committed, fresh)
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
    updated, emptied = _cleared(dataset.get_fragments(), batch.clearing)
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


def _cleared(fragments: Sequence[Lance], paths: Sequence[str]) -> tuple[list[Lance], list[int]]:
    """Delete paths from the fragments that hold them; return changed and emptied fragments."""
    updated: list[Lance] = []
    emptied: list[int] = []
    for fragment in _holding(fragments, paths):
        changed = fragment.delete(is_one_of("path", paths))
        if changed is None:
            emptied.append(fragment.fragment_id)
        else:
            updated.append(changed)
    return updated, emptied


def _holding(fragments: Sequence[Lance], paths: Sequence[str]) -> Iterator[Lance]:
    """Yield those fragments that hold rows of some paths."""
    for fragment in fragments if paths else ():
        if fragment.count_rows(is_one_of("path", paths)):
            yield fragment


def _without_present(
    path: str, dataset: Lance, batch: Batch, seen: frozenset[int]
) -> Batch | None:
    """Leave out what the table holds already; None when that is everything.

    A path that somebody else has added or changed meanwhile stays as it is there.
    """
    if {*batch.parts} <= _parts(dataset, batch.since):
        return None
    new = [f for f in dataset.get_fragments() if f.fragment_id not in seen]
    held = _held(dataset, new, batch.files)

    def is_needed(file: FileIdentity) -> bool:
        other = held.get(file.path)
        return other is None or (other != file and other in batch.replacing)

    gone = {file.path for file in batch.files if not is_needed(file)}
    if gone:
        files = tuple(file for file in batch.files if file.path not in gone)
        kept = tuple(_rewritten(path, batch.fragments, gone)) if files else ()
        clearing = tuple(path for path in batch.clearing if path not in gone)
        batch = replace(batch, fragments=kept, files=files, clearing=clearing)
    is_there = next(_holding(dataset.get_fragments(), batch.clearing), None) is not None
    return batch if batch.fragments or is_there else None


def _held(
    dataset: Lance, fragments: Sequence[Lance], files: Sequence[FileIdentity]
) -> dict[str, FileIdentity]:
    """What some fragments hold at the paths of some files."""
    if not fragments or not files:
        return {}
    return _files(dataset, fragments, is_one_of("path", [file.path for file in files]))


def _files(
    dataset: Lance, fragments: Sequence[Lance], predicate: str | None = None
) -> dict[str, FileIdentity]:
    if not fragments:
        return {}
    scanner = dataset.scanner(
        columns=list(IDENTITY), filter=predicate, fragments=list(fragments), scan_in_order=True
    )
    table = scanner.to_table().group_by(list(IDENTITY)).aggregate([])
    values = (table.column(name).to_pylist() for name in IDENTITY)
    return {row[0]: FileIdentity(*row) for row in zip(*values, strict=True)}


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


def _drop_doubled(path: str, before: Lance, after: Lance, batch: Batch) -> None:
    """Delete our rows of files that another writer without a lock committed first."""
    old = {fragment.fragment_id for fragment in before.get_fragments()}
    mine = {file["path"] for fragment in batch.fragments for file in fragment["files"]}
    for _ in range(CONFLICT_ATTEMPTS):
        own, others = [], []
        for fragment in after.get_fragments():
            is_mine = not mine.isdisjoint(file.path for file in fragment.metadata.files)
            if is_mine:
                own.append(fragment)
            elif fragment.fragment_id not in old:
                others.append(fragment)
        first = min((fragment.fragment_id for fragment in own), default=0)
        earlier = [fragment for fragment in others if fragment.fragment_id < first]
        doubled = sorted(_held(after, earlier, batch.files))
        if not doubled:
            return
        updated, emptied = _cleared(own, doubled)
        operation = lance.LanceOperation.Delete(updated, emptied, is_one_of("path", doubled))
        try:
            lance.LanceDataset.commit(after, operation, read_version=after.version)
            return
        except lance.commit.CommitConflictError:
            after = open_table(path)


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
