"""UCoFiA and its peers: one network from pixels and words to a score per level.

Learned aggregation weights are in its `LevelHead`s; it hands them to the pure functions of
`similarity` as arguments. Training, evaluation and search all call `Model.score`.
"""

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ucofia.config import LEARNED_SELECTORS, ModelConfig
from ucofia.encode.backbone import (
    Backbone,
    FramewiseBackbone,
    ProjectedBackbone,
    SigmoidBackbone,
)
from ucofia.encode.lora import Adapter
from ucofia.encode.patches import (
    PatchSelector,
    diverse,
    is_near,
    keep_patches,
    nearness,
    selection_noise,
)
from ucofia.encode.temporal import TemporalEncoder, mean_of_frames
from ucofia.encode.token_shift import unpacked
from ucofia.errors import EmptyInputError, SettingError, TextCutWarning, require_unicode
from ucofia.level_head import LevelHead
from ucofia.provenance import hash_tensors
from ucofia.similarity import levels as similarity
from ucofia.similarity.aggregate import Aggregator, Mixes
from ucofia.types import Levels, PixelSpec, TextBatch, TextFeatures, VideoBatch, VideoFeatures
from ucofia.video.pixels import normalise

TOKEN_AXES = 4  # of frames that arrive as tokens; crops have five, features three
INFERENCE_NOISE_KEY = 0
TEXTS_AT_ONCE = 64
# What videos do not pass: parts of the state, and settings of model and backbone.
TEXT_PARTS = (
    "backbone.text",
    "backbone.sentence_projection",
    "backbone.word_projection",
    "backbone.reading_projection",
    "backbone.logit",
    "logit_scale",
    "heads.",
)
TEXT_SETTINGS = ("text", "stop_words", "reads", "levels", "words", "isa_temperature")


class Model(nn.Module):
    """A backbone with the parts that a configuration puts on top of it.

    In the examples `model` is a toy model that knows colours; `ucofia.load` gives real ones.
    """

    def __init__(self, backbone: Backbone, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.source = ""  # where it was loaded from; an index finds it there again
        self.adapter: Adapter | None = None  # while its towers are trained by low-rank matrices
        self.backbone = backbone
        width = backbone.width
        self.logit_scale = nn.Parameter(torch.tensor(backbone.logit_scale))
        self.temporal: TemporalEncoder | None = None
        if config.temporal_layers:
            self.temporal = self._new_temporal(backbone)
        self.selector: PatchSelector | None = None
        if config.uses_patches and config.selector in LEARNED_SELECTORS:
            self.selector = PatchSelector(width=width, kind=config.selector)
        self.heads = nn.ModuleDict(
            {
                level.name: LevelHead(
                    level, width=width, words=config.words, units=config.units(level)
                )
                for level in config.levels
            }
        )

    @property
    def pixels(self) -> PixelSpec | None:
        """How frames must be cropped, or None where they arrive as features."""
        return self.backbone.pixels

    @property
    def is_framewise(self) -> bool:
        """Whether the tokens of a frame depend on that frame alone."""
        looks_alone = isinstance(self.backbone, FramewiseBackbone) and self.backbone.is_framewise
        return looks_alone and self.pixels is not None and not self.config.shifted_blocks

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.logit_scale.device

    def fingerprint(self) -> str:
        """Identify settings and weights; two models with the same one give the same features.

        But for rounding: an index may hold frames that different devices encoded.

        Example:
            >>> model.fingerprint() == model.fingerprint(), len(model.fingerprint())
            (True, 16)
        """
        settings = asdict(self.config)
        # Settings that came later than some indexes: where they are not used, nothing changes.
        later = [(level, "bias") for level in settings["levels"]] + [(settings, "candidates")]
        for values, name in later:
            if values[name] is None:
                del values[name]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        digest.update(json.dumps(self.backbone.describe(), sort_keys=True).encode())
        hash_tensors(digest, self.state_dict())
        return digest.hexdigest()[:16]

    def video_fingerprint(self) -> str:
        """Identify what videos pass; two models with the same one encode videos alike.

        Text tower, projections of texts and all that scores features do not count, so that an
        index may change from one such model to the other (`Index.use_model`).

        Example:
            >>> model.video_fingerprint() == model.video_fingerprint()
            True
        """
        config = {k: v for k, v in asdict(self.config).items() if k not in TEXT_SETTINGS}
        backbone = {k: v for k, v in self.backbone.describe().items() if k not in TEXT_SETTINGS}
        settings = [config, backbone, self.config.uses_patches, repr(self.pixels)]
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        state = self.state_dict()
        hash_tensors(digest, {n: t for n, t in state.items() if not n.startswith(TEXT_PARTS)})
        return digest.hexdigest()[:16]

    def tokenize(self, texts: Sequence[str]) -> TextBatch:
        """Turn texts into tokens.

        Args:
            texts: Any number of texts. One longer than `config.words` tokens is cut, with a
                `TextCutWarning`.

        Returns:
            Their tokens, on the model's device, padded to the longest.

        Raises:
            EmptyInputError: A text has no words.
            SettingError: A text is not valid Unicode.

        Example:
            >>> model.tokenize(["red", "green blue"]).ids.shape
            torch.Size([2, 2])
        """
        empty = [row for row, text in enumerate(texts) if not text.strip()]
        if empty:
            raise EmptyInputError("text", empty)
        for text in texts:
            require_unicode(text)
        batch, cut = self.backbone.tokenize(
            texts, length=self.config.words, pad_to_length=not self.config.masked
        )
        if cut:
            warnings.warn(TextCutWarning(cut, self.config.words), stacklevel=2)
        return batch.to(self.device)

    def encode_text(self, batch: TextBatch) -> TextFeatures:
        """Encode tokenised texts, with gradients where they are switched on.

        Args:
            batch: What `tokenize` returned.

        Returns:
            Unit vectors of each sentence and each word. They do not depend on what else is in
            the batch.

        Raises:
            NotFiniteError: A feature is NaN or infinite; the weights are damaged.

        Example:
            >>> features = model.encode_text(model.tokenize(["green blue"]))
            >>> features.sentence.shape, features.words.shape
            (torch.Size([1, 8]), torch.Size([1, 2, 8]))
        """
        words, sentence = self.backbone.encode_words(batch)
        return TextFeatures(
            sentence=nn.functional.normalize(sentence, dim=-1),
            words=nn.functional.normalize(words, dim=-1),
            word_mask=batch.word_mask if self.config.masked else torch.ones_like(batch.mask),
        )

    def encode_texts(self, texts: Sequence[str]) -> Iterator[TextFeatures]:
        """Encode any number of texts, some at a time and without gradients.

        Args:
            texts: As for `tokenize`.

        Yields:
            The features of some texts, in order.

        Raises:
            EmptyInputError: A text has no words.

        Example:
            >>> sum(len(features) for features in model.encode_texts(["red", "blue"]))
            2
        """
        if not texts:
            return
        for some in self.tokenize(texts).split(TEXTS_AT_ONCE):
            if self.config.masked:  # no wider than its own longest text
                some = some.trimmed()
            with torch.inference_mode():
                features = self.encode_text(some)
            yield features

    def encode_video(
        self,
        batch: VideoBatch,
        *,
        noise_keys: Sequence[int] | None = None,
        noise: Float[Tensor, "v f s m"] | None = None,
    ) -> VideoFeatures:
        """Encode videos to vectors of three grains.

        Args:
            batch: Frames as uint8 crops of `pixels.size`, or floats that are normalised already.
            noise_keys: While training the choice of patches is perturbed by noise drawn from one
                key per video, so that it does not depend on batching.
            noise: The noise itself, instead of keys.

        Returns:
            Unit vectors of each video, its frames and its kept patches.

        Raises:
            SettingError: There are more frames than `config.frames`.
            EmptyInputError: A video has no real frame.
            NotFiniteError: A feature is NaN or infinite.

        Example:
            >>> frames = torch.zeros(1, 4, 3, 32, 32, dtype=torch.uint8)  # four black frames
            >>> batch = VideoBatch(frames, torch.ones(1, 4, dtype=torch.bool))
            >>> model.encode_video(batch).frames.shape
            torch.Size([1, 4, 8])
        """
        return self.encode_with_saliency(batch, noise_keys=noise_keys, noise=noise)[0]

    def encode_with_saliency(
        self,
        batch: VideoBatch,
        *,
        noise_keys: Sequence[int] | None = None,
        noise: Float[Tensor, "v f s m"] | None = None,
    ) -> tuple[VideoFeatures, Float[Tensor, "v f n"] | None]:
        """Encode videos as `encode_video` does, and return the saliency of their tokens as well.

        Returns:
            The features, and how salient each token of a frame was; None where no patches are
            chosen among them.
        """
        config, mask = self.config, batch.mask
        if mask.shape[1] > config.frames:
            raise SettingError(
                "frames", mask.shape[1], f"this model takes at most {config.frames}"
            )
        # The authors let padded frames take part everywhere but in the temporal encoder.
        voting = mask if config.masked else torch.ones_like(mask)
        seen = self._tower_tokens(batch.pixels, voting)
        tokens = self._projected(seen, voting)
        frames = tokens[:, :, 0]
        patches, score = tokens[:, :0, 0], None
        contextual = self._contextual(frames, mask)
        video = mean_of_frames(contextual, mask)
        if config.selector == "contextual":
            patches = contextual
        elif config.uses_patches:
            score = self._candidate_saliency(tokens, seen, video=video, mask=voting)
            patches = keep_patches(
                tokens,
                score,
                k=config.selected_patches,
                sigma=config.selection_sigma,
                noise=noise if noise is not None else self._noise(score, noise_keys),
            )
        frame_mask = voting
        if config.temporal_over == "patches":
            frames, frame_mask = self._contextual_patches(patches, mask)
            video = mean_of_frames(frames, frame_mask)
        patch_mask = voting.repeat_interleave(config.tokens_per_frame, dim=1)
        if config.normalised_patches:
            patches = nn.functional.normalize(patches, dim=-1)
        features = VideoFeatures(
            video=video,
            frames=nn.functional.normalize(frames, dim=-1),
            frame_mask=frame_mask,
            patches=patches,
            patch_mask=patch_mask[:, : patches.shape[1]],
        )
        return features, score

    def _candidate_saliency(
        self, tokens: Tensor, tower_tokens: Tensor, *, video: Tensor, mask: Tensor
    ) -> Float[Tensor, "v f n"]:
        """Return the saliency of tokens; minus infinity for those that are no candidates."""
        score, count = self.saliency(tokens, video=video, mask=mask), self.config.candidates
        if count is None or count >= tower_tokens.shape[2] - 1:
            return score
        return score.masked_fill(~is_near(tower_tokens, count=count), float("-inf"))

    def saliency(self, tokens: Tensor, *, video: Tensor, mask: Tensor) -> Tensor:
        """Score the tokens of every frame by how much they are worth keeping."""
        if self.config.selector == "diverse":
            return diverse(tokens, count=self.config.selected_patches)
        if self.selector is None:
            return nearness(tokens)
        score: Tensor = self.selector(tokens, video=video, mask=mask)
        return score

    def score(self, text: TextFeatures, video: VideoFeatures) -> Levels:
        """Score every text against every video, level by level.

        Args:
            text: What `encode_text` returned.
            video: What `encode_video` returned.

        Returns:
            One matrix per level, texts by videos; `.total()` is their weighted mean.

        Example:
            >>> frames = torch.zeros(1, 4, 3, 32, 32, dtype=torch.uint8)  # four black frames
            >>> batch = VideoBatch(frames, torch.ones(1, 4, dtype=torch.bool))
            >>> text = model.encode_text(model.tokenize(["black", "white"]))
            >>> black, white = model.score(text, model.encode_video(batch)).total()[:, 0]
            >>> bool(black > white)
            True
        """
        return similarity.score(self.levels(), text, video)

    def level_logits(self, text: TextFeatures, video: VideoFeatures) -> list[Tensor]:
        """Return the scores of each level as a sigmoid loss wants them, with their biases.

        A bias is the same for all pairs and ranks nothing, so that `score` leaves it out.

        Raises:
            SettingError: A level has no bias of its own, and the backbone none either.
        """
        found = []
        for name, scores in self.score(text, video).scores.items():
            head = self.heads[name]
            assert isinstance(head, LevelHead)
            bias: Tensor | None = head.bias
            if bias is None and isinstance(self.backbone, SigmoidBackbone):
                bias = self.backbone.score_bias()
            if bias is None:
                rule = f"level {name!r} has no bias; give it one (bias = -10.0) in the preset"
                raise SettingError("loss", "sigmoid", rule)
            found.append(scores + bias)
        return found

    def levels(self) -> dict[str, similarity.Level]:
        """Return what turns features into scores, as plain values for pure functions."""
        scale = self.logit_scale.exp()
        found = {}
        for level in self.config.levels:
            head = self.heads[level.name]
            assert isinstance(head, LevelHead)
            mixes = Mixes(
                units=head.units,
                words=head.words,
                units_after=head.units_after,
                words_after=head.words_after,
                flat=head.flat,
            )
            found[level.name] = similarity.Level(
                aggregator=Aggregator(level, mixes, self.config.isa_temperature),
                text_map=head.text_map,
                video_map=head.video_map,
                scale=scale if level.scaled else None,
                word_gate=None if head.word_gate is None else head.word_gate.gate(),
                unit_gate=None if head.unit_gate is None else head.unit_gate.gate(),
                pooler=None if head.pool is None else head.pool.pooler(),
            )
        return found

    def _new_temporal(self, backbone: Backbone) -> TemporalEncoder:
        config = self.config
        temporal = TemporalEncoder(
            width=backbone.width,
            layers=config.temporal_layers,
            heads=config.temporal_heads,
            positions=config.temporal_positions,
        )
        start = backbone.temporal_start(config.temporal_layers)
        if start is not None:
            known = start["positions"][: config.temporal_positions]
            unknown = temporal.positions.detach()[len(known) :]
            temporal.load_state_dict({**start, "positions": torch.cat([known, unknown])})
        return temporal

    def _contextual(self, frames: Tensor, mask: Tensor) -> Tensor:
        if self.temporal is None or self.config.temporal_over != "frames":
            return frames
        encoded: Tensor = self.temporal(frames, mask)
        return encoded + frames

    def _contextual_patches(self, patches: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Run all kept tokens through the temporal encoder and keep the frame tokens (TS2-Net)."""
        assert self.temporal is not None
        per_frame = self.config.tokens_per_frame
        # TS2-Net tiles the frame mask, so that it hides the wrong tokens; masked presets do not.
        masked = self.config.masked
        token_mask = mask.repeat_interleave(per_frame, 1) if masked else mask.repeat(1, per_frame)
        encoded: Tensor = self.temporal(patches, token_mask)
        return (encoded + patches)[:, ::per_frame], token_mask[:, ::per_frame]

    def _noise(self, score: Tensor, keys: Sequence[int] | None) -> Iterable[Tensor] | None:
        perturbed = self.training or self.config.noisy_inference
        if self.selector is None or not perturbed:
            return None
        if keys is None:
            fresh = torch.randint(2**62, (len(score),)).tolist()
            keys = fresh if self.training else [INFERENCE_NOISE_KEY] * len(score)
        _, frames, tokens = score.shape
        shape = (frames, self.config.selection_samples, tokens - 1)
        return (selection_noise(key, shape).to(score) for key in keys)

    def _tower_tokens(self, pixels: Tensor, mask: Tensor) -> Float[Tensor, "v f n e"]:
        """Return tokens in the vision tower's own space, of frames or of stored tokens."""
        pixels, shifted_blocks = self._as_floats(pixels), self.config.shifted_blocks
        backbone, is_stored = self.backbone, self.pixels is not None and pixels.ndim == TOKEN_AXES
        is_projected = isinstance(backbone, ProjectedBackbone)
        if not is_stored and not is_projected:
            return backbone.encode_frames(pixels, mask=mask, shifted_blocks=shifted_blocks)
        if shifted_blocks:
            rule = (
                "stored tokens have left the tower's blocks; choose a preset without token shift"
                if is_stored
                else "this backbone's tower was not trained with token shift"
            )
            raise SettingError("shifted_blocks", shifted_blocks, rule)
        width = backbone.token_width if isinstance(backbone, ProjectedBackbone) else backbone.width
        if is_stored:
            if pixels.shape[-1] != width:
                rule = f"this model's are {width} wide"
                raise SettingError("width of the tokens", pixels.shape[-1], rule)
            return pixels
        return unpacked(self.vision_tokens(pixels[mask]), mask)

    def _projected(self, tokens: Tensor, mask: Tensor) -> Float[Tensor, "v f n d"]:
        """Project the tower's tokens into the joint space; padding is zero."""
        if isinstance(self.backbone, ProjectedBackbone):
            tokens = self.backbone.project_tokens(tokens)
        return torch.where(mask[:, :, None, None], tokens, 0.0)

    def vision_tokens(self, frames: Tensor) -> Float[Tensor, "f n e"]:
        """Return what a token cache keeps of frames: before any projection above the tower."""
        pixels = self._as_floats(frames)
        if isinstance(self.backbone, ProjectedBackbone):
            return self.backbone.vision_tokens(pixels)
        mask = torch.ones(1, len(pixels), dtype=torch.bool, device=self.device)
        return self.backbone.encode_frames(pixels[None], mask=mask, shifted_blocks=())[0]

    def _as_floats(self, pixels: Tensor) -> Tensor:
        """Normalise uint8 crops; floats are taken as they are."""
        pixels = pixels.to(self.device)
        spec = self.backbone.pixels
        if pixels.dtype != torch.uint8 or spec is None:
            return pixels.to(self.logit_scale.dtype)
        return normalise(pixels, spec)
