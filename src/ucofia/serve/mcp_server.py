"""Tools for assistants: search, describe, explain and info over the Model Context Protocol.

The same engine as behind the page, read-only: nothing here writes to the index or touches a
video. Hits name files by their paths: the assistant works for the owner of the files.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

from ucofia import __version__
from ucofia.confidence.calibrate import Match, match_word
from ucofia.errors import UCoFiAError
from ucofia.index.index import Index
from ucofia.index.results.hits import Filters
from ucofia.listing.deduplicate import matches_first
from ucofia.query.text_query import TextQuery
from ucofia.serve.engine import Engine
from ucofia.serve.index_handle import IndexHandle

INSTRUCTIONS = (
    "Finds videos on this machine by what is seen in them. Search with a short description of the "
    "picture; `match` says how sure a hit is: only 'strong match' and 'good match' are matches. "
    "`second` is the moment that fits best. Nothing can be changed through these tools."
)
READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
MOST = 50

T = TypeVar("T")
Top = Annotated[int, Field(ge=1, le=MOST, description="How many at most.")]
Text = Annotated[str, Field(min_length=1, max_length=1000, description="What is seen.")]


class FoundVideo(BaseModel):
    """A video that fits a text."""

    path: str
    match: Match | None = Field(description="How sure it is; null when the index has no bank.")
    confidence: float | None
    second: float = Field(description="The moment that fits best.")
    start_second: float
    end_second: float
    duration_seconds: float
    segment: str = Field(description="Names this stretch of the video for `explain`.")
    copies: list[str] = Field(description="Other files with the same content.")
    similar: list[str] = Field(description="Files that show nearly the same.")


class SearchResult(BaseModel):
    """Videos: matches first, each part best first."""

    videos: list[FoundVideo]
    matches: int = Field(description="How many of them are a match; 0 means that nothing fits.")


class DescribeResult(BaseModel):
    """Texts for a video: those called a match first, each part best first."""

    texts: list[str]
    match: list[Match | None] = Field(description="How sure each text is, in the same order.")


class ExplainedWord(BaseModel):
    """A word and the moment it looked at."""

    word: str
    share: float = Field(description="Of what all words decided, from 0 to 1.")
    second: float | None


class ExplainResult(BaseModel):
    """Why a video fits a text."""

    path: str
    score: float
    levels: dict[str, float] = Field(description="What each level adds to the score.")
    words: list[ExplainedWord]
    moments: list[tuple[float, float]] = Field(description="(second, weight), weightiest first.")


class InfoResult(BaseModel):
    """What the index holds."""

    path: str
    videos: int
    segments: int
    hours_of_video: float
    model: str
    has_confidence: bool
    files_that_cannot_be_read: int


class Tools:
    """The tools of an index. Assistants read the docstrings of the public methods."""

    def __init__(self, index: Index) -> None:
        self._handle = IndexHandle(index)
        self._engine = Engine(self._handle)
        self._lock = threading.Lock()  # one query at a time; the model gains nothing from more

    def locked(self, tool: Callable[..., T]) -> Callable[..., T]:
        """Return a tool that holds the lock and is asked about the newest version."""

        @wraps(tool)
        def answer(*args: Any, **kwargs: Any) -> T:
            with self._lock:
                try:
                    self._engine.refresh()
                    return tool(*args, **kwargs)
                except UCoFiAError as error:
                    raise ToolError(str(error)) from error

        return answer

    def search(
        self, text: Text, without: list[Text] | None = None, top: Top = 5, under: str | None = None
    ) -> SearchResult:
        """Find videos by what is seen in them, and what is not; `under` keeps to one folder."""
        filters = Filters(under=[under] if under else ())
        question = TextQuery.of(text, (), without or ())
        found = self._engine.search(question, filters, 0, top, None).page.hits
        videos = [
            FoundVideo(
                path=one.info.path,
                match=match_word(one.hit.confidence, one.hit.is_match),
                confidence=one.hit.confidence,
                second=one.hit.best_second,
                start_second=one.hit.start_second,
                end_second=one.hit.end_second,
                duration_seconds=one.info.duration_seconds,
                segment=one.info.id,
                copies=[place.path for place in one.copies],
                similar=[other.info.path for other in one.similar],
            )
            for one in found
        ]
        return SearchResult(videos=videos, matches=sum(bool(one.hit.is_match) for one in found))

    def describe(
        self, segment: str, texts: list[Text] | None = None, top: Top = 5
    ) -> DescribeResult:
        """Find words for a video: of these texts, or else of the index's own bank."""
        hits = matches_first(self._engine.describe(segment, texts or [], top))
        words = [match_word(hit.confidence, hit.is_match) for hit in hits]
        return DescribeResult(texts=[hit.text for hit in hits], match=words)

    def explain(self, text: Text, segment: str) -> ExplainResult:
        """Explain why a part of a video, named by a search, fits a text."""
        why = self._engine.explain(TextQuery.parse(text).texts[0], segment)
        frames = sorted(why.frames, key=lambda frame: -frame.weight)
        return ExplainResult(
            path=why.path,
            score=why.score,
            levels={level.name: level.contribution for level in why.levels},
            words=[
                ExplainedWord(
                    word=word.word,
                    share=word.weight,
                    second=word.patches[0].second if word.patches else None,
                )
                for word in why.words
            ],
            moments=[(frame.second, frame.weight) for frame in frames[:5]],
        )

    def info(self) -> InfoResult:
        """Describe what the index holds."""
        facts, known = self._handle.info(), self._handle.catalogue
        return InfoResult(
            path=facts["index"],
            videos=len(known.newest),
            segments=len(known.segments),
            hours_of_video=round(facts["seconds_of_video"] / 3600, 2),
            model=facts["model"],
            has_confidence=facts["has_confidence"],
            files_that_cannot_be_read=facts["failed_files"],
        )


def create_server(index: Index) -> MCPServer[Any]:
    """Make the server of an index; it runs on stdin and stdout."""
    server: MCPServer[Any] = MCPServer(
        "ucofia", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )
    tools = Tools(index)
    for tool in (tools.search, tools.describe, tools.explain, tools.info):
        server.add_tool(tools.locked(tool), annotations=READ_ONLY)
    return server


def run(index: Index) -> None:
    """Answer on stdin and stdout until the client disconnects."""
    create_server(index).run("stdio")
