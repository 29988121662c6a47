"""What is said of traces follows from their averages."""

from unmask.report.tracing_words import conclude
from unmask.tracing.averages import OTHER_TOKEN, TOTAL
from unmask.tracing.table import RESULT


def make_row(mean, part="resid", role="last subject", layer=0, stage="first", **changes):
    group = {"kind": "masked", "direction": "p2d", "trained": "same", "corruption": "mask"}
    cell = {"part": part, "role": role, "layer": layer, "head": -1, "control": RESULT}
    found = {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "facts": 9}
    return group | cell | found | {"stage": stage} | changes


def make_total(mean, stage="first", **changes):
    return make_row(mean, part=TOTAL, role="", layer=-1, stage=stage, **changes)


def make_flow(subject, committed, stage):
    shares = {"subject": subject, "committed": committed}
    return [make_row(x, "flow", role, -1, stage) for role, x in shares.items()]


def test_the_subject_hands_over_at_the_last_layer_where_it_leads():
    leading = ["last subject", "last subject", "last prompt", "last prompt"]
    rows = [make_total(4.0)]
    for layer, leader in enumerate(leading):
        for role in ("last subject", "last prompt"):
            rows.append(make_row(2.0 if role == leader else 0.5, role=role, layer=layer))
    said = conclude(rows, [], "p")
    assert "| masked p2d same, first step, mask | 9 | 4 |" in said
    assert "state, last subject, layer 0: 50% | state, last prompt, layer 2: 50%" in said
    assert said.endswith("| to layer 1 of 3, then last prompt |")


def test_a_cell_that_does_not_beat_its_placebo_is_not_told():
    placebo = make_row(1.9, role="placebo", control=OTHER_TOKEN)
    said = conclude([make_total(4.0), make_row(2.0), placebo], [], "p")
    assert "| nothing clear | nothing clear | – |" in said


def test_nothing_lost_is_nothing_to_give_back():
    said = conclude([make_total(0.05), make_row(2.0)], [], "p")
    assert "| 9 | 0.05 | nothing clear was lost | – | – |" in said


def test_a_course_is_told_by_its_highest_step_its_end_and_who_takes_over():
    rows = [make_total(mean, str(step)) for step, mean in enumerate((2.0, 9.0, 3.0, 0.5, 0.1), 8)]
    # A step that some facts alone have says nothing beside the others.
    rows.append(make_total(99.0, "7", facts=8))
    # Step 10's committed tokens lead for once only: taking over is for good.
    for step, shares in enumerate([(0.8, 0.1), (0.3, 0.4), (0.5, 0.2), (0.1, 0.8)], 9):
        rows += make_flow(*shares, str(step))
    said = conclude(rows, [], "p")
    assert "From step 8 to 12, which all 9 facts have," in said
    assert "takes most at step 9 (9) and less than a tenth of that from step 11 on." in said
    assert "From step 12 on, committed answer tokens give more of p than it does." in said


def test_log_probabilities_are_told_by_the_token_asked_for():
    rows = []
    for step, (lost, asked) in enumerate([(8.0, 8), (6.0, 3), (0.4, 2)], 1):
        rows += [make_total(lost, str(step)), make_row(asked, "asked", "", -1, str(step))]
    assert "takes most at step 1 (8)" in conclude(rows, [], "p")
    said = conclude(rows, [], "logp")
    assert "takes most at step 2 (2 a token) and less than a tenth of that from step 3" not in said
    assert "takes most at step 2 (2 a token)." in said


def test_steps_of_few_facts_are_no_course():
    rows = [make_total(2.0, "15", facts=1), make_total(2.0, "16")]
    assert "no course to tell" in conclude(rows, [], "p")


def test_differences_are_counted_after_correction():
    found = ((0.01, "mlp"), (0.2, "mlp"), (0.01, "flow"))
    assert conclude([], [{"p_holm": p, "part": part} for p, part in found], "p") == (
        "- **Differences.** 1 of 2 between groups have a p below 0.05, corrected within each pair "
        "of groups."
    )


def test_heads_are_told_by_their_number():
    rows = [make_total(4.0), make_row(1.0, "attn_z", layer=3, head=0)]
    rows.append(make_row(2.0, "attn_z", layer=3, head=1))
    assert "head's output, last subject, layer 3, head 1: 50%" in conclude(rows, [], "p")
