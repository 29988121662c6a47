"""Batches that size themselves."""

import pytest
import torch

from unmask import UserError
from unmask.net.batches import map_batches


def test_a_batch_that_does_not_fit_is_halved():
    sizes = []

    def call(batch):
        sizes.append(len(batch))
        if len(batch) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [2 * item for item in batch]

    doubled = [item for _, results in map_batches(range(10), 8, call) for item in results]
    assert doubled == [2 * i for i in range(10)] and sizes == [8, 4, 2, 2, 2, 2, 2]
    with pytest.raises(UserError, match="not even one row fits .* use a smaller dtype"):
        list(map_batches([4], 1, lambda batch: call([0] * 4)))


def test_other_errors_are_not_swallowed():
    def broken(batch):
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        list(map_batches([4], 1, broken))
