"""A text being un-masked, in the terminal: masks as blocks, tokens coloured by confidence."""

import time

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from unmask.data.tokenizer import Tokenizer
from unmask.sampling.trajectory import Trajectory, show_token

HIDDEN = "░░"
GIVEN = "bold"
GUESSED = "dim italic"
# From dark violet to yellow, as viridis has it: readable for all, and the same in grey.
CONFIDENCE = ("#9a6fb0", "#6f8fd0", "#4fa8a8", "#6cc46c", "#d7d34a")


class Screen:
    """The newest state of a trajectory, drawn over the one before it; the last one stays."""

    def __init__(
        self,
        console: Console,
        tokenizer: Tokenizer | None,
        hidden_id: int | None,
        steps: int,
        pause: float,
    ):
        self.tokenizer, self.hidden_id, self.steps = tokenizer, hidden_id, steps
        self.pause = pause  # in seconds: small models are faster than eyes
        self.live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> "Screen":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def show(self, trajectory: Trajectory) -> None:
        step = int(trajectory.committed_at.max())
        total = f" of {max(step, self.steps)}" if self.hidden_id is not None else ""
        head = Text(f"step {step}{total}   ", style="dim") + show_legend()
        self.live.update(
            Group(head, show_rows(trajectory, self.tokenizer, self.hidden_id)), refresh=True
        )
        time.sleep(self.pause)


def show_rows(
    trajectory: Trajectory, tokenizer: Tokenizer | None, hidden_id: int | None, most: int = 8
) -> Group:
    """The rows of a state, each up to its end token, the first `most` of them.

    Where the trajectory keeps guesses, a mask shows the likeliest token of the last prediction.
    """
    end_id = None if tokenizer is None else tokenizer.end_id
    lines = []
    for i in range(min(most, len(trajectory.tokens))):
        line = Text()
        tokens = trajectory.tokens[i, : int(trajectory.lengths[i])].tolist()
        kept = trajectory.guess_ids
        row = zip(
            tokens,
            trajectory.committed_at[i].tolist(),
            trajectory.confidence[i].tolist(),
            [-1] * len(tokens) if kept is None else kept[-1, i, :, 0].tolist(),
            strict=False,
        )
        for token, step, confidence, guess in row:
            if token == end_id and step > 0:
                line.append("⏎", style=_choose_colour(confidence))
                break
            if token == hidden_id and guess >= 0:
                line.append(show_token(guess, tokenizer), style=GUESSED)
            elif token == hidden_id:
                line.append(HIDDEN + " ", style="dim")
            else:
                piece = tokenizer.piece(token) if tokenizer is not None else f"{token} "
                line.append(piece, style=_choose_colour(confidence) if step else GIVEN)
        lines.append(line)
    if len(trajectory.tokens) > most:
        lines.append(Text(f"… and {len(trajectory.tokens) - most} more", style="dim"))
    return Group(*lines)


def show_legend() -> Text:
    """What the colours mean."""
    legend = Text("given", style=GIVEN)
    legend.append("  confidence ", style="not bold dim")
    for i, colour in enumerate(CONFIDENCE):
        legend.append(f"{i / len(CONFIDENCE):.1f}+ ", style=f"not bold {colour}")
    return legend


def _choose_colour(confidence: float) -> str:
    return CONFIDENCE[min(len(CONFIDENCE) - 1, int(confidence * len(CONFIDENCE)))]
