"""What is shown while no trained pair is shipped: the corpus, and a network that knows nothing."""

from pathlib import Path

from rich.console import Console

from unmask.base.runs import open_run
from unmask.data.corpus import read_corpus, save_corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.tokenizer import Tokenizer
from unmask.net.loading import save
from unmask.net.model import Blueprint, Model
from unmask.net.presets import preset
from unmask.net.transformer import Transformer
from unmask.report.terminal import show_corpus, show_network

VOCABULARY = 8192
CONTEXT = 64


def show_preview(out: Path, console: Console, num_facts: int = 30, seed: int = 0) -> None:
    """Make the reversal corpus and an untrained tiny network in `out`, and show both."""
    made = make_reversal_corpus(num_facts, seed)  # first, since it checks the settings
    out = open_run(out, "study", {"facts": num_facts, "seed": seed})
    corpus_folder, network_folder = out / "corpus", out / "network"
    if not (corpus_folder / "corpus.json").is_file():
        save_corpus(made, corpus_folder, Tokenizer.train(made.training_texts(), VOCABULARY))
    tokenizer = Tokenizer.load(corpus_folder)
    show_corpus(console, read_corpus(corpus_folder), tokenizer)

    blueprint = plan_network(tokenizer)
    if not (network_folder / "config.json").is_file():
        net = Transformer(blueprint.config, seed=seed)
        save(Model("tiny", net, blueprint, tokenizer), network_folder)
    show_network(console, "tiny", blueprint.config)
    console.print(f"corpus and tokenizer: {corpus_folder}\nnetwork: {network_folder}", markup=False)


def plan_network(tokenizer: Tokenizer) -> Blueprint:
    """The tiny network that fits a corpus; its head has no row for the mask, which stands last."""
    rows = tokenizer.vocab_size
    config = preset("tiny", vocab_size=rows, num_logits=rows - 1, context=CONTEXT)
    return Blueprint(config, "masked", tokenizer.mask_id)
