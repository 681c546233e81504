"""Packets and frames of one video file: the only file that knows PyAV.

Opens a file without letting it reach any other file or network, reads its packets, decodes all of
them or only the runs that lead to wanted frames, and turns frames upright. Nothing is ever sought
by timestamp: that is where other readers go wrong. Which frames are wanted, and what to do when
the packet index proves wrong (`PacketIndexError`), is decided by `decode`.
"""

import itertools
import math
import os
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.stream import Discard, Disposition
from av.video.reformatter import VideoReformatter
from jaxtyping import UInt8

from ucofia.errors import NotAVideoError, VideoLimitError
from ucofia.video.limits import Limits, opened_within
from ucofia.video.seek_plan import PacketIndex, is_consistent, packet_runs

# Formats that contain their own pictures; playlists, image patterns and capture devices do not.
_FORMATS = (
    "3dostr,amv,apng,asf,av1,avi,dirac,dv,flv,gif,gxf,h261,h263,h264,hevc,ivf,m4v,matroska,webm,"
    "mov,mp4,m4a,3gp,3g2,mj2,mjpeg,mpeg,mpegts,mpegvideo,mxf,nut,obu,ogg,rm,swf,vc1,wtv,"
    "yuv4mpegpipe"
)
# One packet is one frame, and packets carry the moment their frame is shown. Other codecs hide
# frames, pack two into a packet or leave gaps; their files are small and are decoded in order.
_ONE_FRAME_PER_PACKET = frozenset(
    "apng av1 ffv1 gif h264 hevc libdav1d mjpeg mpeg2video png prores qtrle rawvideo vp9".split()
)
# Codecs that mark frames no other frame leans on, so that unwanted ones need no decoding. HEVC's
# mark is weaker (frames of a higher temporal layer may lean on a marked one) and is not used.
_MARKS_UNREFERENCED = frozenset({"h264", "mpeg2video"})
# Packets of a large file that are kept in case the next frames begin among them.
WINDOW_BYTES = 64 << 20
_READ_ATTEMPTS = 20  # errors after which the rest of a file is given up


class PacketIndexError(Exception):
    """The packet index disagrees with what the decoder gave."""


@contextmanager
def open_stream(path: Path, limits: Limits) -> Iterator[Any]:
    """Open a file and yield its stream of moving pictures, ready to be decoded."""
    # "file:" keeps a name like http:x or concat:x from being read as an address.
    name = f"file:{os.path.abspath(path)}"
    options = {"protocol_whitelist": "file", "format_whitelist": _FORMATS}
    with (
        opened_within(path, limits.folders) as file,
        as_video_errors(path),
        av.open(file or name, options=options, metadata_errors="replace") as container,
    ):
        stream = _video_stream(path, container)
        context = stream.codec_context
        require_pixels(path, context.width, context.height, limits)
        context.options = {"max_pixels": str(limits.pixels)}
        # One thread: work is parallel over files, and threads delay frames and errors.
        context.thread_type = "NONE"
        context.thread_count = 1
        for other in container.streams:
            if other.index != stream.index:
                other.discard = Discard.all
        yield stream


@contextmanager
def as_video_errors(path: Path) -> Iterator[None]:
    """Turn what the decoder raises about a file into our errors."""
    try:
        yield
    except MemoryError as error:
        reason = "it needs more memory than the limit (Limits.memory_bytes)"
        raise VideoLimitError(path, reason) from error
    except av.FFmpegError as error:
        with path.open("rb") as file:
            is_mp4 = file.read(8)[4:] == b"ftyp"
        hint = "; it begins like an mp4 file, so it may be cut off" if is_mp4 else ""
        reason = f"it is not a video the decoder can read ({error.strerror or error}){hint}"
        raise NotAVideoError(path, reason) from error


class PacketReader:
    """The packets of a file by their position: as often as wanted, and cheaply if forward.

    Packets that were kept from a first reading are all there. Of a larger file only those since
    the last keyframe are; to go back further it is read again from its beginning.
    """

    def __init__(self, path: Path, limits: Limits, kept: Sequence[Any] | None) -> None:
        self._path, self._limits, self._kept = path, limits, kept
        self._file = ExitStack()
        self._packets: Iterator[Any] | None = None
        self._window: list[Any] = []
        self._window_start = self._window_bytes = 0

    def close(self) -> None:
        """Release all packets, and the file if it was opened again."""
        self._kept, self._packets = None, None
        self._file.close()

    def start_at(self, first: int) -> Iterator[tuple[int, Any]]:
        """Yield packets with their positions, from a position on."""
        if self._kept is not None:
            yield from itertools.islice(enumerate(self._kept), first, None)
            return
        if self._packets is None or first < self._window_start:
            self._rewind()
        assert self._packets is not None
        for position, packet in enumerate(list(self._window), self._window_start):
            if position >= first:
                yield position, packet
        for packet in self._packets:
            position = self._remember(packet)
            if position >= first:
                yield position, packet

    def _rewind(self) -> None:
        self._file.close()
        self._packets = demux_packets(
            self._file.enter_context(open_stream(self._path, self._limits))
        )
        self._forget(0)

    def _remember(self, packet: Any) -> int:
        position = self._window_start + len(self._window)
        if packet.is_keyframe:
            self._forget(position)
        self._window.append(packet)
        self._window_bytes += packet.size
        if self._window_bytes > WINDOW_BYTES:
            self._forget(position + 1)
        return position

    def _forget(self, start: int) -> None:
        self._window, self._window_start, self._window_bytes = [], start, 0


def demux_packets(stream: Any) -> Iterator[Any]:
    """Yield the packets of a stream; an error in between costs what is damaged, not the rest."""
    attempts = 0
    while attempts < _READ_ATTEMPTS:
        try:
            # Empty packets would tell the decoder that the video ends.
            yield from (packet for packet in stream.container.demux(stream) if packet.size)
            return
        except av.FFmpegError:
            attempts += 1
        except IndexError:
            # A packet of a stream that begins later than the others: not ours, and consumed.
            continue


def decode_wanted(
    packets: PacketReader,
    index: PacketIndex,
    wanted: Collection[int],
    heartbeat: Callable[[], None],
) -> Iterator[Any]:
    """Decode the runs of packets that lead to the wanted ticks, and yield those frames."""
    missing = set(wanted)
    runs = iter(packet_runs(index, wanted))
    first, last = next(runs)
    for position, packet in packets.start_at(first):
        if position < first:
            continue
        heartbeat()
        if position == first:
            opening, newest = packet.pts, -math.inf
        # Frames in front of the opening keyframe lean on what was not decoded.
        is_leading = packet.pts < opening
        for frame in _decoded(packet, packet.pts in wanted, position == last, is_leading):
            if frame.pts <= newest:
                raise PacketIndexError
            newest = frame.pts
            if frame.pts in missing:
                if frame.is_corrupt:
                    raise PacketIndexError
                missing.discard(frame.pts)
                yield frame
        if position == last:
            first, last = next(runs, (-1, -1))
            if last < 0:
                break
    if missing:
        raise PacketIndexError


def decode_all(
    path: Path, limits: Limits, heartbeat: Callable[[], None]
) -> Generator[Any | None, None, None]:
    """Decode a file from its first packet to its last; None stands for a packet that failed."""
    with open_stream(path, limits) as stream:
        for packet in itertools.chain(demux_packets(stream), [None]):
            heartbeat()
            try:
                yield from stream.codec_context.decode(packet)
            except av.FFmpegError:
                yield None


def is_reliable(index: PacketIndex, stream: Any) -> bool:
    """Return whether the index can be trusted before anything is decoded."""
    context = stream.codec_context
    if context.name not in _ONE_FRAME_PER_PACKET or not is_consistent(index):
        return False
    # Frames are reordered although the packets claim they are not: the moments of decoding were
    # taken for those of showing. AVI has no others.
    ticks = index.pts
    in_order = all(a < b for a, b in itertools.pairwise(ticks))  # type: ignore[operator]
    return not (context.has_b_frames and (in_order or stream.container.format.name == "avi"))


def to_upright_rgb(frame: Any) -> UInt8[np.ndarray, "h x 3"]:
    """Convert to RGB and apply the display matrix: rotation by quarters, mirroring."""
    picture: UInt8[np.ndarray, "h x 3"]
    picture = _RGB.reformat(frame, format="rgb24", threads=1).to_ndarray()
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return picture
    x_by_x, y_by_x, _, x_by_y, y_by_y = np.frombuffer(matrix, dtype=np.int32)[:5].tolist()
    is_quarter = abs(x_by_y) + abs(y_by_x) > abs(x_by_x) + abs(y_by_y)
    if is_quarter:
        picture = picture.transpose(1, 0, 2)
    x_sign, y_sign = (x_by_y, y_by_x) if is_quarter else (x_by_x, y_by_y)
    return np.ascontiguousarray(picture[:: -1 if y_sign < 0 else 1, :: -1 if x_sign < 0 else 1])


def require_pixels(path: Path, width: int, height: int, limits: Limits) -> None:
    """Refuse frames that are larger than allowed."""
    if width * height > limits.pixels:
        raise VideoLimitError(
            path,
            f"its frames have {width} x {height} pixels, more than the limit of "
            f"{limits.pixels} (Limits.pixels)",
        )


def frame_rate(stream: Any) -> Fraction:
    """Return the frame rate that the container claims; 25 where it claims none."""
    rates = (stream.guessed_rate, stream.average_rate, stream.base_rate)
    return next((Fraction(rate) for rate in rates if rate and rate > 0), Fraction(25))


def tick_seconds(stream: Any) -> Fraction:
    """Return the stream's time base in seconds."""
    return Fraction(stream.time_base)


def container_seconds(stream: Any) -> float:
    """Return the duration that the container claims; 0 where it claims none."""
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return float((stream.container.duration or 0) / av.time_base)


# Kept, because setting up a conversion costs more than converting a small frame.
_RGB = VideoReformatter()


def _video_stream(path: Path, container: Any) -> Any:
    cover = Disposition.attached_pic | Disposition.timed_thumbnails
    streams = [s for s in container.streams.video if not s.disposition & cover]
    if not streams:
        kinds = ", ".join(sorted({s.type for s in container.streams})) or "an empty container"
        raise NotAVideoError(path, f"it has no moving pictures, only {kinds}")
    best = container.streams.best("video")
    stream = next((s for s in streams if best is not None and s.index == best.index), streams[0])
    if stream.codec_context is None:
        raise NotAVideoError(path, "its pictures are coded in a way the decoder does not know")
    return stream


def _decoded(packet: Any, is_wanted: bool, is_last: bool, is_leading: bool) -> list[Any]:
    context = packet.stream.codec_context
    if context.name in _MARKS_UNREFERENCED:
        context.skip_frame = "DEFAULT" if is_wanted else "NONREF"
    frames = []
    try:
        frames += context.decode(packet)
        if is_last:
            frames += context.decode(None)
            context.flush_buffers()
    except av.FFmpegError as error:
        if not is_leading:
            raise PacketIndexError from error
    return frames
