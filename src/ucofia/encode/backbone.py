"""What a backbone must offer: two pretrained towers that meet in one space.

Everything above (temporal encoder, patch selection, levels, index, pages) knows only this. A new
family of towers is one new file with these members.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Num
from torch import Tensor

from ucofia.types import PixelSpec, TextBatch


@runtime_checkable
class TextTower(Protocol):
    """A text encoder with its tokenizer; also an `nn.Module`."""

    width: int  # of its vectors

    def describe(self) -> dict[str, Any]:
        """Return what rebuilds it without weights, as JSON values."""

    def assets(self) -> dict[str, str]:
        """Return text files (such as a tokenizer) that belong beside the weights."""

    def tokenize(
        self, texts: Sequence[str], *, length: int, pad_to_length: bool
    ) -> tuple[TextBatch, list[int]]:
        """Return tokens and the rows that had to be cut to `length`."""

    def words_of(self, text: str, *, length: int) -> list[str]:
        """Return what each position of the tokenised text stands for."""

    def encode_words(
        self, batch: TextBatch
    ) -> tuple[Float[Tensor, "t w d"], Float[Tensor, "t d"]]:
        """Return the features of every position, and of the whole sentence."""


@runtime_checkable
class Backbone(TextTower, Protocol):
    """A pair of towers with their preprocessing; texts are encoded into the joint space."""

    pixels: PixelSpec | None  # None: the frames arrive as features
    logit_scale: float  # logarithm of what similarities are multiplied by
    fresh: tuple[str, ...]  # names of parts that start untrained and learn at the head's rate

    def encode_frames(
        self,
        pixels: Num[Tensor, "v f *frame"],
        *,
        mask: Bool[Tensor, "v f"],
        shifted_blocks: Sequence[int],
    ) -> Float[Tensor, "v f n d"]:
        """Return the joint-space tokens of every real frame, the frame token first."""

    def temporal_start(self, layers: int) -> dict[str, Tensor] | None:
        """Return the state a temporal encoder starts from, where the text tower has one."""


@runtime_checkable
class SigmoidBackbone(Protocol):
    """A backbone whose scores were trained through a sigmoid, with a bias beside the scale."""

    def score_bias(self) -> Tensor:
        """Return the learned bias.

        A method: from Python 3.12 on `isinstance` does not see parameters of an `nn.Module`.
        """


@runtime_checkable
class BoundedTextBackbone(Protocol):
    """A backbone whose text tower has a fixed number of positions."""

    positions: int  # tokens of a text that the tower reads


@runtime_checkable
class FramewiseBackbone(Protocol):
    """A backbone that encodes frames one by one, so that equal frames are encoded once."""

    is_framewise: bool


@runtime_checkable
class ProjectedBackbone(Protocol):
    """A backbone whose vision tower has a space of its own, followed by a projection.

    What a token cache holds are the tower's own tokens: the projection can still be trained.
    """

    token_width: int  # of the tower's own space

    def vision_tokens(self, pixels: Num[Tensor, "b c h x"]) -> Float[Tensor, "b n e"]:
        """Return the tower's own tokens of every frame, the frame token first."""

    def project_tokens(self, tokens: Float[Tensor, "*b e"]) -> Float[Tensor, "*b d"]:
        """Project tokens of the tower into the joint space."""
