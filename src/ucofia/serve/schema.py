"""Request and response models of the HTTP API (pydantic), with the limits of each field."""

import re
from datetime import date
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)

from ucofia.confidence.calibrate import Match
from ucofia.index.results.explain import WordPart
from ucofia.index.results.hits import Moment
from ucofia.index.search.search import TOP
from ucofia.serve.jobs import JobState


def _without_controls(text: str) -> str:
    """Refuse control characters, which no word and no path has."""
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise ValueError("it has control characters in it")
    return text


def _with_words(text: str) -> str:
    if not text.strip():
        raise ValueError("it has no words")
    return text


def _day(value: object) -> object:
    """Refuse numbers, which would be seconds since 1970."""
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
        return value
    raise ValueError("a day is written like 2026-11-18")


def _number(value: object, info: ValidationInfo) -> object:
    """Refuse values of JSON that are no numbers; in a URL all values are texts."""
    if info.mode == "json" and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError("it must be a number")
    return value


def _described(longest: int, pattern: str) -> WithJsonSchema:
    """Describe what the functions above check: their messages are clearer than a pattern."""
    limits = {"minLength": 1, "maxLength": longest, "pattern": pattern}
    return WithJsonSchema({"type": "string", **limits})


_PLAIN = r"[^\x00-\x1f\x7f]"
_Plain = AfterValidator(_without_controls)
Text = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1000),
    _Plain,
    AfterValidator(_with_words),
    _described(1000, rf"^{_PLAIN}*[^\s\x00-\x1f\x7f]{_PLAIN}*$"),
]
PathText = Annotated[
    str,
    StringConstraints(min_length=1, max_length=4096),
    _Plain,
    _described(4096, f"^{_PLAIN}*$"),
]
Day = Annotated[date, BeforeValidator(_day)]
Count = Annotated[int, BeforeValidator(_number)]
Seconds = Annotated[float, Field(ge=0), BeforeValidator(_number)]
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(_number)]
Id = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
TOP_MOST = 100
OFFSET_MOST = 1000
TEXTS_COMBINED = 10


class Page(BaseModel):
    """Which hits, and which videos may be among them."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    top: Count = Field(TOP, ge=1, le=TOP_MOST, description="How many hits.")
    offset: Count = Field(0, ge=0, le=OFFSET_MOST, description="How many better hits to skip.")
    under: list[PathText] = Field(
        [], max_length=20, description="Only videos in or below these folders, or these files."
    )
    min_seconds: Seconds | None = Field(None, description="Only videos at least this long.")
    max_seconds: Seconds | None = Field(None, description="Only videos at most this long.")
    since: Day | None = Field(None, description="Only files written on this day or later.")
    until: Day | None = Field(None, description="Only files written on this day or earlier.")


class TextPage(Page):
    """A text, which hits, and which videos may be among them."""

    text: Text = Field(
        description="What to look for, in words; “no people” and “without a dog” are understood."
    )
    also: list[Text] = Field(
        [], alias="and", max_length=TEXTS_COMBINED, description="Texts that must fit as well."
    )
    without: list[Text] = Field(
        [], alias="not", max_length=TEXTS_COMBINED, description="Texts that must not fit."
    )
    min_confidence: Share | None = Field(None, description="Leave out hits that are less sure.")


class Place(BaseModel):
    """A file."""

    video: str
    path: str


class PartOut(BaseModel):
    """What one text of a combined question says about a hit."""

    text: str
    is_wanted: bool
    score: float
    confidence: float | None = Field(description="That this text fits, wanted or not.")
    is_match: bool | None


class HintOut(BaseModel):
    """A hint about the text of a query."""

    kind: str = Field(description="spelling or language")
    message: str
    suggestion: str | None = Field(description="A text to ask instead.")


class HitOut(BaseModel):
    """One video, and where in it."""

    segment: str = Field(description="Id of the stretch that matches best.")
    video: str = Field(description="Id of the video; /media/{video} plays it.")
    path: str
    score: float = Field(description="Compares within one answer only.")
    confidence: float | None = Field(description="Compares everywhere; null without a bank.")
    is_match: bool | None = Field(description="A good match or better.")
    match: Match | None = Field(description="The confidence in words.")
    levels: dict[str, float]
    start_second: float
    end_second: float
    best_second: float
    duration_seconds: float
    media: str
    media_type: str
    poster: str = Field(description="A small square of the best second, as the model saw it.")
    thumbnail: str = Field(description="A sharp picture near the best second, in its own shape.")
    frames: int = Field(description="Pictures at /media/{segment}/frames/0 and on.")
    frame_seconds: list[float] = Field(description="When these pictures are seen.")
    moments: list[Moment]
    copies: list[Place] = Field(description="Other files with the same content.")
    parts: list[PartOut] = Field(
        description="Of a question with several texts: each one, the wanted first; else empty."
    )
    similar: list["HitOut"] = Field(description="Hits that are nearly the same, best first.")


class VideoOut(BaseModel):
    """A video of the index, without a question."""

    segment: str = Field(description="Id of its middle segment.")
    video: str
    path: str
    best_second: float = Field(description="Its middle.")
    duration_seconds: float
    media: str
    media_type: str
    poster: str
    thumbnail: str
    frames: int
    frame_seconds: list[float]
    copies: list[Place]


class VideosAnswer(BaseModel):
    """Videos, newest first."""

    videos: list[VideoOut]
    offset: int
    next_offset: int | None


class SearchAnswer(BaseModel):
    """Hits: strong matches first, then good ones, then the rest, each part by score."""

    text: str | None
    wanted: list[str] = Field(description="The texts that must fit, as the question was read.")
    unwanted: list[str] = Field(description="The texts that must not.")
    hints: list[HintOut]
    like: VideoOut | None = Field(description="The video of the index that hits are like.")
    hits: list[HitOut]
    offset: int
    next_offset: int | None = Field(description="Ask with this offset for more; null at the end.")
    was_cut: bool = Field(description="The text is longer than the model reads.")
    gone: int = Field(description="Better hits that were left out: their files are not there.")
    seconds: float = Field(description="What the answer cost, without waiting.")


class TextHitOut(BaseModel):
    """A text that fits; `match` is what a search for it would call the video."""

    text: str
    score: float
    levels: dict[str, float]
    confidence: float | None = Field(description="null without a bank, and for uploads")
    is_match: bool | None
    match: Match | None


class DescribeAnswer(BaseModel):
    """Texts for a video: strong matches first, then good ones, then the rest, by score."""

    texts: list[TextHitOut]
    seconds: float


class LevelOut(BaseModel):
    """(similarity + bias) * share; the contributions sum to the score."""

    name: str
    similarity: float
    bias: float
    share: float
    contribution: float


class FrameOut(BaseModel):
    """A frame and how much it counted."""

    second: float
    weight: float
    similarity: float | None
    picture: str


class ExplainAnswer(BaseModel):
    """Why a segment got its score."""

    text: str
    segment: str
    video: str
    path: str
    start_second: float
    end_second: float
    score: float
    confidence: float | None
    match: Match | None
    levels: list[LevelOut]
    frames: list[FrameOut]
    words: list[WordPart]
    grid: int = Field(description="Patches on each side of a frame; 0 when they form no square.")


class Point(BaseModel):
    """How well one frame fits the text."""

    second: float
    similarity: float


class Stretch(BaseModel):
    """One segment of a video and its score."""

    segment: str
    start_second: float
    end_second: float
    best_second: float
    score: float
    confidence: float | None
    is_match: bool | None
    match: Match | None


class TimelineAnswer(BaseModel):
    """Where in a video a text matches."""

    video: str
    duration_seconds: float
    points: list[Point]
    low: float = Field(description="Similarity of an ordinary moment of this index.")
    high: float = Field(description="Similarity of the best moment of this index.")
    segments: list[Stretch]


class Folder(BaseModel):
    """A folder with indexed videos in it or below."""

    path: str
    videos: int


class Year(BaseModel):
    """A year in which files were written."""

    year: int
    videos: int


class OtherIndex(BaseModel):
    """Another index of this server."""

    name: str
    page: str


class Example(BaseModel):
    """A text that fits one of the videos."""

    text: str
    poster: str


class ExamplesAnswer(BaseModel):
    """Texts to begin with, drawn from the videos of the index."""

    examples: list[Example]


class InfoAnswer(BaseModel):
    """What the index holds, and running jobs."""

    name: str
    videos: int
    segments: int
    seconds_of_video: float
    failed_files: int
    bank_texts: int
    model: str
    size_bytes: int | None
    has_confidence: bool
    is_being_written: bool = Field(description="A process is adding to the index now.")
    can_index: bool
    index_folders: list[str] = Field(description="Videos below these may be added from here.")
    waiting: int = Field(description="Requests before the model.")
    job: JobState | None
    folders: list[Folder]
    years: list[Year]
    revision: int = Field(description="Changes when the index does.")
    indexes: list[OtherIndex]
    version: str = Field(description="Of this package.")


class IndexRequest(BaseModel):
    """Files or folders to add; by default all folders that may be added."""

    model_config = ConfigDict(extra="forbid")  # a misspelt name must not add all

    paths: list[PathText] = Field([], max_length=100)


class SessionRequest(BaseModel):
    """The token of the server."""

    token: str = Field(max_length=1000)
