"""README and docs/findings.md hold what they say: Python, commands, numbers, the moving picture."""

import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from unmask.cli.main import app
from unmask.measures.runner import read_result
from unmask.measures.trace_summary import list_groups, name_cell

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
FINDINGS = (ROOT / "docs" / "findings.md").read_text("utf-8")
STORED = ROOT / "unmask" / "assets" / "results"

SMALLER = {
    "data make reversal": "--facts 10",
    "study": "--quick",
    "order": "--limit 2 --steps 2",
    "recall": "--limit 1 --steps 1 --no-controls",
    "perplexity": "--limit 200",
    "nll": "--limit 1",
    "factorization": "--limit 1",
    "knowns": "--limit 2",
    "trace": "--facts 2 --splits d2p_same --parts resid --steps 4 --at first --samples 1",
    "knockout": "--facts 2 --splits d2p_same --steps 4 --windows 1 --edges answer:subject",
    "paths": "--facts 2 --splits d2p_same --steps 4 --bands 2 --senders subject --no-heads",
    "represent": "--facts 10 --groups p2d --steps 2 --prefixes 1 --layer 2",
    "symmetry": "--permutations 20",
    "interchange": "--facts 2 --phrasings 1 --splits d2p_same --tokens last --layers 0",
    "erasure": "--facts 2 --phrasings 1 --groups d2p --states 8 --starts 0 --draws 1",
    "slots": "--facts 4 --phrasings 2 --groups d2p --permutations 99",
    "edit": "--facts 1 --groups p2d --layer 0 --moments identity --search-steps 2 --prefixes 1",
    "correctors": "--languages 1 --draws 1 --rows 4 --correctors uniform=1 --remaskings conf",
    "train": "data.facts=10 network.preset=tiny budget.steps=1 batch.rows=2 cadence.facts=0 "
    "cadence.samples=0",
    "toy": "--variants masked --steps 2 --samples 20",
}
"""What makes a command of the README short."""
LONG = {"study", "report", "harness", "edit", "interchange", "erasure", "slots", "correctors"}
LONG |= {"represent", "symmetry"}
"""Run by `make prove`."""
ELSEWHERE = {"quality", "mending", "guidance", "planted", "sweep"}
"""Need data or models of their own: their tests and the examples of their pages run them."""
SERVED = {"explore"}
"""Goes on until it is stopped: tests/explorer/test_explore_command.py runs it."""


def read_commands() -> list[list[str]]:
    (block,) = re.findall(r"```\n(unmask study .*?)```", README, re.DOTALL)
    return [shlex.split(re.split(r" {2,}", line)[0])[1:] for line in block.splitlines()]


def execute(words: list[str]) -> None:
    name = " ".join(words[:3])
    more = SMALLER.get(name if name in SMALLER else words[0], "").split()
    assert app([*words, *more], standalone_mode=False) in (None, 0), words


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder to run commands in, with the files that they name."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "README.md", tmp_path)
    known = {"subject": "Bjorn", "attribute": "one", "template": "{} is the"}
    known |= {"prompt": "Bjorn is the", "prediction": " one", "relation_id": "P1"}
    (tmp_path / "knowns.json").write_text(json.dumps([known | {"known_id": 0}]))
    page = (ROOT / "docs" / "verbs" / "harness.md").read_text("utf-8")
    for name, text in re.findall(r"```\w+ (friends\.\w+)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_commands(folder):
    for words in read_commands():
        if words[0] not in LONG | ELSEWHERE | SERVED:
            execute(words)


@pytest.mark.prove
def test_long_commands(folder):
    for words in read_commands():
        if words[0] in LONG or words[:3] == ["data", "make", "reversal"]:
            execute(words)
    assert (folder / "runs" / "study" / "page.html").is_file()


def test_three_lines(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert "Renzo Calverinth" in capsys.readouterr().out
    assert "Renzo Calverinth" not in code


def test_table_is_what_was_measured():
    written = read_page("recall.md").splitlines()
    rows = [line for line in FINDINGS.splitlines() if re.match(r"\| (\*?32\*?|–) \|", line)]
    assert len(rows) == 6
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
        rf"recalls {share} of Berglund's facts and its twin, which read the same text, {share}; "
        rf"asked for a description, {share} and {share}",
        text,
    ).groups()
    rows = {line.split("|")[2].strip(): line.split("|")[3:] for line in FINDINGS.splitlines()
            if line.startswith(("| 32 |", "| – |"))}  # fmt: skip
    shares = {model: [cell.strip() for cell in cells[:2]] for model, cells in rows.items()}
    listed = [" ".join(stated[i : i + 2]) for i in range(0, 8, 2)]
    models = ("mdm, guidance 0.8", "ar")
    assert listed == [shares[model][column] for column in (0, 1) for model in models]


def test_the_twin_is_ahead_by_what_was_measured():
    with (ROOT / "docs" / "results" / "recall" / "recall-pairs.csv").open(encoding="utf-8") as file:
        pairs = {(models, asked): ends for models, asked, *ends in csv.reader(file)}
    stated = read_numbers(
        r"ahead, by (\S+) points \[(\S+), (\S+)\] with guidance 0.8 "
        r"and (\S+) \[(\S+), (\S+)\] without"
    )
    expected = []
    for guidance in ("0.8", "0"):
        ends = pairs[f"mdm, guidance {guidance} − ar", "name → description, as trained"]
        mean, low, high = (round(-100 * float(end), 1) for end in ends)
        expected += [mean, high, low]
    assert stated == expected


def test_the_factorial_is_what_was_measured():
    page, number = read_page("factorial.md"), r"([−\d.]+)"
    interval = rf"{number} \[{number}, {number}\]"
    objective, attention = (
        read_rows(page, f"| {rows} ")[0][2:] for rows in ("**B-any − B-l2r**", "B-l2r − C-l2r")
    )
    for cells, sentence in (
        (
            objective,
            rf"adds {number} points \[{number}, {number}\] for .*?, and {interval} for name",
        ),
        (attention, rf"no clear difference: {number} points \[{number}, {number}\] and {interval}"),
    ):
        found = [re.findall(r"[−+]?[\d.]+", cells[column]) for column in (3, 1)]
        assert read_numbers(sentence) == [
            float(end.replace("−", "-")) for cell in found for end in cell
        ]


def test_the_moving_picture_is_small_and_needs_nothing_else():
    picture = (ROOT / "docs" / "unmasking.svg").read_text("utf-8")
    assert "docs/unmasking.svg" in README[:900] and len(picture) < 1_000_000
    assert "<script" not in picture and "href" not in picture and "url(" not in picture
    assert picture.count('class="f"') > 12 and "prefers-reduced-motion" in picture


def read_page(name: str) -> str:
    return (ROOT / "docs" / "results" / name).read_text("utf-8")


def read_numbers(pattern: str) -> list[float]:
    """The numbers of a sentence of docs/findings.md, wherever its lines break."""
    return [
        float(x.replace("−", "-")) for x in re.search(pattern, " ".join(FINDINGS.split())).groups()
    ]


def read_rows(page: str, beginning: str) -> list[list[str]]:
    """The cells of a table's rows that begin so."""
    found = [line for line in page.splitlines() if line.startswith(beginning)]
    return [[cell.strip(" *") for cell in line.strip("| ").split("|")] for line in found]


def test_probes_are_what_was_measured():
    text = read_page("symmetry-berglund.md")
    probes = text[text.index("## Probes") :]
    across = {
        model: [
            (int(layer), round(100 * float(accuracy.split()[0])))
            for _, _, layer, fitted, tested, accuracy, *_ in read_rows(probes, f"| {model} |")
            if fitted != tested
        ]
        for model in ("berglund-mdm", "berglund-ar")
    }
    *stated, first_layer, most = read_numbers(
        r"(\d+) to (\d+) % after layer 0 and for (\d+) to (\d+) % from layer (\d+) of 30 on; "
        r"in its twin for at most (\d+) % at any layer"
    )
    first = [share for layer, share in across["berglund-mdm"] if layer == 0]
    later = [share for layer, share in across["berglund-mdm"] if layer >= first_layer]
    assert stated == [min(first), max(first), min(later), max(later)]
    assert most == max(share for _, share in across["berglund-ar"])


def list_shares(page: str) -> set[str]:
    """All shares with intervals that a page or its tables hold, as sentences write them."""
    found = set(re.findall(r"\d+ % \[\d+, \d+\]", read_page(f"{page}.md")))
    for table in (ROOT / "docs" / "results" / page).glob("*.csv"):
        with table.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                for name in (name for name in row if f"{name}, low" in row and row[name]):
                    mean, low, high = (float(row[name + end]) for end in ("", ", low", ", high"))
                    found.add(f"{100 * mean:.0f} % [{100 * low:.0f}, {100 * high:.0f}]")
    return found


@pytest.mark.parametrize(
    ("beginning", "end", "pages"),
    [
        ("In the shipped one, read", "at any layer", ("symmetry",)),
        ("**States of one direction", "**An edit", ("cities", "mechanism-shipped")),
        ("**An edit is silent", "**Where", ("editing-shipped",)),
    ],
)
def test_shares_stand_on_the_pages(beginning, end, pages):
    text = " ".join(FINDINGS.split())
    passage = text[text.index(beginning) :].partition(end)[0]
    stated = re.findall(r"\d+ % \[\d+, \d+\]", passage)
    assert len(stated) > 2
    assert set(stated) <= set().union(*map(list_shares, pages))


def test_the_shipped_pairs_path_is_what_was_measured():
    trace = read_result(ROOT / "docs" / "results" / "tables" / "shared-shipped" / "trace").summary
    cells = [row for row in trace["averages"] if row["model"] == "reversal-mdm"
             and (row["stage"], row["control"]) == ("first", "none")]  # fmt: skip
    totals = {row["split"]: row["mean"] for row in cells if row["part"] == "total"}

    def read_shares(role: str, *splits: str) -> list[int]:
        return [round(100 * row["mean"] / totals[row["split"]]) for row in cells
                if row["role"] == role and row["split"] in splits and row["layer"] < 5]  # fmt: skip

    names, descriptions = ("d2p_same", "p2d_reverse"), ("p2d_same", "d2p_reverse")
    assert min(read_shares("whole subject", *names)) >= 99
    stated = read_numbers(
        r"positions at most (\d+) %, until .* at most (\d+) %, the answer's (\d+) to (\d+) %"
    )
    answers = read_shares("whole answer", *descriptions)
    assert stated == [
        max(read_shares("whole answer", *names)),
        max(read_shares("whole subject", *descriptions)),
        min(answers),
        max(answers),
    ]
    bands = [row for row in trace["bands"] if row["stage"] == "first"
             and row["model"] == row["other_model"] == "reversal-mdm"]  # fmt: skip
    alike = [row for row in bands if row["split"] in descriptions]
    assert read_numbers(r"all (\d+) differences") == [len(alike)]
    assert all(row["p_equivalent"] < 0.05 < row["p_holm"] for row in alike)
    wide = [row for row in bands if row["split"] in names and row["p_equivalent"] >= 0.05]
    assert {row["role"] for row in wide} == {"masks"}
    (margin,) = read_numbers(r"where a margin of ([\d.]+) would be needed")
    assert margin == round(max(row["smallest_margin"] for row in wide), 2)


def test_keys_and_values_are_what_was_measured():
    page = read_page("symmetry-berglund.md")
    layer, *shares, most = read_numbers(
        r"at layer (\d+) a name's value, .* for (\d+) % of .* and (\d+) % of the others, the MLP's "
        r"output without any search for (\d+) and (\d+) %, and what the search added for (\d+) and "
        r"(\d+) %; in the twin all six are at most (\d+) %"
    )
    (header,) = read_rows(page, "| model | facts trained | comparison |")
    column = header.index(f"layer {layer:.0f}")

    def read_shares(model: str) -> list[float]:
        return [
            float(row[column].strip("*").split(", ")[1].rstrip(" %"))
            for other in ("value", "v0", "delta")
            for trained in ("p2d", "d2p")
            for row in read_rows(page, f"| {model} | {trained} | name: key and {other} |")
        ]

    assert shares == read_shares("berglund-mdm")
    assert most == max(read_shares("berglund-ar"))


def read_groups(name: str, corruption: str, stage: str) -> dict[str, dict]:
    """The averages of a page's diffusion model by way of asking, and by name what is clear."""
    averages = read_result(STORED / name).summary["averages"]
    return {
        group["split"]: group
        for group in list_groups(averages)
        if (group["model"], group["corruption"], group["stage"]) == ("diffusion", corruption, stage)
    }


def test_traced_states_are_what_was_measured():
    verdicts, best = read_result(STORED / "tracing-berglund").verdicts, []
    for group in read_groups("tracing-berglund", "gaussian", "first").values():
        cell = group["best"]
        assert verdicts[name_cell(cell)].is_clear
        best.append(round(100 * cell["mean"] / group["total"]["mean"]))
    assert read_numbers(r"gives back (\d+) to (\d+) % in the four ways") == [min(best), max(best)]


def test_leading_states_are_what_was_measured():
    leaders = {}
    for cell in read_result(STORED / "tracing-berglund").summary["averages"]:
        kind = (cell["model"], cell["corruption"], cell["stage"], cell["part"], cell["control"])
        if kind == ("diffusion", "gaussian", "first", "resid", "none"):
            place = cell["split"], cell["layer"]
            leaders[place] = max(leaders.get(place, (0.0, "")), (cell["mean"], cell["role"]))
    assert len({split for split, _ in leaders}) == 4
    (last,) = read_numbers(r"Up to layer (\d+) such a state gives back more than")
    for (_, layer), (_, role) in leaders.items():
        if layer <= last + 1:
            assert role.endswith("subject") == (layer <= last)


@pytest.mark.parametrize(
    ("splits", "sentence"),
    [
        (
            ("p2d_same", "d2p_reverse"),
            r"reversed: ([\d.]+) and ([\d.]+) nats are lost, a difference of ",
        ),
        (("d2p_same", "p2d_reverse"), r"differ: ([\d.]+) against ([\d.]+) nats, by "),
    ],
)
def test_traced_differences_are_what_was_measured(splits, sentence):
    groups = read_groups("tracing-berglund", "gaussian", "first")
    lost = [round(groups[split]["total"]["mean"], 1) for split in splits]
    (test,) = (
        test
        for test in read_result(STORED / "tracing-berglund").summary["tests"]
        if {test["split"], test["other_split"]} == set(splits)
        and test["model"] == test["other_model"] == "diffusion"
        and (test["corruption"], test["stage"], test["part"]) == ("gaussian", "first", "total")
    )
    ends = [test["mean"], test["low"], test["high"]]
    if test["split"] == splits[0]:
        ends = [-test["mean"], -test["high"], -test["low"]]
    difference = [round(x, 1) for x in ends]
    assert read_numbers(sentence + r"(\S+) \[(\S+), (\S+)\]") == [*lost, *difference]


def test_last_steps_are_what_was_measured():
    groups = read_groups("tracing-berglund", "mask", "last")
    most, *shares = read_numbers(
        r"takes at most ([\d.]+) nats, yet Shapley's shares give it ([\d.]+) and ([\d.]+) of the "
        r"probability of names \(([\d.]+) and ([\d.]+) of descriptions\)"
    )
    assert most == round(max(group["total"]["mean"] for group in groups.values()), 2)
    ways = ("p2d_reverse", "d2p_same", "d2p_reverse", "p2d_same")
    assert shares == [round(groups[way]["subject"]["mean"], 2) for way in ways]


def test_every_verb_is_listed():
    listed = {words[0] for words in read_commands()}
    known = {command.name for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    assert known <= listed
