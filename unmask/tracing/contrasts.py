"""Steps of two questions side by side: what the first one's circuit is found by.

The other question is about another fact in the same words and of the same shape, so that each
position stands for the same in both. At a step it has its own answer's tokens where earlier steps
committed some.
"""

from collections.abc import Sequence

import torch

from unmask.base.errors import UserError
from unmask.data.facts import Fact, FactTokens, tokenize_fact
from unmask.evaluation.questions import require_tokenizer
from unmask.tracing.circuits import Contrast
from unmask.tracing.clean_run import CleanRun


def contrast_step(clean: CleanRun, step: int, other: FactTokens) -> Contrast | None:
    """A step of a clean run beside the same step of another question.

    None where the two answers have the same tokens at all positions that the step commits.

    Args:
        clean: The question's own run.
        step: Its step, from 1.
        other: The other fact's tokens; its prompt has as many, with the subject in its place.
    """
    model, begin = clean.model, min(clean.answer)
    if model.paradigm.sees_later and not model.paradigm.fills_masks:
        raise UserError(
            f"the model {model.name} writes over tokens instead of masks: circuits of a step are "
            "for masked and causal models."
        )
    theirs = {begin + i: t for i, t in enumerate(other.ids[slice(*other.object)])}
    # 1. What this step commits, where the answers differ, and the rows that predict it.
    now = [at for at in clean.answer if int(clean.committed_at[at]) == step]
    differing = [at for at in sorted(now) if theirs.get(at, clean.answer[at]) != clean.answer[at]]
    if not differing:
        return None
    reads = [model.row_of(at) for at in differing]
    # 2. Both canvases: prompts, and of the answers what stands already.
    own = clean.state_at(step).clone()
    if not model.paradigm.sees_later:
        own = own[: max(reads) + 1]
    changed = own.clone()
    changed[: other.prompt_length] = torch.tensor(other.ids[: other.prompt_length])
    committed = [at for at in clean.committed_before(step) if at < len(own)]
    for at in committed:
        changed[at] = theirs.get(at, int(own[at]))
    roles = name_roles(clean, reads, committed, own.tolist())
    words, foils = ([answer[at] for at in differing] for answer in (clean.answer, theirs))
    return Contrast(model, own, changed, tuple(reads), tuple(words), tuple(foils), tuple(roles))


def name_roles(
    clean: CleanRun, reads: Sequence[int], committed: Sequence[int], tokens: Sequence[int]
) -> list[str]:
    """The role of each position (`unmask.tracing.circuits.ROLES`), each of which has one."""
    (begin, end), mask_id = clean.subject, clean.model.mask_id
    roles = []
    for at, token in enumerate(tokens):
        if at in reads:
            roles.append("answer")
        elif begin <= at < end:
            roles.append("last" if at == end - 1 else "first" if at == begin else "middle")
        elif at < clean.prompt_length:
            roles.append("before" if at < begin else "further")
        else:
            is_open = token == mask_id
            roles.append("committed" if at in committed else "masks" if is_open else "written")
    return roles


def list_partners(clean: CleanRun, fact: Fact, pool: Sequence[Fact]) -> list[FactTokens]:
    """Facts asked in the same words whose prompts have the same shape, and another answer."""
    tokenizer, partners = require_tokenizer(clean.model), []
    for other in pool:
        alike = (other.phrasing, other.direction) == (fact.phrasing, fact.direction)
        if not alike or other.object == fact.object:
            continue
        tokens = tokenize_fact(other, tokenizer)
        if (tokens.prompt_length, tokens.subject) == (clean.prompt_length, clean.subject):
            partners.append(tokens)
    return partners
