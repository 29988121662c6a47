"""The DDiT family: the peers' logits, a constant time folded away, adaLN kept where it is not."""

import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import unmask
from tests.conftest import build, lively
from tests.fixtures import FIXTURES, load_expected, load_peer
from tests.parity.peers import check_round_trip
from unmask import UserError
from unmask.net.folding import fold_time, unfold_time
from unmask.net.model import Blueprint, Model
from unmask.noise.schedules import LinearSchedule
from unmask.objectives.rearranged import run_beside_clean
from unmask.objectives.targets import Targets, targets_loss

CLOSE = {"atol": 1e-4, "rtol": 0.0}
FOLDED = ("mdlm", "bd3lm", "bd3lm-mdlm")
PLAIN = ("bd3lm-ar", "radd")
TIMED = ("sedd", "duo", "udlm", "udlm-cfg", "gidd")
KINDS = {"bd3lm-ar": ("causal", None), "gidd": ("hybrid", 96)}
KINDS |= {name: ("uniform", None) for name in ("duo", "udlm", "udlm-cfg")}


def load(name: str) -> Model:
    return load_peer(f"{name}-tiny")


@pytest.mark.parametrize("name", [*FOLDED, *PLAIN, *TIMED])
def test_logits(name):
    model, expected = load(name), load_expected(f"{name}-tiny")
    assert (model.kind, model.mask_id) == KINDS.get(name, ("masked", 96))
    assert (model.net.config.adaln is not None) == (name in TIMED)
    time = expected["t" if name == "gidd" else "sigma"] if name in TIMED else None
    logits = model.logits(expected["tokens"], time=time)
    wanted = expected["head" if name == "sedd" else "logits"]
    torch.testing.assert_close(logits, wanted, **CLOSE)


def test_sedd_scores():
    """What SEDD returns is our logits less two constants, and 0 at a row's own token."""
    model, expected = load("sedd"), load_expected("sedd-tiny")
    tokens, sigma = expected["tokens"], expected["sigma"]
    logits = model.logits(tokens, time=sigma) - sigma.expm1().log()[:, None, None]
    scores = (logits - torch.tensor(96.0).log()).scatter(-1, tokens[..., None], 0.0)
    torch.testing.assert_close(scores, expected["logits"], **CLOSE)
    torch.testing.assert_close(scores.exp(), expected["score"], atol=0, rtol=1e-4)


@pytest.mark.parametrize("name", ["duo", "udlm"])
def test_times_of_samplers(name):
    """A time in [0, 1] enters as the peer's sigma, and a text can be drawn."""
    model, expected = load(name), load_expected(f"{name}-tiny")
    logits = model.logits(expected["tokens"], t=expected["t"])
    torch.testing.assert_close(logits, expected["logits"], **CLOSE)
    drawn = unmask.sample(model, [[5, 6]], length=9, steps=3)
    assert drawn.tokens.shape == (1, 9) and drawn.tokens[0, :2].tolist() == [5, 6]


class PeersSchedule(LinearSchedule):
    """alpha = 1 - 0.999 t, DUO's and UDLM's."""

    def alpha(self, t: torch.Tensor) -> torch.Tensor:
        return 1 - 0.999 * t

    def noised(self, t: torch.Tensor) -> torch.Tensor:
        return 0.999 * t


@pytest.mark.parametrize("name", ["duo", "udlm"])
def test_posteriors(name):
    """q(x_s | x_t) of uniform noise, by which texts are drawn, with the prediction as the text."""
    model, expected = load(name), load_expected(f"{name}-tiny")
    logits, tokens = model.logits(expected["tokens"], time=expected["sigma"]), expected["tokens"]
    process = unmask.Uniform(model.net.config.vocab_size, PeersSchedule())
    torch.testing.assert_close(process.predict(logits), expected["log_probs"], **CLOSE)
    t, s = (expected[at][:, None].expand(tokens.shape) for at in "ts")
    posterior = process.posterior(logits, tokens, t, s).exp()
    torch.testing.assert_close(posterior, expected["posterior"], **CLOSE)


def test_hybrid_noise_of_gidd():
    """Its schedule of masks and uniform draws, and what a text looks like at a time."""
    model, expected = load("gidd"), load_expected("gidd-tiny")
    process, t = model.make_process(), expected["t"][:, None]
    assert isinstance(process, unmask.Hybrid) and process.num_tokens == 96
    alpha, noised = process.schedule.alpha(t), process.schedule.noised(t)
    torch.testing.assert_close(alpha, expected["alpha"], **CLOSE)
    tokens = (noised * (1 - process.share(t)) / 96).expand(-1, 96)
    noise = torch.cat((tokens, noised * process.share(t)), dim=-1)
    torch.testing.assert_close(noise, expected["beta_pi"], **CLOSE)
    probs = process.predict(model.logits(expected["tokens"], time=expected["t"])).exp()
    torch.testing.assert_close(probs, expected["probs"][..., :96], **CLOSE)
    at_t = alpha[..., None] * F.pad(probs, (0, 1)) + noise[:, None]
    torch.testing.assert_close(at_t, expected["probs_at_t"], **CLOSE)
    drawn = unmask.sample(model, [[5, 6]], length=9, steps=3)
    assert drawn.tokens.shape == (1, 9) and not (drawn.tokens == 96).any()


@pytest.mark.parametrize("name", ["mdlm", "bd3lm", "bd3lm-mdlm", "bd3lm-ar", "radd"])
def test_log_probabilities(name):
    """SUBS: the mask has no probability; ours are normalised the same way."""
    model, expected = load(name), load_expected(f"{name}-tiny")
    tokens, wanted = expected["tokens"], expected["log_probs"]
    logits = model.logits(tokens)
    logits[..., 96] = -torch.inf
    asked = tokens == 96 if "mdlm" in name or name == "bd3lm" else torch.ones_like(tokens).bool()
    log_probs = logits.log_softmax(-1)[asked][:, :96]
    torch.testing.assert_close(log_probs, wanted[asked][:, :96], **CLOSE)


def test_bd3lm_pairs():
    """Its training pass over a noisy and a clean row is one row per block, block-causal."""
    model, expected = load("bd3lm"), load_expected("bd3lm-tiny")
    noisy, clean = expected["pair_tokens"].chunk(2, dim=1)
    for start in range(0, 20, 4):
        row = torch.cat((clean[:, :start], noisy[:, start : start + 4]), dim=1)
        wanted = expected["pair_logits"][:, start : start + 4]
        torch.testing.assert_close(model.logits(row)[:, start:], wanted, **CLOSE)
    # The same in one pass, as objective.clean_blocks trains.
    both = model.net.unembed(run_beside_clean(model.net, noisy, clean))
    torch.testing.assert_close(both, expected["pair_logits"], **CLOSE)


def test_the_bias_of_the_head_counts_in_the_loss():
    """And has a gradient."""
    net, tokens = load("mdlm").net, load_expected("mdlm-tiny")["tokens"]
    net.head.bias.requires_grad_(True)
    at, wanted = torch.tensor([1, 7, 20]), torch.tensor([3, 5, 9])
    x, weights = net.run_layers(net.embed(tokens)), torch.tensor([1.0, 2.0, 0.5])
    loss, _ = targets_loss(net, x, Targets(at, wanted, weights))
    (found,) = torch.autograd.grad(loss, net.head.bias)
    each = F.cross_entropy(net.unembed(x).flatten(0, 1)[at], wanted, reduction="none")
    (expected,) = torch.autograd.grad((weights * each).sum(), net.head.bias)
    torch.testing.assert_close(loss, (weights * each).sum())
    torch.testing.assert_close(found, expected)


def test_classes():
    model, expected = load("udlm-cfg"), load_expected("udlm-cfg-tiny")
    tokens, sigma = expected["tokens"], expected["sigma"]
    none = torch.full_like(expected["cond"], 3)
    for classes, name in ((expected["cond"], "cond_logits"), (none, "uncond_logits")):
        logits = model.net(tokens, t=sigma, classes=classes)
        torch.testing.assert_close(logits, expected[name], **CLOSE)
    with pytest.raises(UserError, match="this network knows none"):
        load("duo").net(tokens, t=sigma, classes=none)


@pytest.mark.parametrize("name", [*PLAIN, *TIMED])
def test_round_trip_key_for_key(name, tmp_path):
    model, file = load(name), FIXTURES / f"{name}-tiny" / "model.safetensors"
    check_round_trip(
        model, file, tmp_path / "back", dialect_of(name), ("rotary_emb", "sampling_eps_")
    )
    again = unmask.load(tmp_path / "back", device="cpu")
    assert again.blueprint == model.blueprint


@pytest.mark.parametrize("name", FOLDED)
def test_a_constant_time_is_written_as_such(name, tmp_path):
    model, tokens = load(name), load_expected(f"{name}-tiny")["tokens"]
    unmask.save(model, tmp_path / "back", dialect_of(name))
    weights = load_file(tmp_path / "back" / "model.safetensors")
    assert weights["backbone.blocks.0.adaLN_modulation.weight"].count_nonzero() == 0
    assert json.loads((tmp_path / "back" / "config.json").read_text())["time_conditioning"] is False
    again = unmask.load(tmp_path / "back", device="cpu")
    assert again.blueprint == model.blueprint
    torch.testing.assert_close(again.logits(tokens), model.logits(tokens), atol=1e-6, rtol=1e-6)


def dialect_of(name: str) -> str:
    return name.partition("-")[0]


def make_timed(classes: int | None = None) -> unmask.Transformer:
    """A lively network with adaLN, in float64."""
    config = unmask.preset("tiny-adaln", vocab_size=40, classes=classes)
    return lively(config).double()


TOKENS = torch.arange(18).view(2, 9)


@pytest.mark.parametrize("label", [None, 2])
@pytest.mark.parametrize("t", [0.0, 0.7, 5.0])
def test_folding_law(t, label):
    """On random weights: folded, a network computes the same, and adds the same to its stream."""
    net = make_timed(classes=3)
    classes = None if label is None else torch.tensor([label, label])
    times, sites = torch.tensor([t, t]), ("layers.*.attn_out", "layers.*.mlp_out", "final")
    with net.capture(*sites) as timed:
        logits = net(TOKENS, t=times, classes=classes)
    folded = fold_time(net, t, label)
    with folded.capture(*sites) as plain:
        torch.testing.assert_close(folded(TOKENS), logits, atol=1e-10, rtol=1e-10)
    assert len(timed) == 7 and timed.keys() == plain.keys()
    for site, x in timed.items():
        torch.testing.assert_close(plain[site], x, atol=1e-10, rtol=1e-10)
    again = unfold_time(folded, net.config)
    torch.testing.assert_close(again(TOKENS, t=times + 1), logits, atol=1e-10, rtol=1e-10)


def test_the_time_of_each_row():
    """Rows have times of their own, at chosen positions and everywhere, and patches act."""
    net, times = make_timed(), torch.tensor([0.3, 4.0])
    logits = net(TOKENS, t=times)
    assert (net(TOKENS, t=times.flip(0)) - logits).abs().max() > 0.1
    for row in range(2):
        alone = net(TOKENS[row : row + 1], t=times[row : row + 1])
        torch.testing.assert_close(logits[row : row + 1], alone)
    mask = torch.rand(2, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    torch.testing.assert_close(net(TOKENS, at=mask, t=times), logits[mask])
    at = torch.tensor([1, 4])
    torch.testing.assert_close(net(TOKENS, at=at, t=times), logits[:, at])
    with net.patch({"layers.1.mlp_out": torch.zeros_like}), net.capture("layers.*.resid_*") as x:
        net(TOKENS, t=times)
    with net.patch({"layers.1.attn_out": torch.zeros_like, "layers.1.mlp_out": torch.zeros_like}):
        with net.capture("layers.1.resid_in", "layers.1.resid_out") as both:
            net(TOKENS, t=times)
    torch.testing.assert_close(both["layers.1.resid_in"], both["layers.1.resid_out"])
    assert not torch.equal(x["layers.1.resid_in"], x["layers.1.resid_out"])


def test_tracing_takes_a_folded_network():
    model = build("tiny-adaln", vocab_size=40)
    net = model.net
    tokens, question = [1, 2, 3, 4, 5, 39], ((1, 3), {5: 7})
    with pytest.raises(UserError, match="time"):
        unmask.trace_tokens(model, tokens, *question)
    folded = fold_time(net, 0.5)
    plain = Model("folded", folded, Blueprint(folded.config, "masked", 39))
    trace = unmask.trace_tokens(plain, tokens, *question)
    row = net(torch.tensor([tokens]), t=torch.tensor([0.5]))[0, 5]
    expected = row.index_fill(0, torch.tensor(39), -torch.inf).softmax(-1)[7]
    assert trace.clean == pytest.approx(float(expected), rel=1e-4)


def test_without_a_time():
    net = make_timed()
    with pytest.raises(UserError, match="layers are told the time, and none was given"):
        net(TOKENS)
    with pytest.raises(UserError, match="layers are told the time, and none was given"):
        net.block(0).read(torch.zeros(3, 64).double(), None, None)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("mdlm", {"time_conditioning": None}, "'time_conditioning' is missing"),
        ("sedd", {"graph": {"type": "uniform"}}, "only 'absorb' is supported"),
        ("radd", {"tokens": None}, "'tokens' is None, expected a number"),
        ("duo", {"causal": True}, "'causal' is True, but only False is supported"),
        ("gidd", {"p_uniform": None}, "'p_uniform' is missing"),
    ],
)
def test_refusals(name, changes, sentence, tmp_path):
    shutil.copytree(FIXTURES / f"{name}-tiny", tmp_path, dirs_exist_ok=True)
    (tmp_path / "expected.safetensors").unlink()
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=sentence):
        unmask.load(tmp_path, device="cpu")
