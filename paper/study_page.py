"""The study's figures 1 to 6 and tables 1 to 3 (Rai 2025) on one page, each with its command.

    python paper/study_page.py --recall FOLDER… --knowns FOLDER… --order FOLDER --page docs/study.md

Pictures and numbers are computed from kept tables; figure 2 is README's picture of the shipped
pair. Where the study's own network would be needed, the page says what is shown instead.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute

import unmask
from unmask.base.files import replace_file
from unmask.base.tables import list_rows
from unmask.blocks import labels, tidy
from unmask.blocks.blocks import Column, Figure, Section, Table
from unmask.measures.measure import Rows
from unmask.measures.recall_section import PUBLISHED
from unmask.measures.recall_summary import widen
from unmask.measures.result import Result
from unmask.measures.runner import pool_results, read_result
from unmask.measures.trainings import join_openings
from unmask.report.render_figures import draw_figure
from unmask.report.render_markdown import render_blocks, write_csv
from unmask.results.summaries import estimate_means

GUIDANCE, STEPS = 0.8, 32
"""What table 2 says, and the most steps of table 3."""
WAYS = {
    "d2p_same": "Description2Person, same",
    "d2p_reverse": "Description2Person, reverse",
    "p2d_same": "Person2Description, same",
    "p2d_reverse": "Person2Description, reverse",
}
"""The columns of table 3, by the files' names: by the direction of training."""
KEPT = "docs/results/tables"
LEAD = """
The study ([Rai 2025](papers.md)) asks how a masked diffusion model recalls a fact forwards and
backwards. This page has its figures and tables in its order, drawn by `python paper/run.py
--stage study`. Below each stands what draws it alone: from kept tables, and anew on the shipped
pair. The study's network, SMDM-1028M, was never here; [study-on-smdm.md](study-on-smdm.md) has
the commands for it. Shown instead are a pair made from SmolLM2-135M and fine-tuned on the same
facts ([recall.md](results/recall.md)), and the small pair that comes with the package.
"""


@dataclass(frozen=True)
class Part:
    """A figure or table of the study: what is shown, in a sentence, and what draws it."""

    name: str
    title: str
    sentence: str
    commands: Sequence[str]
    shown: Sequence[Figure | Table] = ()
    picture: str = ""
    """A picture that another tool draws, in Markdown."""


def average_recall(runs: Sequence[Result]) -> list[dict[str, Any]]:
    """Answers that are contained, % with intervals for other facts, phrasings and adaptations, of
    both fine-tuned models, by way of asking and steps."""
    table = join_openings(runs).tables["recall"]
    strengths = pyarrow.compute.fill_null(table["guidance"], GUIDANCE)
    is_pair = pyarrow.compute.is_in(table["model"], pyarrow.array(["mdm", "ar"]))
    table = table.filter(pyarrow.compute.and_(is_pair, pyarrow.compute.equal(strengths, GUIDANCE)))
    rows = [row for row in list_rows(table) if row["split"] in WAYS]
    by = ("model", "kind", "split", "steps")
    return [widen(row) for row in estimate_means(rows, by, ["hit"], ["hit"], None, ["hit"])]


def draw_curse(cells: Rows) -> Part:
    """Figure 1: both models, as trained and in reverse."""
    last = [cell for cell in cells if cell["steps"] in (None, STEPS)]
    rows = [{**cell, **{end: 100 * cell[end] for end in tidy.ENDS}} for cell in last]
    rows.sort(key=lambda row: (labels.is_reversed(row["split"]), row["split"]))
    colours = labels.colour_models(dict(tidy.distinct(rows, "model", "kind")))
    figure = tidy.draw_dots(
        rows,
        "figure-1",
        "Taught “A is B”, asked “B is A”",
        "",
        label=tidy.name_asked,
        group=lambda row: {"mdm": "diffusion", "ar": "autoregressive"}[row["model"]],
        colour=lambda row: colours[row["model"]],
        panel=lambda row: "",
        xlabel="answers contained, %",
        limits=(0, 100),
    )
    (ours,), (twin,) = (
        tidy.select(last, model=name, split="p2d_reverse") for name in ("mdm", "ar")
    )
    return Part(
        "Figure 1",
        "the reversal curse",
        f"Asked in reverse for a name, the diffusion model says it in "
        f"{tidy.say_share(ours['mean'])} of the "
        f"prompts and its autoregressive twin in {tidy.say_share(twin['mean'])}, though both "
        "learned the facts "
        "the other way round.",
        [
            f"unmask report --join {KEPT}/opening-0/recall {KEPT}/opening-1/recall "
            f"{KEPT}/opening-2/recall --out recall.md",
            "unmask recall reversal-mdm reversal-ar --steps 32 --guidance 0.8",
        ],
        [figure],
    )


def show_canvas() -> Part:
    """Figure 2: the prompt and its masks."""
    words = "Both models of the shipped pair write an answer; the diffusion model un-masks it"
    return Part(
        "Figure 2",
        "a prompt, and masks that are filled step by step",
        "The prompt stands as it is, all that follows are masks, and every step writes those that "
        "the model is surest of "
        "(the shipped pair; browsers play the picture).",
        [
            "python tools/draw_unmasking.py",
            'unmask sample reversal-mdm "The inscription below the bust is for Velimir '
            'Gildershaw; I mean" --steps 16 '
            "--guidance 0.8",
        ],
        picture=f"![{words}](unmasking.svg)",
    )


def draw_knowns(result: Result) -> Part:
    """Figure 3: first tokens of plain knowledge and their entropy."""
    rows = tidy.select(result.summary["means"], metric="entropy", way="forward")
    hits = tidy.select(result.summary["means"], metric="hit", way="forward")
    wrong, right = (
        tidy.select(result.summary["outcomes"], model="opened", way="forward", answered=each)[0]
        for each in ("wrong", "right")
    )
    names = {"start": "before adaptation", "opened": "diffusion", "read": "its twin"}
    colours = labels.colour_models(dict(tidy.distinct(rows, "model", "kind")))
    outcomes = tidy.select(result.summary["outcomes"], way="forward")
    figure = tidy.draw_dots(
        sorted(outcomes, key=lambda row: (row["model"] != "opened", row["answered"])),
        "figure-3",
        "Entropy of the first token of an answer",
        "",
        label=lambda row: f"first token {row['answered']}",
        group=lambda row: names[row["model"]],
        colour=lambda row: colours[row["model"]],
        note=lambda row: labels.count(row["facts"], "prompt"),
        panel=lambda row: "",
        xlabel="entropy, nats",
    )
    (hit,) = tidy.select(hits, model="opened")
    return Part(
        "Figure 3",
        "single tokens of plain knowledge, before fine-tuning",
        f"Asked for one token of plain knowledge, the adapted network of 135M parameters is right "
        "in "
        f"{tidy.say_share(hit['mean'])} of {hit['facts']:,} prompts and unsure also where it is: "
        f"{right['mean']:.1f} nats of entropy, {wrong['mean']:.1f} where it is wrong. The study "
        "saw as much of SMDM-1028M "
        "and took facts of its own making.",
        [
            f"unmask report --join {KEPT}/unopened/knowns {KEPT}/opening-0/knowns --out knowns.md",
            "unmask knowns reversal-ar --data knowns.json",
        ],
        [figure],
    )


def show_data(rows: Rows) -> Part:
    """Figure 4: one prompt of each way of asking."""
    shown = []
    for split in ("d2p_same", "p2d_reverse", "p2d_same", "d2p_reverse"):
        own = tidy.select(rows, split=split)
        shown.append(min(own, key=lambda row: (len(row["prompt"]), row["prompt"])))
    columns: dict[Any, tidy.Get] = {
        "asked": tidy.name_asked,
        "file": "split",
        "prompt": lambda row: f"{row['prompt'].strip()} …",
        "answer": lambda row: row["completion"].strip(),
    }
    return Part(
        "Figure 4",
        "the reversal-curse data",
        "Invented people with a description each: of one group training has the description "
        "first, of the other the name, and "
        "both are asked both ways. Of each the shortest prompt.",
        [
            "unmask data show reversal_curse",
            "unmask data make reversal corpus",
            "unmask data show corpus",
        ],
        [tidy.tabulate("figure-4", "Prompts of Berglund et al. 2023", shown, columns)],
    )


def draw_order(result: Result) -> Iterator[Part]:
    """Figures 5 and 6: when positions are written, and the answer of one fact token by token."""
    figures = {each.name: each for each in result.section.walk() if isinstance(each, Figure)}
    commands = [
        f"unmask report {KEPT}/opening-0/order --out order.md",
        "unmask order reversal-mdm --limit 8 --guidance 0.8",
    ]
    yield Part(
        "Figure 5",
        "un-masking during sampling",
        "From the first step, where all is masked, to the last: at which step each position after "
        "the prompt is written, "
        "as a share of the texts (the fine-tuned diffusion model; each step takes the surest "
        "guesses).",
        commands,
        [figures["order-map"]],
    )
    yield Part(
        "Figure 6",
        "the tokens of one answer",
        "One answer with the step that wrote each of its tokens: they come at different steps, "
        "and not from left to right.",
        commands,
        [figures["unmasking"]],
    )


def show_models() -> Part:
    """Table 1: the shapes of the networks."""
    small = unmask.load("reversal-mdm").net.config
    networks = {
        "the study's, both": unmask.preset("1028M"),
        "from SmolLM2, both": unmask.preset("smollm2-135m"),
        "shipped, both": small,
    }
    lines = [
        {
            "network": name,
            "blocks": each.layers,
            "heads": each.heads,
            "n_embed": each.width,
            "embed_dim (MLP)": each.mlp_width,
            "vocab_size": each.num_logits or each.vocab_size,
        }
        for name, each in networks.items()
    ]
    return Part(
        "Table 1",
        "the networks",
        "All are Llama-like, a diffusion model and an autoregressive one of the same shape, and "
        "answers are greedy at "
        "temperature 0; the study's has more than eight times the parameters of the one from "
        "SmolLM2 that stands "
        "in for it.",
        ["unmask info 1028M", "unmask info smollm2-135m", "unmask info reversal-mdm"],
        [tidy.tabulate("table-1", "Shapes", lines, {name: name for name in lines[0]})],
    )


def show_sampling(rows: Rows) -> Part:
    """Table 2: how answers are drawn."""
    lengths = sorted({row["length"] for row in rows if row["model"] == "mdm"})
    lines = [
        {"config": "denoising steps", "the study": "16", "here": "1 to 32, all in table 3"},
        {"config": "context length", "the study": "52", "here": " or ".join(map(str, lengths))},
        {"config": "CFG scale", "the study": "0.8", "here": "0.8; 0 where states are traced"},
    ]
    return Part(
        "Table 2",
        "the sampling of the diffusion model",
        "The same settings; 52 tokens of another tokenizer hold another number of words.",
        ["unmask recall reversal-mdm --steps 16 --guidance 0.8"],
        [tidy.tabulate("table-2", "Sampling", lines, {name: name for name in lines[0]})],
    )


def show_steps(cells: Rows) -> Part:
    """Table 3 in the study's arrangement: published values, and ours beside each."""
    lines = []
    for steps in PUBLISHED["d2p_same"]:
        line: dict[str, Any] = {"steps": f"{steps} step{'s' if steps > 1 else ''}"}
        for split in WAYS:
            (cell,) = tidy.select(cells, model="mdm", split=split, steps=steps)
            line[f"{split} published"] = PUBLISHED[split][steps] / 100
            line[f"{split} here"] = tidy.to_interval(cell)
        lines.append(line)
    twin: dict[str, Any] = {"steps": "its twin, token by token"}
    for split in WAYS:
        (cell,) = tidy.select(cells, model="ar", split=split)
        twin |= {f"{split} published": None, f"{split} here": tidy.to_interval(cell)}
    columns: dict[Any, tidy.Get] = {"sampling steps": "steps"}
    for split, name in WAYS.items():
        for where in ("published", "here"):
            columns[Column(f"{name}: {where}", 1, is_percent=True)] = f"{split} {where}"
    caption = (
        "Answers contained, %. Description2Person: training has the description first; same: "
        "asked as trained. Published: "
        "SMDM-1028M. Here: three adaptations of SmolLM2-135M with three fine-tunings each [95 %: "
        "other facts, phrasings, "
        "adaptations]"
    )
    return Part(
        "Table 3",
        "recall against sampling steps",
        "From 1 step to 32 recall rises in both networks and all four columns; in reverse, names "
        "are "
        "near their height after four steps, and descriptions gain up to sixteen.",
        [
            f"unmask report --join {KEPT}/opening-0/recall {KEPT}/opening-1/recall "
            f"{KEPT}/opening-2/recall --out recall.md",
            "unmask recall reversal-mdm reversal-ar --steps 1,2,4,8,16,32 --guidance 0.8",
        ],
        [tidy.tabulate("table-3", caption, [*lines, twin], columns)],
    )


PLANNED: Mapping[str, tuple[str, str, str]] = {
    "Average indirect effects": (
        "results/tracing/trace-effects-residual-stream-1.png",
        "How much of what hiding the subject takes comes back with one role's states, by layer; "
        "MLPs and single tokens are "
        "choices on the HTML page of [tracing.md](results/tracing.md), attention beside both is "
        "on that of "
        "[tracing-roles.md](results/tracing-roles.md).",
        "python paper/draw_html.py tracing tracing-roles",
    ),
    "From t1 to t2": (
        "results/tracing-steps/trace-effects-t1-0.png",
        "The same step by step, from the step that commits the answer's first token; a slider on "
        "the HTML page of "
        "[tracing-steps.md](results/tracing-steps.md).",
        "python paper/draw_html.py tracing-steps",
    ),
    "Keys beside values": (
        "results/symmetry/symmetry-similarity-names-2.png",
        "Keys and values of the shipped pair's facts, every key beside every value "
        "([symmetry.md](results/symmetry.md)); "
        "spectra (SVD) and maps (PCA) are in the report of the command.",
        "unmask represent reversal-mdm reversal-ar --out runs/represent",
    ),
}
"""What the study plans beyond its figures: a picture, what it shows, and its command."""


def write_page(parts: Sequence[Part], page: Path) -> None:
    """Headings, pictures, sentences and commands, as Markdown; pictures in a folder beside it."""
    beside = page.with_suffix("")

    def draw(section: Section, figure: Figure) -> list[tuple[str, str]]:
        drawn = draw_figure(figure, beside, figure.name, is_paper=False)
        return [(words, f"{beside.name}/{file}") for words, file in drawn]

    def link(section: Section, table: Table) -> str:
        write_csv(table, beside / f"{table.name}.csv")
        return f"{beside.name}/{table.name}.csv"

    lines = ["# The study's figures and tables", " ".join(LEAD.split())]
    for part in parts:
        lines += [f"## {part.name}: {part.title}", *filter(None, [part.picture])]
        for block in part.shown:
            own = render_blocks(Section("study", ""), [block], draw, link)
            lines += own[:-1] if isinstance(block, Figure) else own
        lines += [part.sentence, "```\n" + "\n".join(part.commands) + "\n```"]
    lines += ["## What the study plans next"]
    for title, (picture, sentence, command) in PLANNED.items():
        lines += [f"### {title}", f"![{title}]({picture})", sentence, f"```\n{command}\n```"]
    with replace_file(page) as draft:
        draft.write_text("\n\n".join(lines) + "\n", "utf-8")


def main(words: Sequence[str] | None = None) -> None:
    """Write the page that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recall", nargs="+", type=Path, help="runs of recall, by adaptation")
    parser.add_argument("--knowns", nargs="+", type=Path, help="runs of knowns")
    parser.add_argument("--order", type=Path, help="a run of order")
    parser.add_argument("--page", type=Path, required=True, help="the .md file to write")
    options: Any = parser.parse_args(words)
    runs = list(map(read_result, options.recall))
    table = runs[0].tables["recall"]
    last = table.filter(pyarrow.compute.equal(table["steps"], STEPS))
    asked = [row for row in list_rows(last) if row["split"] in WAYS]
    cells = average_recall(runs)
    parts = [
        draw_curse(cells),
        show_canvas(),
        draw_knowns(pool_results(list(map(read_result, options.knowns)))),
        show_data(asked),
        *draw_order(read_result(options.order)),
        show_models(),
        show_sampling(asked),
        show_steps(cells),
    ]
    write_page(parts, options.page)


if __name__ == "__main__":
    main()
