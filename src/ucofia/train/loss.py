"""The contrastive loss: text i and video i belong together, every other pair does not.

A pure function of the scores of a whole batch. It adds no temperature: the levels already carry
the learned logit scale. It knows no levels, no model and no processes.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from ucofia.errors import SettingError


def contrastive_loss(scores: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    """Half the sum of the cross-entropies of both directions.

    The paper writes the sum; half of it is what the authors' code minimises, and what their
    clipping at norm one was chosen for.
    """
    texts, videos = scores.shape
    if texts != videos or not texts:
        raise SettingError(
            "scores", (texts, videos), "each text needs exactly one video, in order"
        )
    # Half precision cannot hold the sum of exponentials of a batch.
    logits = scores.float()
    truth = torch.arange(texts, device=scores.device)
    return (cross_entropy(logits, truth) + cross_entropy(logits.mT, truth)) / 2
