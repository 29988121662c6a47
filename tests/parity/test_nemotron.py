"""Nemotron-Labs-Diffusion: both readings against Ministral 3 of `transformers` with its own cache.

The peer's forward is run as the model's authors run it (`generate` of their modelling file):
finished text enters a cache causally, the open block is run behind it with nothing hidden. Facts
of the format, with their sources, are in `docs/formats.md`.
"""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache, Ministral3Config

import unmask
from tests.parity.peers import check_round_trip, fill
from unmask import UserError
from unmask.net.loading import inspect

MASK, BLOCK, OLD = 299, 8, 64
ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "beta_fast": 8, "mscale": 1.0}
ROPE |= {"mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.1}
ROPE |= {"original_max_position_embeddings": OLD}
SHAPE = {"vocab_size": 300, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}
SHAPE |= {"max_position_embeddings": 256}


@pytest.fixture(scope="module")
def peer():
    """A random Ministral 3 of `transformers`, lively enough to show a wrong mask."""
    net = AutoModelForCausalLM.from_config(Ministral3Config(**SHAPE, rope_parameters=ROPE))
    fill(net)
    return net


@pytest.fixture(scope="module")
def folder(peer, tmp_path_factory):
    """A Ministral 3 network by the names and settings of Nemotron-Labs-Diffusion's files."""
    place = tmp_path_factory.mktemp("nemotron")
    peer.save_pretrained(place)
    settings = json.loads((place / "config.json").read_text()) | {
        "model_type": "nemotron_labs_diffusion",
        "architectures": ["NemotronLabsDiffusionModel"],
        "mask_token_id": MASK,
        "block_size": BLOCK,
        "dlm_paradigm": "bidirectional",
        "dlm_loss_weight": None,
        "ar_loss_weight": 1.0,
        "dp_varying_mask_ratio": False,
        "sliding_window": None,
        "attn_implementation": "sdpa",
    }
    (place / "config.json").write_text(json.dumps(settings))
    weights = {
        name.replace("model.", "encoder.").replace("lm_head", "diffusion_head"): tensor.float()
        for name, tensor in load_file(place / "model.safetensors").items()
    }
    save_file(weights, place / "model.safetensors", {"format": "pt"})
    return place


@pytest.fixture(scope="module")
def model(folder):
    return unmask.load(folder, device="cpu")


class Peer:
    """Finished text in a cache, and the open block behind it."""

    def __init__(self, net, prompt: list[int]):
        self.net, self.cache = net, DynamicCache()
        self.finish(prompt)

    @torch.no_grad()
    def finish(self, tokens: list[int]) -> torch.Tensor:
        """Its causal logits [L, V]; the text stays."""
        return self.net(torch.tensor([tokens]), past_key_values=self.cache).logits[0]

    @torch.no_grad()
    def read(self, block: list[int]) -> torch.Tensor:
        """Logits [A, V] of a block that sees the text and itself, and does not stay."""
        before = self.cache.get_seq_length()
        shown = torch.ones(1, 1, len(block), before + len(block), dtype=torch.bool)
        out = self.net(torch.tensor([block]), attention_mask=shown, past_key_values=self.cache)
        self.cache.crop(-len(block))
        return out.logits[0]

    def write(self, length: int, block: int, threshold: float | None) -> list[int]:
        """Greedy text of `length` tokens, in as many steps a block as it has tokens at most."""
        text = []
        for _ in range(length // block):
            tokens = torch.full((block,), MASK)
            for _ in range(block):
                is_open = tokens == MASK
                if not is_open.any():
                    break
                logits = self.read(tokens.tolist())
                logits[:, MASK] = -torch.inf
                best, choice = logits.softmax(-1).max(-1)
                best = best.masked_fill(~is_open, -1.0)
                commits = torch.zeros(block, dtype=torch.bool)
                commits[best.argmax()] = True
                if threshold is not None:
                    commits |= best >= threshold
                tokens = torch.where(commits, choice, tokens)
            self.finish(tokens.tolist())
            text += tokens.tolist()
        return text


def draw(length: int, seed: int) -> list[int]:
    return torch.randint(0, 298, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_its_settings(model, folder, tmp_path):
    config, dialect = model.net.config, inspect(folder)[1].name
    assert (model.kind, model.mask_id, dialect) == ("masked", MASK, "nemotron_labs_diffusion")
    assert config.open_block and config.block == BLOCK and not model.blueprint.shift
    ours = unmask.load(folder, device="cpu")
    check_round_trip(ours, folder / "model.safetensors", tmp_path / "back", dialect)
    assert inspect(tmp_path / "back")[0] == ours.blueprint
    causal = unmask.load(f"{folder}:causal", device="cpu")
    assert causal.kind == "causal" and causal.net.config == config.made_causal()
    assert causal.reading("diffusion").blueprint == ours.blueprint
    assert unmask.load(folder, device="cpu", kind="causal").net.config == config.made_causal()


def test_the_causal_reading(model, peer):
    tokens = torch.tensor([draw(40, 1), draw(40, 2)])
    with torch.inference_mode():
        expected = peer(tokens).logits
    found = model.reading("causal").logits(tokens)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 13])
def test_the_open_block(model, peer, length):
    """Some of it written; read at masks and at other tokens. The text after it is not seen."""
    prompt, block = draw(length, 3), [MASK, *draw(3, 4), MASK, MASK, draw(1, 5)[0], MASK]
    expected = Peer(peer, prompt).read(block)
    assert expected.std() > 0.5
    found = model.logits(torch.tensor([prompt + block + draw(9, 6)]))[0, length : length + BLOCK]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    # Hidden from each other, as causal rows are, they say something else.
    with torch.inference_mode():
        causal = peer(torch.tensor([prompt + block])).logits[0, length:]
    assert (causal - expected).abs().max() > 0.1


@pytest.mark.parametrize("cache", ["none", "exact", "approximate"])
@pytest.mark.parametrize("threshold", [None, 0.02])
def test_greedy_texts(model, peer, threshold, cache):
    """Prompts of different lengths in one batch, each as by itself."""
    prompts = [draw(5, 7), draw(11, 8)]
    expected = [Peer(peer, prompt).write(24, BLOCK, threshold) for prompt in prompts]
    plan = "one" if threshold is None else f"threshold={threshold}"
    settings = {"plan": plan, "steps": 24, "cache": cache}
    found = unmask.sample(model, prompts, length=[29, 35], **settings)
    rows = zip(found.tokens.tolist(), prompts, expected, strict=True)
    for row, prompt, text in rows:
        assert row[: len(prompt) + 24] == prompt + text


def test_the_scale_of_queries_is_1_as_far_as_rows_reach(model, peer):
    """1 + beta log(1 + floor(position / old context)): rows end where it would begin to differ."""
    scales = [1 + 0.1 * math.log(1 + position // OLD) for position in range(OLD + 1)]
    assert set(scales[:OLD]) == {1.0} and scales[OLD] > 1.0
    assert model.net.config.context == OLD
    tokens = torch.tensor([[*draw(OLD - 1, 9), MASK]])
    expected = Peer(peer, tokens[0, :-1].tolist()).read([MASK])
    torch.testing.assert_close(model.logits(tokens)[0, -1:], expected, atol=1e-5, rtol=1e-5)
    for each in (model, model.reading("causal")):
        with pytest.raises(UserError, match="this network's context is 64"):
            each.logits(torch.tensor([[*draw(OLD, 9), MASK]]))
