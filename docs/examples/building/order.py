"""An order and a remasking: from both ends inwards, and one token of each step taken back."""

import torch


def from_the_ends(state, streams):
    """Scores [B, L] of the open positions, the highest first: how far they are from the middle."""
    length = state.open.shape[1]
    places = torch.arange(length, device=state.open.device)
    return (places - (length - 1) / 2).abs().expand(state.open.shape)


def take_one_back(state, streams):
    """True [B, L] on the written tokens that become masks again: the least certain of each row."""
    doubt = (-state.written_confidence).masked_fill(~state.written, -torch.inf)
    first = torch.zeros_like(state.written).scatter(1, doubt.argmax(1, keepdim=True), True)
    return first & state.written
