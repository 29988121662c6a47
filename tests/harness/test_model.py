"""The harness's model class: equal to its Hugging Face class, windows, texts, chats, mistakes."""

from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import unmask
from tests.conftest import TEXTS, make_model, make_noised
from tests.harness.tasks import TEMPLATE
from unmask.data.chat import ChatTemplate
from unmask.data.tokenizer import END, Tokenizer
from unmask.evaluation.perplexity import score_documents
from unmask.harness.model import UnmaskLM
from unmask.net.model import Model

PAIRS = [
    ("The caves of", " Orsel are deep."),
    ("The caves of", " deep"),
    ("The baker of Wrenmouth ", "sings."),
    ("", "The baker of Wrenmouth sings."),
    ("The caves of Orsel are deep. " * 20, "The baker sings."),
]
LONG = "The caves of Orsel are deep. The baker of Wrenmouth sings. " * 12
CONTEXT = 48
BEGIN = "[BEGIN]"


def ask(kind: str, *arguments: tuple) -> list[Instance]:
    return [Instance(kind, {}, each, i) for i, each in enumerate(arguments)]


@pytest.fixture(scope="module", params=[BEGIN, END, None])
def twins(tmp_path_factory, request) -> tuple[HFLM, UnmaskLM]:
    """One random causal network under the harness's own class and under ours.

    Its beginning token is one of its own, the end token, or none.
    """
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = Tokenizer.train(TEXTS, 300)
    tokenizer.backend.add_special_tokens([BEGIN])
    if request.param is not None:
        tokenizer.begin_id = tokenizer.backend.token_to_id(request.param)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=CONTEXT,
        bos_token_id=tokenizer.begin_id, eos_token_id=tokenizer.end_id,
    )  # fmt: skip
    theirs = LlamaForCausalLM(config).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(3)
    for parameter in theirs.parameters():
        if parameter.ndim == 2:
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=draw))
    theirs.save_pretrained(folder)
    tokenizer.save(folder)
    words = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend,
        eos_token=END,
        bos_token=request.param,
        pad_token="[PAD]",
    )
    hugging = HFLM(pretrained=theirs, tokenizer=words, batch_size=3, device="cpu")
    return hugging, UnmaskLM(str(folder), device="cpu", dtype="float32")


def test_likelihoods_are_those_of_the_hugging_face_class(twins):
    theirs, ours = (lm.loglikelihood(ask("loglikelihood", *PAIRS)) for lm in twins)
    assert len(twins[1].tok_encode(PAIRS[-1][0])) > CONTEXT  # its beginning is cut off
    for (expected, is_greedy), (logp, greedy) in zip(theirs, ours, strict=True):
        assert logp == pytest.approx(expected, abs=1e-4)
        assert greedy == is_greedy


@pytest.mark.parametrize("causal", [True, False])
def test_a_context_of_spaces_is_an_empty_one(causal):
    lm = UnmaskLM(make_model(causal=causal))
    pairs = [("", "\n The caves of"), ("\n ", "The caves of"), ("The baker of", " Wrenmouth")]
    empty, spaces, _ = lm.loglikelihood(ask("loglikelihood", *pairs))
    assert spaces == empty


def test_rolling_likelihoods_are_those_of_the_hugging_face_class(twins):
    requests = ask("loglikelihood_rolling", (LONG,), ("The caves",))
    assert len(twins[1].tok_encode(LONG)) > 2 * CONTEXT
    theirs, ours = (lm.loglikelihood_rolling(requests) for lm in twins)
    assert ours == pytest.approx(theirs, abs=1e-4)


def test_texts_are_those_of_the_hugging_face_class(twins):
    kwargs = {"until": ["."], "max_gen_toks": 12, "do_sample": False}
    requests = ask("generate_until", ("The caves of", kwargs), ("The baker", kwargs))
    theirs, ours = (lm.generate_until(requests) for lm in twins)
    assert ours == theirs and all(ours)


@pytest.mark.parametrize("method", ["exact_k", "chain"])
@pytest.mark.parametrize("window", [{}, {"window": 16, "stride": 5}])
def test_rolling_windows_count_every_token_once(method, window):
    """The sum of windows that were cut by hand, each with what is given before it."""
    model = make_model()
    lm = UnmaskLM(model, likelihood=method, strata=4, repeats=2, **window)
    text = "".join(Random(0).choices("The caves of Orsel", k=400))  # no window is there twice
    ids = lm.tok_encode(text)
    longest = window.get("window", model.net.config.context)
    stride = window.get("stride", longest - 1)
    whole, done, costs = [lm.prefix_token_id, *ids], 1, []
    while done < len(whole):
        stop = min(len(whole), longest if done == 1 else done + stride)
        start = max(0, stop - longest)
        costs.append((tuple(whole[start:done]), tuple(whole[done:stop])))
        done = stop
    assert sum(len(tokens) for _, tokens in costs) == len(ids) and len(costs) > 2
    expected = sum(
        unmask.likelihood(
            model, tokens, context, method, strata=4, repeats=2,
            seed=unmask.base.seeds.derive_seed(0, "window", (*context, *tokens)),
        ).nll
        for context, tokens in costs
    )  # fmt: skip
    (logp,) = lm.loglikelihood_rolling(ask("loglikelihood_rolling", (text,)))
    assert -logp == pytest.approx(expected, rel=1e-5)
    assert (lm.errors[(text,)] > 0) == (method == "exact_k")


@pytest.mark.parametrize("kind", ["uniform", "hybrid", "gaussian"])
@pytest.mark.parametrize(("window", "stride"), [(None, None), (16, 5)])
def test_bounds_of_other_noise_are_those_of_perplexity(kind, window, stride, monkeypatch):
    """Windows of the same tokens and context, with the same draws, cost the same."""
    model = make_noised(kind)
    lm = UnmaskLM(model, window=window, stride=stride, repeats=3, seed=5)
    # Both name their windows' seeds, by other names.
    for module in ("harness.model", "evaluation.perplexity", "objectives.likelihood"):
        monkeypatch.setattr(f"unmask.{module}.derive_seed", lambda seed, *names: seed)
    longest = window or model.net.config.context
    long = LONG if window is None else LONG[:120]
    assert len(lm.tok_encode(long)) > 2 * longest
    texts = [long, TEXTS[0]]
    logps = lm.loglikelihood_rolling(ask("loglikelihood_rolling", *((each,) for each in texts)))
    costs = score_documents(model, texts, longest, stride or longest - 1, repeats=3, seed=5)
    for text, logp, expected in zip(texts, logps, costs, strict=True):
        assert -logp == pytest.approx(expected.nll, rel=1e-5)
        assert lm.errors[(text,)] == pytest.approx(expected.error, rel=1e-4) and expected.error > 0
    assert lm.get_model_info()["likelihood"] == "an upper bound on -log p"


def test_other_noise_has_bounds_of_whole_texts_alone():
    model = make_noised("uniform")
    with pytest.raises(unmask.UserError, match="a uniform model: likelihoods are computed for"):
        UnmaskLM(model).loglikelihood(ask("loglikelihood", PAIRS[0]))
    rolling = ask("loglikelihood_rolling", (LONG,))
    with pytest.raises(unmask.UserError, match="guidance is 0.5, and uniform is a uniform model"):
        UnmaskLM(model, guidance=0.5).loglikelihood_rolling(rolling)
    few, many = (UnmaskLM(model, strata=n, repeats=2) for n in (1, 8))
    assert few.loglikelihood_rolling(rolling) != many.loglikelihood_rolling(rolling)
    chain = UnmaskLM(model, likelihood="chain").get_model_info()
    assert chain["likelihood"] == "an upper bound on -log p", "the chain rule is masked models'"


def test_the_error_of_a_text_whose_windows_are_equal_is_the_spread_over_seeds():
    """Equal windows are drawn apart: one draw for all of nine would err three times as much."""
    model, text = make_model(), ("a" * 72,)
    logps, errors = [], []
    for seed in range(24):
        lm = UnmaskLM(model, seed=seed, window=9, strata=2, repeats=4)
        logps += lm.loglikelihood_rolling(ask("loglikelihood_rolling", text))
        errors.append(lm.errors[text])
    spread = torch.tensor(logps).std()
    assert 0.5 < float(spread / torch.tensor(errors).mean()) < 1.6


def test_texts_depend_on_their_prompt_alone_and_stop_where_they_are_told():
    lm = UnmaskLM(make_model(), steps=4, max_gen_toks=10)
    kwargs = {"until": ["x"], "do_sample": True, "temperature": 1.0, "max_gen_toks": 10}
    prompts = ["The caves", "The baker of Wrenmouth", "The"]
    together = lm.generate_until(ask("generate_until", *((each, kwargs) for each in prompts)))
    alone = [lm.generate_until(ask("generate_until", (each, kwargs)))[0] for each in prompts]
    assert together == alone and len(set(alone)) == 3
    twice = lm.generate_until(ask("generate_until", *[(prompts[0], kwargs)] * 2))
    assert twice[0] == alone[0] and twice[1] != twice[0]
    letter = alone[0][len(alone[0]) // 2]
    (cut,) = lm.generate_until(ask("generate_until", (prompts[0], kwargs | {"until": [letter]})))
    assert cut == alone[0].split("x")[0].split(letter)[0]
    longer = ask("generate_until", ("The caves of Orsel. " * 40, {"until": [], "steps": 1}))
    assert lm.generate_until(longer)


def test_a_special_token_may_be_a_stop_sequence(monkeypatch):
    """Decoded texts do not show it: it is looked for among the tokens."""
    model = make_model()
    tokenizer = model.require_tokenizer()
    tokenizer.backend.add_special_tokens(["[TURN]"])
    written = tokenizer.encode(" of[TURN] Orsel").ids
    assert tokenizer.decode(written) == " of Orsel"

    def write(model: Model, rows: list[list[int]], settings: object) -> SimpleNamespace:
        return SimpleNamespace(tokens=torch.tensor([row + written for row in rows]))

    monkeypatch.setattr("unmask.harness.model.sample", write)
    for until, text in ((["[TURN]"], " of"), (["f", "[TURN]"], " o"), (["."], " of Orsel")):
        kwargs = {"until": until, "max_gen_toks": len(written)}
        request = ask("generate_until", ("The caves", kwargs))
        assert UnmaskLM(model).generate_until(request) == [text]


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"num_beams": 4}, "generation_kwargs hold {'num_beams': 4}"),
        ({"max_gen_toks": 100_000}, "leaves no room for a prompt"),
        ({"order": "sideways"}, "sideways"),
        ({"max_gen_toks": 0}, "asks for 0 tokens: expected max_gen_toks of at least 1"),
        ({"max_gen_toks": "few"}, "expected numbers for max_gen_toks and temperature"),
        ({"do_sample": "yes"}, "do_sample is 'yes': expected true or false"),
        ({"until": [5]}, r"until is \[5\]: expected a string or a list of strings"),
    ],
)
def test_generation_that_cannot_be_had_is_a_sentence(kwargs, sentence):
    with pytest.raises(unmask.UserError, match=sentence):
        UnmaskLM(make_model()).generate_until(ask("generate_until", ("The caves", kwargs)))


def test_a_task_that_asks_for_draws_gets_them():
    model = make_model(causal=True)
    kwargs = {"until": None, "max_gen_toks": 10}

    def write(settings: dict, **more: object) -> list[str]:
        return UnmaskLM(model, **settings).generate_until(
            ask("generate_until", *[("The caves", kwargs | more)] * 2)
        )

    greedy = write({}, do_sample=False)
    assert greedy[0] == greedy[1]
    drawn = write({}, do_sample=True)
    assert drawn == write({}, do_sample=True, temperature=1.0) and drawn[0] != drawn[1]
    cool = write({"temperature": 0.3}, do_sample=True)
    assert cool == write({}, do_sample=True, temperature=0.3) != drawn


def test_what_cannot_be_scored_is_a_sentence():
    lm = UnmaskLM(make_model())
    endless = "The caves of Orsel are deep. " * 60
    with pytest.raises(unmask.UserError, match="continuation 'The .* has .* tokens: expected 1 to"):
        lm.loglikelihood(ask("loglikelihood", ("The", endless)))
    with pytest.raises(unmask.UserError, match="continuation '' has 0 tokens: expected 1 to"):
        lm.loglikelihood(ask("loglikelihood", ("The", "")))
    with pytest.raises(unmask.UserError, match="an empty continuation of an empty context"):
        lm.loglikelihood(ask("loglikelihood", ("", "")))
    with pytest.raises(unmask.UserError, match="'likelihood' is 'guess'"):
        UnmaskLM(make_model(), likelihood="guess")
    with pytest.raises(unmask.UserError, match="windows of 4096 tokens"):
        wide = UnmaskLM(make_model(), window=4096)
        wide.loglikelihood_rolling(ask("loglikelihood_rolling", ("The",)))


def test_chats_are_in_the_models_own_words(tmp_path):
    model = make_model()
    with pytest.raises(unmask.UserError, match="has no chat template"):
        UnmaskLM(model).apply_chat_template([{"role": "user", "content": "Hi"}])
    model.tokenizer.chat = ChatTemplate(TEMPLATE)
    lm = UnmaskLM(model)
    turn = {"role": "user", "content": "Hi"}
    assert lm.apply_chat_template([turn]) == "<user>Hi</user><assistant>"
    begun = [turn, {"role": "assistant", "content": "The caves"}]
    expected = "<user>Hi</user><assistant>The caves"
    assert lm.apply_chat_template(begun, add_generation_prompt=False) == expected
    assert lm.chat_template(True) == TEMPLATE and lm.chat_template(False) == ""
    assert Path(lm.tokenizer_name).name == lm.tokenizer_name
