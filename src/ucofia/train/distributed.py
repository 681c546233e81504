"""Distributed training: all-gather features and scores, so that the loss is the global batch's.

Each process encodes its share of the batch, all-gathers the features of all videos, and scores its
own texts against them: its rows of the score matrix. The rows are all-gathered as well
(`gather_score_rows`), so that every process computes the loss of the whole batch.

In the backward pass a process has the exact gradient of its own rows, because all processes
compute the same loss. A video is scored with texts of every process, so its gradient is the sum
over all processes. Parameters get the sum too. So two processes with half the batch each have the
gradients of one process with all of it; averaging, as data-parallel wrappers do, would halve them.

Started by torchrun (nccl on CUDA, gloo elsewhere), or alone: then nothing here communicates.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

BUCKET_BYTES = 2**26  # gradients are summed in pieces of about this size
# Rank 0 writes files while the others wait, so the default half hour of gloo may be too short.
GROUP_TIMEOUT = timedelta(hours=2)


@dataclass(frozen=True)
class World:
    """The processes that train together, and which one this is."""

    rank: int = 0
    ranks: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files, logs and reports progress."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait for all processes (barrier)."""
        if self.ranks > 1:
            dist.barrier()

    def any(self, flag: bool, device: torch.device) -> bool:
        """Return, in every process, whether the flag is set in any of them."""
        if self.ranks == 1:
            return flag
        votes = torch.tensor(int(flag), device=device)
        dist.all_reduce(votes)
        return bool(votes.item())

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over all processes, in place."""
        if self.ranks > 1:
            dist.all_reduce(tensor)
        return tensor


def join(device: str) -> tuple[World, torch.device]:
    """Join the process group that torchrun started; without torchrun, train alone."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    here = torch.device(device)
    if here.type == "cuda" and here.index is None:
        here = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if here.type == "cuda":
        torch.cuda.set_device(here)
    if ranks == 1:
        return World(), here
    if not dist.is_initialized():
        dist.init_process_group("nccl" if here.type == "cuda" else "gloo", timeout=GROUP_TIMEOUT)
    return World(dist.get_rank(), dist.get_world_size()), here


def leave() -> None:
    """Leave the group of processes, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def gather(rows: Tensor, world: World) -> Tensor:
    """All-gather rows and concatenate them in the order of the ranks; without gradient."""
    if world.ranks == 1:
        return rows.detach()
    # Not every backend moves booleans.
    moved = rows.detach().to(torch.uint8) if rows.dtype == torch.bool else rows.detach()
    if not moved.numel():  # a model without patches
        return rows.new_empty(world.ranks * len(rows), *rows.shape[1:])
    parts = [torch.empty_like(moved) for _ in range(world.ranks)]
    dist.all_gather(parts, moved.contiguous())
    return torch.cat(parts).to(rows.dtype)


def gather_score_rows(strip: Float[Tensor, "t v"], world: World) -> Float[Tensor, "n v"]:
    """All-gather the score matrix; gradients reach the rows of this process only."""
    if world.ranks == 1:
        return strip
    parts = list(gather(strip, world).chunk(world.ranks))
    parts[world.rank] = strip
    return torch.cat(parts)


def broadcast_weights(model: nn.Module, world: World) -> None:
    """Broadcast the weights of rank 0."""
    if world.ranks > 1:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


def own_rows(rows: Tensor, world: World) -> Tensor:
    """Return the rows of a gathered tensor that belong to this process."""
    return rows.chunk(world.ranks)[world.rank]


def all_reduce_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """All-reduce (sum) the gradients of every parameter, in buckets."""
    if world.ranks == 1:
        return
    bucket: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        bucket.append(parameter.grad)
        if sum(grad.nbytes for grad in bucket) >= BUCKET_BYTES:
            _all_reduce(bucket)
            bucket = []
    _all_reduce(bucket)


def _all_reduce(tensors: list[Tensor]) -> None:
    if not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view_as(tensor))
