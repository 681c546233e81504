"""The segments and videos of an index by id: requests name ids, never paths.

Only ids of the newest version that was read lead to a file. Built once per version, then only
read.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ucofia.errors import RefusedError
from ucofia.index.storage.schema import SegmentInfo

FOLDERS_LISTED = 100


@dataclass(frozen=True)
class Catalogue:
    """The segments and videos of one version of an index, by id."""

    version: int  # counts the versions this server has seen
    segments: Mapping[str, SegmentInfo]
    videos: Mapping[str, Sequence[SegmentInfo]]  # in their order in time
    contents: Mapping[str, Sequence[str]]  # content hash -> ids of the videos with this content
    newest: Sequence[str]  # ids, one per content, those written last first
    folders: Sequence[tuple[str, int]]  # with their number of videos, including those below
    years: Sequence[tuple[int, int]]  # in which files were written, with their number

    def video(self, name: str) -> Sequence[SegmentInfo]:
        """Find a video by its id or that of one of its segments."""
        if name in self.segments:
            name = video_id(self.segments[name])
        if name not in self.videos:
            raise RefusedError("not_found", f"there is no video {name!r} in this index")
        return self.videos[name]

    def segment(self, name: str) -> SegmentInfo:
        """Find a segment by its id, or the first one of a video by the video's."""
        if name in self.segments:
            return self.segments[name]
        return self.video(name)[0]

    def copies(self, info: SegmentInfo) -> list[SegmentInfo]:
        """List the same stretch in every file with the same content, the given one first."""
        others = [
            part
            for name in self.contents.get(info.content_hash, ())
            for part in self.videos[name]
            if part.number == info.number and part.path != info.path
        ]
        return [info, *others]


EMPTY = Catalogue(0, {}, {}, {}, (), (), ())


def catalogue(infos: Iterable[SegmentInfo], version: int) -> Catalogue:
    """List what an index holds."""
    segments: dict[str, SegmentInfo] = {}
    videos: dict[str, list[SegmentInfo]] = {}
    for info in infos:
        segments[info.id] = info
        videos.setdefault(video_id(info), []).append(info)
    for parts in videos.values():
        parts.sort(key=lambda info: info.number)
    newest = sorted(videos, key=lambda name: (-videos[name][0].mtime_ns, videos[name][0].path))
    contents: dict[str, list[str]] = {}
    for name in newest:
        contents.setdefault(videos[name][0].content_hash or name, []).append(name)
    return Catalogue(
        version,
        segments,
        videos,
        contents,
        newest=[names[0] for names in contents.values()],
        folders=_folders(parts[0].path for parts in videos.values()),
        years=_years(parts[0].mtime_ns for parts in videos.values()),
    )


def video_id(info: SegmentInfo) -> str:
    """Name a video; the same file at the same place gives the same name."""
    parts = ("video", info.path, info.content_hash)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def is_there(path: str) -> bool:
    """Return whether a file is still at its place; not checked for object stores."""
    return "://" in path or os.path.exists(path)


def _folders(paths: Iterable[str]) -> list[tuple[str, int]]:
    """The folders in which videos differ, largest first."""
    direct = Counter(os.path.dirname(path) for path in paths)
    if not direct:
        return []
    top = os.path.commonpath(list(direct))
    counts: Counter[str] = Counter()
    for folder, number in direct.items():
        while len(folder) > len(top):
            counts[folder] += number
            folder = os.path.dirname(folder)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:FOLDERS_LISTED]


def _years(times_ns: Iterable[int]) -> list[tuple[int, int]]:
    counts = Counter(datetime.fromtimestamp(time_ns / 1e9).year for time_ns in times_ns)
    return sorted(counts.items(), reverse=True)
