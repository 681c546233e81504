"""Verbs that make and maintain an index: index, info, remove, verify, compact, export."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucofia.cli.app import app
from ucofia.cli.console import (
    lines,
    loading,
    print_message,
    progress_bar,
    show,
    show_json,
    size_text,
)
from ucofia.cli.hits import distinct_answers, exit_code
from ucofia.cli.locate import find_index, index_path_for, open_index, remember_index
from ucofia.cli.options import (
    ClusterOption,
    DeviceOption,
    IndexOption,
    JsonOption,
    LockTimeoutOption,
    TopOption,
)
from ucofia.cli.setup import require_starter
from ucofia.errors import (
    DamagedIndexError,
    IndexBusyError,
    IndexReplacedError,
    IndexWriteError,
    NoIndexError,
    NoVideosError,
    SettingError,
    UnreachableIndexError,
    UnreadableVideoError,
)
from ucofia.timecode import format_timecode

if TYPE_CHECKING:
    from ucofia.index.calibration.balance import Solver
    from ucofia.index.index import Index
    from ucofia.index.info import IndexInfo
    from ucofia.index.ingest import AddReport
    from ucofia.index.quarantine import Failure
    from ucofia.index.results.hits import Hit
    from ucofia.video.sample import Segment


NewIndexOption = Annotated[
    str | None,
    typer.Option(
        "--index",
        help="Folder of the index. Default: $UCOFIA_INDEX, or .ucofia in the first folder.",
    ),
]
SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        help="Videos, GIFs, pictures, or folders of them. With --cluster also @FILE, a list "
        "of them, and addresses like s3://bucket/folder."
    ),
]
IndexModelOption = Annotated[
    str | None,
    typer.Option(
        help="Name or folder of the model. For an existing index: another model that encodes "
        "videos alike, to answer queries from now on. Default: starter."
    ),
]
SegmentOption = Annotated[
    str | None,
    typer.Option(
        help="How a new index cuts videos: auto, whole, or seconds per segment. Default: auto."
    ),
]
BankOption = Annotated[
    Path | None,
    typer.Option(
        help="A file of texts like your queries, one per line, to balance scores against."
    ),
]
PruneOption = Annotated[
    bool | None,
    typer.Option(
        "--prune/--no-prune",
        help="Remove files from the index that are gone from disk, always or never. Default: "
        "unless their folder is empty or missing, as when a disk is not connected.",
        metavar="",
    ),
]
WatchOption = Annotated[
    bool,
    typer.Option("--watch", help="Keep running, and add files every --every seconds.", metavar=""),
]
EveryOption = Annotated[float, typer.Option(help="Seconds between two runs of --watch.", min=0)]
DecodersOption = Annotated[
    int | None, typer.Option(help="Processes that decode. Default: one less than cores.", min=1)
]
ScratchOption = Annotated[
    float,
    typer.Option(help="Disk space for fetched videos in GB, per worker of a cluster.", min=0.1),
]
AloneOption = Annotated[
    bool,
    typer.Option(
        "--alone",
        help="Nobody else writes to this index now: also where that cannot be seen, as in an "
        "object store, delete what killed runs left, not only after seven days.",
        metavar="",
    ),
]
# What --watch waits for: a disk that is away or full, another writer.
TRANSIENT_ERRORS = (
    DamagedIndexError,
    NoIndexError,
    UnreadableVideoError,
    UnreachableIndexError,
    IndexWriteError,
    IndexBusyError,
)


@app.command("index")
def index_command(
    paths: SourcesArgument,
    index: NewIndexOption = None,
    model: IndexModelOption = None,
    segment: SegmentOption = None,
    bank: BankOption = None,
    prune: PruneOption = None,
    watch: WatchOption = False,
    every: EveryOption = 10.0,
    workers: DecodersOption = None,
    lock_timeout: LockTimeoutOption = None,
    cluster: ClusterOption = None,
    scratch_gb: ScratchOption = 8.0,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> int:
    """Find videos and make them searchable; only what is new or changed costs time.

    Run it again at any time, also after an interruption: it continues where it was.

    Example: ucofia index ~/Videos
    """
    where = index_path_for(paths, index, is_cluster=cluster is not None)
    texts = None if bank is None else lines(bank)
    may_be_empty = watch or cluster is not None
    opened, is_new = _open_or_create(
        where, model, segment, device, of=None if may_be_empty else paths
    )
    remember_index(where, index)
    if model is not None and not is_new:
        _use_model(opened, model, lock_timeout, quiet=json)
    if texts is not None:
        with progress_bar(quiet=json) as progress:
            opened.set_bank(texts, lock_timeout=lock_timeout, progress=progress)
    add: Callable[..., AddReport] = partial(type(opened).add, workers=workers)
    if cluster is not None:
        from ucofia.cluster import ingest

        options = ingest.ClusterOptions(
            address=cluster,
            workers=workers or 1,
            device=device,
            scratch_bytes=int(scratch_gb * (1 << 30)),
        )
        add = partial(ingest.add, options=options)
    add = partial(add, paths=paths, prune=prune, lock_timeout=lock_timeout)
    with progress_bar(quiet=json) as progress:
        report = add(opened, retry=True, progress=progress)
    show_json(report) if json else _print_report(report, opened, None)
    if watch:
        print_message(f"looking again every {every:g} s; Ctrl-C ends it")
        _watch(opened, add, report, every, json=json)
    return 0


def _use_model(opened: "Index", model: str, lock_timeout: float | None, *, quiet: bool) -> None:
    """Let another model answer queries of an index, and say so if that changed anything."""
    before = opened.settings.model
    with progress_bar(quiet=quiet) as progress:
        changed = opened.use_model(model, lock_timeout=lock_timeout, progress=progress)
    if changed:
        was = before if before != model else f"another {model}"
        print_message(f"{model} answers in the place of {was}; the vectors are the same")


def _watch(
    opened: "Index",
    add: "Callable[..., AddReport]",
    last: "AddReport",
    every: float,
    *,
    json: bool,
) -> None:
    """Add again every `every` seconds until an interrupt, and print the reports that have news.

    A file that hung a decoder is not tried again. Transient errors are printed once. An index
    that was deleted while it was read looks damaged at first; the same damage twice is raised.
    """
    trouble = ""
    time.sleep(every)
    while True:
        try:
            with progress_bar(quiet=json) as progress:
                report = add(opened, retry=False, progress=progress)
        except IndexReplacedError as error:
            print_message(f"ucofia: {error}", "going on with the index that is there now")
            with suppress(NoIndexError, DamagedIndexError):  # deleted again: `add` says so
                opened = opened.reopened()
            continue
        except TRANSIENT_ERRORS as error:
            if isinstance(error, DamagedIndexError) and str(error) == trouble:
                raise
            if str(error) != trouble:
                print_message(f"ucofia: {error}", "looking again until this is mended")
            trouble = str(error)
        else:
            trouble = ""
            if _has_news(report, last):
                show_json(report) if json else _print_report(report, opened, last)
            last = report
        time.sleep(every)


@app.command()
def info(index: IndexOption = None, json: JsonOption = False) -> int:
    """Show what an index holds, its model, which files failed, and whether to compact it."""
    from ucofia.index.info import info as count  # not the whole Index, which costs torch
    from ucofia.index.storage.store import Store

    facts = count(Store.open(find_index(index)))
    if json:
        show_json(facts.to_dict())
        return 0
    for name, value in _described(facts):
        show(f"{name:<10}  {value}")
    for path, reason in facts.failures.items():
        show(f"failed: {path}: {reason}")
    return 0


def _described(facts: "IndexInfo") -> Iterator[tuple[str, str]]:
    """Yield (name, text) lines of what an index holds; every number is in --json."""
    size = "" if facts.size_bytes is None else f" ({size_text(facts.size_bytes)})"
    yield "index", f"{facts.index}{size}"
    length = format_timecode(facts.seconds_of_video)
    yield "videos", f"{facts.videos:,}, {length} in all; {facts.segments:,} segments"
    if facts.failed_files:
        yield "failed", f"{facts.failed_files:,} files, listed below"
    yield "model", f"{facts.model or 'without a name'} ({facts.fingerprint})"
    bank = f"a bank of {facts.bank_texts:,} texts" if facts.bank_texts else "no bank of texts"
    sure = "hits have a confidence" if facts.has_confidence else "hits have no confidence"
    yield "confidence", f"{sure}: {bank}"
    yield "cut", f"{facts.segment}" + (" s" if isinstance(facts.segment, float) else "")
    yield "storage", f"format {facts.format}, version {facts.version}, {facts.fragments} fragments"
    if facts.pending_parts:
        parts = f"{facts.pending_files} files in {facts.pending_parts} parts of a cluster's run"
        yield "pending", f"{parts}; the next `ucofia index` of them commits these"
    if facts.balancing_is_due:
        yield "due", "much has changed since scores were balanced: ucofia compact"


@app.command()
def remove(
    paths: Annotated[list[str], typer.Argument(help="Videos, or folders of them.")],
    index: IndexOption = None,
    lock_timeout: LockTimeoutOption = None,
    json: JsonOption = False,
) -> int:
    """Take videos out of an index. The files themselves stay untouched."""
    place = find_index(index, or_last=False)
    from ucofia.index.journal import has_pending
    from ucofia.index.storage.location import where
    from ucofia.index.storage.store import Store

    store = Store.open(place)
    if not has_pending(place):  # what a killed run has finished may be what is meant
        store.files_below([where(path) for path in paths])
    opened = open_index(place)
    with progress_bar(quiet=json) as progress:
        count = opened.remove(paths, lock_timeout=lock_timeout, progress=progress)
    show_json({"removed": count}) if json else show(f"{count} removed")
    return 0


@app.command()
def verify(index: IndexOption = None, json: JsonOption = False) -> int:
    """Read the whole index and compare it with its checksums. Ends with code 1 on damage."""
    opened = open_index(find_index(index))
    damage = opened.verify()
    if json:
        show_json({"segments": len(opened), "damage": damage})
    else:
        show(f"{len(opened)} segments, {len(damage)} damaged", *(f"  {line}" for line in damage))
    return 1 if damage else 0


@app.command()
def compact(
    index: IndexOption = None,
    alone: AloneOption = False,
    lock_timeout: LockTimeoutOption = None,
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> int:
    """Join small files and drop deleted rows after many changes, and solve the bank again."""
    opened = open_index(find_index(index, or_last=False))
    before = opened.info()
    with progress_bar(quiet=json) as progress, _solving(cluster) as solver:
        opened.compact(alone=alone, solver=solver, lock_timeout=lock_timeout, progress=progress)
    after = opened.info()
    if json:
        show_json({"before_bytes": before.size_bytes, "after_bytes": after.size_bytes})
    elif before.size_bytes is None or after.size_bytes is None:  # in an object store
        show(f"{before.fragments} -> {after.fragments} fragments")
    else:
        show(f"{size_text(before.size_bytes)} -> {size_text(after.size_bytes)}")
    return 0


@contextmanager
def _solving(cluster: str | None) -> "Iterator[Solver | None]":
    """Yield what balances a bank on a cluster, or None without one."""
    if cluster is None:
        yield None
        return
    from ucofia.cluster.balance import solve_on_cluster
    from ucofia.cluster.connect import connected

    with connected(cluster):
        yield solve_on_cluster


@app.command()
def export(
    out: Annotated[Path, typer.Argument(help=".csv, .jsonl or .parquet; with --text a folder.")],
    index: IndexOption = None,
    text: Annotated[str | None, typer.Option(help="Write clips of what this text finds.")] = None,
    top: TopOption = 5,
    seconds: Annotated[float, typer.Option(help="Length of a clip, at most 60.")] = 6.0,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also clips of what is called no match.", metavar="")
    ] = False,
    device: DeviceOption = "cpu",
    json: JsonOption = False,
) -> int:
    """Write the index as a table, or clips around the best second of a text's matches.

    Clips are videos too: write them outside the folders that are indexed. Ends with code 3 when
    nothing matches; then there are clips only with --all.

    Examples: ucofia export index.csv; ucofia export ~/clips --text "a dog jumps"
    """
    if not 0 < seconds <= 60:
        raise SettingError("seconds", seconds, "a clip is more than 0 and at most 60 s long")
    opened = open_index(find_index(index), device=device)
    if text is None:
        rows = opened.export(out)
        show_json({"rows": rows, "out": str(out)}) if json else show(f"{rows} rows in {out}")
        return 0
    from ucofia.index.results.export import cut

    newest = opened.newest()

    def ask(texts: Sequence[str], count: int) -> "list[list[Hit]]":
        return newest.search_many(texts, top=count)

    (found,) = distinct_answers(newest, [text], top, ask)
    hits = [one.hit for one in found]
    code = exit_code(hits, is_empty=not len(opened))
    kept = [hit for hit in hits if show_all or hit.is_match is not False]
    if len(kept) < len(hits):
        left = len(hits) - len(kept)
        videos = "1 video" if left == 1 else f"{left} videos"
        print_message(f"left out: {videos} that may not match; --all writes clips of them too")
    clips = [str(cut(hit, out, seconds=seconds)) for hit in kept]
    show_json(clips) if json else show(*clips)
    return code


def _open_or_create(
    where: str, model: str | None, segment: str | None, device: str, *, of: list[str] | None
) -> "tuple[Index, bool]":
    """Open an index, or make a new one; the second value tells whether it is new.

    Raises:
        NoVideosError: There is nothing to index in the folders `of`, unless that is None.
        SettingError: `segment` is another one than the index was made with.
    """
    with loading():
        from ucofia.errors import IndexExistsError
        from ucofia.index.discover import find
        from ucofia.index.index import Index  # costs torch
        from ucofia.index.storage.location import exists

    if not exists(where):
        cutting, name = _segment(segment or "auto"), model or "starter"
        require_starter(name)
        # `search` would take an index of nothing for the last one that was made.
        if of is not None and next(find(of), None) is None:
            raise NoVideosError(of)
        with suppress(IndexExistsError):  # another process may be quicker
            with loading(f"loading the model {name}"):
                made = Index.create(where, name, segment=cutting, device=device)
            print_message(f"made a new index in {where}")
            return made, True
    opened = Index.open(where, device=device)
    if segment is not None and _segment(segment) != opened.settings.segment:
        rule = f"this index was made with {opened.settings.segment!r}; make another index"
        raise SettingError("segment", segment, rule)
    return opened, False


def _segment(text: str) -> "Segment":
    if text == "auto":
        return "auto"
    if text == "whole":
        return "whole"
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < inf:
            return seconds
    raise typer.BadParameter("it must be auto, whole or seconds", param_hint="--segment")


def _has_news(report: "AddReport", last: "AddReport") -> bool:
    changes = report.added or report.changed or report.moved or report.removed
    return bool(changes or _new_failures(report, last))


def _new_failures(report: "AddReport", last: "AddReport | None") -> "list[Failure]":
    """List the failures that the report before did not have."""
    known = {(failure.path, failure.reason) for failure in last.failed} if last else set()
    return [one for one in report.failed if (one.path, one.reason) not in known]


def _print_report(report: "AddReport", opened: "Index", last: "AddReport | None") -> None:
    """Print a report; failures only when they are new."""
    counts = {
        "added": report.added,
        "changed": report.changed,
        "moved": report.moved,
        "unchanged": report.unchanged,
        "removed": report.removed,
        "failed": len(report.failed),
    }
    done = [f"{count} {name}" for name, count in counts.items() if count]
    show(", ".join(done) or "no videos")
    for failure in _new_failures(report, last):
        again = " (as before; not tried again)" if failure.is_known else ""
        print_message(f"  failed: {failure.path}: {failure.reason}{again}")
    for warning in report.warnings:
        print_message(f"  warning: {warning}")
    if report.missing:
        what = f"{len(report.missing)} files are away, perhaps with their disk"
        print_message(f"  {what}; forget them with --prune")
    print_message(f"  {len(opened)} segments in {opened.path}")
    spent = ", ".join(f"{name} {value:.1f}" for name, value in report.spent.items())
    print_message(f"  took {report.seconds:.1f} s" + (f": {spent}" if spent else ""))
    if last is None and report.added and len(done) == 1:
        print_message('next: ucofia search "a dog", or ucofia serve --open')
