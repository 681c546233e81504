"""Three pictures of what a model does: the paper's figures, for any model and data set.

    frame-weights   which frames count for a text, under a plain softmax and under ISA
    retrieved       how often videos are found first, before and after Sinkhorn-Knopp
    levels          what is found with the coarse level, with the fine one, with all

Each becomes one PNG and one SVG. Which example is shown is decided by a rule that the picture
states, not by hand. Numbers come from `evaluate.benchmark` and `evaluate.hubness`; nothing is
computed here that a score does not use.
"""

from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib import rc_context
from matplotlib.figure import Figure

from ucofia.atomic import atomic_write
from ucofia.datasets.dataloader import collate_videos
from ucofia.datasets.frame_sources import FrameSource, fit_frames
from ucofia.datasets.types import VideoItem
from ucofia.errors import SettingError
from ucofia.evaluate.benchmark import Evaluation
from ucofia.evaluate.hubness import COUNTS, best_of_levels, first_hits, shares_by_count
from ucofia.evaluate.matrix_files import mean_level
from ucofia.model import Model
from ucofia.similarity.aggregate import weights as frame_weights
from ucofia.similarity.levels import Level, similarities, text_units, video_units

RIGHT, WRONG, PLAIN, OURS, INK = "#2b8a3e", "#c92a2a", "#868e96", "#e8590c", "#212529"
QUERIES_TRIED = 200  # queries among which an example is chosen
FRAMES_SHOWN = 6  # most frames shown of a video
PER_INCH = 160


@dataclass(frozen=True)
class Weighed:
    """Similarities of a text to a video's frames, with their weights under both rules."""

    similarity: Float[np.ndarray, " f"]
    softmax: Float[np.ndarray, " f"]
    isa: Float[np.ndarray, " f"]


def save(figure: Figure, out: Path) -> list[Path]:
    """Write a figure as PNG and as SVG; the same figure gives the same bytes."""
    out.parent.mkdir(parents=True, exist_ok=True)
    paths = [out.with_suffix(".png"), out.with_suffix(".svg")]
    with rc_context({"svg.hashsalt": "ucofia"}):
        with atomic_write(paths[0]) as part:
            figure.savefig(part, format="png", dpi=PER_INCH)
        with atomic_write(paths[1]) as part:
            figure.savefig(part, format="svg", metadata={"Date": None})
    return paths


def weigh(model: Model, level: Level, text: str, pixels: np.ndarray) -> Weighed:
    """Weigh the frames of a video as the level does, and as a plain softmax would."""
    batch = collate_videos([pixels], frames=model.config.frames)
    with torch.inference_mode():
        words, _ = text_units(model.encode_text(model.tokenize([text])), "sentence")
        video = model.encode_video(batch.to(model.device))
        units, mask = video_units(video, "frame")
        if level.text_map is not None:
            words = words @ level.text_map
        if level.video_map is not None:
            units = units @ level.video_map
        sim = similarities(words, units)[0, 0]
        both = [
            frame_weights(
                sim,
                mask=mask,
                mix=level.aggregator.mixes.units,
                aggregation=kind,
                temperature=level.aggregator.temperature,
            )[0][mask[0]]
            for kind in ("softmax", "isa")
        ]
    found = [tensor.float().cpu().numpy() for tensor in (sim[0][mask[0]], *both)]
    return Weighed(*found)


def draw_frame_weights(model: Model, found: Evaluation, frames: FrameSource) -> Figure:
    """Draw the paper's figure 4: a text, its own video and the best wrong one."""
    level = _isa_level(model)
    total, split = mean_level(found.scores, found.weights), found.split
    is_found = first_hits(found, normalise=("none",))["none"] == np.asarray(split.truth)
    rows = _some(np.flatnonzero(is_found) if is_found.any() else np.arange(len(split.texts)))
    own = [_frames(model, frames, split.videos[split.texts[row].video]) for row in rows]
    moved = [
        np.abs((w := weigh(model, level, split.texts[row].text, pixels)).isa - w.softmax).sum()
        for row, pixels in zip(rows, own, strict=True)
    ]
    row = rows[int(np.argmax(moved))]
    right = split.texts[row].video
    scores = np.array(total[row], dtype=np.float64)
    scores[right] = -np.inf
    videos = {"its own video": right, "the best wrong video": int(scores.argmax())}
    figure = Figure(figsize=(9.6, 6.4), layout="constrained")
    figure.suptitle(fill(f"“{split.texts[row].text}”", 110), fontsize=12, color=INK)
    parts = figure.subfigures(2, 1, squeeze=False)
    for part, (name, video) in zip(parts[:, 0], videos.items(), strict=True):
        pixels = _frames(model, frames, split.videos[video])
        weighed = weigh(model, level, split.texts[row].text, pixels)
        title = f"{name}: score {total[row, video]:.2f}"
        _weights_part(part, title, RIGHT if video == right else WRONG, pixels, weighed)
    kind = "texts that find their video" if is_found.any() else "texts"
    rule = f"Of {len(rows)} {kind}, the one whose frame weights ISA changes most."
    figure.supxlabel(rule, fontsize=9, color=PLAIN)
    return figure


def draw_hubness(found: Evaluation) -> Figure:
    """Draw how often videos are the first hit, before and after Sinkhorn-Knopp."""
    texts, videos = len(found.split.texts), len(found.split.videos)
    hits = first_hits(found)
    figure = Figure(figsize=(6.8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(COUNTS))
    bank = f"{found.bank_texts:,} other texts" if found.bank_texts else "these texts"
    balanced = f"after Sinkhorn-Knopp with {bank}"
    styles = (("none", "as scored", PLAIN), ("sinkhorn", balanced, OURS))
    for at, (name, label, colour) in enumerate(styles):
        shares = list(shares_by_count(hits[name], videos).values())
        bars = axes.bar(places + 0.4 * at - 0.2, shares, 0.38, color=colour, label=label)
        axes.bar_label(bars, fmt="%.0f %%", fontsize=10, color=INK, padding=2)
    axes.set_xticks(places, COUNTS, fontsize=11)
    axes.set_ylabel("videos, per cent")
    axes.set_title(
        f"How often a video is the first hit of a text\n"
        f"{found.dataset}, {found.split.name}: {texts:,} texts, {videos:,} videos",
        fontsize=12,
    )
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)
    # Below the axes: inside them a long name could hide a bar.
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_levels(model: Model, found: Evaluation, frames: FrameSource) -> Figure:
    """Draw first hits with the coarse level only, the fine level only, and all levels."""
    if len(found.levels) < 2:
        raise SettingError("model", list(found.levels), "a comparison needs two levels or more")
    subsets = {
        f"{found.levels[0]} level only": found.levels[:1],
        f"{found.levels[-1]} level only": found.levels[-1:],
        "all levels": found.levels,
    }
    first = {name: best_of_levels(found, levels) for name, levels in subsets.items()}
    truth = np.asarray(found.split.truth)
    rows, rule = _telling(first, truth)
    figure = Figure(figsize=(12, 0.7 + 1.55 * len(rows)), layout="constrained")
    grid = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for part, row in zip(grid, rows, strict=True):
        part.suptitle(fill(f"“{found.split.texts[row].text}”", 130), fontsize=11, color=INK)
        columns = part.subfigures(1, len(first))
        for column, (name, hits) in zip(columns, first.items(), strict=True):
            is_right = bool(hits[row] == truth[row])
            title = f"{name}: {'right' if is_right else 'wrong'}"
            pixels = _frames(model, frames, found.split.videos[int(hits[row])])
            _strip(column, title, RIGHT if is_right else WRONG, pixels)
    figure.supxlabel(rule, fontsize=9, color=PLAIN)
    return figure


def _telling(first: dict[str, np.ndarray], truth: np.ndarray) -> tuple[list[int], str]:
    """Return up to three texts, and the first rule that finds any."""
    coarse, fine, unified = (hits == truth for hits in first.values())
    rules = {
        "all levels are right, coarse alone and fine alone are wrong": unified & ~coarse & ~fine,
        "all levels are right, coarse alone or fine alone is wrong": unified & ~(coarse & fine),
    }
    for rule, fits in rules.items():
        rows = np.flatnonzero(fits)
        if len(rows):
            caption = f"The first texts for which {rule} ({len(rows)} of {len(truth)})."
            return rows[:3].tolist(), caption
    if not len(truth):
        raise SettingError("split", "empty", "it has no texts")
    return list(range(len(truth)))[:3], "Texts in the order of the data set."


def _isa_level(model: Model) -> Level:
    for level in model.levels().values():
        settings = level.aggregator.level
        if (settings.text, settings.video, settings.aggregation) == ("sentence", "frame", "isa"):
            return level
    kinds = [level.name for level in model.config.levels]
    raise SettingError("model", kinds, "no level weighs frames with ISA")


def _frames(model: Model, frames: FrameSource, video: VideoItem) -> np.ndarray:
    return fit_frames(frames(video), model.config.frames)


def _some(rows: Int[np.ndarray, " n"]) -> list[int]:
    """Return at most `QUERIES_TRIED` of the rows, evenly spread."""
    places = np.linspace(0, len(rows) - 1, min(len(rows), QUERIES_TRIED)).astype(int)
    return [int(row) for row in rows[places]]


def _weights_part(
    part: Any, title: str, colour: str, pixels: np.ndarray, weighed: Weighed
) -> None:
    shown = len(pixels)
    axes = part.subplots(2, shown, squeeze=False, height_ratios=(3, 2))
    part.suptitle(title, fontsize=11, color=colour)
    for at in range(shown):
        _picture(axes[0, at], pixels[at])
        axes[0, at].set_title(f"frame {at + 1}: {weighed.similarity[at]:.2f}", fontsize=8)
        bars = axes[1, at].bar(
            ("softmax", "ISA"), (weighed.softmax[at], weighed.isa[at]), 0.7, color=(PLAIN, OURS)
        )
        axes[1, at].bar_label(bars, fmt="%.2f", fontsize=8, padding=1)
        axes[1, at].set_ylim(0, 1.25)
        axes[1, at].set_yticks([])
        axes[1, at].tick_params(axis="x", labelsize=8, length=0)
        axes[1, at].spines[["top", "right", "left"]].set_visible(False)


def _strip(part: Any, title: str, colour: str, pixels: np.ndarray) -> None:
    shown = fit_frames(pixels, FRAMES_SHOWN)
    part.suptitle(title, fontsize=10, color=colour)
    axes = part.subplots(1, len(shown), squeeze=False)[0]
    for one, picture in zip(axes, shown, strict=True):
        _picture(one, picture, edge=colour)


def _picture(axes: Any, pixels: np.ndarray, edge: str = INK) -> None:
    """Show a frame; a frame that is a vector has no picture, and shows as a strip of numbers."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_edgecolor(edge)
        spine.set_linewidth(2)
    if pixels.dtype == np.uint8 and pixels.ndim == 3:
        axes.imshow(pixels.transpose(1, 2, 0), interpolation="nearest")
    else:
        values = pixels.reshape(-1)
        side = int(np.ceil(np.sqrt(len(values))))
        axes.imshow(np.resize(values, (side, side)), cmap="Greys")
