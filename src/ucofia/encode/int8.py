"""Quick inference on a processor: the same towers, with fewer and cheaper operations.

In bytes, products are made of 8-bit integers; the numbers change by as much as `docs/starter.md`
states, so only the starter, whose weights were measured, asks for it. Which way a tower goes is
decided by where it is and what it is asked for, never by a setting: gradients, training and other
devices take the plain way. Knows the layout of the towers, not their library.
"""

import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm, pad, silu
from torch.nn.functional import scaled_dot_product_attention as attend

from ucofia.encode.lora import is_adapted

STEEPNESS = 1.702  # of CLIP's "quick" gelu: x * sigmoid(1.702 x)
ENGINES = ("x86", "fbgemm", "onednn")  # of torch's quantised products; all pair neighbours
SILU_DEPTH = 0.2785  # silu never falls lower
LARGEST = 127  # of a signed byte
LARGEST_PAIR = 127.5  # two weights x 255, the largest activation, must fit into 16 bits
SMALLEST = 1e-12
ACTIVATIONS = {"clip_vision_model": "quick_gelu"}  # of towers that can be bytes
WIDTH_FROM = 256  # narrower products gain nothing from bytes

# Beside the modules, not in them: nothing of this belongs into a copy or a saved state.
_prepared: "WeakKeyDictionary[nn.Module, tuple[object, Any]]" = WeakKeyDictionary()


def has_bytes() -> bool:
    """Return whether this torch, on this processor, has quick products of bytes."""
    engine = torch.backends.quantized.engine
    return engine in ENGINES and hasattr(torch, "quantize_per_channel")


def takes_bytes(tower: nn.Module) -> bool:
    """Return whether a tower's products may be made of bytes, as it is and is used now."""
    config: Any = tower.config
    known = ACTIVATIONS.get(config.model_type) == config.hidden_act
    if not (is_idle(tower) and known and config.hidden_size >= WIDTH_FROM and has_bytes()):
        return False
    # The byte form reads weights; what low-rank training put beside them would be missed.
    return not any(is_adapted(module) for module in tower.modules())


def vision_in_bytes(tower: nn.Module) -> "VisionInBytes":
    """Return the byte form of CLIP's vision tower, made on first use and after every change."""
    found: VisionInBytes = once(tower, VisionInBytes)
    return found


def is_idle(tower: nn.Module) -> bool:
    """Return whether a network on the processor is only asked for its output."""
    return not torch.is_grad_enabled() and not tower.training and _is_float_on_cpu(tower)


def once(tower: nn.Module, make: Callable[[Any], Any]) -> Any:
    """Make something of a network's weights, and again only when one of them has changed."""
    # Changes with every write to a weight, and when one moves.
    state = tuple(
        (p.data_ptr(), 0 if p.is_inference() else p._version)
        for p in (*tower.parameters(), *tower.buffers())
    )
    found = _prepared.get(tower)
    if found is None or found[0] != state:
        found = _prepared[tower] = (state, make(tower))
    return found[1]


class VisionInBytes:
    """CLIP's vision tower with 8-bit weights; what is not a product stays in floats."""

    def __init__(self, tower: Any) -> None:
        self._embeddings, self._first = tower.embeddings, tower.pre_layrnorm
        self._heads: int = tower.config.num_attention_heads
        self._blocks = [_BlockInBytes(block) for block in tower.encoder.layers]

    def __call__(self, pixels: Float[Tensor, "b c h x"]) -> Float[Tensor, "b n d"]:
        """Return the last hidden states, picture by picture.

        That much fits into a cache, and no picture depends on how many come with it: sums of
        floats do, and rounding to bytes would turn their last digits into a thousandth.
        """
        return torch.cat([self._one(picture) for picture in torch.split(pixels, 1)])

    def _one(self, picture: Tensor) -> Tensor:
        x = _normed(self._embeddings(picture), self._first)
        for block in self._blocks:
            x = block(x, self._heads)
        return x


class _BlockInBytes:
    def __init__(self, block: Any) -> None:
        attention, mlp = block.self_attn, block.mlp
        joined = (attention.q_proj, attention.k_proj, attention.v_proj)
        self._norm1, self._norm2 = block.layer_norm1, block.layer_norm2
        self._attention_in = LinearInBytes(
            torch.cat([part.weight for part in joined]), torch.cat([part.bias for part in joined])
        )
        self._attention_out = LinearInBytes(attention.out_proj.weight, attention.out_proj.bias)
        # quick gelu is silu with its slope moved into the products on either side
        self._mlp_in = LinearInBytes(mlp.fc1.weight * STEEPNESS, mlp.fc1.bias * STEEPNESS)
        self._mlp_out = LinearInBytes(mlp.fc2.weight / STEEPNESS, mlp.fc2.bias, depth=SILU_DEPTH)

    def __call__(self, x: Tensor, heads: int) -> Tensor:
        shape = (*x.shape[:2], 3, heads, x.shape[2] // heads)
        joined = self._attention_in(_normed(x, self._norm1)).view(shape)
        query, key, value = joined.permute(2, 0, 3, 1, 4)
        x = x + self._attention_out(attend(query, key, value).transpose(1, 2).flatten(2))
        return x + self._mlp_out(silu(self._mlp_in(_normed(x, self._norm2)), inplace=True))


class LinearInBytes:
    """A product with bytes: a scale for every row of weights and every row of input.

    One scale for all tokens would serve the few with huge values and drown the others. Input that
    never falls below `-depth` is lifted to zero, so that no byte is spent on what cannot occur.
    """

    def __init__(
        self,
        weight: Float[Tensor, "o i"],
        bias: Float[Tensor, " o"],
        *,
        depth: float | None = None,
    ) -> None:
        scale = weight_scales(weight)
        zero = torch.zeros(len(scale), dtype=torch.long)
        with warnings.catch_warnings():
            # torch means to drop this type after the releases that we allow; `has_bytes` asks.
            warnings.filterwarnings("ignore", message=".*deprecated", category=UserWarning)
            rounded = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(rounded, None)
        self._depth = depth
        # What is lifted in the input is taken off again, of the very weights that are multiplied.
        self._bias = bias if depth is None else bias - depth * rounded.dequantize().sum(1)

    def __call__(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        """Multiply; no row depends on what else is in the batch."""
        if self._depth is None:
            size = torch.maximum(x.amax(-1, keepdim=True), -x.amin(-1, keepdim=True))
        else:
            x = x + self._depth
            size = x.amax(-1, keepdim=True)
        size = size.clamp_(min=SMALLEST)
        rows = x.new_empty(size.numel() + 1, x.shape[-1])
        torch.div(x, size, out=rows[:-1].view(x.shape))
        # The kernel takes its range from the input: one more row makes it the same always.
        rows[-1] = 1.0
        rows[-1, 0] = -1.0 if self._depth is None else 0.0
        product = torch.ops.quantized.linear_dynamic(rows, self._packed)
        return torch.addcmul(self._bias, product[:-1].view(*x.shape[:-1], len(self._bias)), size)


def weight_scales(weight: Float[Tensor, "o i"]) -> Float[Tensor, " o"]:
    """Choose each row's scale so that nothing overflows.

    Processors without VNNI add the products of two neighbours in 16 bits and clip the sum without
    a word. Two large neighbours are rare: bounding their sum costs far less than giving up a bit.
    """
    pairs = pad(weight, (0, weight.shape[1] % 2)).reshape(len(weight), -1, 2)
    above = pairs.clamp(min=0).sum(2).amax(1)
    below = -pairs.clamp(max=0).sum(2).amin(1)
    largest = weight.abs().amax(1) / LARGEST
    pair = torch.maximum(above, below) / LARGEST_PAIR
    return torch.maximum(largest, pair).clamp(min=SMALLEST)


def _normed(x: Tensor, layer: Any) -> Tensor:
    return layer_norm(x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)


def _is_float_on_cpu(module: nn.Module) -> bool:
    first = next(module.parameters())
    return first.device.type == "cpu" and first.dtype == torch.float32
