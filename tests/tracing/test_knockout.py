"""Attention knock-out: its laws on random networks of every kind, and what taught ones lose."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import unmask
from tests.conftest import KINDS
from tests.laws.test_tracing import LAYERS, MASK, L, make
from tests.tracing.plain import read_each
from tests.tracing.test_steps import recalled
from unmask import UserError
from unmask.tracing.corruption import Mean
from unmask.tracing.knockout import EDGES, cut_state, find_rows, make_cuts
from unmask.tracing.question import ask, reveal
from unmask.tracing.settings import Tracing

SUBJECT, PROMPT = (1, 4), 6
ALL = ((0, LAYERS),)


@pytest.fixture(params=KINDS, ids="-".join)
def model(request):
    return make(*request.param)


def question(model, subject=(5, 6, 7), **changes):
    """A prompt of six tokens; masks, or the answer's earlier tokens, after it."""
    after = [11, 12, 13] if model.kind == "causal" else [MASK] * 3
    tokens = [3, *subject, 8, 9, *after]
    answer = dict(zip(range(6, 9 + (model.kind == "causal")), (11, 12, 13, 14), strict=False))
    if model.kind != "causal":
        answer = {6: 20, 7: 21}
    return ask(model, tokens, SUBJECT, answer, Tracing(corruption=Mean(), **changes), PROMPT)


def read_plainly(asked, cut, window):
    """log p of the answer with attention's pattern set to 0 at the edges, and scaled again."""

    def forbid(pattern):
        kept = pattern.double() * ~cut[: pattern.shape[-1], : pattern.shape[-1]]
        return (kept / kept.sum(-1, keepdim=True)).to(pattern.dtype)

    patches = {f"layers.{layer}.attn_pattern": forbid for layer in range(*window)}
    with asked.model.net.patch(patches):
        return read_each(asked.model, asked.clean[:, : asked.length], asked.answer)[0]


def test_cut_runs_equal_the_network_with_its_patterns_changed(model):
    asked = question(model)
    windows = [(0, 1), (1, 3), (0, LAYERS), (LAYERS - 1, LAYERS)]
    done = cut_state(asked, EDGES, windows)
    cuts = make_cuts(asked, tuple(asked.answer), EDGES)
    for i in range(len(EDGES)):
        for j, window in enumerate(windows):
            plain = read_plainly(asked, cuts[i], window)
            torch.testing.assert_close(done.logp[i, j, 0].double(), plain, atol=2e-5, rtol=0)


def test_where_a_cut_begins_only_the_rows_that_it_changes_are_run():
    model = make(*KINDS[0])
    asked = question(model, joint="mean_field")
    first = model.net.block(0)
    weights = [first.attn.out.weight, *(x for x in first.mlp.parameters() if x.ndim == 2)]

    def count(*rows):
        cut = torch.zeros(L, L, dtype=torch.bool)
        cut[list(rows), 1] = True
        with FlopCounterMode(display=False) as counted:
            cut_state(asked, [cut], [(0, 1)])
        return counted.get_total_flops()

    assert count(5, 6, 7) - count(6) == 2 * 2 * sum(weight.numel() for weight in weights)


def test_nothing_cut_is_clean(model):
    asked = question(model)
    nothing = torch.zeros(L, L, dtype=torch.bool)
    done = cut_state(asked, [nothing, ("answer", "subject")], ALL)
    assert torch.equal(done.logp[0, 0], done.clean_logp[0]) and done.pairs[0] == 0
    assert not torch.equal(done.logp[1, 0], done.clean_logp[0])
    plain = read_plainly(asked, nothing, (0, 0))
    torch.testing.assert_close(done.clean_logp[0, 0].double(), plain, atol=2e-5, rtol=0)


def test_a_subject_that_no_other_row_reads_could_be_any_subject(model):
    """To the bit; and cut in all but one layer it could not."""
    edges, asked = [("others", "subject")], [question(model, it) for it in ((5, 6, 7), (30, 2, 1))]
    # Each alone: experts add up in another order beside rows of another window.
    one, other = (cut_state(each, edges, ALL) for each in asked)
    assert torch.equal(one.logp, other.logp)
    assert not torch.equal(one.clean_logp, other.clean_logp)
    one, other = (cut_state(each, edges, [(1, LAYERS)]) for each in asked)
    assert not torch.equal(one.logp, other.logp)


@pytest.mark.parametrize("name", ["tiny", "tiny-gpt2", "tiny-pythia"])
def test_what_a_causal_mask_forbids_cuts_nothing(name):
    """Rows after a row, and masks that there are none of."""
    asked = question(make(name, "causal"))
    later = torch.ones(L, L, dtype=torch.bool).triu(1)
    done = cut_state(asked, [later, ("subject", "answer"), ("answer", "masks")], ALL)
    assert torch.equal(done.logp, done.clean_logp.expand(3, 1, -1, -1)) and set(done.pairs) == {0}
    allowed = cut_state(asked, [torch.ones(L, L, dtype=torch.bool).tril(-1)], ALL)
    assert not torch.equal(allowed.logp[0], done.clean_logp) and allowed.pairs[0] > 0


def test_roles_share_out_the_rows(model):
    asked = question(model)
    rows = find_rows(asked, tuple(asked.answer))
    shown = {role: each.nonzero()[:, 0].tolist() for role, each in rows.items()}
    assert shown["subject"] == [1, 2, 3] and shown["last"] == [5]
    assert shown["answer"] == sorted({model.row_of(at) for at in asked.answer})
    assert shown["prompt"] == [0, 4] and shown["written"] == []
    apart = {"masked": [8], "shifted": [7, 8], "causal": []}
    assert shown["masks"] == apart[model.name.rpartition("-")[2]]
    cut = make_cuts(asked, tuple(asked.answer), [("others", "subject"), ("subject", "others")])
    assert torch.equal(cut[0], cut[1].T) and not cut.diagonal(dim1=1, dim2=2).any()


def test_by_the_chain_rule_tokens_are_revealed():
    """Each factor is asked in its own state: what was revealed is written, what is not is open."""
    model = make("tiny", "masked")
    asked = question(model, joint="chain_rule")
    first, second = (find_rows(each, (6, 7)) for each in reveal(asked))
    assert first["answer"].nonzero()[:, 0].tolist() == [6, 7] and not first["written"].any()
    assert second["answer"].nonzero()[:, 0].tolist() == [7] and second["written"][6]
    done = cut_state(asked, [("answer", "subject")], ALL)
    for i, factor in enumerate(reveal(asked)):
        cut = make_cuts(factor, (6, 7), [("answer", "subject")])[0]
        plain = read_plainly(factor, cut, (0, LAYERS))
        torch.testing.assert_close(done.logp[0, 0, 0, i : i + 1].double(), plain, atol=2e-5, rtol=0)


def test_small_memory_gives_the_same(model):
    asked = question(model)
    windows = [(layer, layer + 1) for layer in range(LAYERS)]
    whole, single = (cut_state(asked, EDGES, windows, memory) for memory in (None, 1))
    torch.testing.assert_close(whole.logp, single.logp, atol=2e-5, rtol=0)


def test_an_answer_is_lost_without_its_subject(taught, facts):
    """Taught models need to read it; what each cut takes is there in three metrics."""
    clean = recalled(taught, facts)
    foil = {at: token + 1 for at, token in clean.answer.items()}
    layers = [(0, taught.net.config.layers)]
    edges = ["others:subject", ("answer", "subject")]
    cut = unmask.cut_edges(taught, clean, edges=edges, layers=layers, foil=foil, corruption="mean")
    assert cut.edges == ("others:subject", "answer:subject") and cut.step == 1
    for metric in ("p", "logp", "logp_per_token", "logit_difference"):
        assert cut.effects(metric)[0, 0] > 0.05
    tokens = cut.logp.shape[-1]
    torch.testing.assert_close(cut.values("logp") / tokens, cut.values("logp_per_token"))
    assert cut.corrupted_value("p") < cut.clean_value("p")
    wide = unmask.cut_edges(taught, clean, edges=edges, window=3)
    assert wide.windows[0] == (0, 2) and wide.logp.shape[:2] == (2, taught.net.config.layers)


def test_mistakes_are_sentences(causal, facts):
    clean = recalled(causal, facts)
    wrong: dict[str, dict[str, Any]] = {
        "names the role 'subjct'": {"edges": [("answer", "subjct")]},
        "is not known": {"edges": [("answer",)]},
        "expected some, each once": {"edges": []},
        "has no other end": {"edges": ["others:others"]},
        "expected torch.bool": {"edges": [torch.zeros(2, 2)]},
        "nothing to attend to": {"edges": [torch.ones(*[len(clean.state_at(1))] * 2).bool()]},
        "is not one of layers": {"layers": [(3, 1)]},
        "not one step": {"step": 99},
        "no argument 'parts'": {"parts": ("resid",)},
    }
    for sentence, given in wrong.items():
        with pytest.raises(UserError, match=sentence):
            unmask.cut_edges(causal, clean, **given)
