"""What hides a subject from a traced model: by name in `unmask.Tracing`, or one of these objects.

    unmask.trace_steps(model, fact, corruption=unmask.corruptions.Noise(sigma=0.5, samples=3))

A corruption of one's own is an object with a `name` and a method `apply(model, tokens, positions)`,
or such a function alone: it gets the text's token ids [L] and the positions to hide, and returns a
`Corrupted`, S rows of the same length.

    def hide_everything_before(model, tokens, positions):
        rows = tokens.clone()[None]
        rows[:, : max(positions) + 1] = model.mask_id
        return unmask.corruptions.Corrupted(rows)
"""

from unmask.tracing.corruption import Corrupted, Mask, Mean, Noise, Replace
from unmask.tracing.settings import Corruption

__all__ = ["Corrupted", "Corruption", "Mask", "Mean", "Noise", "Replace"]
