"""int8 inference of CLIP's vision tower on a CPU: dynamic quantisation, one scale per row.

Matrix products use 8-bit integers. The outputs change by as much as `docs/starter.md` states.
`can_use_int8` decides for each call, there is no setting: training, gradients, other devices and
other architectures use the float32 tower. Knows the layout of the tower, not its library.
"""

import warnings
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import layer_norm, pad, scaled_dot_product_attention as attend, silu

from ucofia.encode.lora import is_adapted

QUICK_GELU_SLOPE = 1.702  # CLIP's "quick" gelu: x * sigmoid(1.702 x)
ENGINES = ("x86", "fbgemm", "onednn")  # torch's quantised kernels; all add products in pairs
SILU_MINIMUM = -0.2785
INT8_MAX = 127
PAIR_MAX = 127.5  # the sum of two weights x 255, the largest activation, must fit into 16 bits
EPSILON = 1e-12  # scales of all-zero rows
INT8_ACTIVATIONS = {"clip_vision_model": "quick_gelu"}  # supported: model type, activation
MIN_WIDTH = 256  # narrower products are not faster in int8

# Kept outside the modules, so that it is neither copied nor saved with them.
_prepared: "WeakKeyDictionary[nn.Module, tuple[object, Int8Vision]]" = WeakKeyDictionary()
_preparing = Lock()


def has_int8() -> bool:
    """Return whether this torch has int8 kernels for this CPU."""
    engine = torch.backends.quantized.engine
    return engine in ENGINES and hasattr(torch, "quantize_per_channel")


def can_use_int8(tower: nn.Module) -> bool:
    """Return whether a tower can run in int8 now: inference in float32 on a CPU, known layout."""
    config: Any = tower.config
    known = INT8_ACTIVATIONS.get(config.model_type) == config.hidden_act
    if not (is_cpu_inference(tower) and known and config.hidden_size >= MIN_WIDTH and has_int8()):
        return False
    # Int8Vision reads the weights of linear layers only and would miss LoRA matrices.
    return not any(is_adapted(module) for module in tower.modules())


def is_cpu_inference(tower: nn.Module) -> bool:
    """Return whether a float32 network on the CPU is in eval mode with gradients off."""
    if torch.is_grad_enabled() or tower.training:
        return False
    first = next(tower.parameters())
    return first.device.type == "cpu" and first.dtype == torch.float32


def int8_vision(tower: nn.Module) -> "Int8Vision":
    """Return the int8 copy of CLIP's vision tower, cached until one of its weights changes."""
    state = state_of(tower)
    with _preparing:
        found = _prepared.get(tower)
        if found is None or found[0] != state:
            found = _prepared[tower] = (state, Int8Vision(tower))
    return found[1]


def state_of(tower: nn.Module) -> tuple[tuple[int, int], ...]:
    """Return a key that changes when a weight does: by a counted write, or by new storage."""
    return tuple(
        (p.data_ptr(), 0 if p.is_inference() else p._version)
        for p in (*tower.parameters(), *tower.buffers())
    )


class Int8Vision:
    """CLIP's vision tower with int8 linear layers; norms, softmax and residuals stay float32."""

    def __init__(self, tower: Any) -> None:
        self._embeddings, self._first = tower.embeddings, tower.pre_layrnorm
        self._heads: int = tower.config.num_attention_heads
        self._blocks = [_Int8Block(block) for block in tower.encoder.layers]

    def __call__(
        self,
        pixels: Float[Tensor, "b c h x"],
        kept: Int[Tensor, " n"] | None = None,
        *,
        local_patches: bool = False,
    ) -> Float[Tensor, "b n d"]:
        """Return the last hidden states, computed one picture at a time.

        One picture fits into the CPU's cache, and its result does not depend on the batch size:
        float sums do, and quantisation would enlarge their last digits to about 1e-3.
        """
        pictures = torch.split(pixels, 1)
        return torch.cat([self._one(picture, kept, local_patches) for picture in pictures])

    def _one(self, picture: Tensor, kept: Tensor | None, local_patches: bool) -> Tensor:
        x = _normed(self._embeddings(picture, kept), self._first)
        *blocks, last = self._blocks
        for block in blocks:
            x = block(x, self._heads)
        return (last.with_local_patches if local_patches else last)(x, self._heads)


class _Int8Block:
    def __init__(self, block: Any) -> None:
        attention, mlp = block.self_attn, block.mlp
        joined = (attention.q_proj, attention.k_proj, attention.v_proj)
        self._norm1, self._norm2 = block.layer_norm1, block.layer_norm2
        self._attention_in = Int8Linear(
            torch.cat([part.weight for part in joined]), torch.cat([part.bias for part in joined])
        )
        self._attention_out = Int8Linear(attention.out_proj.weight, attention.out_proj.bias)
        # quick gelu is silu with its slope folded into the linear layers before and after
        self._mlp_in = Int8Linear(
            mlp.fc1.weight * QUICK_GELU_SLOPE, mlp.fc1.bias * QUICK_GELU_SLOPE
        )
        self._mlp_out = Int8Linear(
            mlp.fc2.weight / QUICK_GELU_SLOPE, mlp.fc2.bias, minimum=SILU_MINIMUM
        )

    def __call__(self, x: Tensor, heads: int) -> Tensor:
        query, key, value = self._heads_of(x, heads)
        return self._after(x, attend(query, key, value))

    def with_local_patches(self, x: Tensor, heads: int) -> Tensor:
        """Do what `ClipBlock.with_local_patches` does."""
        query, key, value = self._heads_of(x, heads)
        first = self._after(x[:, :1], attend(query[:, :, :1], key, value))
        return torch.cat([first, self._joined(value[:, :, 1:])], dim=1)

    def _heads_of(self, x: Tensor, heads: int) -> Tensor:
        shape = (*x.shape[:2], 3, heads, x.shape[2] // heads)
        return self._attention_in(_normed(x, self._norm1)).view(shape).permute(2, 0, 3, 1, 4)

    def _joined(self, heads: Tensor) -> Tensor:
        return self._attention_out(heads.transpose(1, 2).flatten(2))

    def _after(self, x: Tensor, seen: Tensor) -> Tensor:
        x = x + self._joined(seen)
        return x + self._mlp_out(silu(self._mlp_in(_normed(x, self._norm2)), inplace=True))


class Int8Linear:
    """A linear layer in int8, with one scale for each row of weights and each row of input.

    One scale for all tokens would be set by the few with huge values. If the input has a known
    `minimum`, it is subtracted first, so that the 8 bits cover only values that occur.
    """

    def __init__(
        self,
        weight: Float[Tensor, "o i"],
        bias: Float[Tensor, " o"],
        *,
        minimum: float | None = None,
    ) -> None:
        scale = weight_scales(weight)
        zero = torch.zeros(len(scale), dtype=torch.long)
        with warnings.catch_warnings():
            # torch will drop this type after the releases that we allow; `has_int8` checks.
            warnings.filterwarnings("ignore", message=".*deprecated", category=UserWarning)
            rounded = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(rounded, None)
        self._minimum = minimum
        # Add back what is subtracted from the input, with the quantised weights.
        self._bias = bias if minimum is None else bias + minimum * rounded.dequantize().sum(1)

    def __call__(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        """Multiply; a row's result does not depend on the other rows of the batch."""
        if self._minimum is None:
            size = torch.maximum(x.amax(-1, keepdim=True), -x.amin(-1, keepdim=True))
        else:
            x = x - self._minimum
            size = x.amax(-1, keepdim=True)
        size = size.clamp_(min=EPSILON)
        rows = x.new_empty(size.numel() + 1, x.shape[-1])
        torch.div(x, size, out=rows[:-1].view(x.shape))
        # The kernel takes its range from the whole input: an extra row makes it constant.
        rows[-1] = 1.0
        rows[-1, 0] = -1.0 if self._minimum is None else 0.0
        product = torch.ops.quantized.linear_dynamic(rows, self._packed)
        return torch.addcmul(self._bias, product[:-1].view(*x.shape[:-1], len(self._bias)), size)


def weight_scales(weight: Float[Tensor, "o i"]) -> Float[Tensor, " o"]:
    """Choose each row's scale so that nothing overflows.

    CPUs without VNNI add the products of two neighbours in 16 bits with saturation. Two large
    neighbours are rare: bounding their sum costs far less precision than 7-bit weights.
    """
    pairs = pad(weight, (0, weight.shape[1] % 2)).reshape(len(weight), -1, 2)
    above = pairs.clamp(min=0).sum(2).amax(1)
    below = -pairs.clamp(max=0).sum(2).amin(1)
    largest = weight.abs().amax(1) / INT8_MAX
    pair = torch.maximum(above, below) / PAIR_MAX
    return torch.maximum(largest, pair).clamp(min=EPSILON)


def _normed(x: Tensor, layer: Any) -> Tensor:
    return layer_norm(x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)
