"""Read annotation files and find videos: the only part of the data sets that touches the disk.

Every reader gives plain lists, dicts and strings, or an error that names the file and the line.
"""

import csv
import io
import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucofia.errors import AnnotationError

ANNOTATED_SUFFIXES = frozenset(
    ".3g2 .3gp .avi .flv .gif .m2ts .m4v .mkv .mov .mp4 .mpeg .mpg .mts .ogv .ts .webm .wmv".split(
        " "
    )
)


def find_file(folder: Path, *names: str) -> Path:
    """Find the first of the named files, in the folder or in its subfolder `annotations`."""
    for name in names:
        for path in (folder / name, folder / "annotations" / name):
            if path.is_file():
                return path
    wanted = " or ".join(repr(name) for name in names)
    raise AnnotationError(str(folder), f"there is no file {wanted} here, nor in 'annotations'")


def has_file(folder: Path, name: str) -> bool:
    """Return whether `find_file` would find it."""
    return (folder / name).is_file() or (folder / "annotations" / name).is_file()


def read_text(path: Path) -> str:
    """Read a text file; a byte order mark is not part of it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise AnnotationError(
            str(path), f"byte {error.start} is not UTF-8", "save the file as UTF-8"
        ) from error
    except OSError as error:
        raise AnnotationError(str(path), f"it cannot be read ({error.strerror})") from error


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return parse_json(str(path), read_text(path))


def parse_json(where: str, text: str) -> Any:
    """Parse untrusted JSON; errors name the file and the line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = where if ", line " in where else f"{where}, line {error.lineno}"
        raise AnnotationError(at, f"this is not JSON ({error.msg})") from error
    except RecursionError as error:
        raise AnnotationError(where, "it is nested too deeply to be captions") from error
    except ValueError as error:  # a number of thousands of digits
        raise AnnotationError(where, f"this is not JSON ({error})") from error


def require_text(where: str, what: str, value: Any) -> str:
    """Check that a value is a text that can be stored and shown."""
    if not isinstance(value, str):
        raise AnnotationError(where, f"the {what} is {str(value)[:40]!r}, not a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise AnnotationError(where, f"the {what} holds half a character ({error})") from error
    if "\0" in value:
        raise AnnotationError(where, f"the {what} holds a zero byte")
    return value


def inside(where: str, folder: Path, name: str) -> Path:
    """Return a path below a folder; one that leads out of it is refused.

    Links are followed: the owner of the folder made them, not the writer of the captions.
    """
    normal = os.path.normpath(name)
    leads_out = os.path.isabs(normal) or os.path.splitdrive(normal)[0]
    if leads_out or normal.split(os.sep)[0] == os.pardir:
        raise AnnotationError(
            where, f"the path {name!r} leads out of {folder}", "name files below that folder"
        )
    return folder / normal


def read_list(path: Path) -> list[str]:
    """Read one entry per line; empty lines do not count."""
    lines = (line.strip() for line in read_text(path).splitlines())
    return [line for line in lines if line]


def read_table(path: Path, *, needs: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Read a CSV file with a header as (line number, row); `needs` are columns it must have."""
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    with _as_csv(path, reader):
        columns = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = columns
    for name in columns:
        if name and columns.count(name) > 1:
            raise AnnotationError(
                f"{path}, line 1", f"there are two columns {name!r}", "keep the one that is meant"
            )
    for name in needs:
        if name not in columns:
            raise AnnotationError(
                f"{path}, line 1", f"there is no column {name!r} among {', '.join(columns)}"
            )
    with _as_csv(path, reader):
        found = [(reader.line_num, row) for row in reader]
    for number, row in found:
        if None in row or None in row.values():
            raise AnnotationError(
                f"{path}, line {number}",
                f"this row has another number of fields than the header ({len(columns)})",
                "put fields that contain a comma or a quote into double quotes",
            )
    return found


@contextmanager
def _as_csv(path: Path, reader: "csv.DictReader[str]") -> Iterator[None]:
    """Describe where a file is not CSV: in its header or in a row."""
    try:
        yield
    except csv.Error as error:
        where = f"{path}, line {reader.line_num + 1}"
        raise AnnotationError(where, f"this is not CSV ({error})") from error


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that can build lists, dicts, strings and numbers, and calls nothing."""

    def find_class(self, module: str, name: str) -> Any:
        raise AnnotationError(
            "pickle file",
            f"it wants to load {module}.{name}, but captions need lists, dicts and strings only",
            "do not trust this file: fetch it again from a source you know",
        )


def read_plain_pickle(path: Path) -> Any:
    """Read a pickle file that holds nothing but plain data; anything else is refused by name."""
    try:
        # Written by Python 2 in part, whose strings are bytes.
        return _PlainUnpickler(io.BytesIO(path.read_bytes()), encoding="utf-8").load()
    except AnnotationError as error:
        raise AnnotationError(str(path), error.problem, error.advice) from error
    except OSError as error:
        raise AnnotationError(str(path), f"it cannot be read ({error.strerror})") from error
    except Exception as error:  # a damaged pickle may raise almost anything
        raise AnnotationError(str(path), f"this is not a whole pickle file ({error})") from error


def require_captions(path: Path, found: Any) -> Mapping[str, Sequence[Any]]:
    """Check that a file maps video ids to lists of captions."""
    if not isinstance(found, dict) or not all(
        isinstance(id, str) and isinstance(captions, list) for id, captions in found.items()
    ):
        raise AnnotationError(str(path), "it should map each video id to a list of captions")
    return found


@dataclass(frozen=True)
class VideoFiles:
    """The video files below a folder, by name and by name without suffix."""

    folder: Path
    by_name: Mapping[str, Path]
    by_stem: Mapping[str, Path]

    def path(self, *names: str) -> Path:
        """Find a video by one of its names; without one, say where it would be looked for.

        Collections are often re-encoded, so `a.mov` may have become `a.mp4` or `a.mov.mp4`.
        """
        for name in names:
            for table in (self.by_name, self.by_stem):
                if name in table:
                    return table[name]
            stem = name.rpartition(".")[0]
            if stem in self.by_stem:
                return self.by_stem[stem]
        # Only the name: an id must not lead out of the folder.
        missing = Path(names[0]).name
        has_suffix = Path(missing).suffix in ANNOTATED_SUFFIXES
        return self.folder / (missing if has_suffix else f"{missing}.mp4")


def find_videos(folder: Path) -> VideoFiles:
    """List the videos below a folder in a fixed order; linked folders count, once each."""
    by_name: dict[str, Path] = {}
    by_stem: dict[str, Path] = {}
    seen: set[str] = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        if os.path.realpath(root) in seen:
            folders.clear()
            continue
        seen.add(os.path.realpath(root))
        folders.sort()
        for name in sorted(names):
            stem, _, suffix = name.rpartition(".")
            # DiDeMo has names that end in a dot.
            if f".{suffix.lower()}" in ANNOTATED_SUFFIXES or (stem and not suffix):
                path = Path(root, name)
                by_name.setdefault(name, path)
                by_stem.setdefault(stem, path)
    return VideoFiles(folder, by_name, by_stem)
