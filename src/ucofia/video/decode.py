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
from ucofia.video.seek_plan import PacketIndex, Timeline, timeline, visible_ticks

Picture = UInt8[np.ndarray, "*picture"]
Choose = Callable[[Timeline], Sequence[int]]
Keep = Callable[[UInt8[np.ndarray, "h x 3"]], Picture]
_Kept = tuple[Picture, tuple[int, int]]  # and its size before

# Above this the packets are read from the file again instead of being kept.
_HELD_BYTES = 128 << 20


@dataclass(frozen=True)
class DecodedFrames:
    """Frames in the order they were asked for, each with the second at which it appears."""

    times: Timeline  # of all frames of the file
    seconds: tuple[float, ...]
    frames: tuple[Picture, ...]
    sizes: tuple[tuple[int, int], ...]  # height and width of each frame before `keep`
    warnings: tuple[str, ...]


def frames_at(
    path: Path | str,
    seconds: Sequence[float],
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> DecodedFrames:
    """Decode frames of one trusted file in this process, at full size.

    Args:
        path: The file.
        seconds: Moments, counted from the first frame; each gives the frame on the screen then.
        limits: What the file may cost; memory and time are not limited here.

    Raises:
        VideoError: The file cannot be decoded, or exceeds a limit.
    """
    with contextlib.closing(OpenVideo(path, limits=limits)) as video:
        return video.frames(lambda times: [times.at(second) for second in seconds])


class OpenVideo:
    """An open file whose packets were read once; frames can be asked for repeatedly.

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
        self.path, self._limits, self._heartbeat = Path(path), limits, heartbeat
        require_file(self.path)
        self._file = contextlib.ExitStack()
        self._stream = self._file.enter_context(demux.open_stream(self.path, limits))
        try:
            with demux.as_video_errors(self.path):
                self._index, kept = self._read_index()
        except BaseException:
            self._file.close()
            raise
        complete = kept if len(kept) == len(self._index.pts) else None
        self._packets = demux.PacketReader(self.path, limits, complete)
        self._is_reliable = demux.is_reliable(self._index, self._stream)
        # When the file is decoded in order: its moments and how many packets were damaged, the
        # frames that are still to come, and how many came.
        self._decoded: tuple[Timeline, int] | None = None
        self._running: Generator[Any, None, None] | None = None
        self._taken = 0

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
        self._heartbeat = heartbeat
        with demux.as_video_errors(self.path):
            if self._is_reliable:
                try:
                    return self._by_index(choose, keep)
                except PacketIndexError:
                    self._is_reliable = False
                    self._packets.close()
            return self._in_order(choose, keep)

    def close(self) -> None:
        """Close the file."""
        self._rewind()
        self._packets.close()
        self._file.close()

    def _read_index(self) -> tuple[PacketIndex, list[Any]]:
        """Read all packets without decoding; those of a file of ordinary size are kept."""
        rows, held, held_bytes, last_duration = [], [], 0, 0
        for packet in demux.demux_packets(self._stream):
            self._heartbeat()
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

    def _by_index(self, choose: Choose, keep: Keep) -> DecodedFrames:
        """Decode only the packets that are needed; an inconsistent index is an error."""
        ticks = visible_ticks(self._index)
        times = self._timeline(ticks, self._index.last_duration)
        numbers = self._chosen(times, choose)
        wanted = {ticks[number]: number for number in numbers}
        found = demux.decode_wanted(self._packets, self._index, wanted.keys(), self._heartbeat)
        pictures = {wanted[frame.pts]: self._picture(frame, keep) for frame in found}
        return self._result(times, numbers, pictures, failures=0)

    def _in_order(self, choose: Choose, keep: Keep) -> DecodedFrames:
        """Decode everything twice: once for the moments, once for the pictures."""
        if self._decoded is None:
            self._decoded = self._decoded_times()
        times, failures = self._decoded
        numbers = self._chosen(times, choose)
        return self._result(times, numbers, self._pictures(numbers, keep), failures)

    def _decoded_times(self) -> tuple[Timeline, int]:
        ticks, failures, last_duration = [], 0, 0
        for frame in demux.decode_all(self.path, self._limits, self._heartbeat):
            if frame is None:
                failures += 1
                continue
            ticks.append(frame.pts)
            last_duration = frame.duration or 0
        if not ticks:
            is_sized = bool(self._stream.codec_context.width)
            why = (
                "" if is_sized else "; they are damaged, or larger than the limit (Limits.pixels)"
            )
            raise BrokenVideoError(self.path, f"none of its frames can be decoded{why}")
        if None in self._index.pts or None in ticks:
            step = 1 / (demux.frame_rate(self._stream) * demux.tick_seconds(self._stream))
            ticks, last_duration = [round(i * step) for i in range(len(ticks))], round(step)
        # The order in which frames leave the decoder is the order in which they are shown. A
        # container that has their moments in another order has them wrongly dealt, not wrong.
        return self._timeline(sorted(ticks), last_duration), failures

    def _pictures(self, numbers: Sequence[int], keep: Keep) -> dict[int, _Kept]:
        """Decode on from where the part before ended, or from the beginning to go back."""
        wanted, last, pictures = set(numbers), max(numbers), {}
        if self._running is None or min(numbers) < self._taken:
            self._rewind()
            self._running = demux.decode_all(self.path, self._limits, lambda: self._heartbeat())
        for frame in self._running:
            if frame is None:
                continue
            if self._taken in wanted:
                pictures[self._taken] = self._picture(frame, keep)
            self._taken += 1
            if self._taken > last:
                break
        return pictures

    def _rewind(self) -> None:
        """Close the file that is decoded in order, if one is."""
        if self._running is not None:
            self._running.close()
        self._running, self._taken = None, 0

    def _timeline(self, ticks: Sequence[int], last_duration: int) -> Timeline:
        times = timeline(
            ticks,
            tick_seconds=float(demux.tick_seconds(self._stream)),
            last_duration=last_duration,
            frames_per_second=float(demux.frame_rate(self._stream)),
        )
        if times.duration_seconds > self._limits.duration_seconds:
            raise VideoLimitError(
                self.path,
                f"it is {times.duration_seconds:.0f} s long, more than the limit of "
                f"{self._limits.duration_seconds:.0f} s (Limits.duration_seconds)",
            )
        return times

    def _chosen(self, times: Timeline, choose: Choose) -> Sequence[int]:
        numbers = choose(times)
        if not numbers:
            raise BrokenVideoError(
                self.path,
                f"none of its {len(times.seconds)} frames ({times.duration_seconds:.1f} s) lies "
                f"in the stretch that was asked for; check its start and end",
            )
        if len(numbers) > self._limits.frames:
            raise VideoLimitError(
                self.path,
                f"{len(numbers)} of its frames are asked for, more than the limit of "
                f"{self._limits.frames} (Limits.frames)",
            )
        return numbers

    def _picture(self, frame: Any, keep: Keep) -> _Kept:
        demux.require_pixels(self.path, frame.width, frame.height, self._limits)
        upright = demux.to_upright_rgb(frame)
        height, width = upright.shape[:2]
        return keep(upright), (height, width)

    def _result(
        self,
        times: Timeline,
        numbers: Sequence[int],
        pictures: Mapping[int, _Kept],
        failures: int,
    ) -> DecodedFrames:
        return DecodedFrames(
            times=times,
            seconds=tuple(float(times.seconds[number]) for number in numbers),
            frames=tuple(pictures[number][0] for number in numbers),
            sizes=tuple(pictures[number][1] for number in numbers),
            warnings=tuple(_warnings(demux.container_seconds(self._stream), times, failures)),
        )


def _warnings(container_seconds: float, times: Timeline, failures: int) -> Iterator[str]:
    if container_seconds > times.duration_seconds * 1.05 + 0.5:
        yield (
            f"the file says it is {container_seconds:.1f} s long, but its pictures end after "
            f"{times.duration_seconds:.1f} s"
        )
    if failures:
        yield f"{failures} damaged packets were skipped"
