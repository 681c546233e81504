"""What an index holds, in numbers; without torch, so that `ucofia info` answers at once."""

from dataclasses import dataclass
from typing import Any

from ucofia.index import journal
from ucofia.index.calibration import bank as banks
from ucofia.index.quarantine import known_failures
from ucofia.index.storage.location import size_bytes
from ucofia.index.storage.store import Store
from ucofia.video.sample import Segment


@dataclass(frozen=True)
class IndexInfo:
    """What an index holds and how it lies on its disk; `to_dict()` gives plain JSON values."""

    index: str  # where it is
    id: str  # random, made with it; empty for the first indexes
    model: str
    fingerprint: str  # of the model
    videos: int
    segments: int
    seconds_of_video: float
    failed_files: int
    failures: dict[str, str]  # path: reason
    segment: Segment  # how videos are cut: "auto", "whole" or seconds
    bank_texts: int
    has_confidence: bool  # whether hits have one: a bank of texts enough was applied
    balancing_is_due: bool  # many segments came or went: run `compact`
    format: int
    version: int
    fragments: int
    pending_parts: int | None  # of runs on a cluster, done but not committed; None: unknown
    pending_files: int | None
    size_bytes: int | None  # None where it is not local

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dict(vars(self))


def info(store: Store) -> IndexInfo:
    """Count what an index holds."""
    failures = known_failures(store)
    segments, bank, settings = store.infos(), banks.read(store), store.settings
    lengths = {segment.path: segment.duration_seconds for segment in segments}
    return IndexInfo(
        index=store.path,
        id=settings.id,
        model=settings.model,
        fingerprint=settings.fingerprint,
        videos=len(lengths),
        segments=len(segments),
        seconds_of_video=round(sum(lengths.values()), 1),
        failed_files=len(failures),
        failures={path: failure.reason for path, failure in sorted(failures.items())},
        segment=settings.segment,
        bank_texts=len(bank.texts) if bank else 0,
        has_confidence=banks.has_confidence(store, bank, (segment.id for segment in segments)),
        balancing_is_due=bank.is_due(len(segments)) if bank else False,
        format=settings.format,
        version=store.version,
        fragments=store.fragments(),
        **journal.pending_counts(store),
        size_bytes=size_bytes(store.path),
    )
