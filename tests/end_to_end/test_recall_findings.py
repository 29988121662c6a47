"""What docs/findings.md and README say of recall is on its pages and in their tables."""

import csv
import re

from tests.findings import FINDINGS, README, RESULTS, read_numbers, read_page


def test_table_is_what_was_measured():
    written = read_page("recall.md").splitlines()
    rows = [line for line in FINDINGS.splitlines() if re.match(r"\| (\*?32\*?|–) \|", line)]
    assert len(rows) == 9 and len(set(rows)) == 9
    assert set(rows) <= set(written)


def test_shipped_table_is_what_was_measured():
    def read_cells(line: str) -> list[str]:
        return [cell.strip() for cell in line.split("|")[1:-1]]

    page = [read_cells(line) for line in read_page("recall-shipped.md").splitlines()]
    at = next(i for i, cells in enumerate(page) if cells[:2] == ["steps", "model"])
    measured = {
        cells[1]: dict(zip(page[at], cells, strict=True)) for cells in page[at + 2 : at + 4]
    }
    lines = [read_cells(line) for line in FINDINGS.splitlines()]
    (ways,) = (cells[2:] for cells in lines if cells[:2] == ["model", "phrasing"])
    rows = [cells for cells in lines if cells[:1] in (["reversal-mdm"], ["reversal-ar"])]
    assert len(rows) == 4
    for model, phrasing, *shares in rows:
        suffix = ", far phrasing" if phrasing == "far" else ""
        assert shares == [measured[model][way + suffix] for way in ways]


def test_the_sentence_is_what_the_table_says():
    share, text = r"([\d.]+)(?: %)? (\[[\d., ]+\])", " ".join(README.split())
    stated = re.search(
        rf"answers {share} of the questions about them and its twin, which read the same text, "
        rf"{share}; "
        rf"asked for a description, {share} and {share}",
        text,
    ).groups()
    lines = [line for line in FINDINGS.splitlines() if line.startswith(("| 32 |", "| – |"))]
    by_study = next(i for i, line in enumerate(lines) if i and line.split("|")[2] in lines[0])
    rows = {line.split("|")[2].strip(): line.split("|")[3:] for line in lines[:by_study]}
    shares = {model: [cell.strip() for cell in cells[:2]] for model, cells in rows.items()}
    listed = [" ".join(stated[i : i + 2]) for i in range(0, 8, 2)]
    models = ("mdm, guidance 0", "ar")
    assert listed == [shares[model][column] for column in (0, 1) for model in models]


def read_gaps() -> dict[tuple[str, str, str], list[float]]:
    """Differences of recall in points, by models, way of asking and rule."""
    with (RESULTS / "recall" / "recall-pairs.csv").open(encoding="utf-8") as file:
        lines = list(csv.reader(file))[1:]
    return {(one, asked, rule.partition(" ")[0]): [round(100 * float(end), 1) for end in ends]
            for one, asked, rule, *ends in lines}  # fmt: skip


def test_the_twin_is_ahead_by_what_was_measured():
    """By the study's rule; by what is said the intervals include 0."""
    gaps = read_gaps()
    stated = read_numbers(
        r"ahead, by (\S+) points \[(\S+), (\S+)\] with guidance 0.8 and (\S+) \[(\S+), (\S+)\] "
        "without; by what is said neither"
    )
    expected = []
    for guidance in ("0.8", "0"):
        key = f"mdm, guidance {guidance} − ar", "name → description, as trained"
        mean, low, high = gaps[*key, "contained"]
        expected += [-mean, -high, -low]
        assert gaps[*key, "content"][1] < 0 < gaps[*key, "content"][2]
    assert stated == expected


def test_what_guidance_changes_is_what_was_measured():
    gaps, key = read_gaps(), "mdm, guidance 0.8 − mdm, guidance 0"
    stated = read_numbers(
        r"in reverse by (\S+) points \[(\S+), (\S+)\] by what they say, and those as trained by "
        r"(\S+) \[(\S+), (\S+)\] by its rule: neither is settled"
    )
    assert stated == [*gaps[key, "name → description, reversed", "content"],
                      *gaps[key, "name → description, as trained", "contained"]]  # fmt: skip
    assert stated[1] < 0 < stated[2] and stated[4] < 0 < stated[5]


def test_every_phrasing_is_said():
    """By content every phrasing of descriptions in reverse, by the study's rule one in no text."""
    with (RESULTS / "recall" / "recall-phrasings-d2p-reverse.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "mdm, guidance 0"]
    said, contained = ([100 * float(row[next(name for name in row if name.startswith(rule))])
                        for row in rows] for rule in ("content", "contained"))  # fmt: skip
    assert (
        len(rows) == 10 and min(said) >= read_numbers(r"by what is said each has at least (\d+)")[0]
    )
    assert min(contained) == 0 and max(contained) > 75


def test_single_models_name_what_is_said():
    with (RESULTS / "recall" / "recall-runs.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file)
                if row["asked"] == "description → name, reversed"
                and row["counted"].startswith("contained")]  # fmt: skip
    by_model = {
        model: sorted(
            round(100 * float(row["recalled, %"]), 1) for row in rows if row["model"] == model
        )
        for model in ("mdm, guidance 0", "ar")
    }
    first, *others = by_model["mdm, guidance 0"]
    stated = read_numbers(
        r"one names (\S+) % in reverse without guidance and the others (\S+) to (\S+) %, of the "
        r"nine twins none more than (\S+) %"
    )
    assert stated == [first, others[0], others[-1], max(by_model["ar"])]
    assert f"diffusion models name {first:.0f} to {others[-1]:.0f} %" in " ".join(README.split())
