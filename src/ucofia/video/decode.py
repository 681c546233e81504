"""Decode frames of a video file: exactly those that are on the screen at given moments.

A file is first read without decoding, which gives an index of its packets; then only the packets
that lead to the wanted frames pass through the decoder (`demux`, `seek_plan`). Where index and
decoder disagree the whole file is decoded in order, which defines the right frames.

Meant to run in a worker process (`decode_pool`): it cannot protect itself from a decoder that
hangs or crashes. Knows nothing of crops or models.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from ucofia.errors import BrokenVideoError, VideoLimitError
from ucofia.video import demux
from ucofia.video.demux import PacketIndexError
from ucofia.video.limits import Limits, require_file
from ucofia.video.seek_plan import PacketIndex, Timeline, shown, timeline

Picture = UInt8[np.ndarray, "*picture"]
Choose = Callable[[Timeline], Sequence[int]]
Keep = Callable[[UInt8[np.ndarray, "h x 3"]], Picture]

# Above this the packets are read from the file again instead of being kept.
_HELD_BYTES = 128 << 20


@dataclass(frozen=True)
class VideoInfo:
    """What a file turned out to contain; sizes are those on the screen, after rotation."""

    duration_seconds: float
    frames: int
    frames_per_second: float
    width: int
    height: int
    codec: str
    container: str


@dataclass(frozen=True)
class DecodedFrames:
    """Frames in the order they were asked for, each with the second at which it appears."""

    info: VideoInfo
    seconds: tuple[float, ...]
    frames: tuple[Picture, ...]
    warnings: tuple[str, ...]


def frames_at(path: Path | str, seconds: Sequence[float]) -> DecodedFrames:
    """Decode the frames on the screen at some seconds, counted from the first frame."""
    return decode(path, lambda times: [times.at(second) for second in seconds])


def decode(
    path: Path | str,
    choose: Choose,
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> DecodedFrames:
    """Decode the frames that `choose` picks, by their number, from the moments of all frames."""
    with contextlib.closing(OpenVideo(path, limits=limits)) as video:
        return video.frames(choose)


class OpenVideo:
    """A file whose packets were read once; frames of it can be asked for again and again.

    Meant for long videos that are decoded part after part: what is asked for in the order of its
    time is read once more altogether, not once for every part.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        limits: Limits,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = Path(path)
        require_file(self.path)
        self._file = contextlib.ExitStack()
        stream = self._file.enter_context(demux.open_stream(self.path, limits))
        self._reader = _FileReader(self.path, stream, limits, heartbeat)
        try:
            with demux.as_video_errors(self.path):
                self._index, kept = self._reader.index()
        except BaseException:
            self._file.close()
            raise
        complete = kept if len(kept) == len(self._index.pts) else None
        self._packets = demux.PacketReader(self.path, limits, complete)
        self._is_reliable = demux.is_reliable(self._index, stream)

    def frames(
        self,
        choose: Choose,
        *,
        keep: Keep = lambda frame: frame,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> DecodedFrames:
        """Decode the frames that `choose` picks, by their number, from the moments of all frames.

        `keep` turns a frame into what is returned for it, so that large frames need not pile up.
        `heartbeat` is called between packets. When the index proves wrong, `choose` is asked
        again.
        """
        reader = self._reader
        reader.choose, reader.keep, reader.heartbeat = choose, keep, heartbeat
        with demux.as_video_errors(self.path):
            if self._is_reliable:
                try:
                    return reader.by_index(self._index, self._packets)
                except PacketIndexError:
                    self._is_reliable = False
                    self._packets.close()
            return reader.in_order(self._index)

    def close(self) -> None:
        """Close the file."""
        self._reader.rewind()
        self._packets.close()
        self._file.close()


@dataclass
class _FileReader:
    """One open file; remembers the size of the frames it decoded, and their moments."""

    path: Path
    stream: Any
    limits: Limits
    heartbeat: Callable[[], None]
    choose: Choose = lambda times: []
    keep: Keep = lambda frame: frame
    size: tuple[int, int] = (0, 0)
    in_order_times: tuple[Timeline, int] | None = None  # and how many packets were damaged
    running: Generator[Any, None, None] | None = (
        None  # frames in their order, and how many were taken
    )
    taken: int = 0

    def index(self) -> tuple[PacketIndex, list[Any]]:
        """Read all packets without decoding; those of a file of ordinary size are kept."""
        rows, held, held_bytes, last_duration = [], [], 0, 0
        for packet in demux.demux_packets(self.stream):
            self.heartbeat()
            rows.append((packet.pts, packet.is_keyframe, packet.is_discard))
            held_bytes += packet.size
            if held_bytes <= _HELD_BYTES:
                held.append(packet)
            if not packet.is_discard:
                last_duration = packet.duration or 0
        if not rows:
            raise BrokenVideoError(self.path, "it announces pictures but contains none")
        pts, is_keyframe, is_discarded = zip(*rows, strict=True)
        return PacketIndex(pts, is_keyframe, is_discarded, last_duration), held

    def by_index(self, index: PacketIndex, packets: demux.PacketReader) -> DecodedFrames:
        """Decode only what is needed, trusting the index until it proves wrong."""
        ticks = shown(index)
        times = self._timeline(ticks, index.last_duration)
        numbers = self._chosen(times)
        wanted = {ticks[number]: number for number in numbers}
        found = demux.decode_wanted(packets, index, wanted.keys(), self.heartbeat)
        pictures = {wanted[frame.pts]: self._picture(frame) for frame in found}
        return self._result(times, numbers, pictures, failures=0)

    def in_order(self, index: PacketIndex) -> DecodedFrames:
        """Decode everything twice: once for the moments, once for the pictures."""
        if self.in_order_times is None:
            self.in_order_times = self._decoded_times(index)
        times, failures = self.in_order_times
        numbers = self._chosen(times)
        return self._result(times, numbers, self._pictures(numbers), failures)

    def _decoded_times(self, index: PacketIndex) -> tuple[Timeline, int]:
        ticks, failures, last_duration = [], 0, 0
        for frame in demux.decode_all(self.path, self.limits, self.heartbeat):
            if frame is None:
                failures += 1
                continue
            ticks.append(frame.pts)
            last_duration = frame.duration or 0
        if not ticks:
            is_sized = bool(self.stream.codec_context.width)
            why = (
                "" if is_sized else "; they are damaged, or larger than the limit (Limits.pixels)"
            )
            raise BrokenVideoError(self.path, f"none of its frames can be decoded{why}")
        if None in index.pts or None in ticks:
            step = 1 / (demux.frame_rate(self.stream) * demux.tick_seconds(self.stream))
            ticks, last_duration = [round(i * step) for i in range(len(ticks))], round(step)
        # The order in which frames leave the decoder is the order in which they are shown. A
        # container that has their moments in another order has them wrongly dealt, not wrong.
        return self._timeline(sorted(ticks), last_duration), failures

    def _pictures(self, numbers: Sequence[int]) -> dict[int, Picture]:
        """Decode on from where the part before ended, or from the beginning to go back."""
        wanted, last, pictures = set(numbers), max(numbers), {}
        if self.running is None or min(numbers) < self.taken:
            self.rewind()
            self.running = demux.decode_all(self.path, self.limits, lambda: self.heartbeat())
        for frame in self.running:
            if frame is None:
                continue
            if self.taken in wanted:
                pictures[self.taken] = self._picture(frame)
            self.taken += 1
            if self.taken > last:
                break
        return pictures

    def rewind(self) -> None:
        """Close the file that is decoded in order, if one is."""
        if self.running is not None:
            self.running.close()
        self.running, self.taken = None, 0

    def _timeline(self, ticks: Sequence[int], last_duration: int) -> Timeline:
        times = timeline(
            ticks,
            tick_seconds=float(demux.tick_seconds(self.stream)),
            last_duration=last_duration,
            frames_per_second=float(demux.frame_rate(self.stream)),
        )
        if times.duration_seconds > self.limits.duration_seconds:
            raise VideoLimitError(
                self.path,
                f"it is {times.duration_seconds:.0f} s long, more than the limit of "
                f"{self.limits.duration_seconds:.0f} s (Limits.duration_seconds)",
            )
        return times

    def _chosen(self, times: Timeline) -> Sequence[int]:
        numbers = self.choose(times)
        if not numbers:
            raise BrokenVideoError(
                self.path,
                f"none of its {len(times.seconds)} frames ({times.duration_seconds:.1f} s) lies "
                f"in the stretch that was asked for; check its start and end",
            )
        if len(numbers) > self.limits.frames:
            raise VideoLimitError(
                self.path,
                f"{len(numbers)} of its frames are asked for, more than the limit of "
                f"{self.limits.frames} (Limits.frames)",
            )
        return numbers

    def _picture(self, frame: Any) -> Picture:
        demux.require_pixels(self.path, frame.width, frame.height, self.limits)
        picture = demux.to_upright_rgb(frame)
        self.size = picture.shape[:2]
        return self.keep(picture)

    def _result(
        self,
        times: Timeline,
        numbers: Sequence[int],
        pictures: Mapping[int, Picture],
        failures: int,
    ) -> DecodedFrames:
        codec, container = demux.names(self.stream)
        height, width = self.size
        info = VideoInfo(
            duration_seconds=times.duration_seconds,
            frames=len(times.seconds),
            frames_per_second=times.frames_per_second,
            width=width,
            height=height,
            codec=codec,
            container=container,
        )
        return DecodedFrames(
            info=info,
            seconds=tuple(float(times.seconds[number]) for number in numbers),
            frames=tuple(pictures[number] for number in numbers),
            warnings=tuple(_warnings(demux.container_seconds(self.stream), times, failures)),
        )


def _warnings(container_seconds: float, times: Timeline, failures: int) -> Iterator[str]:
    if container_seconds > times.duration_seconds * 1.05 + 0.5:
        yield (
            f"the file says it is {container_seconds:.1f} s long, but its pictures end after "
            f"{times.duration_seconds:.1f} s"
        )
    if failures:
        yield f"{failures} damaged packets were skipped"
