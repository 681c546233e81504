"""What may be chosen about a server, and the limits that protect it."""

from dataclasses import dataclass, field
from pathlib import Path

from ucofia.video.limits import Limits

# What one upload may cost its decoder: a query is a clip or a picture, not an archive.
UPLOAD_LIMITS = Limits(
    duration_seconds=4 * 3600.0,
    frames=64,
    memory_bytes=2 << 30,
    stall_seconds=10.0,
    seconds=30.0,
)


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """How a server behaves. The defaults suit one person on one machine."""

    token: str | None = None  # without it everybody who reaches the port may search
    hosts: tuple[str, ...] = ()  # names besides localhost under which browsers may come
    waiting: int = 32  # requests that may wait for the model before others are sent away
    upload_bytes: int = 256 << 20
    upload_seconds: float = 120.0  # from the first to the last byte of a body
    upload_limits: Limits = field(default=UPLOAD_LIMITS)
    index_folders: tuple[Path, ...] = ()  # POST /api/index may add what lies below these
