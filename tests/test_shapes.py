"""The check of shapes that every other test runs under: it is on, and it sees what it should."""

import jaxtyping
import pytest
import torch
from jaxtyping import Float, _storage
from torch import Tensor

from tests.shapes import MOST_CALLS, begin_test, check, forget_calls
from unmask.net.transformer import select_rows
from unmask.net.view import View
from unmask.noise.guidance import mix


@pytest.mark.parametrize(
    ("x", "at"),
    [
        (torch.zeros(2, 3, 4), torch.ones(2, 4, dtype=torch.bool)),
        (torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)),
        (torch.zeros(2, 3, 4), torch.ones(2, 3)),
    ],
    ids=["size", "dimensions", "dtype"],
)
def test_what_differs_from_its_annotation_is_refused(x, at):
    with pytest.raises(jaxtyping.TypeCheckError, match="select_rows"):
        select_rows(x, at)


def test_fields_of_dataclasses_are_checked():
    with pytest.raises(jaxtyping.TypeCheckError, match="'mask'"):
        View(mask=torch.ones(3))


def test_what_is_returned_is_checked_as_well(monkeypatch):
    monkeypatch.setattr(torch, "lerp", lambda start, end, weight: start[:1])
    with pytest.raises(jaxtyping.TypeCheckError, match="return value of unmask.noise.guidance.mix"):
        mix(torch.zeros(2, 3), torch.zeros(2, 3), 0.5)


def test_the_check_can_be_turned_off(unchecked_shapes):
    assert select_rows(torch.zeros(2, 3, 4), torch.ones(2, 3)).shape == (6, 4)


def test_only_arrays_are_checked():
    def repeat(rows: list[jaxtyping.Float[torch.Tensor, "n"]], count: int) -> str:
        return str(count)

    def count(text: str) -> int:
        return len(text)

    checked = check(repeat)
    for _ in range(2):  # the second time with shapes that were seen before
        assert checked([torch.zeros(2)], "three") == "three"
        with pytest.raises(jaxtyping.TypeCheckError, match="'rows'"):
            checked([torch.zeros(2, 2)], 3)
    assert check(count) is count


def test_the_first_calls_in_a_test_are_looked_at():
    @check
    def take(rows: Float[Tensor, "n"]) -> None:
        del rows

    for count in range(MOST_CALLS - 1):
        take(torch.zeros(count))
    with pytest.raises(jaxtyping.TypeCheckError):
        take(torch.zeros(2, 2))
    take(torch.zeros(2, 2))
    begin_test()
    with pytest.raises(jaxtyping.TypeCheckError):
        take(torch.zeros(2, 2))


def test_a_call_that_was_broken_off_is_forgotten():
    _storage.push_shape_memo({})
    _storage.get_shape_memo()[0]["B"] = 3
    assert not isinstance(torch.zeros(2), Float[Tensor, "B"])
    forget_calls()
    assert isinstance(torch.zeros(2), Float[Tensor, "B"])
