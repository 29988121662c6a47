"""Trajectories of other engines: read, shown and traced like one's own."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import unmask
from tests.representation.facts import make_fact, make_model
from unmask import UserError
from unmask.cli.main import app
from unmask.net.model import Model

FACT = make_fact(0, "p2d")


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model("tiny", "masked")


def draw(model: Model, **settings) -> unmask.Trajectory:
    prompts = [FACT.prompt, "They say"]
    return unmask.sample(model, prompts, length=[24, 12], steps=6, seed=2, **settings)


def write(path: Path, drawn: unmask.Trajectory, prompts: list) -> Path:
    lines = []
    for row, (prompt, length) in enumerate(zip(prompts, drawn.lengths.tolist(), strict=True)):
        states = drawn.states[:, row, :length].tolist()
        lines.append(json.dumps({"prompt": prompt, "states": states, "tokens": states[-1]}))
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("remask", ["none", "low=0.3"])
def test_what_was_drawn_here_is_read_as_it_was(model, tmp_path, remask):
    drawn = draw(model, remask=remask, temperature=0.0)
    path = write(tmp_path / "drawn.jsonl", drawn, [FACT.prompt, model.encode("They say").ids])
    seen: list[int] = []
    read = unmask.read_trajectories(model, path, watch=lambda state: seen.append(state.num_steps))
    assert read.texts == drawn.texts and seen == list(range(1, drawn.num_steps + 1))
    for name in ("tokens", "lengths", "committed_at", "states"):
        assert torch.equal(getattr(read, name), getattr(drawn, name)), name
    torch.testing.assert_close(read.confidence, drawn.confidence, atol=1e-5, rtol=0)
    torch.testing.assert_close(read.entropy, drawn.entropy, atol=1e-4, rtol=0)
    assert "unmasking" in (unmask.show(read)._repr_html_() or "")


def test_traced_as_ones_own(model, tmp_path):
    """The same states give the same grid."""
    settings = unmask.Tracing(at=("first", "t2"), parts=("resid",), corruption="mean", steps=4)
    drawn = unmask.sample(model, FACT.prompt, length=30, steps=4)
    path = write(tmp_path / "drawn.jsonl", drawn, [FACT.prompt])
    read = unmask.read_trajectories(model, path)
    clean = unmask.find_clean_run(model, FACT, read, any_answer=True)
    grids = unmask.trace_steps(model, clean, settings)
    own = unmask.trace_steps(model, FACT, settings, any_answer=True, length=30)
    assert [grid.step for grid in grids] == [grid.step for grid in own]
    for grid, expected in zip(grids, own, strict=True):
        assert torch.equal(grid.values("resid"), expected.values("resid"))


def test_lines_that_are_no_trajectory(model, tmp_path):
    path, state = tmp_path / "drawn.jsonl", [3, 4, model.mask_id]
    good = {"prompt": [3, 4], "states": [state], "tokens": [3, 4, 5]}
    for changes, message in {
        "": "is empty: expected one JSON record",
        '{"states": [[1]]}': "line 1 has no prompt and no tokens",
        json.dumps(good | {"states": []}): "has 0 states",
        json.dumps(good | {"states": [[3, 4]]}): "not all as long as its 3 tokens",
        json.dumps(good | {"states": [[3, 4, -1]]}): "expected token ids from 0",
        json.dumps(good | {"states": 7}): "expected token ids from 0",
        json.dumps(good | {"prompt": [4]}): "does not begin with its prompt",
    }.items():
        path.write_text(changes)
        with pytest.raises(UserError, match=message):
            unmask.read_trajectories(model, path)
    path.write_text(json.dumps(good))
    read = unmask.read_trajectories(model, path)
    assert read.num_steps == 1 and read.committed_at.tolist() == [[0, 0, 1]]
    with pytest.raises(UserError, match="expected the prompt"):
        unmask.find_clean_run(model, FACT, read)
    with pytest.raises(UserError, match="row 1 was asked for"):
        unmask.find_clean_run(model, FACT, read, row=1)
    with pytest.raises(UserError, match="is a causal model"):
        unmask.read_trajectories(make_model("tiny", "causal"), path)


def test_the_verb_shows_them(tmp_path):
    model = unmask.load("reversal-mdm", device="cpu")
    drawn = unmask.sample(model, "We sat down", steps=2, length=8)
    path = write(tmp_path / "drawn.jsonl", drawn, ["We sat down"])
    words = ["sample", "reversal-mdm", "--read", str(path), "--save", str(tmp_path / "kept")]
    done = CliRunner().invoke(app, [*words, "--device", "cpu"])
    assert done.exit_code == 0 and done.output.strip() == (drawn.texts or [""])[0].strip()
    kept = unmask.Trajectory.load(tmp_path / "kept", model.tokenizer)
    assert torch.equal(kept.tokens, drawn.tokens)
