"""What a study is about: its models, and its facts."""

from pathlib import Path
from typing import TYPE_CHECKING

from unmask.base.errors import UserError
from unmask.study.settings import CORPUS, StudySettings

if TYPE_CHECKING:
    from unmask.data.corpus import Corpus
    from unmask.net.families import Family


def find_families(settings: StudySettings) -> "list[Family]":
    """The models of a study, once they are known to be what it needs."""
    from unmask.net.families import parse_families

    families = parse_families([name for name in settings.pair if name is not None])
    if not families[0].paradigm.fills_masks:
        raise UserError(
            f"{families[0].name} is a {families[0].kind} model: the study un-masks texts; give a "
            "masked diffusion model as --model, and an autoregressive one as --twin."
        )
    if len(families) == 2 and families[1].paradigm.sees_later:
        raise UserError(
            f"{families[1].name} is a {families[1].kind} model: the twin is an autoregressive one."
        )
    return families


def find_asked(settings: StudySettings, out: Path, fresh: bool) -> "Corpus":
    """The facts that are asked: those that were named, or those that the study has made."""
    from unmask.data.reversal_corpus import make_reversal_corpus
    from unmask.data.sources import read_asked

    if settings.data is not None:
        return read_asked(settings.data)
    if (out / CORPUS / "corpus.json").is_file() and not fresh:
        return read_asked(out / CORPUS)  # what the stages ask, in case it was changed
    return make_reversal_corpus(settings.facts, settings.seed)


def save_made_corpus(corpus: "Corpus", folder: Path, family: "Family") -> None:
    """Write a corpus that was made for the study, with the tokens of its model."""
    from unmask.data.corpus import save_corpus
    from unmask.evaluation.questions import require_tokenizer
    from unmask.net.loading import load

    model = load(family.places[0], "cpu")
    save_corpus(corpus, folder, require_tokenizer(model))
