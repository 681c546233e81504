"""What can be asked of an index: search, describe, similar, explain, info, export."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from ucofia.errors import SettingError
from ucofia.index.calibration import bank as banks
from ucofia.index.info import IndexInfo, info
from ucofia.index.results import export
from ucofia.index.results.explain import Explanation
from ucofia.index.results.hits import Filters, Hit
from ucofia.index.results.similar import TextHit
from ucofia.index.search.search import TOP, Recall
from ucofia.index.snapshot import Snapshot
from ucofia.index.storage.collection import Collection
from ucofia.index.storage.store import Store
from ucofia.query.hints import Hint
from ucofia.query.text_query import TextQuery


class Queries(ABC):
    """What can be asked of an index; every query is answered from its newest version."""

    _store: Store

    @abstractmethod
    def newest(self) -> Snapshot:
        """Return the newest version of the index."""

    def collection(self) -> Collection:
        """Return all segments of the newest version with their biases, as search sees them.

        Example:
            >>> [Path(segment.path).name for segment in index.collection().segments]
            ['blue.mp4', 'green.mp4', 'red.mp4']
        """
        return self.newest().collection

    def search(
        self,
        text: str | TextQuery,
        *,
        top: int = TOP,
        exact: bool = True,
        grouped: bool = True,
        filters: Filters = Filters(),  # noqa: B008 - frozen
        min_confidence: float | None = None,
    ) -> list[Hit]:
        """Find the videos that match a text, best first.

        Args:
            text: What to look for, in words; "no people" and "without a dog" mean what they say.
                A `TextQuery` combines several texts, each taken as it stands.
            top: Most hits.
            exact: Return the list that scoring everything would give; False scores a fixed number
                of candidates, see `fast_recall`.
            grouped: One hit per video, with its best moments; False gives one per segment.
            filters: Which segments may be found.
            min_confidence: Leave out what is less sure, between 0 and 1; without a bank
                everything is left out.

        Returns:
            Hits, best first; the same list every time.

        Raises:
            SettingError: `top` is below 1, or `min_confidence` is not between 0 and 1.
            EmptyInputError: The text has no words.
            IndexReplacedError: Another index, or one of another model, lies there by now.

        Example:
            >>> hit = index.search("red", top=1)[0]
            >>> Path(hit.path).name, round(hit.end_second - hit.start_second)
            ('red.mp4', 1)
            >>> only = Filters(under=[videos / "blue.mp4"])
            >>> [Path(hit.path).name for hit in index.search("red", filters=only)]
            ['blue.mp4']
        """
        (hits,) = self.search_many(
            [text],
            top=top,
            exact=exact,
            grouped=grouped,
            filters=filters,
            min_confidence=min_confidence,
        )
        return hits

    def search_many(
        self,
        texts: Sequence[str | TextQuery],
        *,
        top: int = TOP,
        exact: bool = True,
        grouped: bool = True,
        filters: Filters = Filters(),  # noqa: B008 - frozen
        min_confidence: float | None = None,
    ) -> list[list[Hit]]:
        """Answer many texts at once; each answer is what `search` gives, but for rounding.

        Args:
            texts: What to look for; the passes over the index are shared.
            top: Most hits for each text.
            exact: See `search`.
            grouped: See `search`.
            filters: Which segments may be found.
            min_confidence: See `search`.

        Returns:
            One list of hits for each text, in their order.

        Example:
            >>> red, blue = index.search_many(["red", "blue"], top=1)
            >>> Path(red[0].path).name, Path(blue[0].path).name
            ('red.mp4', 'blue.mp4')
        """
        return self.newest().search_many(
            texts,
            top=top,
            exact=exact,
            grouped=grouped,
            filters=filters,
            min_confidence=min_confidence,
        )

    def hints(self, text: str | TextQuery) -> list[Hint]:
        """Return hints about a text: a likely spelling, or that its language is unknown.

        Args:
            text: What is asked, as `search` takes it.

        Returns:
            Sentences, some with a text to ask instead; none for most texts.

        Example:
            >>> index.hints("red")
            []
        """
        return self.newest().hints(text)

    def fast_recall(self) -> Recall | None:
        """Measure how much of the exact list `exact=False` finds here, once for every version.

        Returns:
            The share, measured by asking a few texts of the bank both ways; None without a bank.

        Example:
            >>> index.fast_recall().recall  # so few segments are all scored
            1.0
        """
        return self.newest().fast_recall()

    def describe(
        self, video: Path | str, texts: Sequence[str] | None = None, *, top: int = TOP
    ) -> list[TextHit]:
        """Find the texts that fit a video, best first by score.

        The score is an order, not a verdict: something always comes first. Of a video of the
        index each text also has the confidence that a search for it would give this video. Each is
        one text: quotes around it are taken off, and "without" and the like are not read.

        Args:
            video: A video of the index, or any other file, which is then decoded and encoded.
            texts: The texts to choose from; None takes those of the bank.
            top: Most texts.

        Raises:
            SettingError: No texts were given, and there is no bank.
            VideoError: The file cannot be decoded.

        Example:
            >>> index.describe(videos / "red.mp4", ["red", "blue"], top=1)[0].text
            'red'
        """
        newest = self.newest()
        if texts is None:
            if newest.bank is None:
                rule = "this index has no bank; give texts to choose from"
                raise SettingError("texts", None, rule)
            texts = newest.bank.texts
        if not texts:
            raise SettingError("texts", [], "there must be at least one")
        return newest.describe(video, texts, top=top)

    def similar(
        self,
        example: Path | str,
        *,
        top: int = TOP,
        filters: Filters = Filters(),  # noqa: B008 - frozen
    ) -> list[Hit]:
        """Find videos like a video or picture, best first; not the video itself.

        Args:
            example: A video or picture, in the index or not.
            top: Most videos.
            filters: Which segments may be found.

        Returns:
            Hits whose `levels` say how alike whole videos, and frames, are (cosines). They have no
            confidence and cannot explain themselves by words.

        Example:
            >>> [Path(hit.path).name for hit in index.similar(videos / "red.mp4")]
            ['blue.mp4', 'green.mp4']
        """
        return self.newest().similar(example, top=top, filters=filters)

    def explain(self, text: str, segment: str, *, beside: Sequence[str] = ()) -> Explanation:
        """Show why a segment got its score for a text.

        Args:
            text: One text, taken as it stands but for quotes around it.
            segment: The id of the segment, as `Hit.segment` has it.
            beside: The other texts that were wanted with it; its confidence depends on them.

        Returns:
            Words, frames, patches and their weights; `save("why.png")` draws them.

        Raises:
            NotInIndexError: There is no such segment.

        Example:
            >>> hit = index.search("red", top=1)[0]
            >>> [part.word for part in index.explain("red", hit.segment).words]
            ['red']
        """
        return self.newest().explain(text, segment, beside)

    def export(self, path: Path | str) -> int:
        """Write all segments as a table for other programs.

        Args:
            path: Ends in .parquet (with vectors), .csv or .jsonl. A file that is there stays as it
                is until the new one is complete.

        Returns:
            How many segments were written.

        Raises:
            FileWriteError: It could not be written.

        Example:
            >>> index.export("segments.csv")
            3
        """
        self._store.refresh()
        return self._store.with_retry(lambda: export.write_table(self._store, Path(path)))

    def bank_texts(self) -> list[str]:
        """Return the texts that scores are normalised against.

        Example:
            >>> index.bank_texts()[:2]
            ['red red', 'red green']
        """
        self._store.require_same()
        bank = banks.read(self._store)
        return list(bank.texts) if bank else []

    def info(self) -> IndexInfo:
        """Return what the index holds: counts, its model, failures, whether `compact` is due.

        Example:
            >>> info = index.info()
            >>> info.videos, info.seconds_of_video, info.failed_files
            (3, 3.0, 0)
        """
        self._store.refresh()
        return info(self._store)
