"""The explorer's calls give what the package's own calls give, and so does the code they write."""

import contextlib
import io

import pytest
import torch

import unmask
from tests.explorer.serving import read_events
from unmask.evaluation.smearing import (
    expect_length,
    find_sequence_smear,
    find_token_smear,
    predict_state,
)
from unmask.explorer.interventions import make_page_fact

KEYS = ("model", "twin")


@pytest.fixture(scope="module")
def facts(client):
    return client.get("/api/start").json()["facts"]


def call(client, name, body):
    answer = client.post(f"/api/{name}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(client, name, body):
    answer = client.post(f"/api/{name}", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    # The worker may still be putting the last call away.
    return [event for event in read_events(answer.text) if event[0] != "queued"]


def run_code(client, view, request):
    """What the copied code leaves: its variables."""
    code = call(client, "python", {"view": view, "request": request})["code"]
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, view, "exec"), names)
    return names


def test_start_tells_models_facts_and_settings(client, facts):
    start = client.get("/api/start").json()
    assert [each["key"] for each in start["models"]] == ["model", "twin"]
    assert start["models"][0]["mask_id"] == 3309 and start["models"][1]["mask_id"] is None
    assert {fact["way"] for fact in facts} == {"as trained", "reversed"}
    for fact in facts:
        assert fact["prompt"][slice(*fact["span"])] == fact["subject"]
    assert start["edits"] == {}
    assert "confidence" in start["orders"] and "none" in start["remaskings"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("way", ["as trained", "reversed"])
def test_a_text_is_written_as_sample_writes_it(client, explorer, facts, key, way):
    fact = next(each for each in facts if each["way"] == way)
    settings = {"steps": 5, "length": 36, "seed": 3, "temperature": 0.7, "guidance": 0.4}
    body = {"model": key, "canvas": {"prompt": fact["prompt"]}, "settings": settings, "top": 4}
    (begin, start), *steps, (last, end) = stream(client, "write", body)
    assert (begin, last) == ("start", "end") and {name for name, _ in steps} == {"step"}
    drawn = run_code(client, "write", body)["drawn"]
    # A causal model has neither steps nor guidance.
    more = {} if key == "twin" else {"steps": 5, "guidance": 0.4}
    again = unmask.sample(
        explorer.models[key], fact["prompt"], length=36, seed=3, temperature=0.7, guesses=4, **more
    )
    for trajectory in (drawn, again):
        assert end["text"] == trajectory.texts[0]
        assert end["calls"] == trajectory.calls
        assert len(steps) == trajectory.num_steps
        for step, (_, event) in enumerate(steps, 1):
            assert event["step"] == step
            assert event["tokens"] == trajectory.states[step, 0][: len(event["tokens"])].tolist()
            committed = (trajectory.committed_at[0] == step).nonzero()[:, 0].tolist()
            assert event["written"] == committed
            for at in committed:
                assert event["confidence"][str(at)] == float(trajectory.confidence[0, at])
                assert event["entropy"][str(at)] == pytest.approx(float(trajectory.entropy[0, at]))
            guesses = trajectory.guesses(step)
            opened = guesses.open[0].nonzero()[:, 0].tolist()
            assert [int(at) for at in event["guesses"]] == opened
            for at in opened:
                sent = event["guesses"][str(at)]
                assert [each["id"] for each in sent] == guesses.ids[0, at].tolist()
                assert [each["p"] for each in sent] == guesses.p[0, at].tolist()
    assert len(start["tokens"]) == (36 if key == "model" else sum(start["fixed"]))


def test_masks_are_filled_and_given_tokens_stay(client, explorer):
    text = "We sat down beside [MASK]*3, our old friend [MASK]."
    body = {"model": "model", "canvas": {"prompt": text}, "settings": {"steps": 2}}
    events = stream(client, "write", body)
    assert events[-1][1]["text"] == unmask.infill(explorer.models["model"], text, steps=2).texts[0]
    # Half of it, changed by hand, is gone on with.
    tokens, fixed = events[1][1]["tokens"], events[0][1]["fixed"]
    tokens[4:7] = [tokens[0], 3309, 3309]
    body |= {"canvas": {"tokens": tokens, "fixed": fixed}}
    end = stream(client, "write", body)[-2][1]["tokens"]
    assert end[4] == tokens[0] and 3309 not in end
    assert end == run_code(client, "write", body)["drawn"].tokens[0].tolist()


def test_smearing_is_that_of_transparency(client, explorer, facts):
    """By state, whichever states share a pass; the code that is copied gives the same."""
    model = explorer.models["model"]
    drawn = unmask.sample(model, facts[0]["prompt"], steps=5, length=36)
    body = {"model": "model", "states": drawn.states[:, 0].tolist()}
    *events, (last, _) = stream(client, "smearing", body)
    found = [event for name, event in events if name == "state"]
    assert last == "end" and [each["state"] for each in found] == [*range(6)]
    xt, end = drawn.states[:, 0], model.tokenizer.end_id
    p = predict_state(model, xt)
    expected, token = expect_length(p, end), find_token_smear(model, xt, p, [end])
    sequence = find_sequence_smear(model, xt, p)
    for step, each in enumerate(found):
        assert each["expected"] == pytest.approx(float(expected[step]), abs=1e-4)
        assert each["token"]["amount"] == pytest.approx(float(token.amount[step]), abs=1e-4)
        assert each["sequence"]["amount"] == pytest.approx(float(sequence.amount[step]), abs=1e-4)
        for at, lost in each["token"]["lost"].items():
            assert lost == pytest.approx(float(token.lost[step, int(at)]), abs=1e-4)
        if each["sequence"]["amount"] > 0.05:
            assert each["sequence"]["place"] == int(sequence.place[step])
    assert max(each["token"]["amount"] for each in found) > 0.1
    assert found[-1]["expected"] == int((drawn.tokens[0] != end).sum())
    assert run_code(client, "smearing", body)["answer"] == [
        each | {kind: each[kind] | _number_places(each[kind]) for kind in ("token", "sequence")}
        for each in found
    ]
    twin = dict(stream(client, "smearing", body | {"model": "twin"}))
    assert "fills no masks" in twin["error"]["error"]


def _number_places(smear):
    """In JSON the keys of places are texts."""
    return {
        name: {int(at): value for at, value in each.items()}
        for name, each in smear.items()
        if isinstance(each, dict)
    }


def test_features_of_a_position_are_those_of_its_states(client, explorer, facts):
    model, dictionary = explorer.models["model"], explorer.features.dictionary
    drawn = unmask.sample(model, facts[0]["prompt"], steps=5, length=36)
    states, position = drawn.states[:, 0], 30
    body = {"model": "model", "states": states.tolist(), "position": position, "top": 6}
    found = call(client, "features", body)
    with torch.inference_mode(), model.net.capture(dictionary.site) as kept:
        model.logits(states)
    values = dictionary.encode(kept[dictionary.site])[:, position]
    assert [each["feature"] for each in found] == values.amax(0).topk(6).indices.tolist()
    for each in found:
        assert each["values"] == pytest.approx(values[:, each["feature"]].tolist(), abs=1e-4)
        said = model.net.unembed(dictionary.w_dec[each["feature"]][None, None])[0, 0]
        assert each["says"][0] == model.tokenizer.piece(int(said.argmax()))
    assert run_code(client, "features", body)["answer"] == found
    answer = client.post("/api/features", json=body | {"model": "twin"})
    assert answer.status_code == 400 and "no dictionary of reversal-ar" in answer.json()["error"]


@pytest.mark.parametrize("schedule", ["all", "early", "late"])
def test_a_text_is_steered_as_steer_steers_it(client, explorer, facts, schedule):
    model, dictionary = explorer.models["model"], explorer.features.dictionary
    body = {"model": "model", "canvas": {"prompt": facts[0]["prompt"]}}
    body["settings"] = {"steps": 4, "length": 36}
    plain = stream(client, "write", body)[-1][1]["text"]
    body["steering"] = {"feature": 822, "strength": 6.0, "schedule": schedule}
    steered = stream(client, "write", body)[-1][1]["text"]
    more = {"steps": 4, "schedule": schedule}
    with unmask.steer(model, dictionary.site, dictionary.w_dec[822], 6.0, **more):
        expected = unmask.sample(model, facts[0]["prompt"], steps=4, length=36).texts[0]
    assert steered == expected == run_code(client, "write", body)["drawn"].texts[0] != plain
    # Nothing of it is left.
    del body["steering"]
    assert stream(client, "write", body)[-1][1]["text"] == plain
    body["steering"] = {"feature": 1024}
    (error,) = [data["error"] for name, data in stream(client, "write", body) if name == "error"]
    assert "expected 0 to 1023" in error


def test_remasked_tokens_go_back(client):
    settings = {"steps": 12, "remasking": "low=0.5", "length": 20}
    body = {"model": "model", "canvas": {"prompt": "We sat down beside"}, "settings": settings}
    events = stream(client, "write", body)
    backs = [at for name, event in events if name == "step" for at in event["back"]]
    assert backs
    for name, event in events:
        if name == "step":
            assert all(event["tokens"][at] == 3309 for at in event["back"])


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("guidance", [0.0, 0.8])
def test_a_position_is_read_as_it_is_written(client, explorer, facts, key, guidance):
    settings = {"steps": 4, "length": 30, "guidance": guidance}
    body = {"model": key, "canvas": {"prompt": facts[1]["prompt"]}, "settings": settings, "top": 10}
    events = stream(client, "write", body)
    # At the second step, some position that is written then.
    before, step = events[1][1], events[2][1]
    at = step["written"][0]
    fixed = events[0][1]["fixed"]
    given = fixed + [True] * (len(before["tokens"]) - len(fixed))
    request = {"model": key, "canvas": {"tokens": before["tokens"], "fixed": given}}
    request |= {"step": 2, "steps": 4, "position": at, "guidance": guidance}
    read = call(client, "position", request)
    guesses = step["guesses"][str(at)]
    assert [each["id"] for each in read["top"]] == [each["id"] for each in guesses]
    assert [each["p"] for each in read["top"]] == pytest.approx(
        [each["p"] for each in guesses], rel=1e-4, abs=1e-7
    )
    assert read["entropy"] == pytest.approx(step["entropy"][str(at)], rel=1e-4)
    assert run_code(client, "position", request)["answer"] == read
    model, tokens = explorer.models[key], before["tokens"]
    with torch.inference_mode(), model.net.capture("layers.*.attn_pattern") as kept:
        model.logits(torch.tensor([tokens]))
    seen = [pattern[0, :, model.row_of(at)] for pattern in kept.values()]
    torch.testing.assert_close(torch.tensor(read["attention"]), torch.stack(seen))
    row = [*tokens, tokens[0]] if key == "twin" else tokens  # it reads what has no token yet
    lens = unmask.logit_lens(model, row, positions=[at], top=5)
    for layer, candidates in enumerate(read["lens"]):
        assert [each["id"] for each in candidates] == lens.ids[0, layer, 0].tolist()
    if guidance == 0 or key == "twin":  # the last layer says what the model says
        assert read["lens"][-1][0]["id"] == read["top"][0]["id"]


TRACE = {"parts": ["resid", "mlp"], "samples": 1, "steps": 4}


def name_trace(key, fact):
    """The body of a call that traces a fact."""
    named = {name: fact[name] for name in ("prompt", "answer")}
    return {"model": key, **named, "subject": fact["span"], **TRACE}


@pytest.mark.parametrize(
    ("key", "step", "parts"),
    [("model", "first", ["resid"]), ("model", "last", ["mlp"]), ("twin", "first", TRACE["parts"])],
)
def test_a_trace_in_pieces_is_the_trace(client, facts, key, step, parts):
    fact = facts[0]
    body = name_trace(key, fact)
    body |= {"step": step, "parts": parts}
    (_, start), *cells, (last, _) = stream(client, "trace", body)
    assert last == "end"
    estimates = [data for name, data in cells if name == "estimate"]
    assert [name for name, _ in cells[: len(parts)]] == ["estimate"] * len(parts)
    cells = [event for event in cells if event[0] == "cells"]
    grid = run_code(client, "trace", body)["grid"]
    for estimate, part in zip(estimates, parts, strict=True):
        shares = torch.tensor(estimate["values"])
        assert estimate["part"] == part and shares.shape == grid.scores[part].shape
        assert shares.abs().max() <= 1 and shares.abs().sum() > 0
    assert start["clean"] == pytest.approx(grid.clean, rel=1e-4)
    assert start["corrupted"] == pytest.approx(grid.corrupted, rel=1e-3)
    assert [token["id"] for token in start["tokens"]] == list(grid.tokens)
    assert start["answer"] == sorted(grid.answer)
    filled = {part: torch.full_like(grid.scores[part], torch.nan) for part in grid.scores}
    for _, event in cells:
        for position, value in event["values"]:
            assert filled[event["part"]][position, event["layer"]].isnan()  # each cell comes once
            filled[event["part"]][position, event["layer"]] = value
    for part, values in grid.scores.items():
        torch.testing.assert_close(filled[part], values, rtol=1e-3, atol=1e-5)
    first = cells[0][1]["values"][0][0]
    assert first == start["subject"][0]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(("part", "layer"), [("resid", 0), ("mlp", 1)])
def test_a_restored_generation(client, facts, key, part, layer):
    fact = facts[0]
    body = name_trace(key, fact)
    before = call(client, "tokenize", {"model": key, "text": fact["prompt"][: fact["span"][1]]})
    body |= {"part": part, "layer": layer, "position": len(before["tokens"]) - 1}
    answer = call(client, "restore", body)
    assert run_code(client, "restore", body)["answer"] == answer
    assert fact["answer"] in answer["clean"]


def test_restoring_the_whole_stream_of_the_last_layer_restores_the_answer(client, facts):
    """The state above the last layer at the answer's first position is what is read there."""
    fact = facts[0]
    prompt = call(client, "tokenize", {"model": "model", "text": fact["prompt"]})["tokens"]
    body = {**name_trace("model", fact), "corruption": "mask"}
    body |= {"part": "resid", "layer": 5, "position": len(prompt)}
    answer = call(client, "restore", body)
    assert answer["restored"] != answer["corrupted"]
    assert answer["restored"].split()[0] == answer["clean"].split()[0]


@pytest.mark.parametrize("key", KEYS)
def test_a_moved_state_changes_the_answer(client, facts, key):
    """Where the answer is read, the stream of another fact's run above the last layer is moved."""
    one, other = facts[0], facts[2]
    encoded = [
        call(client, "tokenize", {"model": key, "text": fact["prompt"]})["tokens"]
        for fact in (one, other)
    ]
    where = [len(tokens) - (key == "twin") for tokens in encoded]
    places = [
        {"canvas": {"prompt": fact["prompt"]}, "step": 1, "steps": 4, "position": at, "layer": 5}
        for fact, at in zip((one, other), where, strict=True)
    ]
    settings = {"steps": 4, "length": 40}
    body = {"model": key, "from": places[0], "to": places[1], "settings": settings}
    answer = call(client, "move", body)
    first = one["answer"].split()[0]
    assert other["answer"] in answer["before"] and first in answer["after"]
    assert answer["candidates"][0]["text"].strip() == first
    assert answer["before_p"] > 0.5 > answer["after_p"]
    assert run_code(client, "move", body)["answer"] == answer
    # The same by tokens instead of prompts, as the page sends a state.
    for place, fact in zip(("from", "to"), (one, other), strict=True):
        write = {"model": key, "canvas": {"prompt": fact["prompt"]}, "settings": settings}
        ids = [token["id"] for token in stream(client, "write", write)[0][1]["tokens"]]
        body[place] = {**body[place], "canvas": {"tokens": ids, "length": 40}}
    again = call(client, "move", body)
    assert (again["before"], again["after"]) == (answer["before"], answer["after"])
    assert again["after_p"] == pytest.approx(answer["after_p"])


@pytest.mark.parametrize(("prompt", "answer"), [("The dog is ", " Rex "), ("狗叫", "小白")])
def test_an_answer_follows_as_its_script_writes(prompt, answer):
    fact = make_page_fact(prompt, (0, 2), answer)
    text = fact.prompt + fact.completion
    assert text == ("The dog is Rex" if "dog" in prompt else "狗叫小白")
    assert fact.completion[slice(*fact.object_span)] == answer.strip()
