"""Roles: what each position of a traced state is, one role each."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unmask.tracing.grid import TraceGrid

SUBJECT_ROLES = ("first subject", "middle subject", "last subject")
PLACEBO_ROLES = ("before subject", "further")
"""Prompt tokens that neither are the subject nor end the prompt or follow the subject."""


def find_roles(grid: "TraceGrid") -> list[str]:
    """The role of every position; a subject of one token is a last subject token."""
    begin, end = grid.subject
    roles = []
    for place, token in enumerate(grid.tokens):
        if begin <= place < end:
            at = 2 if place == end - 1 else 0 if place == begin else 1
            roles.append(SUBJECT_ROLES[at])
        elif place in grid.committed:
            roles.append("answer token")
        elif place in grid.answer:
            # A causal model is given the answer's earlier tokens.
            roles.append("answer mask" if token == grid.mask_id else "answer token")
        elif place >= grid.prompt_length:
            roles.append("other mask" if token == grid.mask_id else "other token")
        elif place == grid.prompt_length - 1:
            roles.append("last prompt")
        elif place < begin:
            roles.append("before subject")
        else:
            roles.append("first after" if place == end else "further")
    return roles
