"""Starting from a trained model: adapters, and causal models opened to diffusion."""

import pytest
import torch

import unmask
from tests.training.runs import make_recipe, make_trainer, run
from unmask.base.errors import UserError
from unmask.net.model import Blueprint, Model
from unmask.net.presets import preset
from unmask.net.transformer import Transformer
from unmask.training.adapt import adapt_model, open_attention, open_network, untie_head


@pytest.fixture(scope="module")
def causal(tmp_path_factory) -> str:
    """A causal model that was trained a little."""
    folder = tmp_path_factory.mktemp("causal")
    run(folder, kind="causal", budget={"steps": 3})
    return str(folder / "model")


FRESH = {"network": {"preset": "tiny", "changes": {}}}


def start(model: str, **more: object) -> dict:
    return FRESH | {"start": {"model": model} | more}


def test_opened_network_is_the_same_network(tokens):
    """Under a causal mask the opened network computes what the causal one did."""
    for name in ("tiny", "tiny-grouped"):
        net = Transformer(preset(name, causal=True))
        opened = open_network(net, net.config.vocab_size + 1)
        assert opened.config.vocab_size == 513 and not opened.config.causal
        length = tokens.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool).tril()
        x = opened.run_layers(opened.embed(tokens), sees=earlier)
        assert torch.allclose(opened.unembed(x)[..., :512], net(tokens), atol=1e-5)
        assert torch.allclose(opened.embedding.weight[512], net.embedding.weight.mean(0), atol=1e-6)
        assert len(opened.head.weight) == (513 if net.config.tied else 512)


def test_attention_opens_step_by_step():
    recipe = make_recipe(start={"model": "x", "open_over": 10}, network={"changes": {}})
    earlier = torch.ones(30, 30, dtype=torch.bool).tril()
    later = []
    for step in range(10):
        sees = open_attention(step, 30, recipe)
        assert sees is not None and (sees | ~earlier).all()
        assert torch.equal(sees, open_attention(step, 30, recipe))
        later.append(float(sees[~earlier].double().mean()))
    assert later[0] < 0.25 and later[-1] > 0.75 and later[2] < later[7]
    assert open_attention(10, 30, recipe) is None


@pytest.mark.parametrize("shift", [False, True])
def test_a_causal_model_becomes_a_masked_one(causal, shift, tmp_path):
    settings = start(causal, shift=shift, open_over=2)
    trainer, outcome = run(tmp_path, **settings, budget={"steps": 4})
    assert outcome.ended == "done" and int(trainer.guard.skipped) == 0
    model = unmask.load(tmp_path / "model", device="cpu")
    assert model.kind == "masked" and model.blueprint.shift == shift
    text = unmask.sample(model, ["The "], steps=2, length=20)
    assert text.texts is not None


def test_shifted_start_has_the_lower_loss(causal, tmp_path):
    """A network that knows the next token predicts a mask best from the place before it."""
    run(tmp_path, kind="causal", budget={"steps": 60}, batch={"rows": 16})
    losses = {}
    for shift in (False, True):
        trainer = make_trainer(**start(str(tmp_path / "model"), shift=shift))
        with torch.no_grad():
            losses[shift] = sum(
                float(trainer.learner(inputs))
                for step in range(8)
                for inputs in (part.inputs for part in trainer.feed(step))
            )
    assert losses[True] < 0.9 * losses[False]


def test_tokenizers_without_a_mask_get_one(causal, tmp_path):
    given = unmask.load(causal, device="cpu")
    known = given.tokenizer
    bare = type(known)(known.backend, None, known.pad_id, known.end_id)
    model = Model("bare", given.net, Blueprint(given.net.config, "causal"), bare)
    opened = adapt_model(model, make_recipe(**start("x")), bare)
    assert opened.mask_id == bare.vocab_size == opened.net.config.vocab_size - 1
    assert opened.tokenizer.mask_id == opened.mask_id


def test_kinds_that_do_not_fit(causal, tmp_path):
    with pytest.raises(UserError, match="is causal and the recipe trains uniform"):
        make_trainer(**start(causal), kind="uniform")
    with pytest.raises(UserError, match="do not fit .* whose context is 80"):
        make_trainer(**start(causal), data={"context": 90})


def test_an_open_model_is_not_opened_again(causal, tmp_path):
    run(tmp_path, **start(causal, open_over=1), budget={"steps": 2})
    with pytest.raises(UserError, match="start.open_over=5 .* is masked and open already"):
        make_trainer(**start(str(tmp_path / "model"), open_over=5))


def test_adapters_are_trained_and_merged(causal, tmp_path):
    settings = start(causal, lora_rank=2, lora_alpha=8.0) | {"kind": "causal"}
    trainer, _ = run(tmp_path, **settings, budget={"steps": 5}, cadence={"checkpoint": 2})
    names = [name for name, weight in trainer.net.named_parameters() if weight.requires_grad]
    assert names and all(".lora_" in name for name in names)
    assert len(trainer.optimiser.tensors()) == 3 * len(names)
    before = unmask.load(causal, device="cpu").net
    after = unmask.load(tmp_path / "model", device="cpu").net
    assert torch.equal(before.embedding.weight, after.embedding.weight)
    assert not torch.equal(before.layers[0].attn.qkv.weight, after.layers[0].attn.qkv.weight)
    tokens = torch.randint(0, 500, (2, 12))
    trainer.net.eval()
    assert torch.allclose(trainer.net(tokens), after(tokens), atol=1e-5)
    # Resuming goes on with the adapters where they were.
    for path in (tmp_path / "checkpoints").glob("step-00000005"):
        path.rename(tmp_path / "aside")
    again, _ = run(tmp_path, **settings, budget={"steps": 5}, cadence={"checkpoint": 2})
    assert all(x.equal(again.tensors()[key]) for key, x in trainer.tensors().items())


@pytest.fixture(scope="module")
def tied(tmp_path_factory) -> str:
    """A masked model whose head is its embedding, trained a little."""
    folder = tmp_path_factory.mktemp("tied")
    changes = {"layers": 2, "width": 32, "mlp_width": 48, "tied": True}
    run(folder, network={"preset": "tiny", "changes": changes}, budget={"steps": 3})
    return str(folder / "model")


def test_an_untied_head_begins_as_the_embedding(tied, tokens):
    model = unmask.load(tied, device="cpu")
    assert model.net.config.tied
    apart = untie_head(model)
    assert not apart.net.config.tied and not apart.blueprint.config.tied
    assert torch.equal(apart.net(tokens), model.net(tokens))
    assert apart.net.head.weight is not apart.net.embedding.weight
    with pytest.raises(UserError, match="that of .* has its own already: leave it out"):
        untie_head(apart)


@pytest.mark.parametrize("frozen", [(), ("embedding",), ("head",), ("embedding", "head")])
def test_frozen_parts_stay_as_they_are(tied, frozen, tmp_path):
    """What is frozen is the start's to the bit, the rest moves; the run is saved and read back."""
    start_model = unmask.load(tied, device="cpu")
    settings = start(tied, untie=True) | {"optimiser": {"frozen": frozen}}
    run(tmp_path, budget={"steps": 3}, **settings)
    trained = unmask.load(tmp_path / "model", device="cpu")
    assert not trained.net.config.tied
    before = start_model.net.embedding.weight
    for name in ("embedding", "head"):
        assert torch.equal(getattr(trained.net, name).weight, before) == (name in frozen), name
    ours, theirs = (each.net.block(0).mlp.down.weight for each in (trained, start_model))
    assert not torch.equal(ours, theirs)


def test_what_cannot_be_frozen_or_untied_is_refused(tied):
    with pytest.raises(UserError, match="the head is the embedding: freeze both"):
        make_trainer(**start(tied) | {"optimiser": {"frozen": ("head",)}})
    trainer = make_trainer(**start(tied) | {"optimiser": {"frozen": ("head", "embedding")}})
    assert not any("embedding" in name or "head" in name for name, _ in trainer.optimiser.named)
    with pytest.raises(
        UserError, match="'optimiser.frozen' is .*'mlp'.*, expected embedding, head"
    ):
        make_recipe(optimiser={"frozen": ("mlp",)})
    with pytest.raises(UserError, match="'start.untie' is for a model to start from: name it"):
        make_recipe(start={"untie": True})
    with pytest.raises(UserError, match="do not go together: adapters leave both"):
        make_recipe(**start(tied, lora_rank=2) | {"optimiser": {"frozen": ("head",)}})
