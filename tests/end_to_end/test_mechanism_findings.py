"""What docs/details.md says of the pretrained pair is on pages and in tables."""

import re
from collections import defaultdict
from statistics import mean, stdev

import pyarrow.parquet as pq
import pytest
from scipy.stats import t

from tests.findings import DETAILS, TABLES, read_numbers, read_page, read_rows, span, summarise


def test_what_descriptions_cost_is_what_the_table_says():
    number = r"([+−]?[\d.]+)(?: nats per token)? (\[[^]]+\])"
    stated = re.search(
        rf"costs {number} more than a name in the diffusion model, {number} in the twin; "
        rf"alone, .*?, {number} and {number}: harder where",
        " ".join(DETAILS.split()),
    ).groups()
    page = read_page("costs.md")
    for model, cost, interval in zip(("mdm", "ar"), stated[:4:2], stated[1:4:2], strict=True):
        said = f"In {model}, descriptions cost {cost} nats per token {interval} compared with names"
        assert f"{said}, asked as trained" in page
    asked = ("name → description", "description → name")
    alone = [read_rows(page, f"| mdm | {each}, as trained |")[0][5] for each in asked]
    assert alone == [" ".join(stated[4:6]), " ".join(stated[6:])]


@pytest.mark.prove
def test_names_bring_names_from_a_depth_on():
    curves = summarise("donors/interchange")["curves"]
    wanted = {"model": "mdm", "tokens": "all", "metric": "says_donor", "swap": "across"}
    names = ("d2p_same", "p2d_reverse", "both_d2p")

    def list_means(layers: range) -> list[int]:
        return [round(100 * row["mean"]) for row in curves if row["layer"] in layers
                and row["split"] in names and wanted.items() <= row.items()]  # fmt: skip

    most, low, high = read_numbers(
        r"bring it in at most (\d+) %, after layers 18 to 21 in (\d+) to (\d+) %, after"
    )
    deep = list_means(range(18, 22))
    assert most == max(list_means(range(-1, 13)))
    assert [low, high] == span(deep) and max(list_means(range(23, 30))) < 2
    strangers = [row["mean"] for row in curves if row["swap"] == "untrained"
                 and row["metric"] == "says_donor" and row["model"] in ("mdm", "ar")]  # fmt: skip
    assert strangers and max(strangers) == 0, "people whom training never named bring nothing"
    copied = [
        [round(100 * row["mean"]) for row in curves if row["layer"] == layer
         and row["model"] == "opened" and row["swap"] == "untrained" and row["tokens"] == "all"
         and row["metric"] == "prefers_donor" and row["split"] in names]
        for layer in (-1, 19)
    ]  # fmt: skip
    stated = read_numbers(
        r"from the embeddings on \((\d+) %\) .* \((\d+) to (\d+) % after layer 19"
    )
    assert stated == [min(copied[0]), *span(copied[1])] and len(copied[0]) == 3


def test_strangers_names_would_have_more_to_overcome():
    """What a donor's name costs, asked in reverse, before any state is moved."""
    where = [("model", "==", "mdm"), ("split", "==", "p2d_reverse"), ("tokens", "==", "all")]
    table = TABLES / "donors" / "interchange" / "interchange.parquet"
    columns = ["swap", "layer", "logp_donor"]
    costs = defaultdict(list)
    for row in pq.read_table(table, filters=where, columns=columns).to_pylist():
        if row["layer"] is None:
            costs[row["swap"]].append(-row["logp_donor"])
    measured = [round(mean(costs[swap])) for swap in ("untrained", "across")]
    said = r"name costs (\d+) nats in reverse, that of another trained person (\d+)"
    assert read_numbers(said) == measured


@pytest.mark.prove
def test_the_two_directions_of_donors_are_as_near_as_was_measured():
    """Where no difference is told, every interval includes 0, and the widest ends are said."""
    rows = [row for row in summarise("donors/interchange")["differences"]
            if (row["model"], row["tokens"], row["minus"]) == ("mdm", "all", "within")
            and row["split"] in ("d2p_same", "p2d_reverse", "both_d2p")]  # fmt: skip
    assert len(rows) == 3 and all(row["low"] < 0 < row["high"] for row in rows)
    assert read_numbers(r"\(no difference detected; the intervals reach from (\S+) to \+(\d+)") == [
        round(100 * min(row["low"] for row in rows)),
        round(100 * max(row["high"] for row in rows)),
    ]


def test_what_hiding_takes_in_each_group_of_people():
    """Each fact's total effect in reverse minus as trained, from tables of both trainings."""
    totals = {}
    for name in ("mdm", "mdm-swapped"):
        wanted = [("part", "in", ["clean", "corrupted"]), ("control", "==", "none")]
        values = defaultdict(list)
        for row in pq.read_table(
            TABLES / "traces-2" / name / "trace.parquet", filters=wanted
        ).to_pylist():
            values[row["split"], row["fact"], row["part"]].append(row["value"])
        for split, fact, part in values:
            if part == "clean" and split in ("d2p_same", "p2d_reverse"):
                clean, corrupted = (values[split, fact, each] for each in ("clean", "corrupted"))
                totals[split, fact] = mean(clean) - mean(corrupted)
    measured = []
    for group in ("d2p", "p2d"):
        gaps = [totals["p2d_reverse", fact] - total for (split, fact), total in totals.items()
                if split == "d2p_same" and fact.startswith(group)]  # fmt: skip
        half = t.ppf(0.975, len(gaps) - 1) * stdev(gaps) / len(gaps) ** 0.5
        measured += [mean(gaps), mean(gaps) - half, mean(gaps) + half]
    interval = r"([−\d.]+) \[([−\d.]+), ([−\d.]+)\]"
    stated = read_numbers(rf"in one group of people {interval}, in the other {interval}, most")
    assert stated == pytest.approx(measured, abs=0.005)


def test_probes_at_the_embeddings_are_what_was_measured():
    """Across directions, of all readings and groups: where embeddings are trained, and left."""
    # The run's summary has its permutations, which take minutes: shares are counted here.
    table = TABLES / "apart" / "represent" / "probes.parquet"
    hits = defaultdict(list)
    for row in pq.read_table(table, filters=[("layer", "==", -1)]).to_pylist():
        if row["fitted"] != row["tested"]:
            probe = row["group"], row["reading"], row["fitted"]
            hits[row["model"], probe].append(row["fact"] == row["predicted"])
    shares = defaultdict(list)
    for (model, _), each in hits.items():
        shares[model].append(round(100 * sum(each) / len(each)))
    stated = read_numbers(
        r"fall to (\d+) to (\d+) % at the embeddings \((\d+) to (\d+) % where they"
    )
    left = shares["input-frozen"] + shares["both-frozen"]
    assert stated == [*span(left), *span(shares["tied"])]


def test_severed_states_are_what_was_measured():
    """Shares of the subject's states after the first ten layers, with a part above them severed."""
    said = read_numbers(
        r"still give back (\S+) to (\S+) % in the diffusion model, and (\S+) and (\S+) % in the "
        r"twin, .* where attention adds nothing, (\S+) to (\S+) % and (\S+) and (\S+) % \("
    )
    measured = []
    for severed in ("no-mlp", "no-attn"):
        averages = summarise(f"needs-2/{severed}")["averages"]
        totals = {(row["model"], row["split"]): row["mean"] for row in averages
                  if (row["part"], row["control"]) == ("total", "none")}  # fmt: skip
        shares = {}
        for group, total in totals.items():
            own = [row["mean"] for row in averages if (row["model"], row["split"]) == group
                   and row["role"] == "whole subject" and row["control"] == "none"
                   and row["part"] == "resid" and row["layer"] < 10]  # fmt: skip
            shares[group] = round(100 * sum(own) / len(own) / total)
        masked = (share for (model, _), share in shares.items() if model == "mdm")
        measured += [*span(masked), shares["ar", "d2p_same"], shares["ar", "p2d_same"]]
    assert said == measured
