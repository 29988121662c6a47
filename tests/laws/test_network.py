"""What must hold for every block, diffusion and causal: rows are independent, sites are honest."""

import weakref
from copy import deepcopy

import pytest
import torch

from tests.conftest import build, lively
from unmask import UserError, preset
from unmask.net.config import NetConfig
from unmask.net.rotary import RotaryTables
from unmask.net.sites import site_names
from unmask.net.transformer import Transformer

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def pad(rows: list[torch.Tensor], length: int, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of different lengths in one batch, and where they are real."""
    tokens = torch.full((len(rows), length), 17)
    real = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(length - len(row), length)
        tokens[i, place], real[i, place] = row, True
    return tokens, real


def test_batch_equals_rows_alone(net, tokens):
    together = net(tokens)
    for i in range(len(tokens)):
        torch.testing.assert_close(together[i : i + 1], net(tokens[i : i + 1]), **CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(net, tokens, side):
    """Neither that it is there nor what stands there."""
    rows = [row[:n] for row, n in zip(tokens, (3, 11, 7, 1), strict=True)]
    batch, real = pad(rows, 14, side)
    logits = net(batch, real)
    assert logits.isfinite().all()
    for i, row in enumerate(rows):
        torch.testing.assert_close(logits[i][real[i]], net(row[None])[0], **CLOSE)
    other = net(torch.where(real, batch, 99), real)
    # Experts multiply groups of tokens, and padding in a group changes how its sums are rounded.
    atol = 0 if net.config.experts is None else 1e-5
    torch.testing.assert_close(other[real], logits[real], atol=atol, rtol=0)


def test_causal_is_the_difference(net, tokens):
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 512
    same = torch.equal(net(tokens)[:, :-1], net(changed)[:, :-1])
    assert same == net.config.causal


def test_gradients_change_no_bit(net, tokens):
    """Rotary positions are turned in place where no gradient is wanted."""
    with torch.no_grad():
        without = net(tokens)
    assert torch.is_grad_enabled() and torch.equal(net(tokens), without)


def test_capture_changes_no_bit(net, tokens):
    plain = net(tokens)
    with net.capture("*") as sites:
        watched = net(tokens)
    assert torch.equal(plain, watched)
    assert tuple(sites) == site_names(net.config.layers)
    config, shape = net.config, tokens.shape
    assert sites["layers.1.attn_z"].shape == (*shape, config.heads, config.head_dim)
    assert sites["layers.1.mlp_key"].shape == (*shape, config.key_width(1))
    assert sites["logits"].shape == (*shape, config.logit_rows)


def test_patterns_are_what_attention_does(net, tokens):
    """Rows of weights that sum to 1, see only what may be seen, and mix the values to z."""
    with net.capture("layers.1.attn_*") as sites:
        net(tokens)
    pattern, config = sites["layers.1.attn_pattern"], net.config
    assert pattern.shape == (len(tokens), config.heads, tokens.shape[1], tokens.shape[1])
    torch.testing.assert_close(pattern.sum(-1), torch.ones_like(pattern.sum(-1)))
    assert bool((pattern.triu(1) == 0).all()) == config.causal
    shared = config.heads // config.kv
    values, keys = (
        sites[f"layers.1.attn_{each}"].repeat_interleave(shared, dim=2) for each in "vk"
    )
    z = torch.einsum("bhij,bjhd->bihd", pattern, values)
    torch.testing.assert_close(z, sites["layers.1.attn_z"], atol=1e-5, rtol=1e-5)
    scores = torch.einsum("bihd,bjhd->bhij", sites["layers.1.attn_q"], keys) / keys.shape[-1] ** 0.5
    ratio = (pattern.log() - scores).detach()
    seen = pattern[0, 0] > 0
    for row, allowed in zip(ratio[0, 0], seen, strict=True):
        torch.testing.assert_close(row[allowed], row[allowed][:1].expand_as(row[allowed]))


def test_gradients_go_through_patterns(net, tokens):
    """The explicit pattern gives the gradients that the fused kernel gives."""
    net = deepcopy(net).requires_grad_()
    sites = ("layers.0.resid_out", "layers.1.attn_pattern")

    def slope(*names: str) -> dict[str, torch.Tensor]:
        with net.capture(*names) as taken:
            loss = net(tokens).float().log_softmax(-1)[..., 0].sum()
        return dict(zip(names, torch.autograd.grad(loss, [taken[n] for n in names]), strict=True))

    plain, explicit = slope(sites[0]), slope(*sites)
    torch.testing.assert_close(explicit[sites[0]], plain[sites[0]], atol=1e-5, rtol=1e-4)
    assert explicit[sites[1]].abs().max() > 0


def test_sites_add_up(net, tokens):
    """The stream that leaves a block is the one that entered plus what the two parts added.

    With norms after the additions, each is taken before the next one.
    """
    with net.capture("*") as sites:
        net(tokens)
    for i, block in enumerate(net.layers):
        x, attn, mlp = (sites[f"layers.{i}.{part}"] for part in ("resid_in", "attn_out", "mlp_out"))
        stream = x + attn
        if net.config.residual == "post":
            stream = block.mlp_norm(block.attn_norm(x) + attn)
        assert torch.equal(stream + mlp, sites[f"layers.{i}.resid_out"])
        assert torch.equal(block.mlp.down(sites[f"layers.{i}.mlp_key"]), mlp)


def test_self_patch_changes_no_bit(net, tokens):
    plain = net(tokens)
    with net.capture("*") as sites:
        net(tokens)
    for site, value in sites.items():
        with net.patch({site: lambda x, value=value: value.clone()}):
            assert torch.equal(net(tokens), plain), site


def test_patch_acts_where_it_says(net, tokens):
    """And contexts act in the order in which they were entered."""
    site = "layers.1.mlp_out"
    with net.capture("*") as clean:
        net(tokens)
    with net.capture(site) as before, net.patch({site: torch.zeros_like}):
        with net.capture("*") as patched:
            net(tokens)
    assert (patched[site] == 0).all() and torch.equal(before[site], clean[site])
    assert torch.equal(patched["layers.1.attn_out"], clean["layers.1.attn_out"])
    assert not torch.equal(patched["logits"], clean["logits"])


def test_nothing_stays_after_an_exception(net, tokens):
    plain = net(tokens)

    def fail(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), net.patch({"layers.0.resid_out": fail}):
        with net.capture("logits"):
            net(tokens)
    assert torch.equal(net(tokens), plain)
    assert net.taps.at().__name__ == "untouched"


@pytest.mark.parametrize("name", ["layers.3.mlp_out", "layers.0.mlp", "logit", "blocks.*"])
def test_sites_that_are_not_there_or_not_reached_are_refused(net, tokens, name):
    for context in (net.capture(name), net.patch({name: torch.zeros_like})):
        with pytest.raises(UserError, match=r"does not exist: this network has .* layers\.0 to"):
            with context:
                pass
    with pytest.raises(UserError, match="layers.0.mlp_key was named but never reached"):
        with net.capture("layers.0.mlp_key", "layers.1.mlp_key"):
            net.run_layers(net.embed(tokens), start=1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[:, :1], "returned"),
        (lambda x: x.double(), "returned .* float64 cpu, expected a tensor .* float32 cpu"),
    ],
)
def test_patches_of_another_shape_or_number_format_are_refused(net, tokens, change, said):
    with pytest.raises(UserError, match=f"patch at layers.0.mlp_out {said}"):
        with net.patch({"layers.0.mlp_out": change}):
            net(tokens)


def test_running_in_parts_is_running_at_once(net, tokens):
    batch, real = pad([tokens[0], tokens[1, :5]], 11, "left")
    x = net.run_layers(net.embed(batch, real), stop=2, real=real)
    assert torch.equal(net.unembed(net.run_layers(x, start=2, real=real)), net(batch, real))


def test_unembed_only_where_wanted(net, tokens):
    whole = net(tokens)
    some = torch.tensor([9, 0, 4])
    torch.testing.assert_close(net(tokens, at=some), whole[:, some], **CLOSE)
    per_row = torch.tensor([[1, 2], [0, 10], [3, 3], [5, 4]])
    expected = torch.stack([row[index] for row, index in zip(whole, per_row, strict=True)])
    torch.testing.assert_close(net(tokens, at=per_row), expected, **CLOSE)
    mask = tokens % 3 == 0
    torch.testing.assert_close(net(tokens, at=mask), whole[mask], **CLOSE)


@pytest.mark.parametrize("name", ["tiny", "tiny-grouped", "tiny-gpt2"])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_cache_changes_nothing(name, side, tokens):
    net = lively(preset(name, causal=True))
    rows = [row[:n] for row, n in zip(tokens, (11, 6, 9, 11), strict=True)]
    batch, real = (tokens, None) if side == "none" else pad(rows, 11, side)
    whole = net(batch, real)
    cache = net.new_cache(batch=4, length=16)
    cuts = ((0, 5), (5, 6), (6, 7), (7, 11))
    parts = [
        net(batch[:, a:b], real if real is None else real[:, a:b], cache=cache) for a, b in cuts
    ]
    together, keep = torch.cat(parts, 1), torch.ones_like(batch, dtype=torch.bool)
    keep = keep if real is None else real
    torch.testing.assert_close(together[keep], whole[keep], **CLOSE)
    cache.length = 6
    last = None if real is None else real[:, 6:7]
    again = net(batch[:, 6:7], last, cache=cache)
    torch.testing.assert_close(again, parts[2], **CLOSE)


def test_what_a_network_and_its_cache_cannot_hold(tokens):
    net, sees_all = lively(preset("tiny", causal=True)), lively(preset("tiny"))
    for call, said in (
        (lambda: sees_all(torch.zeros(1, 129, dtype=torch.long)), "129 tokens, but this network's"),
        (lambda: net(tokens, cache=net.new_cache(4, 8)), "room for 8 positions, 0 are filled and"),
        (lambda: net.new_cache(4, 999), "cache of 999 positions was asked for"),
        (lambda: sees_all.new_cache(4), "a network that sees in both directions"),
        (lambda: net(tokens, cache=net.new_cache(5, 16)), "a batch of 4 rows met a cache for 5"),
    ):
        with pytest.raises(UserError, match=said):
            call()


def test_number_format_round_trip_keeps_the_tables(tokens):
    net = lively(preset("tiny"))
    weights = {name: value.bfloat16().float() for name, value in net.state_dict().items()}
    net.load_state_dict(weights)
    plain = net(tokens)
    net.bfloat16()(tokens)
    assert torch.equal(net.float()(tokens), plain)


def test_outgrown_tables_stay_in_memory():
    """Recorded CUDA graphs go on reading them; their numbers are those of the longer ones."""
    tables = RotaryTables(preset("tiny"))
    short = tables.get(8, torch.device("cpu"), torch.float32)[0]
    values, held = short.clone(), weakref.ref(short)
    del short
    longer = tables.get(len(values) + 1, torch.device("cpu"), torch.float32)[0]
    assert held() is not None and len(longer) > len(values)
    assert torch.equal(longer[: len(values)], values)


def test_inference_then_training(tokens):
    net = Transformer(preset("tiny"))
    with torch.inference_mode():
        net(tokens)
    net(tokens).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_autocast_runs_attention_in_the_small_format(tokens):
    net = lively(preset("tiny"))
    with torch.autocast("cpu", torch.bfloat16), net.capture("layers.0.attn_z") as sites:
        logits = net(tokens)
    assert sites["layers.0.attn_z"].dtype == torch.bfloat16
    assert (logits.float() - net(tokens)).std() < 0.05 * net(tokens).std()


def test_same_seed_same_weights():
    """Whatever was drawn before; and nothing global is drawn."""
    before = torch.get_rng_state()
    one, two, other = (Transformer(preset("tiny"), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.embedding.weight, other.embedding.weight)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (torch.tensor([99]), "positions 99 to 99, but the rows have 3"),
        (torch.tensor([[99], [0]]), "positions 0 to 99, but the rows have 3"),
        (torch.tensor([[-1], [0]]), "positions -1 to 0, but the rows have 3"),
        (torch.ones(2, 4, dtype=torch.bool), r"a mask of shape \[2, 4\]"),
        (torch.tensor(1), "must be a tensor"),
        (1, "must be a tensor"),
    ],
)
def test_positions_that_rows_do_not_have(at, expected):
    net = Transformer(NetConfig(vocab_size=8, width=8, layers=1, heads=2, mlp_width=8), seed=0)
    with pytest.raises(UserError, match=expected):
        net.unembed(torch.zeros(2, 3, 8), at)


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_is_not_rows_of_tokens():
    model = build()
    for given, said in (
        (torch.tensor([1, 2, 3]), r"a tensor of shape \(3,\) and dtype int64: expected token ids"),
        (torch.rand(1, 3), "and dtype float32: expected token ids"),
        ("They say", "was given the text 'They say': expected token ids"),
        ([[1, 2]], "was given a list: expected a tensor of token ids"),
    ):
        # A model has a tokenizer for texts; the network alone has none.
        for run in (model.net,) if isinstance(given, str) else (model.logits, model.net):
            with pytest.raises(UserError, match=said):
                run(given)
