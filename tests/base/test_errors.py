"""Mistakes of users: what a caller can catch, and what the sentence says."""

import pytest

import unmask
from unmask.base.errors import UserError, suggest


def test_a_mistake_is_caught_as_a_value_error() -> None:
    with pytest.raises(ValueError) as caught:
        unmask.load("reversal-mdn")
    assert isinstance(caught.value, UserError)
    assert "reversal-mdn" in str(caught.value)


def test_the_nearest_name_is_suggested_and_all_names_where_none_is_near() -> None:
    assert suggest("tinny", ["tiny", "large"]) == "did you mean 'tiny'?"
    assert suggest("zzz", ["tiny", "large"]) == "known: tiny, large"
