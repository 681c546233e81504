"""Contrastive losses (InfoNCE, sigmoid) with in-batch negatives: text i belongs to video i.

Pure functions of the scores of a whole batch. They add no temperature: the levels already carry
the learned logit scale. They know no levels, no model and no processes.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from ucofia.errors import SettingError

PRIOR_TEMPERATURE = 1000.0  # of scores in dual softmax, as CAMoE's code has it


def contrastive_loss(scores: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Return the symmetric InfoNCE loss: half the sum of both directions' cross-entropies.

    The paper writes the sum; half of it is what the authors' code minimises, and what their
    clipping at norm one was chosen for.
    """
    logits = _paired(scores)
    return (_cross_entropy(logits) + _cross_entropy(logits.mT)) / 2


def dual_softmax_loss(scores: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Weigh each score by its softmax over the other direction first (CAMoE).

    A pair counts if it is the best one for both sides. The prior is multiplied by the size of the
    batch, as in CAMoE's code, so that it is one where nothing is known.
    """
    logits = _paired(scores)
    n = len(logits)
    both = [x * (x / PRIOR_TEMPERATURE).softmax(0) * n for x in (logits, logits.mT)]
    return (_cross_entropy(both[0]) + _cross_entropy(both[1])) / 2


def sigmoid_loss(scores: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Return the binary cross-entropy of every pair (SigLIP); scores include their bias."""
    logits = _paired(scores)
    sign = 2 * torch.eye(len(logits), device=logits.device) - 1
    return -logsigmoid(sign * logits).sum() / len(logits)


def _paired(scores: Tensor) -> Tensor:
    texts, videos = scores.shape
    if texts != videos or not texts:
        raise SettingError(
            "scores", (texts, videos), "each text needs exactly one video, in order"
        )
    # Half precision cannot hold the sum of exponentials of a batch.
    return scores.float()


def _cross_entropy(logits: Tensor) -> Tensor:
    return cross_entropy(logits, torch.arange(len(logits), device=logits.device))
