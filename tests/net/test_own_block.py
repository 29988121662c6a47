"""A block of one's own, in this file alone: named by a preset, and everything runs it unchanged.

Its additions are normalised before they meet the stream, as in Gemma 2, and the MLP reads the
stream that entered: a kind that the package does not have.
"""

from collections.abc import Generator

import pytest
import torch

import unmask
from tests.conftest import lively
from tests.representation.facts import PREFIXES, make_fact, make_tokenizer
from tests.tracing.plain import trace_plainly
from unmask import UserError
from unmask.net.blocks import BLOCKS, Block, ParallelBlock, make_norm, register_block
from unmask.net.counts import count_parameters
from unmask.net.model import Blueprint, Model
from unmask.net.transformer import Transformer
from unmask.representation.keys import map_keys, record_layer
from unmask.representation.prompts import PromptRow, stack_rows
from unmask.representation.value_loss import LayersAbove
from unmask.tracing.corruption import Noise
from unmask.tracing.tokens import trace_tokens


class SandwichBlock(ParallelBlock):
    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.attn_post_norm, self.mlp_post_norm = make_norm(config), make_norm(config)

    def attn_out(self, z):
        return self.attn_post_norm(super().attn_out(z))

    def mlp_out(self, key):
        return self.mlp_post_norm(super().mlp_out(key))


@pytest.fixture(autouse=True)
def known() -> Generator[None]:
    register_block("sandwich", SandwichBlock)
    yield
    del BLOCKS["sandwich"]


@pytest.fixture(params=["masked", "causal"])
def model(request) -> Model:
    tokenizer, causal = make_tokenizer(), request.param == "causal"
    config = unmask.preset("tiny", causal, vocab_size=tokenizer.vocab_size, residual="sandwich")
    net = lively(config)
    for name, parameter in net.named_parameters():
        if "post_norm" in name:
            parameter.normal_(1.0, 0.3, generator=torch.Generator().manual_seed(1))
    mask = None if causal else tokenizer.mask_id
    return Model("sandwich", net, Blueprint(config, request.param, mask), tokenizer)


def test_it_is_the_block_that_runs(model):
    """Sites are the equations written out, from the parameters."""
    net, tokens = model.net, torch.arange(12).view(2, 6)
    with net.capture("*") as sites:
        net(tokens)
    at = {part: sites[f"layers.1.{part}"] for part in ("resid_in", "attn_z", "mlp_in", "mlp_key")}
    at |= {part: sites[f"layers.1.{part}"] for part in ("attn_out", "mlp_out", "resid_out")}
    block = net.block(1)
    assert isinstance(block, SandwichBlock)
    torch.testing.assert_close(at["mlp_in"], block.mlp_norm(at["resid_in"]))
    attn = block.attn_post_norm(at["attn_z"].flatten(-2) @ block.attn.out.weight.T)
    mlp = block.mlp_post_norm(at["mlp_key"] @ block.mlp.down.weight.T)
    torch.testing.assert_close(at["attn_out"], attn)
    torch.testing.assert_close(at["mlp_out"], mlp)
    torch.testing.assert_close(at["resid_out"], at["resid_in"] + attn + mlp)


def test_tracing_is_the_plain_tracer(model):
    tokens = list(range(5, 14))
    if model.mask_id is None:
        answer = {7: tokens[7], 8: 30}
    else:
        tokens[7:], answer = [model.mask_id] * 2, {7: 30, 8: 31}
    noise = Noise(sigma=1.0, samples=2)
    bad = noise.apply(model, torch.tensor(tokens), range(1, 4))
    found = trace_tokens(
        model, tokens, (1, 4), answer, parts=("resid", "mlp", "attn"), window=2, corruption=noise,
        metric="logp",
    )  # fmt: skip
    for part in ("resid", "mlp", "attn"):
        window = 1 if part == "resid" else 2
        expected = trace_plainly(model, tokens, bad, answer, part, window).log()
        assert expected.std() > 1e-4, "the cells should differ visibly"
        torch.testing.assert_close(found.values(part), expected, atol=2e-5, rtol=0)


def test_a_value_and_a_key(model):
    """What the search runs is a patch at the site; a key gives what the site would hold."""
    found = unmask.extract_value(
        model, make_fact(0, "p2d"), layer=1, prefixes=PREFIXES, search_steps=4, length=32
    )
    assert found.distance > 0 and found.p_after > found.p_before
    net, tokens = model.net, torch.arange(12).view(2, 6)
    generator = torch.Generator().manual_seed(2)
    place, reads = torch.tensor([1, 2]), torch.tensor([[4, 5], [3, 5]])
    rows = zip(tokens.tolist(), place.tolist(), reads.tolist(), strict=True)
    rows = stack_rows([PromptRow(*row, [0, 0], 0) for row in rows], net.embedding.weight.device)
    for layer in range(net.config.layers):
        added = torch.randn(2, 64, generator=generator)

        def add(x: torch.Tensor, added: torch.Tensor = added) -> torch.Tensor:
            return x.index_put((torch.arange(2), place), added, accumulate=True)

        with (
            net.patch({f"layers.{layer}.mlp_out": add}),
            net.capture("layers.2.resid_out") as sites,
        ):
            net(tokens)
        expected = sites["layers.2.resid_out"].take_along_dim(reads[..., None], dim=1)
        above = LayersAbove(net, layer, record_layer(model, rows, layer), rows)
        torch.testing.assert_close(above.run(added), expected, atol=1e-5, rtol=1e-5)
    key = torch.randn(3, net.config.mlp_width, generator=generator)
    with net.patch({"layers.1.mlp_key": lambda x: key.expand_as(x)}):
        with net.capture("layers.1.mlp_out") as sites:
            net(torch.arange(3)[None])
    torch.testing.assert_close(map_keys(model, key, 1), sites["layers.1.mlp_out"][0])


def test_it_is_saved_and_loaded_by_its_name(model, tmp_path):
    unmask.save(model, tmp_path / "own")
    again = unmask.load(tmp_path / "own", device="cpu")
    tokens = torch.arange(6)[None]
    assert torch.equal(again.logits(tokens), model.logits(tokens))
    assert count_parameters(model.net.config).total == sum(
        parameter.numel() for parameter in model.net.parameters()
    )
    with pytest.raises(UserError, match="residual 'sandwich' would become 'sequential'"):
        unmask.save(model, tmp_path / "llama", "llama")


def test_names_that_are_wrong():
    with pytest.raises(UserError, match="residual 'sandwhich' is unknown .did you mean 'sandwich'"):
        Transformer(unmask.preset("tiny", residual="sandwhich"))
    with pytest.raises(UserError, match="the name 'parallel' is taken by ParallelBlock"):
        register_block("parallel", SandwichBlock)
    with pytest.raises(UserError, match="expected a class derived from unmask.net.blocks.Block"):
        register_block("own", Block(unmask.preset("tiny"), 0))  # ty: ignore[invalid-argument-type]
