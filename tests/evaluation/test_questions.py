"""Which prompts are asked."""

from collections import Counter
from dataclasses import replace

import pytest

import unmask
from tests.berglund import TRUE_FILES
from unmask import UserError
from unmask.data.corpus import Corpus
from unmask.data.reversal_files import read_reversal_files
from unmask.evaluation.questions import (
    check_scored,
    choose_splits,
    digest_splits,
    refuse_controls,
    spread,
)
from unmask.net.model import Blueprint, Model
from unmask.net.transformer import Transformer


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
    assert choose_splits(corpus, ["d2p_same_valid"], None)[0].controls is None
    assert all(choose_splits(corpus, ["both_d2p"], None)[0].controls or [None])


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


def test_a_shuffled_answer_of_the_same_fact_is_no_control(corpus):
    """In its own phrasing or in another one; the other prompts keep theirs."""
    asked = corpus["d2p_reverse"]
    shuffled = list(corpus["d2p_reverse_shuffled"])
    inflected = replace(asked[1], completion=f" {asked[1].object} indeed.")
    asked = [asked[0], inflected, *asked[2:]]
    assert asked[0].fact_id == inflected.fact_id
    shuffled[0] = replace(shuffled[0], completion=asked[0].completion.rstrip(".").upper())
    shuffled[2] = replace(shuffled[2], completion=inflected.completion)
    made = Corpus("made", {"d2p_reverse": asked, "d2p_reverse_shuffled": shuffled})
    (split,) = choose_splits(made, ["d2p_reverse"], None)
    assert [i for i, control in enumerate(split.controls) if control is None] == [0, 2]


def test_the_digest_knows_the_rivals(corpus):
    """The rank depends on the answers of facts that a limit leaves out."""
    facts, one = list(corpus["d2p_same"]), choose_splits(corpus, ["d2p_same"], 8)
    rival = next(fact for fact in one[0].rivals[0] if fact not in one[0].facts)
    facts[facts.index(rival)] = replace(rival, completion=" Nobody")
    other = choose_splits(Corpus("changed", {"d2p_same": facts}), ["d2p_same"], 8, controls=False)
    one = [replace(one[0], controls=None)]
    assert one[0].facts == other[0].facts and digest_splits(one) != digest_splits(other)


def test_splits_that_cannot_be_asked(corpus):
    with pytest.raises(UserError, match="splits were given twice .d2p_same.: give each once"):
        choose_splits(corpus, ["d2p_same", "p2d_same", "d2p_same"], None)
    with pytest.raises(UserError, match="d2p_same_shuffled is a control: give its split, d2p_same"):
        refuse_controls(["d2p_same_shuffled"])
    refuse_controls(["d2p_same"])


def test_kinds_whose_answers_cannot_be_scored():
    config = unmask.preset("tiny", vocab_size=20)
    uniform = Model("made", Transformer(config), Blueprint(config, "uniform", 19))
    with pytest.raises(UserError, match="made is a uniform model: answers are scored for masked"):
        check_scored(uniform)
    config = unmask.preset("tiny", vocab_size=20, time=True)
    timed = Model("made", Transformer(config), Blueprint(config, "masked", 19))
    with pytest.raises(UserError, match="made takes the time as an input"):
        check_scored(timed)


if TRUE_FILES.is_dir():

    @pytest.mark.prove
    def test_berglunds_files_left_answers_in_place():
        """And most prompts answers of another phrasing's form; the controls made here do not."""
        corpus = read_reversal_files(TRUE_FILES)
        missing = {}
        for split in choose_splits(corpus, ["d2p_reverse", "p2d_reverse", "both_p2d"], None):
            kinds = {"made": split.controls, "file": split.file_controls}
            for name, controls in kinds.items():
                pairs = list(zip(split.facts, controls or (), strict=False))
                missing[split.name, name] = sum(control is None for _, control in pairs)
                assert all(one.object != other.object for one, other in pairs if other is not None)
            for rivals, control in zip(split.rivals, split.controls, strict=True):
                assert control.completion in {rival.completion for rival in rivals}
        assert split.file_controls is None, "the files have none for facts trained both ways"
        assert missing == {
            ("d2p_reverse", "made"): 0, ("d2p_reverse", "file"): 20,
            ("p2d_reverse", "made"): 0, ("p2d_reverse", "file"): 13,
            ("both_p2d", "made"): 0, ("both_p2d", "file"): 0,
        }  # fmt: skip
