"""The bank of an index: texts that its segments are balanced against, and what that gives.

Solving makes every segment equally likely for the bank's texts, level by level: one bias per
segment and level. The bank's side is then frozen; a segment that comes later costs one pass over
the bank. Queries of a word or two are not balanced: what sentences say of a segment does not hold
for them (docs/experiments.md). All but the texts is derived: what is missing, or was left half
done, counts as unknown until the next writer computes it again, with the same result. A large
bank is encoded once per model, not once per index: its features are kept in the cache.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ucofia.bank_features import encoded_texts
from ucofia.confidence.calibrate import (
    ODDS,
    Calibration,
    Confidence,
    TextScores,
    calibrate,
    standardise,
)
from ucofia.errors import DamagedIndexError, IndexWriteError, SettingError, require_unicode
from ucofia.index.calibration import balance
from ucofia.index.calibration.balance import Kinds, Nulls, Solver
from ucofia.index.storage.collection import Collection, values_of
from ucofia.index.storage.schema import Array, Table
from ucofia.index.storage.store import Store
from ucofia.query.text_kinds import TextKind, kind_of, kinds_of, prompt

if TYPE_CHECKING:  # costs torch, which reading a bank does not need
    from ucofia.model import Model
    from ucofia.progress import Progress

logger = logging.getLogger(__name__)

BANK, BIAS = "bank", "bias"
BIAS_OF, MEAN_OF, DEVIATION_OF = "bias_", "null_mean_", "null_deviation_"  # columns
METHOD = "kinds, moments, captions"  # of solving: a bank that was solved otherwise is solved again
_SCORES = ("best", "mean", "variance")
REPLACED_TRIES = 20  # to write a table that others replace all the time
CHANGE = 0.5  # segments that came or went, per solved one, above which solving again is due


@dataclass(frozen=True)
class Bank:
    """The bank as it is stored; unsolved it has only texts."""

    texts: tuple[str, ...]
    potentials: dict[str, Array]  # per level, one number per text
    scores: TextScores  # of each text in this collection, standardised within its kind
    solved_segments: int
    generation: str  # names the potentials; biases carry it
    changed_segments: int = 0  # that came or went since it was solved
    version: int = 0  # of the table it was read from

    @property
    def is_solved(self) -> bool:
        """Whether biases can be had from it."""
        return bool(self.potentials)

    @cached_property
    def kinds(self) -> Kinds:
        """Which of the texts are of each kind."""
        kinds = np.array(kinds_of(self.texts))
        return {kind: kinds == kind for kind in ODDS if (kinds == kind).any()}

    def prompts(self, texts: Sequence[str]) -> list[str]:
        """The texts as they are encoded: words in a prompt, if the bank has words, too."""
        return [prompt(text) for text in texts] if "words" in self.kinds else list(texts)

    def calibrations(self, segments: int) -> dict[TextKind, Calibration]:
        """What gives confidence in so many segments; none when unsolved, or with too few texts."""
        found = {k: calibrate(self.scores[texts], k, segments) for k, texts in self.kinds.items()}
        return {kind: curve for kind, curve in found.items() if curve is not None}

    def is_due(self, segments: int) -> bool:
        """Whether the collection has changed so much that it should be solved again."""
        # The first indexes did not count; the difference is the least that can have changed.
        changed = max(self.changed_segments, abs(segments - self.solved_segments))
        return bool(segments) and changed > CHANGE * self.solved_segments


@dataclass(frozen=True)
class Null:
    """Null distribution: how the bank's texts of a kind score each segment.

    Mean and deviation are NaN where unknown.
    """

    mean: Array
    deviation: Array
    calibration: Calibration

    def confidence(self, row: int, total: float) -> Confidence | None:
        """Confidence of a score of a row; None where it is unknown.

        A segment that came after the bank was last applied can be ranked, but not judged.
        """
        z = standardise(np.array(total), self.mean[row], self.deviation[row])
        if not np.isfinite(z):
            return None
        value = float(self.calibration.confidence(z))
        return Confidence(value, bool(self.calibration.is_match(z)))

    def total_of(self, confidence: float) -> Array:
        """The score that gives each segment a confidence; NaN where none does."""
        z = self.calibration.z_of(confidence)
        return self.mean + z * np.maximum(self.deviation, 1e-6)


def confidence_of(null: Null | None, row: int, total: float) -> tuple[float | None, bool | None]:
    """Confidence of a score of a row, and whether it is a match; None where that is unknown."""
    found = None if null is None else null.confidence(row, total)
    return (None, None) if found is None else (found.value, found.is_match)


@dataclass(frozen=True)
class Normalisation:
    """What the bank says about the segments of a collection, in its order."""

    biases: dict[str, Array]  # Sinkhorn's, per level
    nulls: dict[TextKind, Null]

    def of(self, text: str) -> "TextNormalisation":
        """What of it holds for a text."""
        kind = kind_of(text) if len(self.nulls) > 1 else "sentence"
        biases = {} if kind == "words" else self.biases
        return TextNormalisation(kind, biases, self.nulls.get(kind))


@dataclass(frozen=True)
class TextNormalisation:
    """What the bank says about the segments for queries of one kind."""

    kind: TextKind
    biases: dict[str, Array]
    null: Null | None  # None: hits have no confidence


def texts_of(model: str) -> list[str]:
    """The texts that a model brings: one per line in its folder's `bank/texts.txt`."""
    from ucofia.checkpoint import locate

    file = locate(model) / "bank" / "texts.txt"
    return file.read_text(encoding="utf-8").splitlines() if model and file.is_file() else []


def prepare(model: "Model", texts: Sequence[str], progress: "Progress | None" = None) -> None:
    """Encode a bank before there is an index, so that the first one need not."""
    bank = _unsolved(texts)
    encoded_texts(model, bank.prompts(bank.texts), model.fingerprint(), progress)


def read(store: Store) -> Bank | None:
    """Read the bank, or None."""
    table, version = store.small_at_version(BANK)
    if table is None or not len(table):
        return None
    about = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    try:
        solved, changed = (int(about.get(f"{name}_segments", 0)) for name in ("solved", "changed"))
    except ValueError as error:
        raise DamagedIndexError(store.path, "its bank does not say when it was solved") from error
    levels = [name for name in table.column_names if name.startswith("potential_")]
    bank = Bank(
        texts=tuple(table.column("text").to_pylist()),
        potentials={n.removeprefix("potential_"): table.column(n).to_numpy() for n in levels},
        scores=_scores(table, solved),
        solved_segments=solved,
        generation=about.get("generation", ""),
        changed_segments=changed,
        version=version,
    )
    is_ours = about.get("model", store.settings.fingerprint) == store.settings.fingerprint
    if is_ours and bank.generation == _name(bank.texts, bank.potentials):
        return bank
    # Never solved, or for another model, or by a version that solved in another way.
    return replace(bank, potentials={}, solved_segments=0, generation="", changed_segments=0)


def set_texts(store: Store, texts: Sequence[str]) -> Bank:
    """Replace the bank; the next `update` solves it."""
    bank = _unsolved(texts)
    return replace(bank, version=store.replace_small(BANK, _table(bank)) or 0)


def table_of_texts(texts: Sequence[str]) -> Table:
    """Write an unsolved bank as a table."""
    return _table(_unsolved(texts))


def _unsolved(texts: Sequence[str]) -> Bank:
    cleaned = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if not cleaned:
        raise SettingError("bank", [], "it needs at least one text")
    for text in cleaned:
        require_unicode(text)
    none = np.full(len(cleaned), np.nan)
    return Bank(tuple(cleaned), {}, TextScores(none, none, none, 0), 0, "")


def update(
    store: Store,
    model: "Model",
    collection: Collection,
    progress: "Progress | None" = None,
    solver: Solver | None = None,
) -> Bank | None:
    """Compute the biases of all segments: solve if that was never done, else extend to new ones.

    Returns the bank as it is afterwards, or None. Where writers have no lock, another one may have
    solved it meanwhile: then `is_newest` says so, and the next `update` goes on from there.
    """
    bank = read(store)
    if bank is None or not len(collection):
        return bank
    if not bank.is_solved or not bank.scores.has_moments:  # the first versions kept none
        return solve(store, model, collection, bank, progress, solver)
    table = store.small(BIAS)
    known = _current_ids(table, bank)
    names = values_of(collection.segments, "id")
    rows = [row for row, name in enumerate(names) if name not in known]
    some = _finite(collection.rows(np.array(rows, np.int64)))
    if len(some):
        bank = _extend(store, model, some, bank, progress, solver, is_first=not known)
    return _forget_gone(store, bank, table, collection)


def is_newest(store: Store, bank: Bank | None) -> bool:
    """Whether the bank was not written since."""
    return bank is None or store.small_version(BANK) == bank.version


def has_confidence(store: Store, bank: Bank | None, ids: Iterable[str]) -> bool:
    """Whether any of some segments can be judged: by a solution, of texts enough, that has it."""
    if bank is None or not bank.is_solved or not bank.calibrations(1):
        return False
    return not _current_ids(store.small(BIAS), bank).isdisjoint(ids)


def forget_gone(store: Store, collection: Collection) -> Bank | None:
    """Drop the biases of segments that are no longer there, and count these."""
    bank = read(store)
    return None if bank is None else _forget_gone(store, bank, store.small(BIAS), collection)


def _forget_gone(store: Store, bank: Bank, table: Table | None, collection: Collection) -> Bank:
    stored = [] if table is None else table["id"].to_pylist()
    gone = set(stored) - set(values_of(collection.segments, "id"))
    if gone:  # or added since, where there is no lock
        gone -= {*store.newest().table(["id"])["id"].to_pylist()}
    if gone:
        bank = _count(store, bank, len(gone)) or bank
        store.forget_small(BIAS, "id", sorted(gone))
    return bank


def _count(store: Store, bank: Bank, changed: int) -> Bank | None:
    # Before the change itself: a run that is killed in between only makes solving due earlier.
    return _change(
        store, bank, lambda held: replace(held, changed_segments=held.changed_segments + changed)
    )


def _change(store: Store, bank: Bank, change: Callable[[Bank], Bank]) -> Bank | None:
    """Write a change of a bank; None if others have set or solved it since it was read.

    A lock keeps others from that; where there is none, solving takes long enough for it. What they
    have only extended is changed as they left it.
    """
    for _ in range(REPLACED_TRIES):
        store.require_same()
        new = change(bank)
        table = _table(new)
        about = {**(table.schema.metadata or {}), b"model": store.settings.fingerprint.encode()}
        table = table.replace_schema_metadata(about)
        version = store.replace_small(BANK, table, version=bank.version)
        if version is not None:
            return replace(new, version=version)
        held = read(store)
        if held is None or (held.texts, held.generation) != (bank.texts, bank.generation):
            break
        bank = held
    logger.info("%s: another process has solved the bank meanwhile; that stays", store.path)
    return None


def solve(
    store: Store,
    model: "Model",
    collection: Collection,
    bank: Bank,
    progress: "Progress | None" = None,
    solver: Solver | None = None,
) -> Bank:
    """Run Sinkhorn-Knopp on the whole collection; returns the bank with its solution."""
    collection = _finite(collection)
    if not len(collection):
        return bank
    asked = bank.prompts(bank.texts)
    text = encoded_texts(model, asked, store.settings.fingerprint, progress)
    found = (solver or balance.solve_here)(store, model, text, bank.kinds, collection, progress)
    generation = _name(bank.texts, found.potentials)
    solution = Bank(bank.texts, found.potentials, found.scores, len(collection), generation)
    solved = _change(store, bank, lambda _: solution)
    if solved is None:
        return bank
    ids = values_of(collection.segments, "id")
    store.put_small(BIAS, _bias_table(ids, generation, found.biases, found.nulls))
    return solved


def normalisation(store: Store, collection: Collection, bank: Bank | None) -> Normalisation:
    """Read the biases of a collection; a segment without them keeps its scores, and is not judged.

    So does one whose biases are NaN or infinite, with a warning.
    """
    table = store.small(BIAS) if bank is not None and bank.is_solved else None
    if table is None or bank is None:
        return Normalisation({}, {})
    row_of = collection.row_of_segment
    named = zip(table["id"].to_pylist(), table["generation"].to_pylist(), strict=True)
    pairs = [
        (at, row_of[segment])
        for at, (segment, generation) in enumerate(named)
        if segment in row_of and generation == bank.generation
    ]
    if not pairs:
        return Normalisation({}, {})
    source, target = np.array(pairs, dtype=np.int64).T
    stored = [table.column(BIAS_OF + name).to_numpy()[source] for name in bank.potentials]
    is_finite = np.isfinite(stored).all(0)
    if not is_finite.all():
        count = len(source) - is_finite.sum()
        logger.warning("biases of %d segments of %s are NaN; compact it", count, store.path)
        source, target = source[is_finite], target[is_finite]

    def column(name: str, missing: float) -> Array:
        values = np.full(
            len(collection), missing, dtype=table.schema.field(name).type.to_pandas_dtype()
        )
        values[target] = table.column(name).to_numpy()[source]
        return values

    biases = {n: column(BIAS_OF + n, 0.0) for n in bank.potentials}
    nulls = {
        kind: Null(column(MEAN_OF + kind, np.nan), column(DEVIATION_OF + kind, np.nan), curve)
        for kind, curve in bank.calibrations(len(collection)).items()
    }
    return Normalisation(biases, nulls)


def _finite(collection: Collection) -> Collection:
    """Leave out rows with NaN or infinity, which would spoil the solution of all."""
    rows = np.arange(len(collection))
    bad = collection.not_finite(rows)
    return collection.rows(np.setdiff1d(rows, bad)) if len(bad) else collection


def _extend(
    store: Store,
    model: "Model",
    some: Collection,
    bank: Bank,
    progress: "Progress | None",
    solver: Solver | None,
    *,
    is_first: bool,
) -> Bank:
    """Give some segments their biases; the first of a generation replace those of another."""
    asked = bank.prompts(bank.texts)
    text = encoded_texts(model, asked, store.settings.fingerprint, progress)
    found = (solver or balance.solve_here)(
        store, model, text, bank.kinds, some, progress, bank.potentials
    )

    def extended(held: Bank) -> Bank:
        # A maximum may be taken twice; so a run may be killed in between. Means and
        # variances stay those of the solution.
        scores = replace(held.scores, best=np.fmax(held.scores.best, found.scores.best))
        return replace(held, scores=scores, changed_segments=held.changed_segments + len(some))

    counted = _change(store, bank, extended)
    if counted is None:
        return bank
    ids = values_of(some.segments, "id")
    table = _bias_table(ids, bank.generation, found.biases, found.nulls)
    try:
        store.put_small(BIAS, table, merge=not is_first)
    except IndexWriteError:  # those of another bank, which came meanwhile, have other columns
        if is_newest(store, counted):
            raise
    return counted


def _current_ids(table: Table | None, bank: Bank) -> set[str]:
    if table is None:
        return set()
    pairs = zip(table["id"].to_pylist(), table["generation"].to_pylist(), strict=True)
    return {segment for segment, generation in pairs if generation == bank.generation}


def _table(bank: Bank) -> Table:
    scores = {name: getattr(bank.scores, name) for name in _SCORES}
    columns = {"text": list(bank.texts), **scores}
    columns |= {f"potential_{name}": values for name, values in bank.potentials.items()}
    about = {
        "generation": bank.generation,
        "solved_segments": str(bank.solved_segments),
        "changed_segments": str(bank.changed_segments),
    }
    return pa.table(columns).replace_schema_metadata(about)


def _scores(table: Table, segments: int) -> TextScores:
    """Read how each text scores; numbers that an earlier version did not have are NaN."""
    names = table.column_names
    none = np.full(len(table), np.nan)
    found = {n: table.column(n).to_numpy() if n in names else none for n in _SCORES}
    return TextScores(**found, segments=segments)


def _bias_table(
    ids: Sequence[str],
    generation: str,
    biases: dict[str, Array],
    nulls: Nulls,
) -> Table:
    columns: dict[str, Any] = {"id": list(ids), "generation": [generation] * len(ids)}
    columns |= {BIAS_OF + name: values.astype(np.float32) for name, values in biases.items()}
    for kind, (mean, deviation) in nulls.items():
        columns |= {MEAN_OF + kind: mean, DEVIATION_OF + kind: deviation}
    return pa.table(columns)


def _name(texts: Sequence[str], potentials: dict[str, Array]) -> str:
    named = [*texts, str(balance.TEMPERATURE), METHOD]
    digest = hashlib.blake2b("\n".join(named).encode(), digest_size=8)
    for name, values in sorted(potentials.items()):
        digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
