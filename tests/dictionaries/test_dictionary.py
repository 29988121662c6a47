"""Dictionaries find planted directions, are resumed, and come back from files as they were."""

import json
from pathlib import Path

import pytest
import torch

import unmask
from tests.conftest import make_model
from unmask.base.errors import UserError
from unmask.dictionaries.activations import ActivationStream, Harvest
from unmask.dictionaries.dictionary import Dictionary, make_random_dictionary, match_features
from unmask.dictionaries.dictionary_training import LOG, DictionarySettings, _begin, _take_step
from unmask.dictionaries.states import StateBatch

SAELENS = Path(__file__).parents[1] / "fixtures" / "dictionaries"
SITE = "layers.0.resid_out"
TEXTS = ["The caves of Orsel are deep.", "The baker sings."]


class PlantedStream(ActivationStream):
    """States that are sums of two of some known directions, and a mean."""

    def __init__(self, directions: torch.Tensor, mean: float = 3.0):
        super().__init__(Harvest(make_model(), (SITE,), ()))
        self.directions, self.mean = directions, mean

    def __iter__(self):
        while True:
            self.place = (self.place[0] + 1, 0)
            generator = torch.Generator().manual_seed(self.place[0])
            number = len(self.directions)
            chosen = torch.rand(256, number, generator=generator).topk(2).indices
            strength = 1 + torch.rand(256, 2, generator=generator)
            weights = torch.zeros(256, number).scatter(1, chosen, strength)
            zeros = torch.zeros(256, dtype=torch.long)
            x = weights @ self.directions + self.mean
            rest = [zeros] * 5
            yield StateBatch({SITE: x}, *rest, torch.zeros(256), zeros.bool())


def plant() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(12, 16, generator=generator), dim=-1)


@pytest.mark.parametrize("rule", ["topk", "batchtopk"])
def test_planted_directions_are_recovered(rule):
    directions = plant()
    stream = PlantedStream(directions)
    trained = unmask.train_dictionary(stream, rule=rule, size=24, k=2, steps=300, rate=1e-2)
    known = Dictionary(directions.T, torch.zeros(12), directions, torch.zeros(16), k=2)
    random = make_random_dictionary(16, 24, 2)
    assert match_features(known, trained).median() > 0.97
    assert match_features(known, random).median() < 0.8
    x = next(iter(PlantedStream(directions))).x
    left = (x - trained.reconstruct(x)).square().sum() / (x - x.mean(0)).square().sum()
    assert left < 0.15
    assert 1.5 < (trained.encode(x) > 0).sum(-1).float().mean() < 2.5
    assert trained.w_dec.norm(dim=-1) == pytest.approx(torch.ones(24))


def test_dead_features_learn_what_others_leave():
    """A feature that does not fire stays as it is, until it counts as dead and is revived."""
    batch = next(iter(PlantedStream(plant())))

    def move(dead_after: int) -> tuple[torch.Tensor, torch.Tensor]:
        settings = DictionarySettings(size=96, k=1, steps=100, dead_after=dead_after)
        state = _begin(batch.x, settings)
        before = state.weights["w_dec"].clone()
        state.unfired += 1000
        _take_step(state, batch, settings)
        moved = (state.weights["w_dec"] - before).abs().amax(-1) > 1e-5
        return moved, state.unfired > 1000

    (moved, silent), (revived, _) = move(10**9), move(1000)
    assert silent.any() and not (moved & silent).any()
    assert (revived & silent).any()


def test_training_is_resumed_to_the_bit(tmp_path):
    model = make_model()

    def train(folder: Path | None, steps: int = 6) -> Dictionary:
        stream = unmask.activations(model, SITE, TEXTS, batch=8, buffer=2, epochs=None)
        more = {"size": 20, "k": 3, "steps": steps, "save": 2, "log": 1, "dead_after": 20}
        return unmask.train_dictionary(stream, out=folder, **more)

    whole = train(tmp_path / "whole")
    # Broken off after step 4 of 6, as by a kill between two states that are kept.
    stream = unmask.activations(model, SITE, TEXTS, batch=8, buffer=2, epochs=None)
    taken = iter(stream)

    class Broken(ActivationStream):
        def __iter__(self):
            for number in range(5):
                batch = next(taken)
                self.place = stream.place
                yield batch
                if number == 4:
                    return

    with pytest.raises(UserError, match="ended before step 6"):
        broken = Broken(stream.harvest)
        more = {"size": 20, "k": 3, "steps": 6, "save": 2, "log": 1, "dead_after": 20}
        unmask.train_dictionary(broken, out=tmp_path / "part", **more)
    resumed = train(tmp_path / "part")
    for name in ("w_enc", "b_enc", "w_dec", "b_dec"):
        assert torch.equal(getattr(resumed, name), getattr(whole, name))
    logs = [(tmp_path / name / LOG).read_text() for name in ("whole", "part")]
    assert logs[0] == logs[1]
    with pytest.raises(UserError, match="other settings"):
        train(tmp_path / "part", steps=7)


@pytest.mark.parametrize("rule", ["topk", "threshold", "plain"])
def test_files_come_back(rule, tmp_path):
    made = make_random_dictionary(16, 24, 3)
    threshold = torch.rand(24, generator=torch.Generator().manual_seed(1))
    own = {"topk": {}, "threshold": {"k": None, "threshold": threshold}, "plain": {"k": None}}[rule]
    made = Dictionary(
        made.w_enc, made.b_enc + 0.1, made.w_dec, made.b_dec + 0.2, **{"k": 3, **own}, site=SITE
    )
    made.save(tmp_path / "one")
    read = Dictionary.load(tmp_path / "one")
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(2))
    assert torch.equal(read.encode(x), made.encode(x))
    assert torch.equal(read.reconstruct(x), made.reconstruct(x))
    assert read.site == SITE
    with pytest.raises(UserError, match="already exists"):
        made.save(tmp_path / "one")


@pytest.mark.parametrize("name", ["topk", "rescaled", "jumprelu", "standard", "outside"])
def test_encodings_are_saelens(name):
    """Folders that SAELens wrote give what SAELens computed of them (tests/fixtures)."""
    x = torch.tensor(json.loads((SAELENS / "states.json").read_text()))
    expected = json.loads((SAELENS / name / "expected.json").read_text())
    read = Dictionary.load(SAELENS / name)
    features = read.encode(x)
    torch.testing.assert_close(features, torch.tensor(expected["features"]), atol=2e-5, rtol=1e-4)
    decoded = torch.tensor(expected["states"])
    torch.testing.assert_close(read.reconstruct(x), decoded, atol=2e-5, rtol=1e-4)


@pytest.mark.prove  # and only where sae-lens is installed, in an environment of its own
@pytest.mark.filterwarnings("ignore")  # sae-lens' own
def test_saelens_opens_what_is_saved(tmp_path):
    sae_lens = pytest.importorskip("sae_lens")
    stream = PlantedStream(plant())
    for rule in ("topk", "batchtopk"):
        made = unmask.train_dictionary(stream, rule=rule, size=24, k=3, steps=20)
        made.save(tmp_path / rule)
        theirs = sae_lens.SAE.load_from_disk(tmp_path / rule)
        x = next(iter(stream)).x
        torch.testing.assert_close(theirs.encode(x), made.encode(x))
        torch.testing.assert_close(theirs.decode(theirs.encode(x)), made.reconstruct(x))
        assert theirs.cfg.metadata.hook_name == SITE


def test_other_files_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"has no cfg\.json"):
        Dictionary.load(tmp_path)
    make_random_dictionary(8, 12, 2).save(tmp_path / "one")
    config = json.loads((tmp_path / "one" / "cfg.json").read_text())
    for changed, words in [
        ({"architecture": "gated"}, "architecture is 'gated'"),
        ({"normalize_activations": "layer_norm"}, "normalize_activations is 'layer_norm'"),
        ({"k": 13}, "k is 13 of 12"),
        ({"d_in": 9}, "W_enc of shape"),
    ]:
        (tmp_path / "one" / "cfg.json").write_text(json.dumps(config | changed))
        with pytest.raises(UserError, match=words):
            Dictionary.load(tmp_path / "one")


def test_wrong_requests_are_refused():
    with pytest.raises(UserError, match="k is 5, of 4 features"):
        unmask.train_dictionary(PlantedStream(plant()), size=4, k=5)
    with pytest.raises(UserError, match="rule"):
        unmask.train_dictionary(PlantedStream(plant()), rule="gated")
