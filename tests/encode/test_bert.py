"""The BERT written in plain torch is the library's."""

import torch
from torch import nn
from transformers import BertConfig as TheirConfig, BertModel

from ucofia.config import of_known
from ucofia.encode.bert import UNUSED, Bert, BertConfig, is_plain

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 12,
}


def both() -> tuple[BertModel, Bert]:
    theirs = BertModel(TheirConfig(**SHAPE)).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = Bert(of_known(BertConfig, theirs.config.to_dict()))
    state = theirs.state_dict()
    ours.load_state_dict({n: t for n, t in state.items() if not n.startswith(UNUSED)})
    return theirs, ours


def test_hidden_states_are_the_library_s() -> None:
    theirs, ours = both()
    ids = torch.randint(1, 50, (3, 7))
    mask = torch.arange(7) < torch.tensor([7, 3, 5])[:, None]
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        torch.testing.assert_close(ours(ids, mask)[mask], expected[mask], rtol=1e-5, atol=1e-5)
        whole = theirs(input_ids=ids).last_hidden_state
        torch.testing.assert_close(ours(ids, torch.ones_like(mask)), whole, rtol=1e-5, atol=1e-5)


def test_every_weight_gets_a_gradient() -> None:
    _, ours = both()
    ids = torch.randint(1, 50, (2, 5))
    ours(ids, torch.ones_like(ids, dtype=torch.bool)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in ours.parameters())


def test_only_what_is_computed_here_counts_as_plain() -> None:
    plain = {"model_type": "bert", "hidden_act": "gelu"}
    assert is_plain(plain)
    assert not is_plain({**plain, "hidden_act": "relu"})
    assert not is_plain({**plain, "model_type": "roberta"})
    assert not is_plain({**plain, "position_embedding_type": "relative_key"})
    assert not is_plain({**plain, "is_decoder": True})
