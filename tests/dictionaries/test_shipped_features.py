"""The dictionary that ships: small, of the model it is named after, and worth its place."""

import pytest
import torch
from safetensors.torch import load_file

import unmask
from unmask import UserError
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.dictionaries.dictionary import (
    WEIGHTS,
    make_random_dictionary,
    shipped_dictionaries,
)
from unmask.explorer.session import open_dictionary
from unmask.net.families import parse_families

MODEL = "reversal-mdm"
MOST_BYTES = 3_000_000


@pytest.fixture(scope="module")
def model():
    return unmask.load(MODEL, device="cpu", dtype="float32")


def test_it_is_small_and_of_its_model(model):
    assert [*shipped_dictionaries()] == [MODEL]
    folder = shipped_dictionaries()[MODEL]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES
    assert {each.dtype for each in load_file(folder / WEIGHTS).values()} == {torch.float16}
    opened = open_dictionary(model)
    assert opened is not None and opened.place == MODEL
    assert opened.dictionary.notes["model_name"] == MODEL
    assert repr(opened.dictionary) == repr(unmask.Dictionary.load(folder))


def test_its_features_keep_the_states_of_facts_it_was_not_trained_on(model):
    """Prompts in phrasings that training never showed; random directions keep little of them."""
    recipe = parse_families([model])[0].read_shipped_recipe()
    assert recipe is not None
    corpus = make_reversal_corpus(recipe["facts"], recipe["seed"])
    prompts = [fact.prompt for fact in corpus["d2p_reverse"][:40:10]]
    drawn = unmask.sample(model, prompts, steps=4, length=40)
    dictionary = unmask.Dictionary.load(MODEL)
    with torch.inference_mode(), model.net.capture(dictionary.site) as kept:
        model.logits(drawn.states.flatten(0, 1))
    x = kept[dictionary.site].flatten(0, 1)
    spread = (x - x.mean(0)).square().sum()
    left = (x - dictionary.reconstruct(x)).square().sum() / spread
    random = make_random_dictionary(x.shape[1], dictionary.size, dictionary.k)
    assert float(left) < 0.1 < 0.5 < float((x - random.reconstruct(x)).square().sum() / spread)


@pytest.mark.prove  # and only where sae-lens is installed, in an environment of its own
@pytest.mark.filterwarnings("ignore")  # sae-lens' own
def test_saelens_opens_what_ships():
    sae_lens = pytest.importorskip("sae_lens")
    theirs = sae_lens.SAE.load_from_disk(shipped_dictionaries()[MODEL])
    ours, x = (
        unmask.Dictionary.load(MODEL),
        torch.randn(20, 256, generator=torch.Generator().manual_seed(0)),
    )
    features = theirs.encode(x).float()  # counted in float16 there
    assert torch.equal(features > 0, ours.encode(x) > 0)
    torch.testing.assert_close(features, ours.encode(x), atol=0.01, rtol=0.01)


def test_a_dictionary_of_other_states_is_refused(model, tmp_path):
    assert open_dictionary(unmask.load("reversal-ar", device="cpu")) is None
    for width, site, words in (
        (8, "layers.2.resid_out", "of states of 8 numbers"),
        (256, "layers.9.resid_out", "does not exist"),
    ):
        folder = tmp_path / str(width)
        unmask.Dictionary(
            *(torch.zeros(shape) for shape in ((width, 4), (4,), (4, width), (width,))),
            2,
            site=site,
        ).save(folder)
        with pytest.raises(UserError, match=words):
            open_dictionary(model, str(folder))
