"""A patch or a capture is never ignored: whatever runs a network honours it.

A patch that halves an activation does what halving some weights does, to the last bit: a feature
gives under the patch what it gives on the network with the weights halved. A patch that writes back
what stands there changes nothing, to the last bit.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import cache, partial
from pathlib import Path

import pytest
import torch

import unmask
from tests.representation.facts import PREFIXES, make_fact
from tests.representation.facts import make_model as make_deep_model
from tests.training.runs import make_trainer
from unmask import UserError
from unmask.evaluation.answers import Asked, score_answers
from unmask.net.model import Model
from unmask.net.transformer import Transformer
from unmask.training.trainer import Trainer

FACT, LAYER = make_fact(0, "p2d"), 1
Feature = Callable[[Model], list[torch.Tensor]]
make_model = partial(make_deep_model, layers=3)


def ids(model: Model, text: str) -> list[int]:
    return model.tokenizer.encode(text).ids


def draw(model: Model, **how) -> list[torch.Tensor]:
    """Rows of two lengths; what was written, and how sure each token was."""
    prompts = [ids(model, "They say Ada"), ids(model, "Now")]
    found = unmask.sample(model, prompts, length=[9, 7], temperature=0.7, seed=3, **how)
    return [found.tokens, found.committed_at, found.confidence]


def fill(model: Model) -> list[torch.Tensor]:
    found = unmask.infill(model, "They say[MASK]*4 is[MASK]*3", steps=4, guidance=0.5)
    return [found.tokens, found.confidence]


def score(model: Model) -> list[torch.Tensor]:
    prompts = [ids(model, "They say Ada Quill"), ids(model, "Now")]
    answers = [ids(model, " is known"), ids(model, " boats")]
    found = score_answers(model, [Asked(prompt, answers, answers) for prompt in prompts], 12)
    return [torch.tensor([*one.terms, one.first_token_entropy]) for row in found for one in row]


def ask(model: Model) -> tuple[list[int], tuple[int, int], dict[int, int]]:
    tokens, answer = ids(model, "They say Ada Quill is known as"), ids(model, " the")[0]
    if model.kind == "causal":
        return tokens, (2, 4), {len(tokens): answer}
    return [*tokens, model.mask_id, model.mask_id], (2, 4), {len(tokens): answer}


def trace(model: Model) -> list[torch.Tensor]:
    grid = unmask.trace_tokens(model, *ask(model), window=2, corruption="mean", metric="logp")
    return [grid.values("mlp"), torch.tensor(grid.clean)]


def estimate(model: Model) -> list[torch.Tensor]:
    grid = unmask.estimate_effects(model, *ask(model), window=2, corruption="mean")
    return [grid.values("mlp"), torch.tensor(grid.clean)]


def trace_along(model: Model) -> list[torch.Tensor]:
    how = {"corruption": "mean", "any_answer": True, "length": 20, "parts": ("resid",)}
    grids = unmask.trace_steps(model, FACT, steps=3, at="first", metric="logp", **how)
    return [grid.values("resid") for grid in grids]


def cut(model: Model) -> list[torch.Tensor]:
    how = {"corruption": "mean", "any_answer": True, "length": 20, "steps": 3}
    grid = unmask.cut_edges(model, FACT, edges=("answer:subject", "others:subject"), **how)
    return [grid.values("logp"), torch.tensor(grid.clean_value("logp"))]


def follow(model: Model) -> list[torch.Tensor]:
    how = {"corruption": "mean", "any_answer": True, "length": 20, "steps": 3}
    receivers = ["final", ("answer", 2, "mlp")]
    grid = unmask.patch_paths(model, FACT, ("subject", 1, "resid"), receivers, **how)
    return [grid.values("logp")]


def find_key(model: Model) -> list[torch.Tensor]:
    found = unmask.extract_key(model, FACT, LAYER, prefixes=PREFIXES)
    return [found.k_star, found.mapped]


def find_value(model: Model) -> list[torch.Tensor]:
    found = unmask.extract_value(model, FACT, LAYER, prefixes=2, search_steps=3)
    return [found.v_star, torch.tensor([found.p_before, found.p_after])]


HONOURED: dict[str, Feature] = {
    "logits": lambda model: [model.logits(torch.tensor([ids(model, "They say Ada")]))],
    "sample": partial(draw, steps=4),
    "blocks": partial(draw, steps=6, block=4, order="random", remask="low=0.3"),
    "cache exact": partial(draw, steps=6, cache="exact", plan="ancestral"),
    "infill": fill,
    "score_answers": score,
    "cache approximate": partial(draw, steps=6, block=4, cache="approximate"),
    "trace_tokens": trace, "trace_steps": trace_along, "estimate_effects": estimate,
    "cut_edges": cut, "patch_paths": follow, "key": find_key, "value": find_value,
}  # fmt: skip
TRACED = ("trace_tokens", "trace_steps", "estimate_effects", "cut_edges", "patch_paths")
TRACED = (*TRACED, "key", "value")
WHOLE = [name for name in HONOURED if name not in TRACED and name != "cache approximate"]
IMPOSSIBLE = {("causal", "infill"), ("causal", "cache approximate")}
"""An autoregressive model fills no masks, and what it keeps of its past is exact."""


def pair(features: Iterable[str]) -> list[tuple[str, str]]:
    every = [(name, kind) for name in features for kind in ("masked", "causal")]
    return [(name, kind) for name, kind in every if (kind, name) not in IMPOSSIBLE]


def test_the_matrix_in_the_docs_is_this_one():
    page = (Path(__file__).parents[2] / "docs/limits.md").read_text("utf-8")
    table = page.partition("**Of patches and captures**")[2].partition("The logit lens")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (\w+)", table, re.MULTILINE)
    assert dict(rows) == dict.fromkeys(HONOURED, "honoured")


def halve(*names: str) -> Callable[[Transformer], None]:
    """What halves the weights and biases whose names hold one of these."""

    def change(net: Transformer) -> None:
        for name, weight in net.named_parameters():
            if any(part in name for part in names):
                weight.data.mul_(0.5)

    return change


def halve_rows(layer: int, part: str) -> Callable[[Transformer], None]:
    """What halves a layer's projection to queries, keys or values, which lie in one matrix."""

    def change(net: Transformer) -> None:
        heads, kv, size = net.config.heads, net.config.kv, net.config.head_dim
        begin, count = {"q": (0, heads), "k": (heads, kv), "v": (heads + kv, kv)}[part]
        net.block(layer).attn.qkv.weight.data[begin * size : (begin + count) * size].mul_(0.5)

    return change


PATCHES = {
    "embed": halve("embedding."), "layers.1.attn_q": halve_rows(1, "q"),
    "layers.0.attn_k": halve_rows(0, "k"), "layers.1.attn_v": halve_rows(1, "v"),
    "layers.1.attn_scores": halve_rows(1, "q"),
    "layers.*.attn_pattern": halve("attn.out."), "layers.*.attn_z": halve("attn.out."),
    "layers.1.attn_out": halve("layers.1.attn.out."),
    "layers.0.mlp_in": halve("layers.0.mlp.gate.", "layers.0.mlp.up."),
    "layers.0.mlp_key": halve("layers.0.mlp.down."), "layers.*.mlp_out": halve("mlp.down."),
    "final": halve("head."), "logits": halve("head."),
}  # fmt: skip
"""Sites, and the weights whose halving halves the activation there; the network has no biases."""


def apply(model: Model, change: Callable[[Transformer], None]) -> Model:
    other = deepcopy(model)
    change(other.net)
    return other


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


EVERYWHERE = ("logits", "sample", "cache exact", "cache approximate")
"""Features tried at every site; others, which run the network as these do, at one of every kind."""
OF_EVERY_KIND = ("embed", "layers.1.attn_scores", "layers.0.mlp_key", "final")
UNREAD = {"key": ("final",)}
"""Sites that a feature does not come to."""


@pytest.mark.parametrize(("feature", "kind"), pair(HONOURED))
def test_a_patch_is_what_the_changed_network_gives(feature, kind):
    model, run = make_model(kind=kind), HONOURED[feature]
    plain, sites = run(model), PATCHES if feature in EVERYWHERE else OF_EVERY_KIND
    for site in (site for site in sites if site not in UNREAD.get(feature, ())):
        expected = run(apply(model, PATCHES[site]))
        assert not same(plain, expected), f"the change at {site} should show"
        with model.net.patch({site: lambda x: x * 0.5}):
            found = run(model)
        # A pattern that is changed mixes by other sums than the fused kernel's.
        scale = 10 if site.endswith(("attn_pattern", "attn_scores")) else 1
        for a, b in zip(found, expected, strict=True):
            close = {"atol": 1e-6 * scale, "rtol": 1e-5 * scale}
            torch.testing.assert_close(a, b, **close, msg=lambda text, at=site: f"{at}: {text}")
        assert not model.net.taps.attached


@pytest.mark.parametrize(("feature", "kind"), pair(WHOLE))
def test_a_capture_changes_nothing_and_holds_the_last_pass_whole(feature, kind):
    """As does one of steps, of what has steps."""
    model, run = make_model(kind=kind), HONOURED[feature]
    plain, sites = run(model), ("embed", "layers.2.mlp_out", "layers.2.attn_pattern", "logits")
    for steps in (None, [1, 3])[: 1 if feature in ("logits", "score_answers") else 2]:
        with model.net.capture(*sites, **({"steps": steps} if steps else {})) as taken:
            found = run(model)
        for a, b in zip(found, plain, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
        assert not steps or set(taken) == set(steps)
        for each in [taken[step] for step in steps] if steps else [taken]:
            assert each["logits"].isfinite().all(), "nobody writes into a captured tensor"
            assert each["embed"].shape == each["layers.2.mlp_out"].shape


def blank(x: torch.Tensor) -> torch.Tensor:
    """The second position's activation is nothing."""
    return x.index_fill(1, torch.tensor([1]), 0.0)


def test_a_patch_of_one_position_reaches_it_at_every_step_of_decoding():
    """Kept keys and values would show the patch one token at a time."""
    model = make_model(kind="causal")
    prompts, length = [[5, 6, 9], [8]], 12
    with model.net.patch({"layers.1.mlp_out": blank}):
        found = unmask.sample(model, prompts, length=length).tokens
        for row, prompt in enumerate(prompts):
            text = list(prompt)
            while len(text) < length:
                # A text of one token has no second position yet.
                whole = torch.tensor([[*text, 0]])
                text.append(int(model.net(whole)[0, len(text) - 1].argmax()))
            assert found[row].tolist() == text
    assert not torch.equal(found, unmask.sample(model, prompts, length=length).tokens)


def test_a_patch_of_one_position_reaches_it_in_scores():
    model = make_model(kind="causal")
    prompt, answer = [5, 6, 7], [8, 9]
    with model.net.patch({"layers.1.mlp_out": blank}):
        ((found,),) = score_answers(model, [Asked(prompt, [answer], [answer])], 12)
        logp = model.net(torch.tensor([prompt + answer]))[0].double().log_softmax(-1)
    assert found.terms == pytest.approx([float(logp[2, 8]), float(logp[3, 9])], abs=1e-5)
    ((plain,),) = score_answers(model, [Asked(prompt, [answer], [answer])], 12)
    assert abs(found.logp - plain.logp) > 1e-3


TRAINED = {"masked": {}, "causal": {"kind": "causal"}}
TRAINED["recomputed"] = {"machine": {"recompute": True}}


def learn_once(trainer: Trainer, patch: AbstractContextManager) -> tuple[float, torch.Tensor]:
    """The loss of the first batch, and the gradient of a norm's gain, which nothing halves."""
    given = trainer.feed(0)[0].inputs
    with patch:
        loss = trainer.learner(given)
    loss.backward()
    return float(loss.detach()), trainer.net.block(0).attn_norm.weight.grad


@cache
def learn_plain(name: str) -> tuple[float, torch.Tensor]:
    return learn_once(make_trainer(**TRAINED[name]), nullcontext())


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("site", [site for site in PATCHES if site not in ("final", "logits")])
def test_training_under_a_patch(name, site):
    """Loss and gradients, also where the backward pass comes after the patch has gone."""
    halved, trainer = make_trainer(**TRAINED[name]), make_trainer(**TRAINED[name])
    PATCHES[site](halved.net)
    expected, plain = learn_once(halved, nullcontext()), learn_plain(name)
    found = learn_once(trainer, trainer.net.patch({site: lambda x: x * 0.5}))
    assert plain[0] != expected[0] and not torch.equal(plain[1], expected[1])
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    torch.testing.assert_close(found[1], expected[1], atol=1e-7, rtol=1e-4)


@pytest.mark.usefixtures("unchecked_shapes")
def test_compiled_blocks_honour_patches():
    """Also those that were compiled before there was a patch, and after it has gone."""
    model = make_model(layers=2)
    tokens = torch.arange(12).view(2, 6)
    plain, halved = model.net(tokens), apply(model, PATCHES["layers.*.mlp_out"]).net(tokens)
    for block in model.net.layers:
        block.compile(backend="eager", dynamic=False)
    for _ in range(2):
        torch.testing.assert_close(model.net(tokens), plain)
        with model.net.patch({"layers.*.mlp_out": lambda x: x * 0.5}):
            with model.net.capture("layers.1.mlp_key") as taken:
                torch.testing.assert_close(model.net(tokens), halved)
        assert set(taken) == {"layers.1.mlp_key"}


@pytest.mark.parametrize("site", ["final", "logits"])
def test_the_training_loss_refuses_patches_of_the_head(site):
    """It never holds all logits, and so passes by these sites."""
    trainer = make_trainer()
    with pytest.raises(UserError, match=f"captured at {site}, but the training loss does not"):
        with trainer.net.patch({site: lambda x: x * 0.5}):
            trainer.take_step()


def test_a_patch_is_a_function():
    model = make_model()
    with pytest.raises(UserError, match="the patch at layers.0.mlp_out is a Tensor: expected a"):
        with model.net.patch({"layers.0.mlp_out": torch.zeros(3)}):
            pass
    with pytest.raises(UserError, match=r"layers.0.mlp_out is patched twice, the second time by"):
        with model.net.patch({"layers.*.mlp_out": blank, "layers.0.mlp_out": blank}):
            pass
    assert not model.net.taps.attached


STEPPED = {name: HONOURED[name] for name in WHOLE if name not in ("logits", "score_answers")}
"""What has denoising steps; the rest has none, and says so."""


def count_passes(change: Callable, wanted: set[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A patch that counts the passes it sees, and acts in some of them."""
    seen = 0

    def act(x: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += 1
        return change(x) if seen in wanted else x

    return act


@pytest.mark.parametrize(("feature", "kind"), pair(STEPPED))
@pytest.mark.parametrize("site", ["layers.1.attn_pattern", "layers.1.attn_q", "layers.2.mlp_out"])
def test_a_patch_at_steps_acts_at_these_alone(feature, kind, site):
    """A whole run of the network per step: the passes that a patch counts are the steps."""
    model, run = make_model(kind=kind), STEPPED[feature]
    # Rows with another number of blocks would be sampled one after the other.
    run = partial(draw_alike, **FEW) if feature == "blocks" else run
    plain = run(model)
    for steps in ({2}, {1, 3}):
        with model.net.patch({site: count_passes(lambda x: x * 0.5, steps)}):
            expected = run(model)
        with model.net.patch({site: lambda x: x * 0.5}, steps=steps):
            assert same(run(model), expected)
        assert not same(plain, expected), "the change should show"
    with model.net.patch({site: lambda x: x * 0.5}):
        expected = run(model)
    with model.net.patch({site: lambda x: x * 0.5}, steps="all"):
        assert same(run(model), expected)


FEW = {"steps": 6, "block": 4, "order": "random", "remask": "low=0.3"}


def draw_alike(model: Model, **how) -> list[torch.Tensor]:
    found = unmask.sample(model, [[5, 6], [7, 8]], length=14, temperature=0.7, seed=3, **how)
    return [found.tokens, found.committed_at, found.confidence]


@pytest.mark.parametrize("kind", ["masked", "causal"])
@pytest.mark.parametrize("cache", ["none", "exact"])
def test_captures_by_step_are_of_the_states(kind, cache):
    """Whole texts, all rows; without steps what is captured is the last pass."""
    model, site = make_model(kind=kind), "layers.2.resid_out"
    with model.net.capture(site, steps="all") as taken:
        found = unmask.sample(model, [[5, 6], [7, 8]], length=9, steps=6, cache=cache)
    with model.net.capture(site) as last:
        unmask.sample(model, [[5, 6], [7, 8]], length=9, steps=6, cache=cache)
    assert sorted(taken) == list(range(1, found.num_steps + 1))
    for step, sites in taken.items():
        state = found.states[step - 1]
        state = state if kind == "masked" else state[:, : 1 + step]
        with model.net.capture(site) as expected:
            model.net(state)
        torch.testing.assert_close(sites[site], expected[site], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(last[site], expected[site], atol=1e-5, rtol=1e-5)


def test_steps_that_never_come():
    model = make_model()
    halved = {"layers.0.mlp_out": lambda x: x * 0.5}
    with pytest.raises(UserError, match="was named at steps 2, but no sampler came to it"):
        with model.net.patch(halved, steps=2):
            model.logits("They say")
    with pytest.raises(UserError, match="was named at steps 9, but no sampler came to it"):
        with model.net.capture("logits", steps=9):
            unmask.sample(model, "They say", length=9, steps=3)
    with pytest.raises(UserError, match="was named at any step, but no sampler"):
        with model.net.capture("logits", steps="all"):
            score(model)
    for steps in (0, "first", (), [1.5], -2):
        with pytest.raises(UserError, match="expected whole numbers from 1, or 'all'"):
            with model.net.capture("logits", steps=steps):
                pass
    assert not model.net.taps.attached and model.net.taps.step is None
