"""Texts wherever tokens are: the same numbers as of the ids and positions that they stand for."""

from dataclasses import replace

import pytest
import torch

import unmask
from tests.representation.facts import make_fact, make_model
from unmask import UserError
from unmask.data.facts import tokenize_fact
from unmask.tracing.grid import TraceGrid

FACT = make_fact(0, "p2d")
HOW = {"corruption": "mean", "window": 1, "metric": "logp"}


def ids(model, text: str) -> list[int]:
    return model.tokenizer.encode(text).ids


def same(one: TraceGrid, other: TraceGrid) -> bool:
    parts = [torch.equal(one.logp[part], other.logp[part]) for part in one.logp]
    return all(parts) and one.answer == other.answer and one.subject == other.subject


def test_texts_of_a_model():
    model = make_model()
    mask, front, back = model.mask_id, ids(model, "They say"), ids(model, " is known")
    assert model.tokens("They say[MASK]*2 is known").tolist() == [front + [mask] * 2 + back]
    assert model.tokens("They say [MASK] is known").tolist() == [[*front, mask, *back]]
    assert model.tokens(["Now", "Now"]).tolist() == [ids(model, "Now")] * 2
    text = "They say [MASK]*3 Ada Quill is"
    encoded = model.encode(text)
    words = [text[b:e] for b, e in encoded.offsets]
    assert "".join(words) == "They say Ada Quill is" and words.count("") == 3
    assert torch.equal(model.logits("They say[MASK]"), model.logits(model.tokens("They say[MASK]")))
    assert model.logits(["Now", "Now"]).shape[0] == 2
    filled = unmask.infill(model, text, steps=2)
    assert torch.equal(filled.states[0], model.tokens(text))


def test_texts_that_a_model_cannot_read():
    model = make_model()
    for given, said in (
        (["Now", "They say Ada Quill"], "tokens were given: expected one, or several with as many"),
        ([], "texts of no tokens"),
        ("Now[MASK]*999", "999 masks were asked for, expected at most the context"),
    ):
        with pytest.raises(UserError, match=said):
            model.tokens(given)
    with pytest.raises(UserError, match="causal and has no mask token"):
        make_model(kind="causal").tokens("Now[MASK]")


@pytest.mark.parametrize("kind", ["masked", "causal"])
@pytest.mark.parametrize("ask", [unmask.trace_tokens, unmask.estimate_effects])
def test_a_trace_of_texts(kind, ask):
    """The answer after the text: masks stand in for it, or its earlier tokens are given."""
    model = make_model(kind=kind)
    parts = tokenize_fact(FACT, model.tokenizer)
    asked = dict(enumerate(parts.ids))
    asked = {i: asked[i] for i in range(parts.prompt_length, len(parts.ids))}
    rest = [model.mask_id] * len(asked) if kind == "masked" else parts.ids[parts.prompt_length : -1]
    how = HOW if ask is unmask.trace_tokens else {"corruption": "mean", "window": 1}
    expected = ask(model, parts.ids[: parts.prompt_length] + rest, parts.subject, asked, **how)
    given = ask(model, FACT.prompt, FACT.subject, FACT.object, **how)
    assert same(given, expected) and len(asked) > 1
    assert same(ask(model, FACT, **how), expected)
    longer = replace(FACT, completion=f" also {FACT.object}", object_span=(6, 6 + len(FACT.object)))
    given = ask(model, f"{FACT.prompt} also", FACT.subject, FACT.object, **how)
    assert same(ask(model, longer, **how), given)


def test_a_trace_of_a_text_with_masks():
    model = make_model()
    text, answer = "They say Ada Quill is known as[MASK]*6 in blue", "the painter"
    spoken = ids(model, " the painter")
    first = len(ids(model, "They say Ada Quill is known as"))
    span = (len(ids(model, "They say")), len(ids(model, "They say Ada Quill")))
    named = {first + i: token for i, token in enumerate(spoken)}
    assert 1 < len(spoken) <= 6
    expected = unmask.trace_tokens(model, model.tokens(text)[0], span, named, **HOW)
    assert same(unmask.trace_tokens(model, text, "Ada Quill", answer, **HOW), expected)
    mixed = unmask.trace_tokens(model, text, span, named, **HOW)
    assert same(mixed, expected), "positions of a text are those of its tokens"
    foiled = unmask.trace_tokens(model, text, "Ada Quill", "the", foil="red", **HOW)
    by_number = {first: ids(model, " red")[0]}
    again = unmask.trace_tokens(model, text, span, {first: spoken[0]}, foil=by_number, **HOW)
    torch.testing.assert_close(foiled.clean_logp, again.clean_logp, equal_nan=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("They say Ada[MASK]", "Ada", "the painter of red boats"), "tokens, but the text has 1"),
        (("They say Ada is", "Bob", "the painter"), "the subject 'Bob' is not in its prompt"),
        (("Ada or Ada is", "Ada", "the painter"), "names its subject 'Ada' 2 times"),
        (([5, 6, 7], "Ada", {2: 3}), "is a text, but the tokens are ids"),
        (([5, 6, 7], (0, 1), "red"), "is a text, but the tokens are ids"),
        (("They say Ada is",), r"expected \(model, fact\) or \(model, text, subject, answer\)"),
        ((FACT, "Ada", "red"), r"expected \(model, fact\) or \(model, text, subject, answer\)"),
    ],
)
def test_mistakes_in_texts(given, said):
    with pytest.raises(UserError, match=said):
        unmask.trace_tokens(make_model(), *given)
