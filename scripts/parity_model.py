"""Parity of the model: towers, selection, aggregation, all scores, and the peers."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from parity_golden import Golden, Row, compare
from torch import Tensor
from torch.nn.functional import normalize

from ucofia.encode.clip import ClipBackbone
from ucofia.encode.patches import keep_patches, perturbed_top_patches, top_patches
from ucofia.encode.temporal import mean_of_frames
from ucofia.model import Model
from ucofia.similarity.aggregate import weights
from ucofia.similarity.levels import similarities
from ucofia.types import TextBatch, TextFeatures, VideoBatch, VideoFeatures

# Tensors of UCoFiA's own that a checkpoint of X-CLIP does not have.
NOT_X_CLIP = ("pixel_mat_weight", "pixel_mat_weight2", "local_mat_weight1", "global_mat_weight_1")
NOT_X_CLIP += ("word_mat_weight_for_pixel",)


def ucofia(golden: Golden, file: str) -> Iterator[Row]:
    """Every stage of one of the authors' models, with the recorded noise and without noise."""

    def ours(_: dict[str, Tensor]) -> dict[str, Tensor]:
        model = golden.model(file)
        text, video = golden.inputs()
        stages, tokens = towers(model, text, video)
        stages |= selection(golden, model, tokens, video)
        features = model.encode_text(text)
        for kind in ("hard", "stochastic"):
            noise = golden.noise(*video.mask.shape) if kind == "stochastic" else None
            model.config = replace(model.config, noisy_inference=kind == "stochastic")
            encoded = model.encode_video(video, noise=noise)
            stages[f"patch_sel_{kind}"] = encoded.patches
            levels = model.score(features, encoded)
            for short, level in (("vs", "video"), ("fs", "frame"), ("pw", "patch")):
                stages[f"sim_{short}_{kind}"] = levels.scores[level]
            stages[f"sim_mean_{kind}"] = stages[f"sim_total_{kind}"] = levels.total()
            if kind == "hard":
                stages |= {"video_feat": encoded.video} | aggregation(model, features, encoded)
        return stages

    for row in compare(golden, file, ours):
        # A file records either the levels and their mean or, in the train trees, the total.
        if not (row.skipped and row.stage.startswith(("sim_", "vit_block", "visual_tokens"))):
            yield row


def towers(model: Model, text: TextBatch, video: VideoBatch) -> tuple[dict[str, Tensor], Tensor]:
    """Both towers and the temporal encoder, before any normalisation."""
    backbone = model.backbone
    assert isinstance(backbone, ClipBackbone)
    words, sentence = backbone.encode_words(text)
    residuals: dict[str, Tensor] = {}
    followers = [block.layer_norm1 for block in backbone.vision.encoder.layers[1:]]
    for index, module in enumerate([*followers, backbone.vision.post_layernorm]):

        def keep(_: Any, args: tuple[Tensor], name: str = f"vit_block{index}") -> None:
            residuals[name] = args[0].unflatten(0, video.mask.shape)

        module.register_forward_pre_hook(keep)
    everything = torch.ones_like(video.mask)
    tokens = backbone.encode_frames(
        video.pixels, mask=everything, shifted_blocks=model.config.shifted_blocks
    )
    assert model.temporal is not None
    stages = {
        "word_feat": words,
        "sentence_feat": sentence,
        "visual_tokens": tokens,
        "frame_feat": tokens[:, :, 0],
        "seqtransf_out": model.temporal(tokens[:, :, 0], video.mask),
    }
    return stages | residuals, tokens


def selection(
    golden: Golden, model: Model, tokens: Tensor, video: VideoBatch
) -> dict[str, Tensor]:
    """Saliency, the hard choice, and the average choice under the recorded noise."""
    config = model.config
    v = mean_of_frames(model._contextual(tokens[:, :, 0], video.mask), video.mask)
    score = model.saliency(tokens, video=v, mask=torch.ones_like(video.mask))
    noise = golden.noise(*video.mask.shape)
    k, sigma = config.selected_patches, config.selection_sigma
    hard = keep_patches(tokens, score, k=k, sigma=sigma, noise=None)
    return {
        "selector_score": score,
        "hard_topk_index": top_patches(score[..., 1:], k=k),
        "topk_indicator": perturbed_top_patches(score[..., 1:], noise=noise, k=k, sigma=sigma),
        "patch_sel_hard": hard,
    }


def aggregation(model: Model, text: TextFeatures, video: VideoFeatures) -> dict[str, Tensor]:
    """The similarity tensors and every half step of ISA and Bi-ISA."""
    level = model.levels()["patch"]
    assert level.text_map is not None
    assert level.video_map is not None
    mixes, tau = level.aggregator.mixes, model.config.isa_temperature
    sim = similarities(text.words @ level.text_map, video.patches @ level.video_map)

    def isa(sim: Tensor, mask: Tensor, mix: Tensor | None, dim: int = -1) -> Tensor:
        kind = {"aggregation": "isa", "temperature": tau, "dim": dim}
        return (weights(sim, mask=mask, mix=mix, **kind) * sim).sum(dim)

    words = text.word_mask[:, :, None]
    by_patch = isa(sim.flatten(2), words, mixes.words, -2).unflatten(-1, sim.shape[2:])
    by_word = isa(sim, video.patch_mask, mixes.units)
    return {
        "cfs": similarities(text.sentence[:, None], video.frames)[:, 0],
        "Cpw_hard": sim,
        "word_isa_hard": by_patch,
        "word_then_patch_hard": isa(by_patch, video.patch_mask, mixes.units_after),
        "patch_isa_hard": by_word,
        "patch_then_word_hard": isa(by_word, words, mixes.words_after, -2),
    }


def isa_unit(golden: Golden) -> Iterator[Row]:
    """The similarity stage alone, on features where no softmax saturates."""

    def ours(g: dict[str, Tensor]) -> dict[str, Tensor]:
        model = golden.model("ucofia_eval_t2v")
        model.logit_scale.fill_(g["logit_scale"])
        mask = g["video_mask"].bool()
        video = mean_of_frames(model._contextual(g["frames"], mask), mask)
        everything = torch.ones_like(mask)
        encoded = VideoFeatures(
            video,
            normalize(g["frames"], dim=-1),
            everything,
            g["patches"],
            everything.repeat_interleave(model.config.tokens_per_frame, 1),
        )
        word_mask = torch.ones(g["words"].shape[:2], dtype=torch.bool)
        text = TextFeatures(
            normalize(g["sentence"], dim=-1), normalize(g["words"], dim=-1), word_mask
        )
        scores = model.score(text, encoded).scores
        return {"sim_vs": scores["video"], "sim_fs": scores["frame"], "sim_pw": scores["patch"]}

    yield from compare(golden, "isa_unit", ours)


def peers(golden: Golden) -> Iterator[Row]:
    """CLIP4Clip, X-CLIP and TS2-Net from the same weights, as presets of the same pieces."""
    if not (golden.folder / "inputs.npz").is_file():
        yield Row("inputs", "", None, "file absent")
        return
    text, video = golden.inputs()

    def scores(model: Model, noise: Tensor | None = None) -> tuple[Tensor, VideoFeatures]:
        encoded = model.encode_video(video, noise=noise)
        return model.score(model.encode_text(text), encoded).total(), encoded

    def clip4clip(_: dict[str, Tensor]) -> dict[str, Tensor]:
        state = golden.tensors("weights_common")
        bare = {k: v for k, v in state.items() if k.startswith("clip.")}
        kept = ("clip.", "transformerClip.", "frame_position")
        seq = {k: v for k, v in state.items() if k.startswith(kept)}
        mean, seq_model = (golden.converted(part, {}) for part in (bare, seq))
        _, sentence = mean.backbone.encode_words(text)
        everything = torch.ones_like(video.mask)
        tokens = mean.backbone.encode_frames(video.pixels, mask=everything, shifted_blocks=())
        return {
            "sentence_feat": sentence,
            "frame_feat": tokens[:, :, 0],
            "sim_meanP": scores(mean)[0],
            "sim_seqTransf": scores(seq_model)[0],
        }

    def x_clip(_: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sim": scores(golden.model("xclip", drop=NOT_X_CLIP))[0]}

    def ts2_net(_: dict[str, Tensor]) -> dict[str, Tensor]:
        state = golden.tensors("weights_common") | golden.tensors("weights_selector_ts2")
        kept = ("clip.", "transformerClip.", "frame_position", "visual_token_selector.")
        part = {k: v for k, v in state.items() if k.startswith(kept)}
        model = golden.converted(part, golden.meta["files"]["ts2net"])
        sizes = {"frames": video.mask.shape[1], "selected_patches": golden.meta["topk"]}
        model.config = replace(model.config, **sizes, normalised_patches=False)
        sim, encoded = scores(model, golden.noise(*video.mask.shape))
        return {
            "patch_sel_stochastic": encoded.patches,
            "sim_semantic": sim,
            "sim_global": sim,
        }

    yield from compare(golden, "clip4clip", clip4clip)
    yield from compare(golden, "xclip", x_clip)
    yield from compare(golden, "ts2net", ts2_net)
