"""From what the engine found to what goes over the wire."""

from collections.abc import Sequence
from datetime import date, datetime

from ucofia.index.results.explain import Explanation
from ucofia.index.results.hits import Filters, Hit
from ucofia.index.results.similar import TextHit
from ucofia.index.search.collection import SegmentInfo
from ucofia.serve import schema
from ucofia.serve.engine import Course, Found
from ucofia.serve.library import Catalogue, video_id
from ucofia.serve.media import media_type

# No file is older, and dates far away have no local time everywhere.
_FIRST_DAY, _LAST_DAY = date(1971, 1, 1), date(2200, 1, 1)


def filters_of(page: schema.Page) -> Filters:
    """Read the filters of a question."""
    since = None
    if page.since is not None:
        day = min(max(page.since, _FIRST_DAY), _LAST_DAY)
        since = datetime(day.year, day.month, day.day)
    return Filters(
        under=tuple(page.under),
        min_seconds=page.min_seconds,
        max_seconds=page.max_seconds,
        since=since,
    )


def search_answer(
    found: Found,
    known: Catalogue,
    page: schema.Page,
    seconds: float,
    text: str | None = None,
) -> schema.SearchAnswer:
    """Write hits."""
    hits = [_hit(hit, known.segments[hit.segment]) for hit in found.hits]
    end = page.offset + page.top
    more = found.has_more and end <= schema.OFFSET_MOST
    return schema.SearchAnswer(
        text=text,
        hits=hits,
        offset=page.offset,
        next_offset=end if more else None,
        was_cut=found.was_cut,
        seconds=round(seconds, 4),
    )


def videos_answer(known: Catalogue, offset: int, top: int) -> schema.VideosAnswer:
    """Write what the index holds, newest first."""
    chosen = known.newest[offset : offset + top]
    end = offset + top
    return schema.VideosAnswer(
        videos=[_video(known.videos[name]) for name in chosen],
        offset=offset,
        next_offset=end if end < len(known.newest) else None,
    )


def describe_answer(texts: Sequence[TextHit], seconds: float) -> schema.DescribeAnswer:
    """Write texts."""
    hits = [schema.TextHitOut(text=t.text, score=t.score, levels=t.levels) for t in texts]
    return schema.DescribeAnswer(texts=hits, seconds=round(seconds, 4))


def explain_answer(why: Explanation, info: SegmentInfo) -> schema.ExplainAnswer:
    """Write an explanation; pictures become addresses."""
    plain = why.to_dict()
    for number, frame in enumerate(plain["frames"]):
        frame["picture"] = picture_address(why.segment, number)
    return schema.ExplainAnswer.model_validate({**plain, "video": video_id(info)})


def timeline_answer(course: Course, parts: Sequence[SegmentInfo]) -> schema.TimelineAnswer:
    """Write where in a video a text matches."""
    return schema.TimelineAnswer(
        video=video_id(parts[0]),
        duration_seconds=parts[0].duration_seconds,
        points=[schema.Point(second=s, similarity=sim) for s, sim in course.points],
        segments=[
            schema.Stretch.model_validate(hit, from_attributes=True)
            for hit in sorted(course.segments, key=lambda hit: hit.start_second)
        ],
    )


def picture_address(segment: str, frame: int) -> str:
    """Where the picture of a frame is."""
    return f"/media/{segment}/frames/{frame}"


def _hit(hit: Hit, info: SegmentInfo) -> schema.HitOut:
    seconds = info.frame_seconds or (0.0,)
    frame = min(range(len(seconds)), key=lambda at: abs(seconds[at] - hit.best_second))
    moments = [schema.Moment.model_validate(m, from_attributes=True) for m in hit.moments]
    return schema.HitOut(
        segment=hit.segment,
        video=video_id(info),
        path=hit.path,
        score=hit.score,
        confidence=hit.confidence,
        is_match=hit.is_match,
        levels=dict(hit.levels),
        start_second=hit.start_second,
        end_second=hit.end_second,
        best_second=hit.best_second,
        duration_seconds=info.duration_seconds,
        media=f"/media/{video_id(info)}",
        media_type=media_type(hit.path),
        poster=picture_address(hit.segment, frame),
        frames=len(info.frame_seconds),
        moments=moments,
    )


def _video(parts: Sequence[SegmentInfo]) -> schema.VideoOut:
    info = parts[len(parts) // 2]
    seconds = info.frame_seconds or (0.0,)
    frame = len(seconds) // 2
    return schema.VideoOut(
        segment=info.id,
        video=video_id(info),
        path=info.path,
        best_second=seconds[frame],
        duration_seconds=info.duration_seconds,
        media=f"/media/{video_id(info)}",
        media_type=media_type(info.path),
        poster=picture_address(info.id, frame),
        frames=len(info.frame_seconds),
    )
