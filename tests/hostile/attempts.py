"""`python -m tests.hostile attempts`: every kind of attempt of the reviews, and how each ends now.

An attempt is a case of a test, which says what must come of it; the cases are run, and counted by
what came of them. The table is written to attempts.md.
"""

from collections import Counter
from collections.abc import Sequence

from tests.hostile.pages import write_page

SENTENCE, FINE = "sentence", "fine"
WRONG = ("wrong without a word", "traceback", "hang")
HOSTILE = "tests/hostile/"
ATTEMPTS: list[tuple[str, str, list[str]]] = [
    ("chat templates that loop, divide, include or fill the memory", SENTENCE,
     [HOSTILE + "test_templates.py"]),
    ("`--guidance 1e39`, `--number` 2^63, `--kind gaussian` for a masked network", SENTENCE,
     [HOSTILE + "test_mistakes.py::test_numbers_and_kinds"]),
    ("networks and vocabularies that nothing holds", SENTENCE,
     [HOSTILE + "test_mistakes.py::test_networks", HOSTILE + "test_mistakes.py::test_a_tensor"]),
    ("`RANK=abc`, processes that cannot meet", SENTENCE,
     [HOSTILE + "test_mistakes.py::test_ranks", HOSTILE + "test_mistakes.py::test_processes"]),
    ("more processes than a machine has, work that is nowhere", SENTENCE,
     ["tests/base/test_work.py::test_mistakes_are_sentences"]),
    ("output places that are addresses, not UTF-8 or a pipe", SENTENCE,
     [HOSTILE + "test_mistakes.py::test_places", HOSTILE + "test_mistakes.py::test_what_is_no"]),
    ("edits whose files have other shapes or no record", SENTENCE,
     [HOSTILE + "test_mistakes.py::test_edits"]),
    ("tasks given as a folder", SENTENCE, [HOSTILE + "test_mistakes.py::test_a_task"]),
    ("hosts that only look like this machine, calls without the token", SENTENCE,
     ["tests/explorer/test_server.py::test_names_that_point_here",
      "tests/explorer/test_server.py::test_calls_need_the_token"]),
    ("spoiled requests to the explorer (700 of them in one test)", SENTENCE,
     [HOSTILE + "test_explorer_requests.py"]),
    ("`--fresh` where a user's own files are", FINE,
     [HOSTILE + "test_runs.py::test_fresh", "tests/training/test_inputs.py::test_fresh"]),
    ("runs among the files of others, with and without `--fresh`", SENTENCE,
     [HOSTILE + "test_runs.py::test_nothing_begins"]),
    ("runs that go on with other data, weights, tokenizer, code, settings or verb", SENTENCE,
     [HOSTILE + "test_runs.py::test_a_run_goes_on", HOSTILE + "test_runs.py::test_training"]),
    ("sweeps with replaced data", SENTENCE,
     [HOSTILE + "test_runs.py::test_a_sweep", "tests/sweep/test_sweep.py::test_data_that_cells",
      "tests/sweep/test_sweep.py::test_training_data"]),
    ("two functions of one name, told apart by their code", FINE, ["tests/base/test_code.py"]),
    ("tokenizers that lack characters", SENTENCE, ["tests/data/test_unknown.py"]),
    ("completions in scripts without spaces", FINE,
     ["tests/data/test_facts.py::test_no_space_is_put"]),
    ("intervals that leave what is possible", FINE,
     ["tests/results/test_comparison.py::test_no_interval_leaves"]),
    ("leaks in own files and corpora, in any wording", SENTENCE,
     ["tests/data/test_leaks.py", "tests/measures/test_trained_leaks.py"]),
    ("leaks between sources of a mixture, and in running text", SENTENCE,
     ["tests/training/test_recipe_leaks.py"]),
    ("files that say something twice, too much or not to the end", SENTENCE,
     [HOSTILE + "test_wrong_files.py", HOSTILE + "test_hostile_files.py"]),
    ("names and texts that would be elements, columns or formulas of a page", FINE,
     [HOSTILE + "test_pages.py"]),
]  # fmt: skip
"""What was tried, how it must end, and the tests, by how their names begin."""


class Outcomes:
    """Cases by kind of attempt and by how they ended."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {what: Counter() for what, _, _ in ATTEMPTS}

    def pytest_collection_modifyitems(self, items: list) -> None:
        named = tuple(name for _, _, names in ATTEMPTS for name in names)
        items[:] = [item for item in items if item.nodeid.startswith(named)]

    def pytest_runtest_logreport(self, report) -> None:
        if report.skipped or (report.when != "call" and not report.failed):
            return
        for what, ends, names in ATTEMPTS:
            if report.nodeid.startswith(tuple(names)):
                self.counts[what][_judge(str(report.longrepr)) if report.failed else ends] += 1


def _judge(error: str) -> str:
    """How an attempt ended that did not end as it must."""
    if "TooLongError" in error or "TimeoutExpired" in error:
        return "hang"
    return "wrong without a word" if "DID NOT RAISE" in error or "assert " in error else "traceback"


def main(words: Sequence[str]) -> int:
    """Run the attempts and write the table."""
    import pytest

    outcomes = Outcomes()
    files = dict.fromkeys(name.partition("::")[0] for _, _, names in ATTEMPTS for name in names)
    usual = ["-q", "--tb=short", "-p", "no:cacheprovider"]
    usual += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    pytest.main([*usual, *files, *words], plugins=[outcomes])
    columns = (SENTENCE, FINE, *WRONG)
    write_page(
        "attempts.md",
        "Attempts of the reviews, and how they end now",
        "Written by `python -m tests.hostile attempts`, which runs and counts them.",
        ("what was tried", *columns),
        [[what, *(own[each] for each in columns)] for what, own in outcomes.counts.items()],
        is_summed=True,
    )
    empty = [what for what, own in outcomes.counts.items() if not own]
    return int(bool(empty) or any(own[each] for own in outcomes.counts.values() for each in WRONG))
