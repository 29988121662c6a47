"""The explorer's views in a real browser show what the Python calls give. Run by `make prove`."""

import re

import pytest
import torch

import unmask
from tests.explorer.pages import (
    ANSWER,
    PROMPT,
    SUBJECT,
    choose_settings,
    copy_python,
    open_page,
    read_ids,
    serve,
    show_step,
    wait_for_runs,
    write,
)
from unmask.evaluation.smearing import expect_length, find_token_smear, predict_state

pytestmark = pytest.mark.prove

LENGTH, STEPS = 40, 6
EXACT = {"device": "cpu", "dtype": "float32"}
"""A trace comes in pieces; in bfloat16 a cell would be rounded otherwise in another batch."""
NEAR = 2e-4
"""Numbers are shown with four digits."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run of a measure."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "texts.txt").write_text("The caves of Orsel are deep.\n\nThe baker sings.\n")
    small = unmask.load("reversal-mdm", **EXACT)
    unmask.perplexity(small, data=folder / "texts.txt", out=folder / "perplexity", context=16)
    return folder


@pytest.fixture(scope="module")
def address(runs):
    with serve("--runs", str(runs), "--dtype", "float32") as address:
        yield address


@pytest.fixture(scope="module")
def model():
    return unmask.load("reversal-mdm", **EXACT)


@pytest.fixture(scope="module")
def twin():
    return unmask.load("reversal-ar", **EXACT)


@pytest.fixture
def page(browser, address):
    with open_page(browser, address) as page:
        yield page


@pytest.fixture(scope="module")
def drawn(model):
    return unmask.sample(model, PROMPT, steps=STEPS, length=LENGTH, guesses=5)


@pytest.fixture
def card(page):
    """The model's text, written step by step."""
    write(page, PROMPT, steps=STEPS, canvas_length=LENGTH)
    return page.locator("#write article.run").first


def test_a_prompt_is_written_by_both_models(page, model, twin, drawn):
    write(page, PROMPT, steps=STEPS, canvas_length=LENGTH)
    first, second = page.locator("#write article.run").all()
    assert read_ids(first) == drawn.tokens[0].tolist()
    for at, title in enumerate(read_titles(first)):
        step = int(drawn.committed_at[0, at])
        if not step:
            assert title.endswith(", given")
            continue
        shown = re.search(r"written at step (\d+) with confidence ([\d.e-]+)", title)
        assert int(shown[1]) == step
        assert float(shown[2]) == pytest.approx(float(drawn.confidence[0, at]), abs=NEAR)
    assert "recalled: Renzo Calverinth" in first.locator(".status").inner_text()
    continued = unmask.sample(twin, PROMPT, length=LENGTH)
    ids = read_ids(second)
    assert ids == continued.tokens[0].tolist()[: len(ids)] and len(ids) > 25
    assert "not recalled" in second.locator(".status").inner_text()


def read_titles(card) -> list[str]:
    return card.locator(".token").evaluate_all("(all) => all.map((each) => each.title)")


def test_masks_show_the_guesses_of_their_step(card, model, drawn):
    for step in (0, 3):
        show_step(card, step)
        assert read_ids(card) == drawn.states[step, 0].tolist()
        masked = [each for each in enumerate(read_titles(card)) if "masked" in each[1]]
        assert len(masked) == int((drawn.states[step, 0] == model.mask_id).sum())
        guesses = drawn.guesses(step + 1)
        for at, title in masked:
            p = float(re.search(r"with p ([\d.e-]+)", title)[1])
            assert p == pytest.approx(float(guesses.p[0, at, 0]), abs=NEAR)


def test_the_map_of_steps_leads_to_any_of_them(page, card, model, drawn):
    cells = card.locator(".stepmap td").evaluate_all(
        "(all) => all.map((e) => [+e.dataset.step, +e.dataset.position, e.title, e.className])"
    )
    assert len(cells) == STEPS * int((drawn.states[0, 0] == model.mask_id).sum())
    for step, position, title, classes in cells:
        is_open = int(drawn.states[step, 0, position]) == model.mask_id
        assert ("done" in classes) is not is_open
        assert ("written" in classes) is (int(drawn.committed_at[0, position]) == step + 1)
        if is_open:
            p = float(re.search(r"” p ([\d.e-]+)", title)[1])
            assert p == pytest.approx(float(drawn.guesses(step + 1).p[0, position, 0]), abs=NEAR)
    cell = card.locator(".stepmap td").first
    cell.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert read_ids(card) == drawn.states[1, 0].tolist()
    assert f"position {cells[0][1]} · step 1" in page.locator("#write-panel").inner_text()


def test_the_map_of_steps_shows_expected_length_and_smearing(page, card, model, drawn):
    """As the functions of `unmask transparency` have them; off they leave no trace."""
    dots = card.locator(".smearing circle")
    dots.nth(STEPS).wait_for()
    xt, end = drawn.states[:, 0], model.tokenizer.end_id
    p = predict_state(model, xt)
    lengths = [f"{each:.1f}" for each in expect_length(p, end).tolist()]
    assert card.locator(".smearing svg").get_attribute("aria-label").endswith(", ".join(lengths))
    smear = find_token_smear(model, xt, p, [end])
    step = int(smear.amount.argmax())
    title = card.locator(f'.stepmap th[data-row="{step}"]').get_attribute("title")
    word = model.tokenizer.piece(int(smear.token[step])).strip()
    assert f"{round(100 * float(smear.amount[step]))} % of “{word}” is smeared" in title
    home = card.locator(f'[data-step="{step}"][data-position="{int(smear.home[step])}"]')
    assert "home" in home.get_attribute("class") and "is smeared" in home.get_attribute("title")
    place = int(smear.lost[step].argmax())
    lost = card.locator(f'[data-step="{step}"][data-position="{place}"]')
    share = f"{round(100 * float(smear.lost[step, place]))} % of “{word}” goes away here"
    assert "lost" in lost.get_attribute("class") and share in lost.get_attribute("aria-label")
    page.uncheck("#write-smearing")
    assert dots.count() == 0 and card.locator(".stepmap td.smear").count() == 0
    assert card.locator('.stepmap [title*="goes away"]').count() == 0
    page.reload()
    page.locator("#write .stepmap td.cell").first.wait_for()
    assert not page.is_checked("#write-smearing") and dots.count() == 0


def test_a_position_is_opened_before_the_rest_is_measured(page):
    write(page, PROMPT, steps=24, canvas_length=LENGTH)
    card = page.locator("#write article.run").first
    dots, asked = card.locator(".smearing circle"), []
    dots.first.wait_for()
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    card.locator(".token").nth(30).click()
    page.locator("#write-panel .reading[aria-busy=false]").wait_for()
    dots.nth(24).wait_for()
    assert dots.count() == 25 and asked == ["position", "smearing"]


def test_a_position_is_opened(page, card, model, drawn):
    step = 2
    show_step(card, step)
    card.locator(".token.open").first.click()
    panel = page.locator("#write-panel")
    panel.locator(".reading[aria-busy=false]").wait_for()
    state = drawn.states[step]
    position = int((state[0] == model.mask_id).nonzero()[0])
    assert f"position {position} · step {step} of {STEPS} · still masked" in panel.inner_text()
    sites = ("layers.5.attn_pattern", "layers.2.resid_out")
    with torch.inference_mode(), model.net.capture(*sites) as kept:
        p = model.logits(state)[0, position].softmax(-1, dtype=torch.float64)
    shown = [float(text) for text in panel.locator(".top .number").all_inner_texts()]
    assert shown == pytest.approx(p.topk(10).values.tolist(), abs=NEAR)
    words = panel.locator(".top .candidate").all_text_contents()
    assert words[0] == model.tokenizer.piece(int(p.argmax()))
    entropy = float(panel.locator(".entropy").inner_text())
    assert entropy == pytest.approx(float(torch.special.entr(p).sum()), abs=NEAR)
    weights = panel.locator(".seen").evaluate_all(
        "(all) => all.map((each) => +each.dataset.weight)"
    )
    pattern = kept["layers.5.attn_pattern"][0, :, position].float().mean(0)
    assert weights == pytest.approx(pattern.tolist(), abs=1e-5)
    lens = model.net.unembed(kept["layers.2.resid_out"], torch.tensor([position]))[0, 0]
    third = float(panel.locator(".lens tbody tr").nth(2).locator(".number").inner_text())
    assert third == pytest.approx(float(lens.softmax(-1).max()), abs=NEAR)
    top = copy_python(page, "write")["answer"]["top"]
    assert [each["p"] for each in top] == pytest.approx(shown, abs=NEAR)


def test_a_committed_token_is_read_as_it_was_chosen(page, card, model, drawn):
    position = int(drawn.committed_at[0].argmax())
    card.locator(".token").nth(position).press("Enter")
    panel = page.locator("#write-panel")
    panel.locator(".reading[aria-busy=false]").wait_for()
    assert f"committed at step {int(drawn.committed_at[0, position])}" in panel.inner_text()
    shown = float(panel.locator(".top .number").first.inner_text())
    assert shown == pytest.approx(float(drawn.confidence[0, position]), abs=NEAR)


def test_the_canvas_is_changed_in_flight(page, card, model, drawn):
    step = 3
    show_step(card, step)
    canvas = drawn.states[step, 0].tolist()
    first_open = canvas.index(model.mask_id)
    panel = page.locator("#write-panel")
    # The second candidate by hand, a word of the prompt hidden, another one written.
    card.locator(".token").nth(first_open).click()
    panel.locator(".reading[aria-busy=false]").wait_for()
    word = panel.locator(".candidate").nth(1).text_content()
    panel.locator(".candidate").nth(1).click()
    panel.get_by_text("changed by hand").wait_for()
    card.locator(".token").nth(1).click()
    panel.get_by_role("button", name="Re-mask").click()
    panel.get_by_text("still masked").wait_for()
    card.locator(".token").nth(4).click()
    panel.get_by_label("Write another word here").fill("forest")
    panel.get_by_role("button", name="Put").click()
    panel.get_by_text("changed by hand").wait_for()
    forest = model.tokenizer.encode(" forest").ids
    card.get_by_text(f"{2 + len(forest)} changes by hand at step 3").wait_for()
    (canvas[first_open],) = model.tokenizer.encode(word).ids
    canvas[1] = model.mask_id
    canvas[4 : 4 + len(forest)] = forest
    assert read_ids(card) == canvas
    card.get_by_role("button", name=f"Go on from here ({STEPS - step} steps)").click()
    wait_for_runs(page, "write", 2)
    filled = unmask.infill(model, canvas, steps=STEPS - step)
    assert read_ids(card) == filled.tokens[0].tolist()
    # What came before can still be looked at, and what was put in by hand is marked.
    assert card.locator(".token.hand").count() == 1 + len(forest)
    show_step(card, 1)
    assert read_ids(card) == drawn.states[1, 0].tolist()


def test_masks_are_typed(page, model):
    prompt = "We sat down beside the[MASK]*3 and talked."
    write(page, prompt, steps=3)
    filled = unmask.infill(model, prompt, steps=3)
    card = page.locator("#write article.run").first
    assert read_ids(card) == filled.tokens[0].tolist()
    assert copy_python(page, "write")["drawn"].tokens.tolist() == filled.tokens.tolist()
    assert "cannot fill the gaps" in page.locator("#write article.run").nth(1).inner_text()


@pytest.fixture
def traced(page):
    """A small trace; subject and answer are chosen by selecting text."""
    page.click("#tab-trace")
    page.fill("#trace-text", f"{PROMPT} {ANSWER}, indeed")
    text = page.locator("#trace-text")
    begin = PROMPT.index(SUBJECT)
    text.evaluate("(e, [a, b]) => e.setSelectionRange(a, b)", [begin, begin + len(SUBJECT)])
    page.get_by_role("button", name="Selection is the subject").click()
    # By keyboard: over ", indeed" back to the answer's end, which is then selected.
    text.focus()
    page.keyboard.press("Control+End")
    for _ in ", indeed":
        page.keyboard.press("ArrowLeft")
    for _ in ANSWER:
        page.keyboard.press("Shift+ArrowLeft")
    page.keyboard.press("Alt+a")
    choose_settings(page, "trace", steps=4)
    page.uncheck("#trace-mlp")
    page.uncheck("#trace-attn")
    text.press("Enter")
    page.locator("#trace-map[aria-busy=false]").wait_for()
    return page


def test_a_fact_is_traced(traced, model):
    assert traced.locator("mark.subject").inner_text() == SUBJECT
    assert traced.locator("mark.answer").inner_text() == ANSWER
    fact = unmask.Fact.of(SUBJECT, ANSWER, PROMPT.replace(SUBJECT, "{}"))
    settings = unmask.Tracing(parts=("resid",), samples=2, steps=4, at=("first",), any_answer=True)
    (grid,) = unmask.trace_steps(model, fact, settings)
    cells = traced.locator("#trace-map td").evaluate_all(
        "(all) => all.map(({ dataset: d }) => [+d.position, +d.layer, +d.value])"
    )
    scores = grid.scores["resid"]
    assert len(cells) == scores.numel()
    for position, layer, value in cells:
        assert value == pytest.approx(float(scores[position, layer]), rel=1e-3)
    assert f"clean: p {grid.clean:.4f}" in traced.locator(".scale").inner_text()


def test_estimates_are_hatched_until_cells_are_measured(page):
    """The whole map is there before its first cells are."""
    page.click("#tab-trace")
    choose_settings(page, "trace", steps=4)
    page.evaluate(
        """() => {
          const map = document.getElementById("trace-map"), seen = (window.seen = []);
          new MutationObserver(() => {
            const all = [...map.querySelectorAll("td")];
            const estimated = all.filter((e) => e.className.includes("waiting") && e.title);
            if (all.length) seen.push([all.length, estimated.length]);
          }).observe(map, { subtree: true, attributes: true });
        }"""
    )
    page.press("#trace-text", "Enter")
    page.locator("#trace-map[aria-busy=false]").wait_for()
    seen = page.evaluate("window.seen")
    assert max(estimated for _, estimated in seen) >= 0.9 * seen[0][0] and seen[-1][1] == 0


def test_a_cell_shows_the_restored_generation(traced):
    cell = traced.locator('#trace-map td[data-layer="0"]').nth(18)
    cell.focus()
    traced.keyboard.press("ArrowRight")
    traced.keyboard.press("Enter")
    panel = traced.locator("#trace-panel")
    panel.locator("dd.restored").wait_for()
    assert "layer 1" in panel.locator("h3").inner_text()
    names = copy_python(traced, "trace")["answer"]
    assert panel.locator("dd.clean").inner_text() == names["clean"].strip()
    assert panel.locator("dd.hidden").inner_text() == names["corrupted"].strip()
    assert panel.locator("dd.restored").inner_text() == names["restored"].strip()
    shown = traced.locator("td.selected").get_attribute("data-value")
    assert float(shown) == pytest.approx(names["p"], rel=1e-3)


def test_a_state_is_moved_by_mouse_and_by_keyboard(page):
    page.click("#tab-trace")
    page.locator("#move > summary").click()
    page.fill("#move-steps", "4")
    page.click("#move-load")
    wait_for_runs(page, "move", 2)
    page.locator("#status", has_text="Drag a token").wait_for()
    source, target = page.locator("#move article.run").all()
    for card in (source, target):
        assert "step 0 of 4" in card.inner_text()
    source.locator(".token").nth(20).drag_to(target.locator(".token").nth(21))
    page.locator("#move-answer dd.after").wait_for()
    dragged = page.locator("#move-answer").inner_text()
    names = copy_python(page, "trace")["answer"]
    assert page.locator("#move-answer dd.before").inner_text() == names["before"]
    assert page.locator("#move-answer dd.after").inner_text() == names["after"]
    source.locator(".token").nth(20).press("Enter")
    page.get_by_text("Holding the state at").wait_for()
    target.locator(".token").nth(22).press("Enter")
    page.locator("#move-answer dd.after").wait_for()
    assert page.locator("#move-answer").inner_text() != dragged
    target.locator(".token").nth(21).press("Enter")
    page.locator("#move-answer dd.after").wait_for()
    assert page.locator("#move-answer").inner_text() == dragged


@pytest.mark.parametrize("kind", ["prompts", "models", "steps"])
def test_two_are_compared_on_one_axis(page, model, twin, kind):
    page.click("#tab-compare")
    page.select_option("#compare-kind", kind)
    choose_settings(page, "compare", steps=4, canvas_length=LENGTH)
    other = "We sat down beside the"
    page.fill("#compare-first", PROMPT)
    if kind == "prompts":
        page.fill("#compare-second", other)
    page.locator("#compare").get_by_role("button", name="Compare").click()
    wait_for_runs(page, "compare", 1 if kind == "steps" else 2)
    first, second = page.locator("#compare article.run").all()
    drawn = unmask.sample(model, PROMPT, steps=4, length=LENGTH)
    if kind == "steps":
        page.locator("#compare-chart svg").wait_for()
        assert read_ids(first) == drawn.states[2, 0].tolist()
        assert read_ids(second) == drawn.states[4, 0].tolist()
        # At the end nothing is open: there is no entropy to be shown.
        assert page.locator("#compare-chart circle.first").count() > 0
        assert page.locator("#compare-chart circle.second").count() == 0
        return
    assert read_ids(first) == drawn.tokens[0].tolist()
    if kind == "prompts":
        expected = unmask.sample(model, other, steps=4, length=LENGTH).tokens[0].tolist()
    else:
        expected = unmask.sample(twin, PROMPT, length=LENGTH).tokens[0].tolist()
    ids = read_ids(second)
    assert ids == expected[: len(ids)]
    # One slider moves both.
    page.fill("#compare-step", "1")
    assert read_ids(first) == drawn.states[1, 0].tolist()
    assert read_ids(second) != ids


def test_a_run_opens_in_a_frame(page):
    page.click("#tab-runs")
    page.get_by_role("button", name="perplexity").click()
    report = page.frame_locator("iframe")
    report.get_by_role("heading", level=1).wait_for()
    assert "reversal-mdm" in report.locator("main").inner_text()
    assert "#runs=" in page.evaluate("location.hash")
