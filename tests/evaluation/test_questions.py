"""Which prompts are asked."""

from collections import Counter
from dataclasses import replace

import pytest

from unmask import UserError
from unmask.data.corpus import Corpus
from unmask.evaluation.questions import choose_splits, digest_splits, spread


def test_a_limit_is_spread_over_facts_and_phrasings(corpus):
    facts = corpus["d2p_same"]
    for limit in (1, 3, 4, 6, 20, len(facts)):
        chosen = spread(facts, limit)
        assert len(set(chosen)) == limit
        assert chosen == [fact for fact in facts if fact in chosen]
        per_fact = Counter(fact.fact_id for fact in chosen).values()
        assert max(per_fact) - min(per_fact) <= 1
    assert len({fact.phrasing for fact in spread(facts, 4)}) == 4
    assert spread(facts, None) == spread(facts, 1000) == facts


def test_rivals_and_controls_belong_to_their_prompts(corpus):
    (split,) = choose_splits(corpus, ["p2d_reverse"], 6)
    assert split.controls is not None
    for fact, rivals, control in zip(split.facts, split.rivals, split.controls, strict=True):
        assert fact in rivals and len(rivals) == 4
        assert {rival.phrasing for rival in rivals} == {fact.phrasing}
        assert control.prompt == fact.prompt and control.completion != fact.completion
        assert control.completion in {rival.completion for rival in rivals}
    assert choose_splits(corpus, ["both_d2p"], None)[0].controls is None


def test_the_digest_tells_prompts_and_answers_apart(corpus):
    splits = [choose_splits(corpus, ["d2p_same"], limit) for limit in (3, 4, 4)]
    names = [digest_splits(each) for each in splits]
    assert names[0] != names[1] == names[2]


def test_a_control_with_other_prompts_is_refused(corpus):
    shuffled = [replace(fact, prompt=fact.prompt + "?") for fact in corpus["d2p_same_shuffled"]]
    odd = Corpus("odd", {"d2p_same": corpus["d2p_same"], "d2p_same_shuffled": shuffled})
    with pytest.raises(UserError, match="the control d2p_same_shuffled lacks 40 prompts"):
        choose_splits(odd, ["d2p_same"], None)
    assert choose_splits(odd, ["d2p_same"], None, controls=False)[0].controls is None
