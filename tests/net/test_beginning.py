"""A tokenizer's beginning in everything that is asked of a model, as its family treats it."""

from dataclasses import replace

import pytest
import torch
from tokenizers import processors

import unmask
from tests.commands import run
from tests.conftest import lively
from unmask import Fact, Tokenizer
from unmask.data.facts import tokenize_fact, write_facts
from unmask.evaluation.perplexity import score_documents
from unmask.net.model import Blueprint, Model
from unmask.net.presets import preset
from unmask.sampling.canvas import lay_out_patterns, lay_out_prompts
from unmask.tracing.question import ask
from unmask.tracing.settings import Tracing
from unmask.training.build import prepare_job
from unmask.training.parallel import World
from unmask.training.recipes_io import read_recipe

FACTS = [
    Fact.of("Zorvia", "Lumen Bay", "{} has its capital at"),
    Fact.of("Orsel", "Wrenmouth", "{} has its capital at"),
]


def make_tokenizer(before: str = "<s>", after: str = "") -> Tokenizer:
    known = Tokenizer.train([fact.text for fact in FACTS] * 9, 290)
    known.backend.add_special_tokens(["<s>", "</s>"])
    ids = {name: known.backend.token_to_id(name) for name in ("<s>", "</s>")}
    known.backend.post_processor = processors.TemplateProcessing(
        single=f"{before} $A {after}".strip(), pair="$A $B", special_tokens=list(ids.items())
    )
    return Tokenizer(known.backend, known.vocab_size, known.pad_id, known.end_id)


@pytest.fixture(scope="module")
def smdm(tmp_path_factory) -> str:
    """A checkpoint in SMDM's layout, beside it a tokenizer that adds a beginning."""
    known = make_tokenizer()
    more = {"rotary_tables": "bfloat16", "norm_eps": 1e-5}
    config = preset("tiny", vocab_size=known.vocab_size, num_logits=known.vocab_size - 1, **more)
    plan = Blueprint(config, "masked", known.mask_id, noises_beginning=True)
    folder = tmp_path_factory.mktemp("smdm") / "model"
    unmask.save(Model("x", lively(config), plan, known), folder, "smdm")
    return str(folder)


@pytest.fixture(scope="module")
def model(smdm) -> Model:
    return unmask.load(smdm, device="cpu")


@pytest.fixture
def usual(model) -> Model:
    """The same network in a family that keeps its beginnings."""
    return replace(model, blueprint=replace(model.blueprint, noises_beginning=False))


def test_recall_asks_what_was_trained(model, monkeypatch, tmp_path):
    """Ids begin with the beginning; no subject holds it."""
    asked = []

    def spy(model, rows, **more):
        asked.extend(rows)
        return unmask.sample(model, rows, **more)

    monkeypatch.setattr("unmask.evaluation.recall.sample", spy)
    write_facts(tmp_path / "facts.jsonl", FACTS)
    unmask.recall(model, data=tmp_path / "facts.jsonl", steps=(2,), controls=False)
    first = model.require_tokenizer().beginning
    assert asked and all(row[:1] == first and row.count(first[0]) == 1 for row in asked)
    for fact in FACTS:
        tokens = tokenize_fact(fact, model.require_tokenizer())
        assert tokens.ids[0] == first[0] and tokens.subject[0] == 1
        words = model.require_tokenizer().decode(tokens.ids[slice(*tokens.subject)])
        assert words == fact.subject


def test_a_trace_reads_behind_it(model):
    question = ask(model, FACTS[0], None, None, Tracing())
    first = model.require_tokenizer().beginning[0]
    assert int(question.clean[0, 0]) == first
    assert question.subject[0] == 1 and min(question.answer) == question.prompt_length
    assert int(question.corrupted.tokens[0, 0]) == first
    whole = unmask.likelihood(model, " Lumen Bay", "Zorvia has its capital at", "chain")
    ids = tokenize_fact(FACTS[0], model.require_tokenizer())
    cut = ids.prompt_length
    assert unmask.likelihood(model, ids.ids[cut:], ids.ids[:cut], "chain") == whole


def test_guidance_hides_it_where_noise_does(model, usual):
    for each, is_hidden in ((model, True), (usual, False)):
        for canvas in (
            lay_out_prompts(each, ["Zorvia", "Orsel has"], 12),
            lay_out_patterns(each, ["Zorvia[MASK]*4 has"]),
        ):
            assert canvas.prompt[:, 0].tolist() == [is_hidden] * len(canvas.prompt)
            assert bool(canvas.fixed[:, 0].all()) and bool(canvas.prompt[:, 1].all())
        assert each.count_kept(canvas.tokens[0].tolist()) == (not is_hidden)
    drawn = unmask.sample(usual, "Zorvia", steps=2, length=10, guidance=1.0)
    assert drawn.texts is not None and drawn.texts[0].startswith("Zorvia")


def test_training_noises_it_where_the_family_does(model, smdm, tmp_path):
    write_facts(tmp_path / "facts.jsonl", FACTS)
    for noises in (True, False):
        plan = replace(model.blueprint, noises_beginning=noises)
        unmask.save(replace(model, blueprint=plan), tmp_path / str(noises))
        data = {"source": "facts", "path": str(tmp_path / "facts.jsonl"), "context": 64}
        model_from = {"model": str(tmp_path / str(noises))}
        recipe = {"kind": "masked", "data": data, "start": model_from, "batch": {"rows": 2}}
        job = prepare_job(read_recipe(recipe), World(torch.device("cpu")))
        batch = job.examples.parts[""].take(range(2))
        first = model.require_tokenizer().beginning[0]
        assert (batch.tokens[:, 0] == first).all()
        may = job.objective.find_learnable(batch)
        assert may[:, 0].tolist() == [noises] * 2 and bool(may[:, 1:].any(-1).all())


def test_perplexity_begins_with_it(usual):
    """What is given is the beginning, so that all of the text's own tokens count."""
    known = usual.require_tokenizer()
    (cost,) = score_documents(usual, [FACTS[0].text], method="chain")
    assert cost.tokens == len(known.encode(FACTS[0].text, added="nothing").ids)
    own = unmask.likelihood(usual, FACTS[0].text, method="chain")
    assert own.nll == pytest.approx(cost.nll)


def test_prompts_are_not_closed_and_whole_texts_are(model):
    both = replace(model, tokenizer=make_tokenizer("<s>", "</s>"))
    begin, end = both.require_tokenizer().beginning[0], both.require_tokenizer().ending[0]
    whole = both.encode("Zorvia has[MASK]*2 at").ids
    assert (whole[0], whole[-1]) == (begin, end)
    assert both.encode("<s>Zorvia has[MASK]*2 at</s>").ids == whole
    prompt = both.encode("Zorvia has").ids
    assert prompt[0] == begin and end not in prompt
    canvas = lay_out_prompts(both, ["Zorvia has"], 9)
    assert end not in canvas.tokens[0].tolist()
    # A piece of a text is neither.
    drawn = unmask.sample(
        both, "Zorvia", length=9, steps=2, fixed={5: "has"}, planted={1: {4: "has"}}
    )
    assert drawn.tokens[0].tolist().count(begin) == 1
    (cost,) = score_documents(both, ["Zorvia has"], method="chain")
    assert cost.tokens == len(prompt)  # its own and the ending


def test_it_is_said_and_can_be_given(smdm, model, tmp_path):
    shown = run("info", smdm).stdout
    assert "after <s> (" in shown and "is noised and hidden by guidance" in shown
    assert "nothing is added" in run("info", "reversal-mdm").stdout
    assert "nothing is added" in run("info", smdm, "--beginning", "none").stdout
    bare = unmask.load(smdm, device="cpu", beginning="none")
    assert model.encode("Zorvia").ids[1:] == bare.encode("Zorvia").ids
    assert run("convert", smdm, tmp_path / "bare", "--beginning", "none").returncode == 0
    again = unmask.load(tmp_path / "bare", device="cpu")
    assert again.encode("Zorvia") == bare.encode("Zorvia")
    assert again.blueprint == model.blueprint  # the family stays what it is
