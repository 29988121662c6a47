"""README, docs/findings.md and docs/details.md hold what pages and tables say."""

import re
from collections.abc import Iterable, Iterator
from statistics import mean

import pyarrow.parquet as pq
import pytest
from scipy.stats import ttest_ind

from tests.findings import (
    DETAILS,
    FINDINGS,
    LIMITS,
    README,
    RESULTS,
    TABLES,
    read_csv,
    read_numbers,
    read_page,
    read_rows,
    span,
    summarise,
)

END = r"([−+]?[\d.]+)"
INTERVAL = re.compile(rf"{END}(?: %| points| nats per token)? \[{END}, {END}\]")
"""A value with its ends."""


def read_intervals(text: str) -> list[tuple[float, ...]]:
    plain = " ".join(text.split())
    return [tuple(float(end.replace("−", "-")) for end in ends) for ends in INTERVAL.findall(plain)]


def list_measured(names: Iterable[str]) -> set[tuple[float, ...]]:
    """All intervals of some pages and of the tables beside them, also as rounder numbers."""
    found = set()
    for name in names:
        found.update(read_intervals(read_page(f"{name}.md")))
        for table in (RESULTS / name).glob("*.csv"):
            for row in read_csv(name, table.name):
                for key in (key for key in row if f"{key}, low" in row and row[key]):
                    ends = [float(row[key + end]) for end in ("", ", low", ", high")]
                    found.update([tuple(ends), tuple(100 * end for end in ends)])
    return found | set(round_all(found))


def round_all(intervals: Iterable[tuple[float, ...]]) -> Iterator[tuple[float, ...]]:
    for ends in intervals:
        yield from (tuple(round(end, digits) for end in ends) for digits in (0, 1, 2))


def test_findings_hold_what_their_pages_say():
    """Each number with an interval stands on a page that its own question links."""
    questions = FINDINGS.split("\n## ")[1:]
    assert len(questions) == 6 and len(read_intervals(FINDINGS)) <= 90
    for question in questions:
        pages = set(re.findall(r"\(results/([\w-]+)\.md\)", question))
        stated = read_intervals(question)
        assert len(stated) > 5 and set(stated) <= list_measured(pages), question.partition("\n")[0]
        (rows,) = re.findall(r"(?:^\|.*\n)+", question, re.MULTILINE)
        assert rows.count("\n") - 2 <= 6, "a table that is too long"
        for word in ("How we know", "What would change our mind", "Models behind it"):
            assert f"- **{word}.**" in question


def test_readme_says_what_the_findings_say():
    stated = read_intervals(README)
    said = read_intervals(FINDINGS)
    assert 4 <= len(stated) <= 8 and set(stated) <= {*said, *round_all(said)}


def test_shipped_table_is_what_was_measured():
    def read_cells(line: str) -> list[str]:
        return [cell.strip() for cell in line.split("|")[1:-1]]

    page = [read_cells(line) for line in read_page("recall-shipped.md").splitlines()]
    at = next(i for i, cells in enumerate(page) if cells[:2] == ["steps", "model"])
    measured = {
        cells[1]: dict(zip(page[at], cells, strict=True)) for cells in page[at + 2 : at + 4]
    }
    lines = [read_cells(line) for line in DETAILS.splitlines()]
    (ways,) = (cells[2:] for cells in lines if cells[:2] == ["model", "phrasing"])
    rows = [cells for cells in lines if cells[:1] in (["reversal-mdm"], ["reversal-ar"])]
    assert len(rows) == 4
    for model, phrasing, *shares in rows:
        suffix = ", far phrasing" if phrasing == "far" else ""
        assert shares == [measured[model][way + suffix] for way in ways]


def test_the_factorial_is_what_was_measured():
    """What is said of rows and of their differences: names first, then descriptions."""
    page, number = read_page("factorial.md"), r"([−\d.]+)"
    interval, share = (rf"{number}{unit} \[{number}, {number}\]" for unit in ("", " %"))
    points = rf"{number} points \[{number}, {number}\]"

    def find(row: str) -> list[float]:
        """The two reversed cells of the first table that has the row."""
        cells = next(line for line in page.splitlines() if f"| {row} |" in line).split("|")
        texts = [end for cell in (cells[-2], cells[-4]) for end in re.findall(r"[−\d.]+", cell)]
        return [float(end.replace("−", "-")) for end in texts]

    for row, sentence in {
        "S-alone": rf"wholly hidden, reversed answers are {share} and {share}, and",
        "S-not-both": rf"fully visible, they are {share} and {share}, no",
        "B-l2r": rf"such a network names {share} and describes {share} in reverse",
        "C-any": rf"before the row itself names {share} and describes {share} in reverse",
        "C-l2r": rf"next-token training has {share} and {share} with as many tokens",
        "C-perm": rf"random order has {share} and {share}, one",
        "C-rev": rf"reads lines in reverse {share} and {share}\.",
        "S-usual": rf"of both kinds, compared with {share} and {share} with the usual masks",
    }.items():
        assert read_numbers(sentence) == find(row), row
    gained = read_numbers(rf"any masks it gains {points} for names and {interval} for desc")
    assert gained == find("B-any − B-l2r")
    none = read_numbers(rf"reversed answers are {share} of both kinds, comp")
    for row in ("S-shown", "S-no-loss"):
        assert find(row) == [*none, *none]
    low, high = read_numbers(rf"intervals reach from {number} to \+{number} points")
    compared = ("B-l2r − C-l2r", "B-any − C-any", "B-any − C-perm")
    ends = [end for rows in compared for end in find(rows)]
    assert (low, high) == (round(min(ends)), round(max(ends)))


def test_two_ways_of_training_are_not_settled_by_either_interval():
    """Welch's over the seeds of S-not-both and S-usual, names in reverse."""
    shares = []
    for row in ("S-not-both", "S-usual"):
        table = pq.read_table(TABLES / f"factorial-{row}" / "prompts.parquet").to_pylist()
        own = [
            each for each in table if (each["split"], each["decoder"]) == ("p2d_reverse", "left")
        ]
        seeds = sorted({each["seed"] for each in own})
        shares.append([100 * mean(each["contained"] for each in own if each["seed"] == seed)
                       for seed in seeds])  # fmt: skip
    welch = ttest_ind(*shares, equal_var=False).confidence_interval()
    stated = read_numbers(r"for names \+(\S+) points, .*? intervals and \[(\S+), (\S+)\] by Welch")
    expected = [mean(shares[0]) - mean(shares[1]), welch.low, welch.high]
    assert stated == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(
    ("text", "beginning", "end", "pages"),
    [
        (DETAILS, "In the shipped one, read", "at any layer", "symmetry"),
        (DETAILS, "In the pretrained diffusion model it", "In the shipped", "symmetry-berglund"),
        (DETAILS, "Keys and values add little", "each the best", "symmetry-berglund"),
        (DETAILS, "**An edit does not carry over", "**In the pretrained", "editing-shipped"),
        (DETAILS, "**In the pretrained pair the twin's edits", "## What", "editing"),
        (DETAILS, "It is not absent there", "**A probe", "factorial"),
        (LIMITS, "In S-shown and S-no-loss", "And S-alone", "factorial"),
        (DETAILS, "**In the pretrained diffusion model a name", "**Recall", "mechanism"),
        (DETAILS, "**Recall in reverse does not need", "## Edits", "embeddings"),
        (DETAILS, "**What an answer has", "as ROME", "knockout paths tracing-knowns"),
    ],
)
def test_intervals_stand_on_the_pages(text, beginning, end, pages):
    text = " ".join(text.split())
    stated = read_intervals(text[text.index(beginning) :].partition(end)[0])
    assert len(stated) > 1 and set(stated) <= list_measured(pages.split())


def test_costs_at_text_scale_stand_on_the_pages():
    end = r"[+−]?[\d.]+"
    interval = rf"({end})(?: nats per token(?: of held-out text)?)? \[({end}), ({end})\]"

    def read(text: str) -> set[tuple[float, ...]]:
        plain = " ".join(text.split()).translate({ord("−"): "-", ord("+"): ""})
        found = re.findall(interval.replace("−", "-"), plain)
        return {tuple(round(float(each), 2) for each in ends) for ends in found}

    little = ("data-constrained", "data-constrained-small")
    names = ("families", "ablations", "quality", "mending", *little)
    pages = "".join(read_page(f"{name}.md") for name in names)
    stated = read(DETAILS.partition("## At text scale")[2])
    assert len(stated) > 20 and stated <= read(pages)
    rows = read_rows(pages, "| masked | remask unlikely | 0.05")
    found = sorted(float(cells[4].split()[0]) for cells in rows)
    assert read_numbers(r"of 5 % errors, (\S+) \[.*?\] to (\S+)") == [found[0], found[-1]]


def test_one_network_has_one_bound_under_every_schedule():
    table = read_page("families.md").partition("one network's bound under")[2]
    ends = [float(end.replace("−", "-")) for each in re.findall(r"\[(.*?)\]", table)
            for end in each.split(", ")]  # fmt: skip
    assert len(ends) == 2 * read_numbers(r"in the bound: (\d+) intervals include 0")[0]
    assert all(low < 0 < high for low, high in zip(ends[::2], ends[1::2], strict=True))
    assert round(max(map(abs, ends)), 2) == read_numbers(r"reach at most ([\d.]+) from it")[0]


def test_probes_of_the_other_groups_are_what_was_measured():
    rights = [round(100 * float(row["right, %"]))
              for row in read_csv("symmetry", "represent-probes.csv")
              if (row["model"], row["read"]) == ("reversal-mdm", "without masks")
              and row["facts"] != "facts trained name → description"
              and row["fitted on"] != row["tested on"]]  # fmt: skip
    assert len(rights) == 4
    stated = read_numbers(r"the best layer; (\d+) to (\d+) % in the other groups")
    assert stated == span(rights)


def test_exchanged_states_are_what_was_measured():
    curves = [row for row in summarise("shared-shipped/interchange")["curves"]
              if row["model"] == "reversal-mdm"]  # fmt: skip

    def read_shares(
        metric: str, swap: str, layers: range, *ways: str, tokens: str = "all"
    ) -> list[int]:
        return [round(100 * row["mean"]) for row in curves if row["layer"] in layers
                and (row["metric"], row["swap"], row["tokens"]) == (metric, swap, tokens)
                and (not ways or row["split"] in ways)]  # fmt: skip

    names, inner = ("d2p_same", "p2d_reverse", "both_d2p"), range(5)
    within = read_shares("says_donor", "within", inner, *names)
    assert read_numbers(r"bring that person's name in (\d+) to (\d+) %") == span(within)
    assert len(within) == 15 and set(read_shares("says_donor", "across", inner, *names)) == {0}
    last = read_shares("says_donor", "within", inner, *names, tokens="last")
    assert read_numbers(r"brings it in (\d+) to (\d+) % even from") == span(last)
    others = ("p2d_same", "d2p_reverse", "both_p2d")
    assert set(read_shares("says_donor", "within", inner, *others)) == {0}
    likelier = read_shares("prefers_donor", "across", range(-1, 0))
    assert read_numbers(r"own one in (\d+) to (\d+) %") == span(likelier)
    said = sorted(read_shares("says_donor", "across", range(-1, 0)))
    assert read_numbers(r"say it in (\d+) to (\d+) %, or (\d+) and (\d+) %") == [said[0], *said[3:]]
    where = ("reversal-mdm", -1, "says")
    gaps = [row for row in summarise("shared-shipped/erasure")["differences"]
            if (row["model"], row["start"], row["metric"]) == where]  # fmt: skip
    own = [round(-100 * row["mean"]) for row in gaps
           if (row["source"], row["minus"]) == ("own", "random")]  # fmt: skip
    assert read_numbers(r"diffusion model (\d+) to (\d+) points") == span(own)
    assert all(row["low"] < 0 < row["high"] or row["mean"] == 0 for row in gaps
               if (row["source"], row["minus"]) == ("other", "random"))  # fmt: skip


def test_the_shipped_pairs_path_is_what_was_measured():
    trace = summarise("shared-shipped/trace")
    cells = [row for row in trace["averages"] if row["model"] == "reversal-mdm"
             and (row["stage"], row["control"]) == ("first", "none")]  # fmt: skip
    totals = {row["split"]: row["mean"] for row in cells if row["part"] == "total"}

    def read_shares(role: str, *splits: str) -> list[int]:
        return [round(100 * row["mean"] / totals[row["split"]]) for row in cells
                if row["role"] == role and row["split"] in splits and row["layer"] < 5]  # fmt: skip

    names, descriptions = ("d2p_same", "p2d_reverse"), ("p2d_same", "d2p_reverse")
    subjects = read_shares("whole subject", *names)
    assert read_numbers(r"give back (\d+) to (\d+) % of what hiding it takes") == span(subjects)
    masks = read_shares("masks", *names)
    assert read_numbers(r"masks alone give back (\d+) % \[[^]]*\] to (\d+) %") == span(masks)
    most = [("whole answer", names), ("whole subject", descriptions)]
    assert read_numbers(
        r"positions at most (\d+) %, until .* at most (\d+) %, the answer's all of it"
    ) == [max(read_shares(role, *splits)) for role, splits in most]
    assert set(read_shares("whole answer", *descriptions)) == {100}
    bands = [row for row in trace["bands"] if row["stage"] == "first"
             and row["model"] == row["other_model"] == "reversal-mdm"]  # fmt: skip
    alike = [row for row in bands if row["split"] in descriptions]
    (unlike,) = (row for row in alike if row["p_equivalent"] >= 0.05)
    assert read_numbers(r"(\d+) of (\d+) differences are within") == [len(alike) - 1, len(alike)]
    assert all(row["p_holm"] > 0.05 for row in alike if row is not unlike)
    assert (unlike["role"], unlike["band"], unlike["p_holm"] < 0.05) == ("masks", "lower", True)
    assert read_numbers(r"third, by (−[\d.]+) \[(−[\d.]+), (−[\d.]+)\]") == [
        round(unlike[name], 2) for name in ("mean", "low", "high")
    ]
    wide = [row for row in bands if row["split"] in names and row["p_equivalent"] >= 0.05]
    assert {row["role"] for row in wide} == {"masks"}
    (margin,) = read_numbers(r"where a margin of ([\d.]+) would be needed")
    assert margin == round(max(row["smallest_margin"] for row in wide), 2)


def read_tables(*names: str) -> list[dict]:
    """The averages of traces, each as a share of its group's total effect."""
    rows = []
    for name in names:
        averages = summarise(name)["averages"]
        groups = {(row["split"], row["stage"]): row["mean"] for row in averages
                  if (row["part"], row["control"]) == ("total", "none")}  # fmt: skip
        for row in averages:
            if total := groups.get((row["split"], row["stage"])):
                rows.append(row | {"share": row["mean"] / total})
    return rows


def list_shares_of(rows: list[dict], role: str, layers: range, **where: str) -> list[int]:
    """Shares in percent of a role's restored states."""
    wanted = {"role": role, "part": "resid", "control": "none"} | where
    return [round(100 * row["share"]) for row in rows
            if row["layer"] in layers and wanted.items() <= row.items()]  # fmt: skip


@pytest.mark.prove
def test_layers_of_traced_states_are_what_was_measured():
    mdm = read_tables("traces-2/mdm", "traces-2/mdm-swapped")
    one_way = [row for row in mdm if not row["split"].startswith("both")]
    twins = read_tables("traces-2/ar", "traces-2/ar-swapped")
    (least,) = read_numbers(r"give back at least (\d+) % of what hiding it takes after each of")
    assert least == min(list_shares_of(mdm, "whole subject", range(10)))
    most, placebo, end, twins_most, twins_end = read_numbers(
        r"positions give back at most (\d+) % up to layer 20 of 30, where another fact's states "
        r"give there up to (\d+) %, and at least (\d+) % from layer 23 on: .* in the twin at most "
        r"(\d+) % and at least (\d+) %"
    )
    low, high = range(21), range(23, 30)
    assert most == max(list_shares_of(mdm, "whole answer", low))
    assert placebo == max(list_shares_of(mdm, "whole answer", low, control="other fact"))
    assert end == min(list_shares_of(mdm, "whole answer", high))
    assert twins_most == max(list_shares_of(twins, "whole answer", low))
    assert twins_end == min(list_shares_of(twins, "whole answer", high))
    names, *descriptions = read_numbers(
        r"a name's states give back at most (\d+) %, a description's (\d+) to (\d+) % up to "
        "layer 26"
    )
    given = {way: [row for row in one_way if row["split"] in way]
             for way in (("p2d_same", "d2p_reverse"), ("d2p_same", "p2d_reverse"))}  # fmt: skip
    by_name, by_description = given.values()
    assert names == max(list_shares_of(by_name, "whole subject", high))
    kept = list_shares_of(by_description, "whole subject", range(23, 27))
    assert descriptions == span(kept)


def read_bands() -> dict[tuple[str, str], list[dict]]:
    """Rows of the comparisons of the diffusion model's two ways of asking alike."""
    rows = read_csv("tracing", "trace-bands.csv")
    return {
        asked: [row for row in rows if all(row[side].startswith(f"mdm, {asked}")
                and "both ways" not in row[side] for side in ("one", "other"))]
        for asked in ("name → description", "description → name")
    }  # fmt: skip


def test_ways_of_asking_are_as_alike_as_was_measured():
    names, descriptions = read_bands().values()
    counts = [[sum(row[""].startswith(word) for row in rows) for word in ("alike", "differ")]
              for rows in (names, descriptions)]  # fmt: skip
    alike, all_names, open_names = read_numbers(
        r"total effect in (\d+) of (\d+) comparisons \([^)]*\), one differs, "
        r"within that margin, and (\d+) are not settled"
    )
    assert (len(names), counts[0]) == (all_names, [alike, 1])
    assert open_names == len(names) - alike - 1
    within = sum(row[""] == "differ, within the margin" for row in descriptions)
    assert read_numbers(
        r"name, (\d+) of (\d+) are alike and (\d+) differ, (\d+) of these within the margin"
    ) == [counts[1][0], len(descriptions), counts[1][1], within]
    stated = read_numbers(
        r"middle third by ([\d.]+) \[([\d.]+), ([\d.]+)\], at the answer in the upper third by "
        r"([\d.]+) \[([\d.]+), ([\d.]+)\]"
    )
    places = (("MLP output, whole subject", "10 to 19"),
              ("MLP output, all positions of the answer", "20 to 29"))  # fmt: skip
    ends = [f"difference of shares{end}" for end in ("", ", low", ", high")]
    assert stated == [round(float(row[end]), 2) for place in places for row in descriptions
                      if (row["restored"], row["layers"]) == place for end in ends]  # fmt: skip


def test_what_hiding_takes_is_what_was_measured():
    page = read_page("tracing.md")
    stated = read_numbers(
        r"takes more in reverse, ([\d.]+) nats per token \[([\d.]+), ([\d.]+)\] compared with "
        r"([\d.]+) \[([\d.]+), ([\d.]+)\], .* Hiding a name takes ([\d.]+) \[([\d.]+), "
        r"([\d.]+)\] compared with ([\d.]+) \[([\d.]+), ([\d.]+)\]"
    )
    ways = [f"{way}, {how}" for way in ("description → name", "name → description")
            for how in ("reversed", "as trained")]  # fmt: skip
    cells = [cell for way in ways for cell in read_rows(page, f"| **mdm** | **{way}**")[0][3:4]]
    measured = [float(end) for cell in cells for end in re.findall(r"[\d.]+", cell)]
    assert stated == pytest.approx(measured, abs=0.005)


def test_steps_are_what_was_measured():
    rows = {(row["asked"], row["step"]): row
            for row in read_csv("tracing-steps", "trace-steps.csv")}  # fmt: skip
    share = r"([\d.]+) \[([\d.]+), ([\d.]+)\]"
    stated = read_numbers(
        rf"takes {share.replace(' ', ' nats per token ', 1)} in reverse and {share} as trained; "
        rf"one step later {share} and {share}, .* give them {share} and {share}, and the "
        rf"description {share} and {share}"
    )
    lost, written = "lost, log-probability per token (nats)", "p from written tokens"
    ways = [f"description → name, {how}" for how in ("reversed", "as trained")]
    places = [(way, step, what) for step, what in (("t1 + 0", lost), ("t1 + 1", lost),
              ("t1 + 1", written), ("t1 + 1", "p from the subject")) for way in ways]  # fmt: skip
    measured = [float(rows[way, step][f"{what}{end}"])
                for way, step, what in places for end in ("", ", low", ", high")]  # fmt: skip
    assert stated == pytest.approx(measured, abs=0.005)
