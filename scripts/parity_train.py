"""Parity of training: the differentiable choice, one step's loss and gradients, the optimiser."""

from collections.abc import Iterator

import numpy as np
import torch
from parity_golden import TOLERANCE, Golden, Row, compare, relative_error
from torch import Tensor

from ucofia import convert
from ucofia.encode.patches import perturbed_top_patches
from ucofia.train.loss import contrastive_loss
from ucofia.train.optim import BertAdam, rate_factor, set_rates
from ucofia.types import VideoBatch

NEGLIGIBLE_GRADIENT = 1e-10  # a norm below it counts as zero (the golden README's rule)
# Float32 errs differently on different processors: theirs may err this much more than ours.
ROUNDING_FACTOR = 2.0

ANY_MATRIX = torch.zeros(3, 3)  # stands for a tensor of which only the name matters


def train_step(golden: Golden) -> Iterator[Row]:
    """Loss and gradients of one training step, tensor by tensor and in norm."""
    file = "train_step_train0"
    theirs = golden.arrays(file)
    if theirs is None:
        yield Row(file, "", None, "file absent")
        return
    loss, gradients = step_gradients(golden, file, torch.float32)
    _, exact = step_gradients(golden, file, torch.float64)
    yield Row(file, "loss", relative_error(loss, torch.tensor(float(theirs["loss"]))))
    for key in sorted(k for k in theirs if k.startswith("grad.")):
        recorded = torch.from_numpy(theirs[key]).double()
        pieces = convert.renamed({key.removeprefix("grad."): recorded})
        yield gradient_row(file, key, pieces, gradients, exact)
    yield norms(file, theirs, golden.tensors("weights_common"), gradients, exact)


def step_gradients(
    golden: Golden, file: str, dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run the recorded step; a parameter that no gradient reached has zeros."""
    model = golden.model(file).train().to(dtype)
    text, video = golden.inputs()
    pairs = min(len(text), len(video))
    noise = golden.noise(*video.mask.shape)[:pairs].to(dtype)
    video = VideoBatch(video.pixels.to(dtype), video.mask)[:pairs]
    with torch.enable_grad():
        encoded = model.encode_video(video, noise=noise)
        levels = model.score(model.encode_text(text[:pairs]), encoded)
        loss = contrastive_loss(levels.total())
        loss.backward()
    return loss, {
        name: (torch.zeros_like(p) if p.grad is None else p.grad).double()
        for name, p in model.named_parameters()
    }


def gradient_row(
    file: str,
    key: str,
    pieces: dict[str, Tensor],
    gradients: dict[str, Tensor],
    exact: dict[str, Tensor],
) -> Row:
    """Compare one recorded gradient, which may be several of our tensors.

    Some gradients are rounding: the recorded one is about as far from ours in float64 as ours in
    float32 is. Such a row says nothing about the model, and says so.
    """
    theirs = joined(pieces)
    ours, ours_exact = (
        joined({n: gradients[n] for n in pieces}),
        joined({n: exact[n] for n in pieces}),
    )
    if theirs.norm() < NEGLIGIBLE_GRADIENT:
        return Row(file, key, float(ours.norm() >= NEGLIGIBLE_GRADIENT))
    error, rounding = relative_error(ours, theirs), relative_error(ours_exact, ours)
    if error > TOLERANCE and _is_rounding(theirs, ours, ours_exact):
        return Row(
            file, key, None, f"rounding: {error:.1e} here, float64 differs by {rounding:.1e}"
        )
    return Row(file, key, error)


def _is_rounding(theirs: Tensor, ours: Tensor, exact: Tensor) -> bool:
    return float((theirs - exact).norm()) <= ROUNDING_FACTOR * float((ours - exact).norm())


def joined(pieces: dict[str, Tensor]) -> Tensor:
    flat = [piece.double().flatten() for piece in pieces.values()]
    return torch.cat(flat) if flat else torch.zeros(1, dtype=torch.float64)


def norms(
    file: str,
    theirs: dict[str, np.ndarray],
    state: dict[str, Tensor],
    gradients: dict[str, Tensor],
    exact: dict[str, Tensor],
) -> Row:
    """The norm of every parameter's gradient; -1 in the recording means none."""
    worst, compared = 0.0, 0
    for name, norm in zip(theirs["grad_norm_names"].tolist(), theirs["grad_norms"], strict=True):
        names = [n for n in convert.renamed({name: state.get(name, ANY_MATRIX)}) if n in gradients]
        ours, exactly = (joined({n: g[n] for n in names}) for g in (gradients, exact))
        wanted = max(float(norm), 0.0)
        if max(float(ours.norm()), wanted) < NEGLIGIBLE_GRADIENT:
            continue
        error = abs(float(ours.norm()) - wanted) / max(wanted, NEGLIGIBLE_GRADIENT)
        rounding = ROUNDING_FACTOR * float((ours - exactly).norm())
        if error <= TOLERANCE or abs(wanted - float(exactly.norm())) > rounding:
            worst, compared = max(worst, error), compared + 1
    return Row(file, f"grad_norms ({compared} of {len(theirs['grad_norms'])})", worst)


def perturbed_topk(golden: Golden) -> Iterator[Row]:
    """The differentiable choice alone, forwards and backwards."""

    def ours(g: dict[str, Tensor]) -> dict[str, Tensor]:
        score = g["score"].clone().requires_grad_()
        with torch.enable_grad():
            indicator = perturbed_top_patches(
                score, noise=g["noise"], k=int(g["k"]), sigma=float(g["sigma"])
            )
            indicator.backward(g["grad_output"])
        assert score.grad is not None
        return {"indicator": indicator, "grad_score": score.grad}

    yield from compare(golden, "perturbed_topk", ours)


def optimiser(golden: Golden) -> Iterator[Row]:
    """BertAdam's trajectory and schedule."""

    def ours(g: dict[str, Tensor]) -> dict[str, Tensor]:
        steps = len(g["grad_p"])
        p, q = (torch.nn.Parameter(g[name].clone()) for name in ("p0", "q0"))
        adam = BertAdam(
            [
                {"params": [p], "rate": 1e-5, "weight_decay": 0.2},
                {"params": [q], "rate": 1e-2, "weight_decay": 0.0},
            ]
        )
        trajectory: dict[str, list[Tensor]] = {"p_traj": [], "q_traj": [], "global_norm": []}
        for step in range(steps):
            p.grad, q.grad = g["grad_p"][step].clone(), g["grad_q"][step].clone()
            norm = torch.nn.utils.clip_grad_norm_([p, q], 1.0)
            set_rates(adam, rate_factor(step, steps, warmup=0.1, kind="bertadam"))
            adam.step()
            for name, value in zip(trajectory, (p, q, norm), strict=True):
                trajectory[name].append(value.detach().clone())
        shares = [round(float(x) * 1000) for x in g["sched_x"]]
        schedule = [rate_factor(x, 1000, warmup=0.1, kind="bertadam") for x in shares]
        stacked = {name: torch.stack(values) for name, values in trajectory.items()}
        return stacked | {"sched_y": torch.tensor(schedule)}

    yield from compare(golden, "bertadam", ours)
