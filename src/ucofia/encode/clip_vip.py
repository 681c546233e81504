"""CLIP-ViP as a backbone: a CLIP whose vision tower reads all frames of a video at once.

A few proxy tokens (CLIP's class token among them) see every patch of every frame; a patch sees
the proxies and its own frame. There is no token per frame, which UCoFiA needs; so in the last
block the class token looks once more, at each frame alone, and what it sees there is that frame's
token. For a video of one frame without further proxies this is CLIP.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ucofia.encode.clip import ClipBackbone
from ucofia.encode.tokenizer import ClipTokenized
from ucofia.errors import SettingError
from ucofia.types import TextBatch


class ClipVipBackbone(ClipTokenized, nn.Module):
    """A CLIP's towers with proxy tokens and embeddings of time."""

    fresh: tuple[str, ...] = ()

    def __init__(self, clip: ClipBackbone, *, proxies: int, moments: int) -> None:
        super().__init__()
        self.clip = clip
        vision_width = clip.config.vision_config.hidden_size
        self.proxies = nn.Parameter(torch.randn(proxies, vision_width) * 0.02)
        self.moments = nn.Parameter(torch.zeros(1, moments, vision_width))
        self.width = clip.width
        self.pixels = clip.pixels
        self.logit_scale = clip.logit_scale

    @classmethod
    def from_description(cls, values: Mapping[str, Any], folder: Path) -> "ClipVipBackbone":
        """Build the towers from plain values, with fresh weights."""
        clip = ClipBackbone.from_geometry(values["config"])
        return cls(clip, proxies=values["proxies"], moments=values["moments"])

    def describe(self) -> dict[str, Any]:
        """Return what rebuilds the towers without weights."""
        sizes = {"proxies": len(self.proxies), "moments": self.moments.shape[1]}
        return {**self.clip.describe(), "family": "clip-vip", **sizes}

    def encode_words(
        self, batch: TextBatch
    ) -> tuple[Float[Tensor, "t w d"], Float[Tensor, "t d"]]:
        """Encode texts as CLIP does."""
        return self.clip.encode_words(batch)

    def encode_frames(
        self,
        pixels: Float[Tensor, "v f c h x"],
        *,
        mask: Bool[Tensor, "v f"],
        shifted_blocks: Sequence[int],
    ) -> Float[Tensor, "v f n d"]:
        """Encode all frames of a video together; padded ones are masked and give zeros."""
        if shifted_blocks:
            rule = "proxy tokens already carry information between frames; leave it empty"
            raise SettingError("shifted_blocks", tuple(shifted_blocks), rule)
        vision, globals_ = self.clip.vision, 1 + len(self.proxies)
        x = vision.pre_layrnorm(self._embeddings(pixels))
        patches = (x.shape[1] - globals_) // mask.shape[1]
        visible = _visibility(mask, globals_=globals_, patches=patches)
        *blocks, last = vision.encoder.layers
        joint = visible[:, :, : x.shape[1], : x.shape[1]]
        for block in blocks:
            x = block(x, joint)
        x = last(torch.cat([x, x[:, :1].expand(-1, mask.shape[1], -1)], dim=1), visible)
        tokens = self.clip.visual_projection(vision.post_layernorm(x))
        of_patches = tokens[:, globals_ : -mask.shape[1]].unflatten(1, (mask.shape[1], patches))
        of_frames = tokens[:, -mask.shape[1] :, None]
        return torch.cat([of_frames, of_patches], dim=2) * mask[:, :, None, None]

    def temporal_start(self, layers: int) -> dict[str, Tensor] | None:
        """Return the text tower's positions and first blocks, as for CLIP."""
        return self.clip.temporal_start(layers)

    def _embeddings(self, pixels: Tensor) -> Tensor:
        table = self.clip.vision.embeddings
        positions = table.position_embedding.weight
        videos, frames = pixels.shape[:2]
        patches = table.patch_embedding(pixels.flatten(0, 1)).flatten(2).mT
        patches = patches.unflatten(0, (videos, frames)) + positions[1:]
        moments: Tensor = self.moments
        if frames != moments.shape[1]:
            moments = nn.functional.interpolate(moments.mT, size=frames, mode="linear").mT
        patches = patches + moments[:, :, None]
        proxies = torch.cat([table.class_embedding[None], self.proxies]) + positions[0]
        return torch.cat([proxies.expand(videos, -1, -1), patches.flatten(1, 2)], dim=1)


def _visibility(
    mask: Bool[Tensor, "v f"], *, globals_: int, patches: int
) -> Bool[Tensor, "v 1 n n"]:
    """Return the attention mask; rows attend to columns, the last are frames' class tokens."""
    videos, frames = mask.shape
    everywhere = torch.full((globals_,), -1, device=mask.device)
    per_frame = torch.arange(frames, device=mask.device)
    frame_of = torch.cat([everywhere, per_frame.repeat_interleave(patches), per_frame])
    is_global = frame_of < 0
    same_frame = frame_of[:, None] == frame_of[None, :]
    sees = is_global[:, None] | is_global[None, :] | same_frame
    shown = torch.cat(
        [mask.new_ones(videos, globals_), mask.repeat_interleave(patches, dim=1)], dim=1
    )
    shown = torch.cat([shown, torch.zeros_like(mask)], dim=1)  # no token attends to the views
    visible: Tensor = sees[None] & shown[:, None]
    return visible[:, None]
