"""The search for values: how it stops, what it keeps, and what it refuses."""

from dataclasses import replace

import pytest
import torch

import unmask
from tests.representation.facts import PREFIXES, make_fact, make_facts, make_model
from unmask import UserError
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact
from unmask.net.blocks import BLOCKS, Block
from unmask.net.taps import untouched
from unmask.representation.extraction import choose_group_facts, find_groups
from unmask.representation.prompts import lay_out_case, make_prefixes, put_before
from unmask.representation.settings import (
    OBJECTIVES,
    ROME_LOSS,
    Extraction,
    choose_extraction,
    choose_layers,
    find_traced_layer,
)
from unmask.representation.value_loss import LossTerms, ValueLoss
from unmask.representation.values import find_values, search

LAYER = 1


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def twin():
    return make_model(kind="causal")


def ask(model, fact=None, prefixes=PREFIXES, **changes):
    settings = choose_extraction(**({"length": 32} | changes))
    return lay_out_case(model, fact or make_fact(0, "p2d"), prefixes, settings), settings


def test_public_names_give_small_results(model):
    fact = make_fact(0, "p2d")
    found = unmask.extract_key(model, fact, LAYER, prefixes=2, length=32)
    assert found.k_star.shape == (160,) and found.mapped.shape == (64,)
    assert len(found.prefixes) == 2 and found.prefixes[0] == ""
    quick = {"search_steps": 4, "length": 32, "lr": 0.05, "norm": 0.0}
    value = unmask.extract_value(model, fact, LAYER, "rome", prefixes=2, **quick)
    assert value.prefixes == found.prefixes, "the same seed gives the same prefixes"
    assert value.v_star.shape == (64,) and len(value.losses) == 4 and value.stopped == "steps"
    assert value.losses[-1] < value.losses[0] and not value.diverged
    assert value.relative_distance <= 4 + 1e-5


def test_settings_are_one_object_or_keywords(model):
    given = (model, make_fact(0, "p2d"), LAYER)
    plain = {"search_steps": 3, "length": 32}
    settings = Extraction(prefixes=PREFIXES, **plain)
    value = unmask.extract_value(*given, settings)
    again = unmask.extract_value(*given, prefixes=PREFIXES[1:], **plain)
    assert value.delta.equal(again.delta) and value.prefixes == again.prefixes == PREFIXES
    assert unmask.extract_value(*given, settings, search_steps=1).updates == 0
    key = unmask.extract_key(*given, prefixes=PREFIXES, length=32)
    assert unmask.extract_key(*given, settings).k_star.equal(key.k_star)


def test_the_objectives_are_those_of_the_papers():
    assert OBJECTIVES["seed"] == {"kl": 1.0, "norm": 0.0, "kl_read": "last"}
    assert OBJECTIVES["rome"] == {"kl": 0.0625, "norm": 0.5, "kl_read": "subject"}
    rome = choose_extraction("rome")
    assert (rome.lr, rome.search_steps, rome.clamp, ROME_LOSS) == (0.5, 20, 4.0, 0.05)


def test_terms_add_up(model):
    case, settings = ask(model, kl=0.3, norm=0.7)
    value_loss = ValueLoss(model, [case], LAYER, settings)
    delta = torch.ones(1, 64)
    terms = value_loss.evaluate(delta)
    assert float(terms.norm) == pytest.approx(8 / float(value_loss.v0.norm()) ** 2, rel=1e-5)
    total = terms.nll + 0.3 * terms.kl + 0.7 * terms.norm
    torch.testing.assert_close(terms.loss, total)
    start = value_loss.evaluate(torch.zeros(1, 64))
    assert abs(float(start.kl)) < 1e-6 < float(terms.kl)


def test_the_kl_is_about_the_next_token(model, twin):
    """After the subject, or after "is a"; in a causal network the former is the reference's."""
    for each in (model, twin):
        fact = make_fact(0, "d2p")
        last, subject = (ask(each, fact, kl_read=read)[0].kl_prompt for read in ("last", "subject"))
        assert last.position == subject.position == subject.prompt_length - 1
        words = each.tokenizer.decode(last.tokens[: last.prompt_length])
        assert words == f"{fact.subject} is a"
        shown = each.tokenizer.decode(subject.tokens[: subject.prompt_length])
        assert shown == fact.subject
        for row in (last, subject):
            assert row.reads == [each.row_of(row.prompt_length)]


def test_stopping_is_explicit(model):
    """A target that is reached at once leaves v0; the reference's rule stops below its loss."""
    case, settings = ask(model, stop="p=1e-30")
    (found,) = find_values(model, [case], LAYER, settings)
    assert found.stopped == "target" and found.updates == 0 and found.v_star.equal(found.v0)
    case, settings = ask(model, stop="rome", search_steps=5)
    (found,) = find_values(model, [case], LAYER, settings)
    assert found.stopped == "steps" and found.updates == 4, "its loss is far above 0.05"
    value_loss = ValueLoss(model, [case], LAYER, settings)
    value_loss.above.x = value_loss.above.x * torch.nan
    (broken,) = search(value_loss, LAYER, [case])
    assert broken.stopped == "not finite" and broken.diverged and broken.distance == 0


class Scripted(ValueLoss):
    """Losses by a script instead of a network: one list a fact."""

    def __init__(self, script, **changes):
        self.settings = choose_extraction(kl=0.0, **changes)
        self.num_facts, self.script, self.at = len(script), script, -1
        self.v0 = torch.ones(len(script), 3)
        self.v0_norm = torch.linalg.vector_norm(self.v0, dim=-1)

    def evaluate(self, delta):
        self.at += 1
        wanted = torch.tensor([losses[self.at] for losses in self.script])
        loss = wanted + (delta - delta.detach()).sum(-1)
        return LossTerms(loss, loss, torch.zeros_like(loss), torch.zeros_like(loss), -loss)


def test_a_diverged_search_is_kept_and_flagged():
    """Fact 0 is sound, 1 meets no number, 2 ends worse than it began, 3 arrives early."""
    nan = float("nan")
    script = [[3.0, 2.0, 1.0, 0.5], [3.0, 2.0, nan, nan], [1.0, 0.8, 1.5, 2.0], [2.0, 0.01, 9, 9]]
    found = search(Scripted(script, search_steps=4, stop="rome"), LAYER, [ask(make_model())[0]] * 4)
    assert [one.stopped for one in found] == ["steps", "not finite", "steps", "loss"]
    assert [one.diverged for one in found] == [False, True, True, False]
    assert [one.updates for one in found] == [3, 2, 3, 1]
    # Where it last was finite: after one update of three.
    torch.testing.assert_close(found[1].delta, found[3].delta)
    assert found[1].nll == 2.0 and found[3].nll == pytest.approx(0.01)
    assert found[0].distance > found[1].distance > 0


def test_patterns_show_a_share_of_the_object(model):
    """Shown tokens stand in their places, are not asked, and are the same after every prefix."""
    case, settings = ask(model, make_fact(1, "p2d"), revealed=(0.0, 0.5))
    full, half = case.rows[:2]
    assert len(case.rows) == 2 * len(PREFIXES)
    assert len(half.targets) == len(full.targets) - len(full.targets) // 2
    start = full.prompt_length
    assert set(full.tokens[start:]) == {model.mask_id}
    shown = [i for i, token in enumerate(half.tokens[start:]) if token != model.mask_id]
    assert [full.targets[i] for i in shown] == [half.tokens[start + i] for i in shown]
    assert not {start + i for i in shown} & set(half.reads)
    for row in case.rows[1::2]:
        at = row.prompt_length
        assert [i for i, t in enumerate(row.tokens[at:]) if t != model.mask_id] == shown
    again, _ = ask(model, make_fact(1, "p2d"), revealed=(0.0, 0.5))
    assert again.rows == case.rows and settings.revealed == (0.0, 0.5)


def test_keys_of_the_subject_alone(model):
    case, _ = ask(model, key_text="subject")
    for row, prefix in zip(case.key_rows, PREFIXES, strict=True):
        text = model.tokenizer.decode(row.tokens[: row.position + 1])
        assert text == f"{prefix}{'. ' if prefix else ''}{case.fact.subject}"


def test_prefixes_are_seeded(model, twin):
    for each in (model, twin):
        found = make_prefixes(each, 4, seed=1)
        assert found == make_prefixes(each, 4, seed=1) != make_prefixes(each, 4, seed=2)
        assert found[0] == "" and len(set(found)) == 4
    fact = put_before("Once", make_fact(0, "p2d"))
    begin, end = fact.subject_span
    assert fact.prompt.startswith("Once. They") and fact.prompt[begin:end] == fact.subject


def test_mistakes_are_sentences(model, twin):
    whole = Fact.of("Ada Quill", "the painter of red boats", "{}", fact_id="whole")
    fact, mute = make_fact(0, "p2d"), replace(model, tokenizer=None)
    key, value = unmask.extract_key, unmask.extract_value
    for call, said in (
        (lambda: value(model, whole, LAYER, prefixes=1), "subject 'Ada Quill' is the whole prompt"),
        (lambda: key(model, [whole], LAYER), "a list was given: expected an unmask.Fact"),
        (lambda: value(model, [whole], LAYER), "a list was given: expected an unmask.Fact"),
        (lambda: key(model, fact, 9), "layer 9 is out of range: .* layers 0 to 3"),
        (lambda: value(model, fact, 3, prefixes=1), "layer 3 is the last"),
        (lambda: value(twin, fact, 1, prefixes=1, guidance=0.5), "neither guidance nor mask patt"),
        (lambda: make_prefixes(model, 3, texts=["boats"]), "only 2 different prefixes"),
        (lambda: make_prefixes(model, 3, texts=[" "]), "text to cut prefixes from is empty"),
        (lambda: key(mute, fact, LAYER), "has no tokenizer"),
        (lambda: choose_layers("one", 1, "all"), "and `all` leaves the last one out"),
        (lambda: value(model, fact, LAYER, prefixes=["", "boats " * 60]), "use --prefixes 1"),
    ):
        with pytest.raises(UserError, match=said):
            call()


class PostNormBlock(Block):
    """As BERT's: the sums are normalised, not what the parts read."""

    def read(self, x, cos, sin):
        return self.attn.project(x, cos, sin)

    def after_attention(self, x, attn):
        x = self.attn_norm(x + attn)
        return x, x

    def mlp_key(self, x, tap=untouched):
        return self.mlp(tap("mlp_in", x))

    def after_mlp(self, stream, mlp):
        return self.mlp_norm(stream + mlp)


@pytest.mark.parametrize("gain", [None, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_post_norm_block_is_refused(monkeypatch, gain, dtype):
    """Also where its norms are as they are initialised; its keys are read all the same."""
    monkeypatch.setitem(BLOCKS, "post", PostNormBlock)
    model, fact = make_model(residual="post", dtype=dtype), make_fact(0, "p2d")
    if gain is not None:
        for layer in range(4):
            model.net.block(layer).mlp_norm.weight.fill_(gain)
    with pytest.raises(UserError, match="layer 1 is a PostNormBlock, which does more with its MLP"):
        unmask.extract_value(model, fact, LAYER, prefixes=1, length=32)
    key = unmask.extract_key(model, fact, LAYER, prefixes=1, length=32)
    row = ask(model, fact, ("",))[0].rows[0]
    with model.net.capture(f"layers.{LAYER}.mlp_key") as taken:
        model.net(torch.tensor([row.tokens]))
    expected = taken[f"layers.{LAYER}.mlp_key"][0, row.position].float()
    torch.testing.assert_close(key.k_star, expected, atol=1e-5, rtol=1e-5)
    plain = unmask.extract_value(make_model(dtype=dtype), fact, LAYER, prefixes=1, length=32)
    assert plain.p_after > plain.p_before


def test_the_last_layer_is_read_where_the_subject_ends_the_prompt(twin):
    """A causal model reads an object at the last token of the prompt, here the subject's."""
    name, thing = "Ada Quill", "boats"
    fact = Fact.of(name, thing, "Now {}", fact_id="end")
    found = unmask.extract_value(twin, fact, 3, prefixes=1, search_steps=3)
    assert found.p_after > found.p_before


def test_facts_of_many_sizes_keep_their_order(model):
    """Canvases of two lengths and objects of many are batched apart and come back in order."""
    facts = make_facts()
    settings = choose_extraction(search_steps=2)
    prefixes = ("", "boats " * 36)
    cases = [lay_out_case(model, fact, prefixes, settings) for fact in facts[:4]]
    cases[2] = lay_out_case(model, facts[2], ("", "boats"), settings)
    assert len({case.length for case in cases}) > 1
    found = find_values(model, cases, LAYER, settings)
    for case, one in zip(cases, found, strict=True):
        (alone,) = find_values(model, [case], LAYER, settings)
        assert one.p_before == pytest.approx(alone.p_before, rel=1e-4)


@pytest.mark.parametrize("phrasing", [-99, -1, 1])
def test_phrasings_are_counted_from_0(phrasing):
    corpus = Corpus("own", {"own": [make_fact(0, "p2d")]})
    with pytest.raises(UserError, match=f"phrasing {phrasing} was asked for.* expected 0 to 0"):
        choose_group_facts(corpus, (), ("p2d",), 1, phrasing)


def test_groups_that_the_data_lack_are_left_out():
    ways = {"same": "p2d", "reverse": "d2p"}
    splits = {f"p2d_{how}": [make_fact(i, way) for i in range(2)] for how, way in ways.items()}
    corpus = Corpus("made", splits | {"d2p_same": [make_fact(0, "d2p")]})
    assert find_groups(corpus, ("p2d", "d2p", "both")) == {"p2d": ("p2d_same", "p2d_reverse")}
    asked = choose_group_facts(corpus, ("d2p", "p2d"), ("p2d", "d2p"), 1)
    assert [(each.group, each.split, each.fact.direction) for each in asked] == [
        ("p2d", "p2d_same", "p2d"),
        ("p2d", "p2d_reverse", "d2p"),
    ]
    with pytest.raises(UserError, match="made has no facts of the groups both: expected some of"):
        find_groups(corpus, ("both",))
    with pytest.raises(UserError, match="no fact is asked in the direction up: expected p2d or"):
        choose_group_facts(corpus, ("p2d",), ("up",), 1)


@pytest.mark.parametrize(
    ("text", "traced", "layers", "reason"),
    [
        ("auto", None, (3,), "middle"),
        ("auto", 5, (5,), "trace"),
        ("all", None, (0, 1, 2, 3, 4), "given"),
        ("4, 0,4", None, (0, 4), "given"),
    ],
)
def test_layers_are_chosen(text, traced, layers, reason):
    assert choose_layers("made", 6, text, traced) == (layers, reason)


def test_a_trace_chooses_the_layer_whose_mlp_does_most():
    """At the last subject token, on average over ways of asking and steps, the last layer aside."""
    base = {"model": "made", "part": "mlp", "role": "last subject", "control": "none"}
    rows = [
        base | {"layer": layer, "mean": mean} | more
        for layer, mean, more in (
            (0, 0.4, {}), (0, 0.2, {}), (1, 0.5, {}), (1, 0.0, {}), (1, 9.0, {"role": "further"}),
            (1, 9.0, {"control": "other fact"}), (1, 9.0, {"part": "attn"}),
            (1, 9.0, {"model": "other"}), (2, 9.0, {}),
        )
    ]  # fmt: skip
    assert find_traced_layer(rows, "made", 3) == 0
    assert find_traced_layer(rows, "made", 4) == 2
    assert find_traced_layer(rows, "other", 3) == 1
    assert find_traced_layer(rows, "third", 3) is None


def test_three_texts_are_a_fact(model):
    """Wherever a single fact is taken."""
    texts = ("Ada Quill", "the painter of red boats", "They say {} is known as")
    fact, few = Fact.of(*texts), {"search_steps": 2, "prefixes": 1}
    for find in (unmask.extract_key, unmask.extract_value):
        own = few if find is unmask.extract_value else {"prefixes": 1}
        (one, other) = (find(model, each, LAYER, **own) for each in (fact, texts))
        assert repr(one) == repr(other)
    edits = [unmask.edit(model, each, "a baker", layers=1, **few) for each in (fact, texts)]
    assert edits[0].factors[1].readers.equal(edits[1].factors[1].readers)
    how = {"corruption": "mean", "parts": ("resid",), "at": "first", "any_answer": True, "steps": 2}
    (one,), (other,) = (unmask.trace_steps(model, each, **how) for each in (fact, texts))
    assert one.effects("resid").equal(other.effects("resid"))
    with pytest.raises(UserError, match="expected an unmask.Fact"):
        unmask.extract_key(model, texts[:2], LAYER)
