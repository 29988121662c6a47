"""kill -9 at random moments, then the same command again, for every verb that writes."""

import pytest

from tests.hostile.kills import KILLED, kill_and_repeat, make_places
from tests.hostile.test_signals import VERBS
from tests.study.pair import place as place
from unmask.measures.table import list_measures

SLICE = 2
"""Kills of each verb here; `python -m tests.hostile kills` has ten."""
WRITES_NOTHING = {"models", "info", "data show", "data check"}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return make_places(tmp_path_factory.mktemp("killed") / "pair")


@pytest.mark.prove
@pytest.mark.parametrize("verb", KILLED)
def test_kills(verb, places, tmp_path):
    tried = kill_and_repeat(verb, places, tmp_path, SLICE)
    print(tried)
    assert tried.kills == tried.equal == SLICE, tried.problem


def test_every_verb_that_writes_is_killed():
    verbs = {" ".join(words) for words in VERBS} | set(list_measures())
    killed = {name.partition(" (")[0].removesuffix(" --save") for name in KILLED}
    assert killed == verbs - WRITES_NOTHING
