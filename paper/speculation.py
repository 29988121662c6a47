"""Self-speculation against one token at a time: tokens a second of one network's causal reading.

    python paper/speculation.py MODEL --text FILE --page docs/results/speculation.md

MODEL was trained by both objectives. The beginning of each text in FILE is continued, one by one,
by the likeliest tokens. One token at a time keeps keys and values; a round of drafts runs two
passes over whole rows.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch

import unmask
from unmask.blocks.blocks import Column, Row, Section, Table
from unmask.data.text import read_documents
from unmask.net.model import Model
from unmask.report.document import Document
from unmask.report.page import write_document
from unmask.sampling.speculation import count_per_round
from unmask.sampling.trajectory import Trajectory
from unmask.training.speed import wait_for

ROUNDS = 5
WAYS = (None, 2, 4, 8, 16)
"""Numbers of drafts; without any, one token at a time."""


def draw_all(
    model: Model, prompts: Sequence[list[int]], length: int, drafts: int | None
) -> tuple[float, list[Trajectory]]:
    """The seconds that a text for each prompt takes, one after the other, and the texts."""
    wait_for(model.device)
    start = time.perf_counter()
    drawn = [
        unmask.sample(model, [prompt], length=length, drafts=drafts, keep_states=False)
        for prompt in prompts
    ]
    wait_for(model.device)
    return time.perf_counter() - start, drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", help="a network with both readings")
    parser.add_argument("--text", type=Path, required=True, help="texts to continue, as .jsonl")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--length", type=int, default=160, help="tokens, those of the prompt too")
    parser.add_argument("--page", type=Path, required=True, help="the .md file to write")
    options = parser.parse_args()
    causal = unmask.load(options.model, dtype="float32").reading("causal")
    known = causal.require_tokenizer()
    begun = (known.encode(text).ids[: options.prompt] for text in read_documents([options.text]))
    prompts = list(islice((ids for ids in begun if len(ids) == options.prompt), options.texts))
    draw_all(causal, prompts[:1], options.length, WAYS[-1])
    rounds = [
        [draw_all(causal, prompts, options.length, drafts) for drafts in WAYS]
        for _ in range(ROUNDS)
    ]
    rows, (_, plain) = [], rounds[0][0]
    seconds = [statistics.median(taken for taken, _ in way) for way in zip(*rounds, strict=True)]
    for i, (drafts, (_, drawn)) in enumerate(zip(WAYS, rounds[0], strict=True)):
        written = sum(int((each.committed_at > 0).sum()) for each in drawn)
        same = sum(each.tokens.equal(one.tokens) for each, one in zip(drawn, plain, strict=True))
        each_round = sum(map(count_per_round, drawn)) / len(drawn)
        passes = sum(each.calls for each in drawn)
        label = "one at a time" if drafts is None else f"{drafts} drafts"
        speed = [written / seconds[i], seconds[0] / seconds[i]]
        rows.append(Row([label, *speed, each_round, passes, f"{same} of {len(prompts)}"]))
    columns = [Column("way"), Column("tokens a second", 0), Column("times as fast")]
    columns += [Column("tokens a round"), Column("passes", 0), Column("equal texts")]
    chip = "a processor"
    if causal.device.type == "cuda":
        chip = torch.cuda.get_device_name(causal.device)
    caption = (
        f"Texts of up to {options.length} tokens after prompts of {options.prompt}, in float32 by "
        f"the likeliest token, one by one on {chip}; medians of {ROUNDS}"
    )
    section = Section("speed", "Tokens a second", [Table("speed", caption, columns, rows)])
    lead = "The diffusion reading of a network drafts, its causal reading verifies."
    write_document(Document("Self-speculation", lead, [], [section]), options.page)


if __name__ == "__main__":
    main()
