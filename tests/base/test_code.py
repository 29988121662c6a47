"""Functions are known by what they do: code, closures, defaults, and what they use of their own."""

import re
import subprocess
import sys
from functools import cache, partial

import numpy as np
import pytest

from unmask.base.code import digest_code
from unmask.sampling.orders import by_permutation

OF_A_NOTEBOOK = """
import re
from unmask.base.code import digest_code

WORDS = {words}
PATTERN = re.compile("{pattern}")

def count(text):
    {comment}
    return sum(len(each) for each in WORDS | {{"x", "y", "z"}} if each in text){sign}

class Counter:
    def __call__(self, text):
        return count(text) if PATTERN.match(text) else 0

print(digest_code(lambda text: Counter()(text)))
"""
USUAL = {"words": '{"one", "two", "three"}', "pattern": "a", "comment": "", "sign": " + 1"}


def digest_apart(**changes: str) -> str:
    """The digest of a function that was made in a process of its own, without a file."""
    code = OF_A_NOTEBOOK.format(**USUAL | changes)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_functions_without_a_file_are_known_by_all_that_they_use():
    usual = digest_apart()
    assert digest_apart(comment="# A comment.") == usual
    changes = {"words": '{"one", "two", "four"}', "pattern": "b", "sign": " - 1"}
    others = [digest_apart(**{name: value}) for name, value in changes.items()]
    assert len({usual, *others}) == 4


def shift(number):
    return lambda value: value + number


class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, value):
        return value * self.by


@cache
def keep(value):
    return value


CASES = {
    "code": (lambda value: value + 1, lambda value: value + 2),
    "closure": (shift(1), shift(2)),
    "array": (shift(np.zeros(3)), shift(np.array([0.0, 0, 1]))),
    "default": (lambda value=1: value, lambda value=2: value),
    "arguments": (partial(shift, 1), partial(shift, 2)),
    "method": (Scale(1).__call__, Scale(2).__call__),
    "object": (Scale(1), Scale(2)),
    "order": (shift({"a": 1, "b": 2}), shift({"a": 2, "b": 1})),
    "made by this package": (by_permutation([0, 1]), by_permutation([1, 0])),
    "nested": (lambda: lambda: 1, lambda: lambda: 2),
    "types": (shift(1), shift(True)),
    "wrapped": (shift(keep), shift(shift)),
    "pattern": (shift(re.compile("a")), shift(re.compile("b"))),
}


@pytest.mark.parametrize("case", CASES)
def test_functions_of_one_name_are_told_apart(case):
    one, other = map(digest_code, CASES[case])
    assert one != other and one == digest_code(CASES[case][0])


def test_a_function_that_calls_itself_and_networks_end():
    import torch

    def descend(value):
        return descend(value - 1) if value else network

    network = torch.nn.Linear(2, 2)
    before = digest_code(descend)
    assert digest_code(descend) == before
    with torch.no_grad():
        network.weight[0, 0] += 1
    assert digest_code(descend) != before
