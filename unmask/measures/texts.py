"""Texts that models are asked about: documents of files, or of a shipped model's own corpus."""

from typing import TYPE_CHECKING, Any

from unmask.measures.inputs import ModelsAndData

if TYPE_CHECKING:
    from torch import Tensor

    from unmask.net.families import Family
    from unmask.net.model import Model

MOST_DOCUMENTS = 2_000

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


def cut_windows(model: "Model", documents: list[str], number: int, length: int) -> "Tensor":
    """Windows [number, length] of documents, their first ones first, each behind its opening."""
    import torch

    from unmask.base.errors import UserError

    tokenizer = model.require_tokenizer()
    size = length - len(tokenizer.opening)
    windows = [
        (at, [*tokenizer.opening, *ids[at : at + size]])
        for ids in tokenizer.encode_documents(documents)
        for at in range(0, len(ids) - size + 1, size)
    ]
    if len(windows) < number:
        raise UserError(
            f"the data have {len(windows)} texts of {length} tokens: expected {number}; give more "
            "text, or lower --texts or --length."
        )
    windows.sort(key=lambda window: window[0])
    return torch.tensor([ids for _, ids in windows[:number]], device=model.device)


def _read(data: Any, settings: Any, families: "list[Family]") -> tuple[list[str], str, Any]:
    documents, source = find_texts(data, families)
    return documents[:MOST_DOCUMENTS], source, documents[:MOST_DOCUMENTS]


REAL_TEXTS = ModelsAndData(
    _read, f"Real texts: .txt, .md or .jsonl, also packed as .xz or .zst; {OWN}", is_text=True
)
"""What measures read that cut windows out of texts."""
