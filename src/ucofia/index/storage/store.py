"""The Lance tables of an index; with its neighbours the only module that knows Lance.

    segments.lance   one row per segment: the truth
    failed.lance     files that could not be used, so that they are not tried again and again
    bank.lance       the bank's texts and what Sinkhorn found for them; `bias.lance` per segment

Every change is one Lance commit, so a reader sees all of it or nothing, and a killed writer leaves
at most files that no version names. Vectors are written so that their pages are plain arrays; on a
local disk they are mapped, not read, from an object store fetched once into files that are mapped
(`vectors`). Readers never wait. Writers of a local index hold its lock;
where there is none, their commits may conflict and are then tried again, rows of the same id are
one row whoever wrote them, and nothing is deleted that no version names.
"""

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import lance
import numpy as np
import pyarrow as pa

from ucofia.errors import (
    DamagedIndexError,
    ForeignFolderError,
    IndexExistsError,
    IndexReplacedError,
    IndexWriteError,
    NoIndexError,
    NotInIndexError,
    require_unicode,
)
from ucofia.index.storage import location, schema as arrow
from ucofia.index.storage.collection import Collection, Column, Segments
from ucofia.index.storage.location import (
    KEYS,
    SEGMENTS,
    create_marked,
    create_unmarked,
    exists,
    has_table,
    in_chunks,
    is_below,
    is_conflict,
    is_one_of,
    open_table,
    reading,
    table_path,
    with_checksums,
    write_lance,
    writing,
)
from ucofia.index.storage.lock import creating
from ucofia.index.storage.schema import (
    Array,
    FileIdentity,
    IndexSettings,
    SegmentInfo,
    SegmentRow,
    StoredFile,
    Table,
)
from ucofia.index.storage.vectors import VectorCache, local_arrays, remote_arrays

T = TypeVar("T")

logger = logging.getLogger(__name__)

INDEXED_FROM = 5000  # rows; of fewer, a scan finds a path as quickly as a scalar index
CONFLICT_TRIES = 20
READ_ATTEMPTS = 5  # where writers compact all the time
CONFLICT_SECONDS = 0.05  # before the second try; each further one waits longer, and by chance
KEPT_WHILE_SHARED = timedelta(hours=1)  # versions that others may read, or write on


class Store:
    """An open index; holds one version of its segments until `refresh`."""

    def __init__(
        self,
        path: str,
        settings: IndexSettings,
        segments: Any,
        vectors: VectorCache | None = None,
    ) -> None:
        self.path, self.settings = path, settings
        self._segments = segments
        self._vectors = vectors or VectorCache()  # copies of those of an object store

    @classmethod
    def create(
        cls, path: Path | str, settings: IndexSettings, others: Mapping[str, Table] | None = None
    ) -> "Store":
        """Make an index without segments in a folder that is new or empty.

        It comes with some small tables, or not at all: what a killed run leaves is no index, and
        is replaced.
        """
        where = location.where(path)
        require_unicode(where, setting="folder of the index")  # Lance names files by text
        if exists(where):
            raise IndexExistsError(where)
        with creating(where, [SEGMENTS, *(others or {})]) as is_marked, writing(where):
            create = create_marked if is_marked else create_unmarked
            segments = create(where, arrow.schema(settings).empty_table(), others or {})
        return cls(where, settings, segments)

    @classmethod
    def open(cls, path: Path | str) -> "Store":
        """Open an index at its newest version."""
        where = location.where(path)
        if not exists(where):
            raise NoIndexError(where) if location.is_free(where) else ForeignFolderError(where)
        with reading(where):
            segments = open_table(where)
            settings = arrow.read_settings(segments.schema, where)
        if settings is None:
            raise ForeignFolderError(where)
        return cls(where, settings, segments)

    @property
    def version(self) -> int:
        """The number of the version that is open."""
        return int(self._segments.version)

    @property
    def is_remote(self) -> bool:
        """Whether the index is not in a folder of this machine."""
        return location.is_remote(self.path)

    def keep_no_vectors(self) -> None:
        """Fetch vectors of an object store only when they are read; others hold them."""
        self._vectors = VectorCache(0)

    def refresh(self) -> None:
        """Open the newest version, which must belong to the same index."""
        self._segments = self._newest_segments()

    def require_same(self) -> None:
        """Make sure that the index was not deleted, or replaced by another one."""
        self._newest_segments()

    def pinned(self) -> "Store":
        """Return a store that stays at this version when this one is refreshed."""
        return Store(self.path, self.settings, self._segments, self._vectors)

    def newest(self) -> "Store":
        """Return a store at the newest version of the same index; this one stays as it is."""
        return Store(self.path, self.settings, self._newest_segments(), self._vectors)

    def _newest_segments(self) -> Any:
        for left in reversed(range(READ_ATTEMPTS)):
            try:
                with reading(self.path):
                    segments = open_table(self.path)
                    found = arrow.read_settings(segments.schema, self.path)
                break
            except DamagedIndexError:  # the version that was newest may be compacted away by now
                if not exists(self.path):
                    raise NoIndexError(self.path) from None
                if not left:
                    raise
        if found is None:
            raise ForeignFolderError(self.path)
        for name in ("id", "fingerprint"):
            was, now = getattr(self.settings, name), getattr(found, name)
            if was != now:
                what = "index" if name == "id" else "an index of the model"
                raise IndexReplacedError(
                    self.path, f"{what} {was or 'without an id'}", f"{what} {now}"
                )
        return segments

    def with_retry(self, read: Callable[[], T]) -> T:
        """Read, and again at the newest version when that fails, a few times.

        A writer that compacts deletes what older versions need, also that which is open here.
        """
        for _ in range(READ_ATTEMPTS - 1):
            try:
                return read()
            except DamagedIndexError:
                self.refresh()
        return read()

    def __len__(self) -> int:
        return int(self._segments.count_rows())

    def files_below(self, places: Sequence[str]) -> list[str]:
        """List the files of the index at or below some places; each place has at least one.

        Raises:
            NotInIndexError: Nothing of the index lies at one of them.
        """
        found = sorted(path for path in self.files() if is_below(path, places))
        for place in places:
            if not any(is_below(path, [place]) for path in found):
                raise NotInIndexError(self.path, place)
        return found

    def files(self) -> dict[str, StoredFile]:
        """List the files of the index by path."""
        columns = ["path", "size_bytes", "mtime_ns", "content_hash"]
        table = self.with_retry(lambda: self.table(columns))
        table = table.group_by(columns).aggregate([("path", "count")])
        values = (table.column(name).to_pylist() for name in (*columns, "path_count"))
        found: dict[str, StoredFile] = {}
        for path, size, mtime, digest, rows in zip(*values, strict=True):
            if path in found:
                # Two writers without a lock met it before and after it changed. No file is like
                # this one, so that the next run looks at it again and replaces all of its rows.
                size, mtime, digest, rows = -1, -1, "", rows + found[path].segments
            found[path] = StoredFile(FileIdentity(path, size, mtime, digest), rows)
        return found

    def infos(self) -> list[SegmentInfo]:
        """List what is known about every segment besides its vectors."""
        return arrow.infos_of(self.with_retry(lambda: self.table(list(arrow.LIGHT))))

    @property
    def schema(self) -> Any:
        """Columns of the segments, as Arrow names them."""
        return self._segments.schema

    def batches(self) -> Iterator[Any]:
        """Read all columns, a few rows at a time."""
        with reading(self.path):
            yield from self._segments.scanner(batch_size=64, batch_readahead=1).to_batches()

    def rows(self, where: str | None = None) -> Iterator[SegmentRow]:
        """Read whole rows, a few at a time."""
        with reading(self.path):
            scanner = self._segments.scanner(filter=where, batch_size=64, batch_readahead=1)
            for batch in scanner.to_batches():
                yield from arrow.rows_of(pa.Table.from_batches([batch]), self.settings)

    def rows_of_files(self, paths: Sequence[str]) -> dict[str, list[SegmentRow]]:
        """Read the rows of some files, each file's in order: one scan for many."""
        found: dict[str, list[SegmentRow]] = {path: [] for path in paths}
        for some in in_chunks(sorted(set(paths))):
            for row in self.rows(is_one_of("path", some)):
                found[row.file.path].append(row)
        return {path: sorted(rows, key=lambda row: row.number) for path, rows in found.items()}

    def row_here(self, segment_id: str) -> SegmentRow | None:
        """Read one row of this version by its id."""
        return next(self.rows(is_one_of("id", [segment_id])), None)

    def row(self, segment_id: str) -> SegmentRow | None:
        """Read one row by its id: of this version, or else of the newest."""
        try:
            row = self.row_here(segment_id)
        except DamagedIndexError:  # this version was compacted away
            row = None
        if row is not None:
            return row
        newest = self.newest()
        return newest.with_retry(lambda: newest.row_here(segment_id))

    def wrong_checksums(self) -> Iterator[str]:
        """Name the segments, and the other tables, that are not what was written."""
        for batch in self.batches():
            table = pa.Table.from_batches([batch])
            stored = table.column("checksum").to_pylist()
            for row, expected in zip(arrow.rows_of(table, self.settings), stored, strict=True):
                if arrow.checksum(row) != expected:
                    yield f"{row.file.path} segment {row.number}"
        for name in self._names()[1:]:
            with reading(self.path):
                table = open_table(self.path, name).to_table()
            wrong = arrow.wrong_rows(table)
            if wrong:
                yield f"{name}.lance, {len(wrong)} of {len(table)} rows"

    def put(self, rows: Sequence[SegmentRow], *, replacing: Sequence[str] = ()) -> None:
        """Write rows and take away all other rows of the `replacing` paths, in one commit."""
        table = arrow.table_of(rows, self.settings) if rows else None
        paths = sorted({*replacing, *(row.file.path for row in rows)})

        def commit() -> None:
            if table is None:
                self._segments.delete(is_one_of("path", paths))
            else:
                merge = self._segments.merge_insert(KEYS[SEGMENTS])
                merge = merge.when_matched_update_all().when_not_matched_insert_all()
                merge = merge.when_not_matched_by_source_delete(is_one_of("path", paths))
                merge.execute(table)

        self._committed(commit)

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files, one commit per chunk of names."""
        for some in in_chunks(paths):
            self.put([], replacing=some)

    def prepare_to_write(self) -> None:
        """Bring what the first indexes lacked: a key that no two rows share."""
        field = self._segments.schema.field(KEYS[SEGMENTS])
        if arrow.PRIMARY_KEY not in (field.metadata or {}):
            key = {name.decode(): value.decode() for name, value in arrow.KEY_METADATA.items()}
            self._committed(lambda: self._segments.update_field_metadata({field.name: key}))
            self.refresh()

    def change_model(self, model: str, fingerprint: str, video_fingerprint: str) -> "Store":
        """Let the index belong to another model with the same vectors; returns it reopened."""
        settings = replace(
            self.settings,
            model=model,
            fingerprint=fingerprint,
            video_fingerprint=video_fingerprint,
        )
        metadata = {arrow.SETTINGS_KEY.decode(): arrow.settings_text(settings)}
        self._committed(lambda: self._segments.update_schema_metadata(metadata))
        return Store.open(self.path)

    def index_paths(self) -> None:
        """Keep the scalar indexes of paths and ids up to date where they pay."""
        if len(self) < INDEXED_FROM:
            return

        def commit() -> None:
            known = {
                name for index in self._segments.describe_indices() for name in index.field_names
            }
            for column in ("path", "id"):
                if column not in known:
                    self._segments.create_scalar_index(column, "BTREE")
            unindexed = self._segments.stats.index_stats("path_idx")["num_unindexed_rows"]
            if unindexed >= INDEXED_FROM:
                self._segments.optimize.optimize_indices()

        self._committed(commit)
        self.refresh()

    def compact(self, *, is_alone: bool) -> None:
        """Join small files, drop deleted rows, and delete what no version needs any more.

        Only who is sure that nobody else writes, as who holds the lock while no run on a cluster
        is under way, may delete what no version names: it may belong to somebody's next commit.
        What is younger than seven days is taken for that otherwise.
        """
        # Readers of an object store are anywhere, and know of no new version before they look.
        is_shared = self.is_remote or not is_alone
        for name in self._names():
            self._committed(partial(self._join_files, name))
            with writing(self.path):
                open_table(self.path, name).cleanup_old_versions(
                    KEPT_WHILE_SHARED if is_shared else timedelta(0), delete_unverified=is_alone
                )
        self.refresh()

    def _join_files(self, name: str) -> None:
        dataset = open_table(self.path, name)
        dataset.optimize.compact_files(materialize_deletions_threshold=0.0)

    def _committed(self, commit: Callable[[], object]) -> None:
        """Commit, and again at the newest version when another writer was quicker."""
        for attempt in range(CONFLICT_TRIES):
            try:
                with writing(self.path):
                    commit()
                return
            except IndexWriteError as error:
                if attempt == CONFLICT_TRIES - 1 or not is_conflict(error):
                    raise
                logger.debug("%s: commit conflict, trying again: %s", self.path, error)
                time.sleep(CONFLICT_SECONDS * (1 + attempt) * random.uniform(0.5, 1.5))
                self.refresh()

    def fragments(self) -> int:
        """Count the pieces in which segments lie; many make opening slower."""
        return len(self._segments.get_fragments())

    def small(self, name: str) -> Table | None:
        """Read one of the small tables, or None."""
        return self.small_at_version(name)[0]

    def small_at_version(self, name: str) -> tuple[Table | None, int]:
        """Read one of the small tables, or None, and the number of its version."""
        if name not in self._names():
            return None, 0

        def read() -> tuple[Table, int]:
            with reading(self.path):
                dataset = open_table(self.path, name)
                table = arrow.unsummed(dataset.to_table())
                arrow.require_small(table, name, self.path)
                return table, int(dataset.version)

        return self.with_retry(read)

    def small_version(self, name: str) -> int:
        """The number of a small table's version; 0 without such a table."""
        if name not in self._names():
            return 0

        def read() -> int:
            with reading(self.path):
                return int(open_table(self.path, name).version)

        return self.with_retry(read)

    def replace_small(self, name: str, table: Table, *, version: int | None = None) -> int | None:
        """Replace a small table, if it is still at a version; returns that of the new one.

        None where another writer was quicker, who may have written anything: nothing is replaced.
        """
        new = with_checksums(name, table)
        made: int | None = None

        def commit() -> None:
            nonlocal made
            if name not in self._names():
                place, mode = table_path(self.path, name), "create"
            else:
                # At the version that was looked at: a conflict, if it was replaced since. To Lance
                # a merge is none, so a table that is replaced by version is never merged into.
                place, mode = open_table(self.path, name), "overwrite"
                if version is not None and place.version != version:
                    return
            made = int(write_lance(new, place, mode).version)

        self._committed(commit)
        return made

    def put_small(self, name: str, table: Table, *, merge: bool = False) -> None:
        """Replace a small table, or only those of its rows whose key the new ones have."""
        if not merge:
            self.replace_small(name, table)
            return
        where = table_path(self.path, name)
        new = with_checksums(name, table)

        def commit() -> None:
            if name not in self._names():
                write_lance(new, where, "create")
            else:
                old = lance.dataset(where)
                if arrow.CHECKSUM not in old.schema.names:
                    old = write_lance(arrow.summed(old.to_table()), where, "overwrite")
                builder = old.merge_insert(KEYS[name])
                builder.when_matched_update_all().when_not_matched_insert_all().execute(new)

        self._committed(commit)

    def forget_small(self, name: str, column: str, values: Sequence[str]) -> None:
        """Delete rows of a small table."""
        if not values or name not in self._names():
            return

        def commit() -> None:
            dataset = open_table(self.path, name)
            for some in in_chunks(values):
                dataset.delete(is_one_of(column, some))

        self._committed(commit)

    def collection(self) -> Collection:
        """View all segments, their vectors mapped where that is possible; without biases."""
        light = self.table(list(arrow.LIGHT), with_row_address=True)
        address = light.column("_rowaddr").to_numpy().astype(np.uint64)
        voting = light.column("voting_frames").to_numpy()
        per_frame, width = self.settings.tokens_per_frame, self.settings.width
        frames = np.arange(self.settings.frames)[None] < voting[:, None]
        columns = {
            name: self._column(name, address, width)
            for name in ("video", "frames", "patches")
            if name != "patches" or per_frame
        }
        none = Column.of(np.zeros((len(light), 0, width), dtype=np.float16))
        return Collection(
            segments=Segments(light),
            video=columns["video"],
            frames=columns["frames"],
            patches=columns.get("patches", none),
            frame_mask=frames,
            patch_mask=np.repeat(frames, per_frame, axis=1),
            addresses=address,
        )

    def _column(self, name: str, address: Array, width: int) -> Column:
        with reading(self.path):
            where = (self._segments, self._fragments_seen(), table_path(self.path), name, width)
            if self.is_remote:
                return Column.at(remote_arrays(*where, self._vectors), address, width)
            mapped = local_arrays(*where)
            if mapped is not None:
                return Column.at(mapped, address, width)
            flat = arrow.matrix(self.table([name]), name, np.dtype(np.float16))
            return Column.of(flat.reshape(len(address), -1, width))

    def _fragments_seen(self) -> Sequence[Any]:
        return self._segments.get_fragments()  # type: ignore[no-any-return]

    def table(self, columns: Sequence[str], *, with_row_address: bool = False) -> Table:
        """Read some columns of all segments, in their order."""
        with reading(self.path):
            return self._segments.to_table(
                columns=list(columns), with_row_address=with_row_address, scan_in_order=True
            )

    def _names(self) -> list[str]:
        names = (SEGMENTS, "failed", "bank", "bias")
        return [name for name in names if has_table(self.path, name)]
