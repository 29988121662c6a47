"""Pieces of running text, all of one length, as tokens."""

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.model import Model


def cut_windows(model: Model, documents: list[str], number: int, length: int) -> Int[Tensor, "B L"]:
    """Windows of documents, their first ones first, each after what a document comes after."""
    tokenizer = model.require_tokenizer()
    size = length - len(tokenizer.opening)
    windows = [
        (at, [*tokenizer.opening, *ids[at : at + size]])
        for ids in tokenizer.encode_documents(documents)
        for at in range(0, len(ids) - size + 1, size)
    ]
    if len(windows) < number:
        raise UserError(
            f"the data have {len(windows)} texts of {length} tokens: expected {number}; give more "
            "text, or lower --texts or --length."
        )
    windows.sort(key=lambda window: window[0])
    return torch.tensor([ids for _, ids in windows[:number]], device=model.device)
