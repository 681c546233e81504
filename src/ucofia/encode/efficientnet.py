"""EfficientNet-Lite0: a small, quick network that knows the thousand classes of ImageNet.

Inverted bottlenecks without squeeze-and-excitation, ReLU6 throughout, padding as TensorFlow's
"same". Parameter names are those of the published PyTorch weights. At rest on a processor every
norm is folded into the convolution before it, which halves the time and changes nothing else.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, relu6
from torch.nn.utils.fusion import fuse_conv_bn_weights

from ucofia.encode import int8

# repeats, kernel, stride of the first, expansion, channels out (EfficientNet paper, table 1)
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _HEAD, CLASSES = 32, 1280, 1000


class _SameConv(nn.Conv2d):
    """A convolution that pads like TensorFlow: the odd pixel goes right and below."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(_padded(input, self.kernel_size[0], self.stride[0]))


def _padded(x: Tensor, kernel: int, stride: int) -> Tensor:
    before_after = []
    for length in (x.shape[-1], x.shape[-2]):
        steps = -(-length // stride)
        total = max((steps - 1) * stride + kernel - length, 0)
        before_after += [total // 2, total - total // 2]
    return pad(x, before_after) if any(before_after) else x


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class _Block(nn.Module):
    def __init__(self, inside: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inside * expansion
        self.expands = expansion != 1
        if self.expands:
            self._expand_conv = _SameConv(inside, wide, 1, bias=False)
            self._bn0 = _norm(wide)
        self._depthwise_conv = _SameConv(
            wide, wide, kernel, stride=stride, groups=wide, bias=False
        )
        self._bn1 = _norm(wide)
        self._project_conv = _SameConv(wide, out, 1, bias=False)
        self._bn2 = _norm(out)
        self.adds = stride == 1 and inside == out

    def forward(self, x: Tensor) -> Tensor:
        """Widen, filter each channel, narrow; add the input where sizes allow."""
        y = relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = relu6(self._bn1(self._depthwise_conv(y)))
        narrow: Tensor = self._bn2(self._project_conv(y))
        return narrow + x if self.adds else narrow


class EfficientNetLite0(nn.Module):
    """Pictures in, logits of ImageNet's classes out."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = _SameConv(3, _STEM, 3, stride=2, bias=False)
        self._bn0 = _norm(_STEM)
        blocks, inside = [], _STEM
        for repeats, kernel, stride, expansion, out in _STAGES:
            for i in range(repeats):
                blocks.append(_Block(inside, out, kernel, stride if i == 0 else 1, expansion))
                inside = out
        self._blocks = nn.Sequential(*blocks)
        self._conv_head = _SameConv(inside, _HEAD, 1, bias=False)
        self._bn1 = _norm(_HEAD)
        self._fc = nn.Linear(_HEAD, CLASSES)

    def forward(self, pictures: Float[Tensor, "b 3 h x"]) -> Float[Tensor, "b 1000"]:
        """Classify pictures whose values lie between -1 and 1."""
        if int8.is_idle(self):
            folded: Tensor = int8.once(self, _Folded)(pictures)
            return folded
        x = self._blocks(relu6(self._bn0(self._conv_stem(pictures))))
        pooled = relu6(self._bn1(self._conv_head(x))).mean((2, 3))
        logits: Tensor = self._fc(pooled)
        return logits


class _Layer:
    """A convolution with the norm behind it, as one convolution."""

    def __init__(self, conv: _SameConv, norm: nn.BatchNorm2d) -> None:
        assert norm.running_mean is not None and norm.running_var is not None
        weight, self.bias = fuse_conv_bn_weights(
            conv.weight,
            conv.bias,
            norm.running_mean,
            norm.running_var,
            norm.eps,
            norm.weight,
            norm.bias,
        )
        self.weight = weight.contiguous(memory_format=torch.channels_last)
        self.kernel, self.stride, self.groups = conv.kernel_size[0], conv.stride[0], conv.groups

    def __call__(self, x: Tensor) -> Tensor:
        x = _padded(x, self.kernel, self.stride)
        return conv2d(x, self.weight, self.bias, self.stride, groups=self.groups)


class _Folded:
    def __init__(self, net: EfficientNetLite0) -> None:
        self.stem = _Layer(net._conv_stem, net._bn0)
        self.blocks = [_fold(block) for block in net._blocks]
        self.head, self.classes = _Layer(net._conv_head, net._bn1), net._fc

    def __call__(self, pictures: Tensor) -> Tensor:
        x = relu6(self.stem(pictures.contiguous(memory_format=torch.channels_last)))
        for layers, adds in self.blocks:
            y = x
            for layer in layers[:-1]:
                y = relu6(layer(y), inplace=True)
            narrow = layers[-1](y)
            x = narrow + x if adds else narrow
        pooled = relu6(self.head(x), inplace=True).mean((2, 3))
        logits: Tensor = self.classes(pooled)
        return logits


def _fold(block: nn.Module) -> tuple[list[_Layer], bool]:
    assert isinstance(block, _Block)
    layers = [_Layer(block._expand_conv, block._bn0)] if block.expands else []
    layers.append(_Layer(block._depthwise_conv, block._bn1))
    layers.append(_Layer(block._project_conv, block._bn2))
    return layers, block.adds
