"""`unmask harness` on local task files, in one process and in two, and its mistakes."""

import functools
import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from lm_eval.api.registry import get_model
from torch.utils import collect_env
from typer.testing import CliRunner

import unmask
from tests.conftest import lively, make_model
from tests.harness.tasks import CHOICES, PROMPTS, TEMPLATE, TEXTS, write_tasks
from unmask.cli.main import app
from unmask.data.chat import ChatTemplate
from unmask.evaluation.signals import SIGNALS
from unmask.harness.generation import read_generation
from unmask.harness.model import UnmaskLM
from unmask.harness.run import RESULTS, SAMPLES, Evaluation, evaluate, require_writable
from unmask.harness.settings import OF_ONE_TEXT, HarnessSettings
from unmask.harness.summary import add_signals, format_signals
from unmask.net.model import Blueprint, Model
from unmask.net.presets import preset

ROOT = Path(__file__).parents[2]
TASKS = "made_choice,made_rolling,made_text"


@pytest.fixture(autouse=True, scope="module")
def machine_described_once():
    """lm_eval has ten commands describe the machine for each of its results."""
    describe = functools.cache(collect_env.get_pretty_env_info)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect_env, "get_pretty_env_info", describe)
        yield


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def masked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "made"
    unmask.save(make_model(), folder)
    return folder


def run(*words: object) -> str:
    done = CliRunner().invoke(app, ["harness", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def read_results(folder: Path) -> tuple[dict, list[dict]]:
    samples = (folder / SAMPLES).read_text().splitlines()
    return json.loads((folder / RESULTS).read_text()), [json.loads(line) for line in samples]


@pytest.fixture(scope="module")
def report(masked, tasks, tmp_path_factory) -> tuple[dict, list[dict]]:
    """The results of all three tasks, with the error reported."""
    out = tmp_path_factory.mktemp("out")
    words = ("--steps", 3, "--strata", 4, "--repeats", 3, "--seed", 7)
    said = run(
        masked, "--tasks", TASKS, "--include", tasks, "--out", out, "--device", "cpu", *words
    )
    assert "likelihood_error" in said and "bits_per_byte" in said
    return read_results(out)


def test_every_setting_is_in_the_results(report, masked):
    config = report[0]["config"]
    assert config["model"] == str(masked) and config["model_kind"] == "masked"
    assert config["likelihood"] == "an upper bound on -log p"
    expected = {"steps": 3, "strata": 4, "repeats": 3, "seed": 7, "likelihood": "exact_k"}
    assert expected.items() <= config["settings"].items()
    drawn = {field.name for field in fields(unmask.Sampling)} - set(OF_ONE_TEXT)
    assert drawn <= set(config["settings"])
    assert set(config["settings"]) == {
        field.name for field in fields(HarnessSettings) if field.name not in OF_ONE_TEXT
    }
    evaluation = dict(config["evaluation"])
    assert evaluation.pop("tasks") == TASKS.split(",") and Path(evaluation.pop("include")).is_dir()
    left = {"limit": None, "fewshot": None, "chat": False, "generation": {}, "seed": 1234}
    assert evaluation == left


def test_a_chat_is_held_and_the_results_say_so(tasks, tmp_path):
    """Prompts and examples stand in the template, and the text is what follows them."""
    model = make_model()
    model.tokenizer.chat = ChatTemplate(TEMPLATE)
    unmask.save(model, tmp_path / "model")
    changes = 'max_gen_toks=7,until=[".","?"]'
    words = ("--chat", "--limit", 1, "--fewshot", 1, "--steps", 2, "--gen-kwargs", changes)
    where = ("--include", tasks, "--out", tmp_path / "out", "--device", "cpu")
    run(tmp_path / "model", "--tasks", "made_text", *where, *words)
    results, (one,) = read_results(tmp_path / "out")
    (asked, example) = PROMPTS
    assert one["doc"] == asked
    prompt = one["arguments"][0][0]
    shown = f"<user>{example['prompt']}</user><assistant>{example['answer']}</assistant>"
    assert prompt == f"{shown}<user>{asked['prompt']}</user><assistant>"
    ids = model.tokenizer.encode(prompt).ids
    drawn = unmask.sample(model, [ids], steps=2, length=len(ids) + 7)
    text = model.tokenizer.decode(drawn.tokens[0, len(ids) :].tolist())
    assert one["resps"] == [[text.split(".")[0].split("?")[0]]]
    config = results["config"]
    assert config["evaluation"] == {
        "tasks": ["made_text"], "include": str(tasks), "limit": 1, "fewshot": 1, "chat": True,
        "generation": {"max_gen_toks": 7, "until": [".", "?"]}, "seed": 1234,
    }  # fmt: skip
    assert config["settings"]["steps"] == 2 and "chat" not in config["settings"]


def test_metrics_are_made_of_likelihoods(report):
    """The accuracy and the bits per byte, computed anew from what the samples hold."""
    results, samples = report
    choices = [one for one in samples if one["task"] == "made_choice"]
    right = [
        max(range(len(one["resps"])), key=lambda i: one["resps"][i][0][0]) == one["target"]
        for one in choices
    ]
    assert len(choices) == len(CHOICES)
    assert results["results"]["made_choice"]["acc,none"] == pytest.approx(sum(right) / len(right))
    rolling = [one for one in samples if one["task"] == "made_rolling"]
    nats = -sum(one["resps"][0][0] for one in rolling)
    size = sum(len(each["text"].encode()) for each in TEXTS)
    bits = results["results"]["made_rolling"]["bits_per_byte,none"]
    assert bits == pytest.approx(nats / size / 0.6931471805599453)


def test_errors_are_reported_by_request_task_and_run(report):
    results, samples = report
    by_task = {task: [] for task in TASKS.split(",")}
    for one in samples:
        by_task[one["task"]] += one.get("likelihood_errors", [])
    assert by_task["made_text"] == []
    for task in ("made_choice", "made_rolling"):
        mean = sum(by_task[task]) / len(by_task[task])
        assert results["results"][task]["likelihood_error,none"] == pytest.approx(mean)
        assert max(by_task[task]) > 0
    summary = results["config"]["likelihood_errors"]
    every = by_task["made_choice"] + by_task["made_rolling"]
    assert summary["requests"] == len(every)
    assert summary["largest"] == pytest.approx(max(every))


def test_a_causal_model_is_exact(tasks):
    lm = UnmaskLM(make_model(causal=True))
    results = evaluate(lm, Evaluation(tasks=TASKS.split(","), include=tasks, limit=1))
    assert results["config"]["likelihood"] == "exact, left to right"
    assert results["config"]["likelihood_errors"]["largest"] == 0
    assert all(len(samples) == 1 for samples in results["samples"].values())


@pytest.mark.prove
def test_two_processes_share_the_documents(report, masked, tasks, tmp_path):
    words = [*("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")]
    words += ["-m", "unmask", "harness", str(masked), "--tasks", TASKS, "--include", str(tasks)]
    words += ["--out", str(tmp_path), "--device", "cpu", "--steps", "3", "--strata", "4"]
    words += ["--repeats", "3", "--seed", "7"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results, samples = read_results(tmp_path)
    for task, values in report[0]["results"].items():
        for name, value in values.items():
            if isinstance(value, float):
                assert results["results"][task][name] == pytest.approx(value, rel=1e-5), name
    key = ("task", "doc_id", "resps", "likelihood_errors")
    pick = [{name: one.get(name) for name in key} for one in (*samples, *report[1])]
    ours, theirs = pick[: len(samples)], pick[len(samples) :]
    assert len(ours) == len(theirs)
    for one in theirs:
        (same,) = [x for x in ours if (x["task"], x["doc_id"]) == (one["task"], one["doc_id"])]
        if one["task"] == "made_choice":
            logps = [resp[0][0] for resp in one["resps"]]
            assert [resp[0][0] for resp in same["resps"]] == pytest.approx(logps, rel=1e-5)
    assert (
        results["config"]["likelihood_errors"]["requests"]
        == (report[0]["config"]["likelihood_errors"]["requests"])
    )


def test_the_harness_finds_the_class_by_name():
    (point,) = importlib.metadata.entry_points(group="lm_eval.models", name="unmask")
    assert point.load() is UnmaskLM
    assert get_model("unmask") is UnmaskLM


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(
            ("--tasks", "made_choise"),
            "the task 'made_choise' is unknown: did you mean",
            marks=pytest.mark.prove,  # the harness reads all of its own tasks first
        ),
        (("--tasks", ","), "no tasks were given"),
        (("--tasks", "made_text", "--limit", 0), "--limit is 0: expected at least 1"),
        (("--tasks", "made_text", "--fewshot", 9), "has fewer documents than the examples"),
        (("--tasks", "made_text", "--gen-kwargs", 'until=["a"'), "expected names and values"),
        (("--tasks", "made_text", "--gen-kwargs", "speed=3"), "hold {'speed': 3}"),
        (("--tasks", "made_text", "--chat"), "has no chat template"),
    ],
)
def test_mistakes_are_sentences(words, sentence, masked, tasks, tmp_path):
    with pytest.raises(unmask.UserError) as raised:
        run(masked, *words, "--include", tasks, "--out", tmp_path, "--device", "cpu")
    assert sentence in str(raised.value)


def test_tasks_are_looked_for_before_the_model(tmp_path):
    with pytest.raises(unmask.UserError, match="there is no task file 'none/such.yaml'"):
        words = ("--tasks", "none/such.yaml", "--out", tmp_path / "run")
        run(tmp_path / "no-model", *words, "--device", "cpu")
    assert not (tmp_path / "run").exists()


def test_results_that_cannot_be_written_are_found_before_the_work(tasks, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(FileExistsError, match="taken"):
        run("no-model", "--tasks", "made_text", "--include", tasks, "--out", tmp_path / "taken")
    require_writable(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_task_without_its_data_is_a_sentence(tasks, tmp_path):
    text = (tasks / "made_choice.yaml").read_text().replace("made_choice", "made_lost")
    (tmp_path / "made_lost.yaml").write_text(text)
    (tmp_path / "made_torn.yaml").write_text("task: made_torn\noutput_type: riddle\n")
    lm = UnmaskLM(make_model())
    for name in ("made_lost", "made_torn"):
        with pytest.raises(unmask.UserError, match=f"the tasks {name} cannot be loaded"):
            evaluate(lm, Evaluation(tasks=[name], include=tmp_path))


def test_a_perplexity_without_a_number_is_a_sentence(tasks, monkeypatch):
    lm = UnmaskLM(make_model())
    monkeypatch.setattr(lm, "loglikelihood_rolling", lambda requests: [-1e5] * len(requests))
    with pytest.raises(unmask.UserError, match="larger than a number can hold"):
        evaluate(lm, Evaluation(tasks=["made_rolling"], include=tasks))


def test_contexts_that_lost_their_beginning_are_counted(tasks, caplog):
    """Each once, in likelihoods and in texts."""
    lm = UnmaskLM(make_model(), steps=1, strata=2, repeats=2)
    evaluation = Evaluation(tasks=["made_choice", "made_text"], include=tasks)
    results = evaluate(lm, evaluation)
    assert results["config"]["contexts_cut"] == 0
    own = {"max_gen_toks": lm.max_length - 3}  # "The caves" is 4 tokens
    results = evaluate(lm, replace(evaluation, generation=own))
    assert results["config"]["contexts_cut"] == 2
    (said,) = (each for each in caplog.messages if "lost their beginning" in each)
    assert said.startswith("2 contexts are too long for tiny-masked")


def test_results_are_of_one_evaluation_alone(tasks):
    """A model may be asked again: what it was asked before is not counted."""
    lm = UnmaskLM(make_model(), strata=2, repeats=2)
    lm.cut.add("a context of before")
    for task, requests in (("made_choice", 7), ("made_rolling", 2)):
        results = evaluate(lm, Evaluation(tasks=[task], include=tasks))
        assert results["config"]["contexts_cut"] == 0
        assert results["config"]["likelihood_errors"]["requests"] == requests


def test_signals_stand_with_their_documents(tasks, tmp_path):
    """A document's signals are those of its own text, equal documents' too; no pass is added."""
    rows = [{"prompt": "The baker of", "answer": answer} for answer in (" W", " X", " Y")]
    rows += [{"prompt": "The caves", "answer": " of"}]
    own = tmp_path / "rows.jsonl"
    own.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = (tasks / "made_text.yaml").read_text().replace(str(tasks / "made_text.jsonl"), str(own))
    (tmp_path / "made_text.yaml").write_text(task)
    model, evaluation = make_model(), Evaluation(tasks=["made_text"], include=tmp_path)
    given = {"steps": 3, "temperature": 1.0}
    evaluation = replace(evaluation, generation={"do_sample": True})
    plain = evaluate(UnmaskLM(model, **given), evaluation)
    report = evaluate(UnmaskLM(model, signals=True, **given), evaluation)
    assert "signals" not in plain and not any("signals" in x for x in plain["samples"]["made_text"])
    samples = report["samples"]["made_text"]
    for one, other in zip(samples, plain["samples"]["made_text"], strict=True):
        assert one["resps"] == other["resps"] and len(one["signals"]) == 1
    for repeat, one in enumerate(samples[:3]):
        lm = UnmaskLM(model, signals=True, **given)
        generation = read_generation(model, lm.settings, one["arguments"][0][1], repeat)
        prompt = lm._encode_prompt("The baker of", generation.room)
        ((_, signals),) = lm._write([prompt], generation)
        assert one["signals"] == [signals]
    assert samples[0]["signals"] != samples[1]["signals"]


def test_signals_tell_wrong_answers():
    """Two of four documents are wrong, and were written at the highest entropy."""

    def log(number, right, entropy):
        signals = dict.fromkeys(SIGNALS, 0.5) | {"entropy": entropy}
        drawn = {repr((1, number)): [signals]}
        sample = {"doc_id": number, "arguments": [(1, number)], "resps": [["x"]]}
        return drawn, sample | {"metrics": ["acc"], "acc": right, "filter": "none"}

    logged = [log(i, right, 0.1 * i) for i, right in enumerate((1, 1, 0, 0))]
    report = {"samples": {"task": [sample for _, sample in logged]}}
    add_signals(report, [drawn for drawn, _ in logged])
    told = {row["metric"]: row for row in report["signals"]}
    assert told["entropy"]["mean"] == 1.0 and told["margin"]["mean"] == 0.5
    assert told["entropy"]["wrong"] == 2 and told.keys() == {*SIGNALS}
    assert "|task|acc|entropy when written|1.00|" in format_signals(report["signals"])


def test_a_group_is_its_tasks(tasks, tmp_path):
    for file in tasks.glob("made_*.yaml"):
        (tmp_path / file.name).write_text(file.read_text())
    both = ["made_choice", "made_rolling"]
    (tmp_path / "both.yaml").write_text(json.dumps({"group": "both", "task": both}))
    lm = UnmaskLM(make_model(), likelihood="chain")
    results = evaluate(lm, Evaluation(tasks=["both", "made_text"], include=tmp_path))
    assert set(results["samples"]) == {*both, "made_text"}


def test_a_task_that_the_model_cannot_do_is_refused_before_the_work(tasks, monkeypatch):
    """A continuation given its prefix has no likelihood under a uniform model; whole texts have a
    bound, and texts are written."""
    made = make_model()
    size = made.tokenizer.vocab_size
    config = preset("tiny", vocab_size=size, num_logits=size - 1, time=True)
    model = Model("even", lively(config), Blueprint(config, "uniform"), made.tokenizer)
    lm = UnmaskLM(model, steps=2)
    able = ["made_text", "made_rolling"]
    with monkeypatch.context() as work:
        for name in ("generate_until", "loglikelihood_rolling"):
            work.setattr(lm, name, lambda requests: pytest.fail("work was done"))
        refused = "even is a uniform model: the task made_choice needs likelihoods"
        with pytest.raises(unmask.UserError, match=refused):
            evaluate(lm, Evaluation(tasks=[*able, "made_choice"], include=tasks))
    results = evaluate(lm, Evaluation(tasks=able, include=tasks))
    assert len(results["samples"]["made_text"]) == 2
    assert results["results"]["made_rolling"]["bits_per_byte,none"] > 0
    assert results["results"]["made_rolling"]["likelihood_error,none"] > 0
    assert results["config"]["likelihood"] == "an upper bound on -log p"
