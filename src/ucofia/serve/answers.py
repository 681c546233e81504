"""Build response models from the engine's results; URLs begin with the base path."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from ucofia.confidence.calibrate import MATCH, match_word
from ucofia.index.results.explain import Explanation
from ucofia.index.results.hits import Filters, Hit
from ucofia.index.results.similar import TextHit
from ucofia.index.storage.schema import SegmentInfo
from ucofia.listing.catalogue import Catalogue, is_there, video_id
from ucofia.listing.deduplicate import DistinctHit, matches_first
from ucofia.query.text_query import TextQuery
from ucofia.serve import schema
from ucofia.serve.engine import ResultPage, TextTimeline
from ucofia.serve.media import media_type

# No file is older, and dates far away have no local time everywhere.
_FIRST_DAY, _LAST_DAY = date(1971, 1, 1), date(2200, 1, 1)


def filters_of(page: schema.Page) -> Filters:
    """Read the filters of a request."""
    until = None if page.until is None else _midnight(page.until) + timedelta(days=1)
    return Filters(
        under=tuple(page.under),
        min_seconds=page.min_seconds,
        max_seconds=page.max_seconds,
        since=None if page.since is None else _midnight(page.since),
        until=until,
    )


def search_arguments(
    page: schema.TextPage,
) -> tuple[TextQuery, Filters, int, int, float | None]:
    """Read a search request as the arguments of `Engine.search`."""
    question = TextQuery.of(page.text, page.also, page.without)
    return question, filters_of(page), page.offset, page.top, page.min_confidence


def describe_answer(texts: Sequence[TextHit], seconds: float) -> schema.DescribeAnswer:
    """Build the response of a description: texts, matches first."""
    hits = [
        schema.TextHitOut(**vars(hit), match=match_word(hit.confidence, hit.is_match))
        for hit in matches_first(texts)
    ]
    return schema.DescribeAnswer(texts=hits, seconds=round(seconds, 4))


def timeline_answer(line: TextTimeline, parts: Sequence[SegmentInfo]) -> schema.TimelineAnswer:
    """Build the response of a timeline: where in a video a text matches."""
    return schema.TimelineAnswer(
        video=video_id(parts[0]),
        duration_seconds=parts[0].duration_seconds,
        points=[schema.Point(second=s, similarity=sim) for s, sim in line.points],
        low=line.low,
        high=line.high,
        segments=[
            schema.Stretch(**vars(hit), match=match_word(hit.confidence, hit.is_match))
            for hit in sorted(line.segments, key=lambda hit: hit.start_second)
        ],
    )


@dataclass(frozen=True)
class ResponseBuilder:
    """Builds responses whose URLs begin with a base path."""

    base: str

    def search(
        self,
        found: ResultPage,
        page: schema.Page,
        seconds: float,
        text: str | None = None,
        question: TextQuery | None = None,
        like: schema.VideoOut | None = None,
    ) -> schema.SearchAnswer:
        """Build the response of a search."""
        end = page.offset + page.top
        more = found.has_more and end <= schema.OFFSET_MOST
        return schema.SearchAnswer(
            text=text,
            wanted=[] if question is None else list(question.wanted),
            unwanted=[] if question is None else list(question.unwanted),
            hints=[schema.HintOut.model_validate(h, from_attributes=True) for h in found.hints],
            like=like,
            hits=[self._hit(one) for one in found.page.hits],
            offset=page.offset,
            next_offset=end if more else None,
            was_cut=found.was_cut,
            gone=found.page.gone,
            seconds=round(seconds, 4),
        )

    def videos(self, known: Catalogue, offset: int, top: int) -> schema.VideosAnswer:
        """Build the list of videos, newest first, without deleted files."""
        chosen: list[schema.VideoOut] = []
        at = offset
        while at < len(known.newest) and len(chosen) < top:
            parts = known.videos[known.newest[at]]
            places = [place for place in known.copies(parts[0]) if is_there(place.path)]
            if places:
                chosen.append(self.video(known.videos[video_id(places[0])], places[1:]))
            at += 1
        return schema.VideosAnswer(
            videos=chosen, offset=offset, next_offset=at if at < len(known.newest) else None
        )

    def explain(self, why: Explanation, info: SegmentInfo) -> schema.ExplainAnswer:
        """Build the response of an explanation; pictures become URLs."""
        plain = why.to_dict()
        for number, frame in enumerate(plain["frames"]):
            frame["picture"] = self.picture(why.segment, number)
        is_match = None if why.confidence is None else why.confidence >= MATCH
        plain["match"] = match_word(why.confidence, is_match)
        return schema.ExplainAnswer.model_validate({**plain, "video": video_id(info)})

    def picture(self, segment: str, frame: int) -> str:
        """Return the URL of the small picture of a frame."""
        return f"{self.base}/media/{segment}/frames/{frame}"

    def thumbnail(self, segment: str, second: float) -> str:
        """Return the URL of a sharp picture near a moment."""
        return f"{self.base}/media/{segment}/thumbnail?second={second:.2f}"

    def poster(self, hit: Hit, known: Catalogue) -> str:
        """Return the URL of the small picture of a hit's best moment."""
        return self.picture(
            hit.segment, nearest_frame(known.segments[hit.segment], hit.best_second)
        )

    def _hit(self, one: DistinctHit) -> schema.HitOut:
        hit = one.hit
        fields = {
            **vars(hit),
            **self._shown(one.info, hit.best_second),
            "match": match_word(hit.confidence, hit.is_match),
            "copies": _places(one.copies),
            "similar": [self._hit(other) for other in one.similar],
        }
        return schema.HitOut.model_validate(fields, from_attributes=True)

    def video(
        self, parts: Sequence[SegmentInfo], copies: Sequence[SegmentInfo]
    ) -> schema.VideoOut:
        """Describe a video of the index, without a question."""
        info = parts[len(parts) // 2]
        seconds = info.frame_seconds or (0.0,)
        shown = self._shown(info, seconds[len(seconds) // 2])
        return schema.VideoOut(**shown, copies=_places(copies))

    def _shown(self, info: SegmentInfo, second: float) -> dict[str, Any]:
        """Return the fields that a hit and a listed video share: identity, URLs and times."""
        return {
            "segment": info.id,
            "video": video_id(info),
            "path": info.path,
            "best_second": second,
            "duration_seconds": info.duration_seconds,
            "media": f"{self.base}/media/{video_id(info)}",
            "media_type": media_type(info.path),
            "poster": self.picture(info.id, nearest_frame(info, second)),
            "thumbnail": self.thumbnail(info.id, second),
            "frames": len(info.frame_seconds),
            "frame_seconds": list(info.frame_seconds),
        }


def nearest_frame(info: SegmentInfo, second: float) -> int:
    """Return the number of the frame, of those the model saw, that is nearest to a moment."""
    seconds = info.frame_seconds or (0.0,)
    return min(range(len(seconds)), key=lambda at: abs(seconds[at] - second))


def _places(infos: Sequence[SegmentInfo]) -> list[schema.Place]:
    return [schema.Place(video=video_id(info), path=info.path) for info in infos]


def _midnight(day: date) -> datetime:
    day = min(max(day, _FIRST_DAY), _LAST_DAY)
    return datetime(day.year, day.month, day.day)
