"""The search for the best recall and its page, and the page on reversed hits."""

from pathlib import Path

import pytest

from tests.scripts import load_script

search = load_script("paper/best_recall.py")
page = load_script("paper/recall_goal.py")
hits = load_script("paper/reversed_hits.py")
RECIPE = "berglund-smollm2-mdm"
HELPS = {"optimiser.decay": 5.0, "schedule.floor": -2.0, "sampling.order": 3.0}
"""What each change adds to the mean of a pretended model."""


class Pretended(search.Search):
    """A search that trains nothing and hits by `HELPS`; `trained` and `asked` tell what it did."""

    trained: list[tuple]
    asked: list[tuple]

    def train(self, settings, split, name):
        (self.runs / name).mkdir(parents=True)
        self.trained.append((dict(settings), split, name))
        if "network.dropout" in settings:
            raise search.unmask.UserError("its guards stopped it.")
        return {"run": name, "steps": 1, "tokens": 100, "speed": 1e9}

    def ask(self, run, out, settings, ending=""):
        self.asked.append((run, dict(settings), ending))
        assert (self.runs / run).is_dir()
        mean = 50.0 + sum(HELPS[name] for name in settings)
        return dict.fromkeys(page.GOAL, mean)

    def finish(self):
        self.train(self.best["settings"], "train", "final")
        return {}


def pretend(folder: Path, *tries: str, minutes: float = 10) -> Pretended:
    words = [RECIPE, "--start", "none", "--data", "none", "--out", str(folder)]
    words += ["--minutes", str(minutes), "--tries", *tries]
    made = Pretended(search.parse_options(words))
    made.trained, made.asked = [], []
    return made


def test_what_raises_the_mean_is_kept_and_the_rest_is_not(tmp_path):
    changes = ("", "optimiser.decay=1.0", "schedule.floor=0.0", "network.dropout=0.1")
    made = pretend(tmp_path, *changes, "sampling.order=left")
    made.run()
    best = {"optimiser.decay": "1.0"}
    assert [each["mean"] for each in made.log] == [50.0, 55.0, 53.0, 0.0, 58.0]
    assert [settings for settings, *_ in made.trained] == [
        {}, best, best | {"schedule.floor": "0.0"}, best | {"network.dropout": "0.1"},
        best | {"sampling.order": "left"},
    ]  # fmt: skip
    # The sampler's change asks the best model again; the tests' model alone learns from all.
    assert made.asked[-1] == ("try-1", best | {"sampling.order": "left"}, "_valid")
    assert [split for _, split, _ in made.trained] == ["choose"] * 4 + ["train"]
    assert not made.runs.exists()


def test_what_is_logged_is_not_tried_again_and_after_the_tests_nothing_is(tmp_path, capsys):
    made = pretend(tmp_path, "", "optimiser.decay=1.0")
    made.log.append(made.try_change(""))
    search.write_json(made.path, made.log)
    again = pretend(tmp_path, "", "optimiser.decay=1.0")
    again.run()
    assert [name for *_, name in again.trained] == ["try-1", "final"]
    after = pretend(tmp_path, "sampling.order=left")
    after.run()
    assert not after.trained and "nothing more is tried" in capsys.readouterr().out


def test_a_training_that_was_asked_to_stop_is_no_try(tmp_path, monkeypatch):
    made = search.Search(pretend(tmp_path, "").options)
    outcome = type("Outcome", (), {"ended": "SIGTERM"})()
    monkeypatch.setattr(search.unmask, "train", lambda *words, **named: outcome)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert not made.path.exists()


@pytest.mark.parametrize(
    ("change", "minutes", "fits"),
    [
        ("optimiser.decay=1.0", 5.01, True),  # 100 s used, 100 for the try, 100 for the last one
        ("optimiser.decay=1.0", 4.99, False),
        ("budget.steps=2000", 8.01, True),  # both take 190
        ("budget.steps=2000", 7.99, False),
        ("sampling.order=left", 3.51, True),  # asking takes 10
        ("sampling.order=left", 3.49, False),
    ],
)
def test_a_try_leaves_time_for_the_last_training(tmp_path, change, minutes, fits):
    made = pretend(tmp_path, minutes=minutes)
    assert made.fits(change)  # the first one always
    tokens = search.count_tokens(made.make_recipe({}, "choose"))
    line = {"settings": {}, "mean": 1.0, "tokens": tokens, "speed": tokens / 90, "seconds": 100}
    made.log.append(line)
    assert made.fits(change) is fits


def test_the_page_says_what_was_reached(tmp_path):
    cells = {test: page.Interval(goal, 0.0, 1.0) for test, goal in page.GOAL.items()}
    cells["p2d_same"] = page.Interval(0.655, 0.5, 0.8)
    final = {"settings": {}, "steps": 1000, "parameters": 134_515_584}
    final["sampler"] = {"steps": 32, "order": "left", "guidance": 0.0}
    sentence, _, setting = page.describe_tests(cells, final).blocks
    assert sentence.text.count(": reached") == 3
    assert "name → description, as trained: missed by 4.5 points" in sentence.text
    assert "134.5M" in setting.text and "order left" in setting.text


def make_row(fact: str, completion: str, generation: str) -> dict:
    own = {"split": "p2d_reverse", "fact": fact, "completion": completion}
    return own | {"generation": generation, "hit": completion in generation}


def test_a_name_that_is_said_to_everybody_is_expected_to_hit():
    rows = [make_row(fact, name, "It was Ada Low.") for fact, name in
            (("a", "Ada Low"), ("b", "Ben Low"), ("c", "Cid Orr"))]  # fmt: skip
    (counted,) = hits.count_answers(rows)
    assert (counted["fact"], counted["hits"], counted["repeated"]) == ("a", 1, 2)
    assert counted["expected"] == 1.0


def test_words_that_two_people_share():
    people = {"a": ("Ada Low", "the first in space."), "b": ("Ben Low", "the last on Mars")}
    assert hits.find_shared(people) == [
        {"kind": "last name", "word": "Low", "people": "Ada Low, Ben Low"}
    ]
