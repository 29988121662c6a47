"""Whether a judge of texts is outside the lineage of the models it judges, as records tell.

A network finds likely what its own kin writes.
"""

from collections.abc import Mapping

from unmask.base.errors import UserError
from unmask.measures.inputs import ModelInputs
from unmask.measures.measure import Rows


def judge_kinship(
    inputs: ModelInputs, judge: str, digests: Mapping[str, str]
) -> dict[str, dict[str, bool]]:
    """Whether the judge is known to be no kin of each member, by its key, and read the same text.

    A judge that shares weights with a model anywhere in both lineages is refused.
    """
    from unmask.net.lineage import Lineage, find_lineage
    from unmask.net.model import Model

    ours, columns = find_lineage(judge, digests), {}
    for member in inputs.members():
        place = member.family.members[member.seed]
        own = list(member.family.digests.values())[member.seed]
        # A loaded model is known by its tensors, not by files: nothing tells where it comes from.
        is_loaded = isinstance(place, Model)
        theirs = Lineage((), frozenset(), False) if is_loaded else find_lineage(place, own)
        if set(ours.weights) & set(theirs.weights):
            raise UserError(
                f"the judge {judge} and {member.family.places[member.seed]} are one model, or were "
                "trained from the other or from the same one, and a network finds its own kind of "
                "text likely: name another judge."
            )
        columns[member.key] = {
            "is_apart": ours.is_known and theirs.is_known,
            "shares_text": bool(ours.texts & theirs.texts),
        }
    return columns


def say_kinship(rows: Rows, judge: str) -> str:
    """Sentences on whose kin the judge is, of rows with a `model` and what records say of it."""
    text = "Records of their trainings show that no model stems from it."
    if unknown := ", ".join(row["model"] for row in rows if not row["is_apart"]):
        text = (
            f"No record tells whether {judge} is kin to {unknown}: if it is, it finds these texts "
            "more likely than others would."
        )
    if shared := ", ".join(row["model"] for row in rows if row["shares_text"]):
        text += (
            f" {judge} was trained on the same text as {shared}: what they repeat costs it little."
        )
    return text
