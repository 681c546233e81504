"""What an index holds, in numbers."""

from typing import Any

from ucofia.index import pending
from ucofia.index.calibration import bank as banks
from ucofia.index.failures import known_failures
from ucofia.index.storage.location import size_bytes
from ucofia.index.storage.store import Store


def facts(store: Store) -> dict[str, Any]:
    """Count what an index holds and how it lies on its disk, as plain JSON values."""
    failures = known_failures(store)
    infos, bank, settings = store.infos(), banks.read(store), store.settings
    lengths = {segment.path: segment.duration_seconds for segment in infos}
    return {
        "index": store.path,
        "model": settings.model,
        "fingerprint": settings.fingerprint,
        "videos": len(lengths),
        "segments": len(infos),
        "seconds_of_video": round(sum(lengths.values()), 1),
        "failed_files": len(failures),
        "failures": {path: failure.reason for path, failure in sorted(failures.items())},
        "segment": settings.segment,
        "bank_texts": len(bank.texts) if bank else 0,
        "balancing_is_due": bank.is_due(len(infos)) if bank else False,
        "format": settings.format,
        "version": store.version,
        "fragments": store.fragments(),
        **pending.facts(store),
        "size_bytes": size_bytes(store.path),
    }
