"""What docs/details.md says of recall is on its pages, in their tables and in the kept rows."""

import re
from statistics import mean

import pyarrow.parquet as pq

from tests.findings import DETAILS, TABLES, read_csv, read_numbers, read_page

RULES = {"contained": "contained (the study's rule)", "content": "content"}


def read_tables() -> list[list[list[str]]]:
    """The cells of the two tables: by the rule of each way of asking, and by the study's."""
    parts = re.findall(r"\| steps \| model \|.*\n\| --- .*\n((?:\|.*\n)+)", DETAILS)
    return [[[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines()]
            for part in parts[:2]]  # fmt: skip


def test_the_study_s_rule_is_what_was_measured():
    written = read_page("recall.md")
    _, rows = read_tables()
    assert len(rows) == 4 and all("| " + " | ".join(row) + " |" in written for row in rows)


def test_headlines_are_what_was_measured():
    """Names contained, descriptions by content, in the order of the table's columns."""
    rows, _ = read_tables()
    heads = re.search(r"\| steps \| model \| (.*) \|\n", DETAILS)[1].split(" | ")
    measured = {
        (row["model"], row["asked"]): row for row in read_csv("recall", "recall-matches.csv")
    }
    assert len(rows) == 5
    for _, model, *cells in rows:
        for head, cell in zip(heads, cells, strict=True):
            rule = RULES["content" if "→ description" in head else "contained"]
            own = measured[model, head]
            ends = [100 * float(own[f"{rule}, %{end}"]) for end in ("", ", low", ", high")]
            assert cell == "{:.1f} [{:.1f}, {:.1f}]".format(*ends), (model, head)


def read_gaps() -> dict[tuple[str, str, str, str], list[float]]:
    """Differences of recall in points, by both models, way of asking and rule."""
    rows = read_csv("recall", "recall-differences.csv")
    gaps = {}
    for row in rows:
        names = [name for name in row if f"{name}, low" in row and row[name]]
        for name in names:
            ends = [round(100 * float(row[name + end]), 1) for end in ("", ", low", ", high")]
            rule = (row.get("counted") or row.get("of") or name).partition(" ")[0]
            gaps[row["model"], row["minus"], row["asked"], rule.rstrip(",")] = ends
    return gaps


def test_the_twin_is_ahead_by_what_was_measured():
    """By the study's rule; by what is said the intervals include 0."""
    gaps = read_gaps()
    stated = read_numbers(
        r"ahead, by (\S+) points \[(\S+), (\S+)\] with guidance 0.8 and (\S+) \[(\S+), "
        r"(\S+)\] without; by what is said neither"
    )
    expected = []
    for guidance in ("0.8", "0"):
        key = f"mdm, guidance {guidance}", "ar", "name → description, as trained"
        least, low, high = gaps[*key, "contained"]
        expected += [-least, -high, -low]
        assert gaps[*key, "content"][1] < 0 < gaps[*key, "content"][2]
    assert stated == expected


def test_what_guidance_changes_is_what_was_measured():
    gaps, key = read_gaps(), ("mdm, guidance 0.8", "mdm, guidance 0")
    stated = read_numbers(
        r"in reverse by (\S+) points \[(\S+), (\S+)\] by what they say, and those as trained by "
        r"(\S+) \[(\S+), (\S+)\] by its rule: neither is settled"
    )
    assert stated == [*gaps[*key, "name → description, reversed", "content"],
                      *gaps[*key, "name → description, as trained", "contained"]]  # fmt: skip
    assert stated[1] < 0 < stated[2] and stated[4] < 0 < stated[5]


def test_every_phrasing_is_said():
    """By content every phrasing of descriptions in reverse, by the study's rule one in no text."""
    rows = read_csv("recall", "recall-phrasings-d2p-reverse.csv")
    rows = [row for row in rows if row["model"] == "mdm, guidance 0"]
    says, contained = (
        [100 * float(row[f"{rule}, %"]) for row in rows]
        for rule in (RULES["content"], RULES["contained"])
    )
    (least,) = read_numbers(r"by what is said each has at least (\d+)")
    assert len(rows) == 10 and min(says) >= least
    assert min(contained) == 0 and max(contained) > 75


def test_single_models_name_what_is_said():
    """Names in reverse, contained, of each training run at the most steps and without guidance."""
    shares: dict[str, list[float]] = {"mdm": [], "ar": []}
    columns = ["model", "seed", "steps", "guidance", "hit"]
    for opening in range(3):
        path = TABLES / f"opening-{opening}" / "recall" / "recall.parquet"
        table = pq.read_table(path, columns=columns, filters=[("split", "==", "p2d_reverse")])
        rows = [row for row in table.to_pylist() if row["steps"] in (None, 32)]
        rows = [row for row in rows if row["guidance"] in (None, 0.0) and row["model"] in shares]
        for run in sorted({(row["model"], row["seed"]) for row in rows}):
            hits = [row["hit"] for row in rows if (row["model"], row["seed"]) == run]
            shares[run[0]].append(round(100 * mean(hits), 1))
    first, *others = sorted(shares["mdm"])
    stated = read_numbers(
        r"one names (\S+) % in reverse without guidance and the others (\S+) to (\S+) %, of the "
        r"nine twins none more than (\S+) %"
    )
    assert len(others) == 8 and stated == [first, others[0], others[-1], max(shares["ar"])]
