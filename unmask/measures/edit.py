"""edit: a fact gets a new object by a low-rank change of one layer's weights, one edit at a time.

The update maps the key of the subject to the value that makes the model say the new object, and
disturbs other keys least under their second moment (r-ROME with a ridge of 0, MEMIT above). An
answer is preferred where it is likelier than its rival, nats per token by the chain rule: the new
object against the old one on the edited prompt and in other phrasings, a neighbour's own object
against the new one. It is said where the generated text contains it. In reverse the object is given
and the subject asked for, and ranked among all subjects of its group. Fresh objects occur in no
training text; swapped ones belong to another fact. Judged from two sides: given the new object, the
edited subject against another; and given the other's object, its own subject against the edited
one, so that who always prefers the edited subject is right half of the time. KL and bits per token
are of text that no training showed; a masked model sees it noised at uniform times.

The share is how much of an edit acts at a position: 1 at the key that it was written with. It is
read in states that show none, half or all of the right answer, and in the model's own texts.

Controls: the edit with the wrong subject's key or another fact's delta, of its norm, and an edit in
a layer drawn at random. A learned statement is trained by the model's own loss until its object is
as likely as under the edit; a masked model's loss also hides the subject and asks for it, which the
edit does not. What the subject gains in reverse is correlated with how alike both directions were
before: the log-odds that a probe fitted to one direction's states gives the fact in the other, in
held-out phrasings; and the cosine of the key, through the down projection, with v0 in reverse,
minus its mean over other facts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.base.errors import UserError
from unmask.editing.settings import EditWorkSettings
from unmask.measures.edit_results import describe, summarise
from unmask.measures.inputs import Member, ModelInputs, ModelsAndData, find_corpus
from unmask.measures.measure import Job, Measure
from unmask.measures.settings import GroupSettings
from unmask.representation.settings import choose_layers

if TYPE_CHECKING:
    from unmask.editing.work import EditData, EditWork

MOST_TEXTS = 5000
"""Documents of a file to gather moments on."""
CHUNK = 20
"""Requests whose edits are one part of a run."""


@dataclass(frozen=True, kw_only=True)
class EditSettings(EditWorkSettings, GroupSettings):
    """Which groups of facts are edited, how, and how the edited model is asked."""


def read_edit_data(data: Any, settings: EditSettings, families: Any) -> "tuple[EditData, str, Any]":
    from unmask.base.seeds import python_stream
    from unmask.data.text import read_documents
    from unmask.editing.requests import list_other_texts, read_requests
    from unmask.editing.work import EditData, choose_requests

    for family in families:  # before the time that data take
        for seed in range(len(family.members)):
            choose_layers(family.name, Member(family, seed).config.layers, settings.layer)
    corpus, texts, others = None, list[str](), list[str]()
    if isinstance(data, str | Path) and str(data).endswith(".json"):
        requests, source = read_requests(data)[settings.skip :][: settings.facts], str(data)
        if settings.recalled:
            words = f"{source} does not say how its facts were trained"
            raise UserError(f"{words}: leave recalled out, or give a corpus.")
    else:
        corpus = find_corpus(data, families)
        source, requests = corpus.source, choose_requests(corpus, settings, settings.groups)
        if "train" in corpus.splits:
            texts = list(dict.fromkeys(corpus.training_texts()))
            # Texts about one fact stand together: a part of them is to be about all.
            python_stream(settings.seed, "moments").shuffle(texts)
        others = list_other_texts(corpus, settings.text_rows, settings.seed)
    if not requests:
        words = f"no fact of {source} is left to be edited after the first {settings.skip}"
        raise UserError(f"{words}: expected a smaller skip.")
    if settings.moment_text is not None:
        texts = list(islice(read_documents([settings.moment_text]), MOST_TEXTS)) or texts
    if settings.other_text is not None:
        others = list(islice(read_documents([settings.other_text]), settings.text_rows)) or others
    if settings.moments != "identity" and not texts:
        raise UserError(
            f"{source} has no training texts to gather moments of keys on: use --moments identity, "
            "--moment-text FILE, or a corpus with its training split."
        )
    kept = EditData(requests, texts, others, corpus)
    return kept, source, [*requests, *texts, *others]


def list_jobs(inputs: ModelInputs, settings: EditSettings) -> Iterator[Job]:
    """For each checkpoint: its requests in chunks."""
    count = len(inputs.data.requests)
    if {"key", "delta"} & {*settings.controls} and count < 2:
        raise UserError(
            "there is one edit, and the controls key and delta take another edit's key or delta: "
            "edit two facts or more, or leave these controls out."
        )
    works: dict[str, EditWork] = {}

    def run(member: Member, layers: tuple[int, ...], chunk: range) -> dict[str, Any]:
        from unmask.editing.work import EditWork

        model = inputs.load(member)
        if member.key not in works:
            works.clear()
            works[member.key] = EditWork(
                model, layers, inputs.data, settings, settings.groups, settings.length
            )
        return works[member.key].work(member.columns, chunk)

    pieces = -(-count // CHUNK)
    starts = [count * number // pieces for number in range(pieces + 1)]  # of pieces of equal size
    for member in inputs.members():
        layers, _ = choose_layers(member.family.name, member.config.layers, settings.layer)
        for first, end in pairwise(starts):
            name = f"{member.key}-{first:03d}-to-{end - 1:03d}"
            yield Job(name, partial(run, member, layers, range(first, end)))


MEASURE = Measure(
    name="edit",
    title="Edited facts, asked forwards and in reverse",
    help="Write new objects into a model's weights, and ask forwards, nearby and in reverse.",
    settings=EditSettings,
    tables={"edit": "edit/3", "edit_steps": "edit-steps/2", "edit_canvases": "edit-canvases/1"},
    inputs=ModelsAndData(
        read_edit_data,
        "A corpus folder, a file of facts (with --objects swap), or records of CounterFact, BAKE "
        "or zsRE as JSON; by default the corpus that a shipped model was trained on.",
    ),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
