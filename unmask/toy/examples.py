"""The toy language as rows for the training loop, with a tokenizer of its units."""

from collections.abc import Sequence

import tokenizers
import torch
import torch.nn.functional as F
from tokenizers import models, pre_tokenizers

from unmask.base.errors import UserError
from unmask.data.tokenizer import MASK, Tokenizer
from unmask.objectives.batch import Batch
from unmask.toy.language import LENGTH, PAD, UNITS, encode, list_sentences
from unmask.training.data_settings import DataSettings
from unmask.training.examples import Examples


def make_tokenizer() -> Tokenizer:
    """One token a unit, the mask behind them; [PAD] also ends a sentence."""
    ids = {unit: number for number, unit in enumerate((*UNITS, MASK))}
    # A word that is no unit reads as a mask, which plain texts are refused for.
    backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=MASK))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend, ids[MASK], ids[PAD], ids[PAD])


def make_examples(data: DataSettings) -> Examples:
    """All sentences; rows longer than one begin with [PAD], for the causal twin to start from."""
    if data.context < LENGTH:
        raise UserError(f"data.context={data.context} is too short: the toy needs {LENGTH}.")
    pad = UNITS.index(PAD)
    rows = F.pad(encode(list_sentences()), (data.context - LENGTH, 0), value=pad)

    def take(numbers: Sequence[int]) -> Batch:
        return Batch(rows[torch.tensor(numbers)])

    return Examples("the toy language", len(rows), make_tokenizer(), take)
