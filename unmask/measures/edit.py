"""edit: a fact gets a new object by a low-rank change of one layer's weights, one edit at a time.
The page shows what each edit did, and whether the reverse question is answered with it, too.

The update maps the key of the subject to the value that makes the model say the new object, and
disturbs other keys least under their second moment (r-ROME with a ridge of 0, MEMIT above). An
answer is preferred where it is likelier than its rival, nats per token by the chain rule: the new
object against the old one on the edited prompt and in other phrasings, a neighbour's own object
against the new one (the score is the harmonic mean of these three). It is said where the generated
text contains it. In reverse the object is given and the subject asked for; its rank is among all
subjects of its group, by the mean field for a masked model. Fresh objects occur in no training
text; swapped ones belong to another fact. Statements are judged from two sides: given the new
object, the edited subject against another; and given the other's object, its own subject against
the edited one. A model that always prefers the edited subject is right half of the time. KL and
bits per token are of text that no training showed; a masked model sees it noised at uniform times.

The share is how much of an edit acts at a position: 1 at the key that it was written with. It is
read at the last token of a prompt's subject, and its mean size at masks and at other words, in
states that show none, half or all of the right answer and in those of the model's own texts.

Controls: the edit with the wrong subject's key or another fact's delta, of its norm, and an edit in
a layer drawn at random, of the norm that it takes there. A learned statement is trained by the
model's own loss until its object is as likely as under the edit; a masked model's loss also hides
the subject and asks for it, which the edit does not. What the subject gains in reverse is
correlated with how alike both directions were before, one number per fact: the log-odds that a
probe fitted to one direction's states gives the fact in the other, in held-out phrasings; the
cosine of the key, through the down projection, with v0 in reverse, minus its mean over other facts;
and the share of the edit that acts in reverse.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from unmask.base.errors import UserError
from unmask.measures.edit_data import EditSettings, read_edit_data
from unmask.measures.edit_results import describe, summarise
from unmask.measures.inputs import Member, ModelInputs, ModelsAndData
from unmask.measures.measure import Job, Measure
from unmask.representation.settings import choose_layers

if TYPE_CHECKING:
    from unmask.measures.edit_work import EditWork

CHUNK = 20
"""Requests whose edits are one part of a run."""


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
        from unmask.measures.edit_work import EditWork

        model = inputs.load(member)
        if member.key not in works:
            works.clear()
            works[member.key] = EditWork(model, layers, inputs.data, settings)
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
