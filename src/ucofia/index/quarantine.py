"""Quarantine: files that could not be indexed, and which of them are worth another try.

A file whose bytes are wrong stays wrong until it changes. Whether it may be read, how much it may
cost and whether the machine is busy can change without it. Knows nothing of decoding.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import pyarrow as pa

from ucofia.errors import DecoderDiedError, UnreadableVideoError, VideoError, VideoLimitError
from ucofia.index.discover import FoundFile
from ucofia.index.storage.schema import FileIdentity
from ucofia.index.storage.store import Store

_TABLE = "failed"
_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("mtime_ns", pa.int64(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
_CHEAP_TO_RETRY = frozenset({UnreadableVideoError.__name__})  # without decoding
_TRANSIENT = _CHEAP_TO_RETRY | {VideoLimitError.__name__, DecoderDiedError.__name__}


@dataclass(frozen=True)
class Failure:
    """A file that could not be used."""

    path: str
    reason: str
    is_known: bool = False  # it failed before and has not changed since: it was not tried again


@dataclass(frozen=True)
class KnownFailure:
    """A file that failed before, with the size and time it had then."""

    path: str
    size_bytes: int
    mtime_ns: int
    error: str  # the name of its class
    reason: str

    @classmethod
    def of(cls, file: FoundFile | FileIdentity, error: VideoError) -> "KnownFailure":
        """Remember a file with what was wrong with it."""
        kind = type(error).__name__
        return cls(file.path, file.size_bytes, file.mtime_ns, kind, error.reason)

    def still_holds(self, file: FoundFile, *, retry: bool) -> bool:
        """Return whether to skip the file: unchanged, and its failure is not tried again."""
        is_same = (self.size_bytes, self.mtime_ns) == (file.size_bytes, file.mtime_ns)
        return is_same and self.error not in (_TRANSIENT if retry else _CHEAP_TO_RETRY)


def known_failures(store: Store) -> dict[str, KnownFailure]:
    """List the files that failed before, by path."""
    table = store.small(_TABLE)
    # Earlier versions did not say what kind of failure it was; their files get another try.
    if table is None or table.schema.names != _SCHEMA.names:
        return {}
    return {row["path"]: KnownFailure(**row) for row in table.to_pylist()}


def remember(store: Store, failures: Iterable[KnownFailure]) -> None:
    """Add files to those that failed, or update their reasons."""
    old = store.small(_TABLE)
    has_kinds = old is None or old.schema.names == _SCHEMA.names
    table = pa.Table.from_pylist([asdict(failure) for failure in failures], schema=_SCHEMA)
    store.put_small(_TABLE, table, merge=has_kinds)


def forget(store: Store, paths: Iterable[str]) -> None:
    """Remove files that can be used now, or are gone."""
    store.forget_small(_TABLE, "path", sorted(paths))
