"""Texts that models are asked about: documents of files, or of a shipped model's own corpus."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.net.families import Family

OWN = "by default statements of the corpus of a shipped model, in phrasings that training kept out."


def find_texts(data: Any, families: "list[Family]") -> tuple[list[str], str]:
    """The documents of a file, or of several from Python, and what to call them.

    Without any they are statements like those that a shipped model was trained on: texts of another
    kind cost such small models more than a guess.
    """
    from unmask.base.errors import UserError
    from unmask.base.seeds import python_stream
    from unmask.data.corpus import list_near
    from unmask.data.text import read_documents
    from unmask.measures.inputs import find_corpus

    if data is not None:
        paths = list(data) if isinstance(data, list | tuple) else [data]
        return list(read_documents(paths)), ", ".join(map(str, paths))
    if families[0].read_shipped_recipe() is None:
        raise UserError(
            f"no text was given, and {families[0].name} did not come with this package: name a "
            "file of text by --data."
        )
    corpus = find_corpus(None, families)
    tests = [fact for split in list_near(corpus.tests) for fact in corpus.splits.get(split, ())]
    texts = sorted({fact.text for fact in tests if fact.trained == "same"})
    python_stream(0, "texts").shuffle(texts)
    return texts, f"statements of {corpus.source}"
