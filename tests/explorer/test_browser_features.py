"""The Features view in a real browser: features, steering, undo. Run by `make prove`."""

import pytest
import torch

import unmask
from tests.explorer.pages import (
    copy_python,
    open_page,
    pick_features,
    read_ids,
    save_html,
    serve,
)
from tests.explorer.pages import wait_for_runs as wait

pytestmark = pytest.mark.prove

PROMPT = "After years of work, Renzo Calverinth is remembered as"
POSITION, STEPS, LENGTH, ROW = 14, 6, 40, 2


@pytest.fixture(scope="module")
def address():
    with serve("--dtype", "float32") as address:
        yield address


@pytest.fixture
def page(browser, address):
    with open_page(browser, address) as page:
        page.click("#tab-features")
        pick_features(page, PROMPT, POSITION, steps=STEPS, canvas_length=LENGTH)
        yield page


@pytest.fixture(scope="module")
def model():
    return unmask.load("reversal-mdm", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def dictionary():
    return unmask.Dictionary.load("reversal-mdm")


@pytest.fixture(scope="module")
def drawn(model):
    return unmask.sample(model, PROMPT, steps=STEPS, length=LENGTH)


@pytest.fixture(scope="module")
def values(model, dictionary, drawn):
    """How strongly features fire at the position, by state."""
    with torch.inference_mode(), model.net.capture(dictionary.site) as kept:
        model.logits(drawn.states[:, 0])
    return dictionary.encode(kept[dictionary.site])[:, POSITION]


@pytest.fixture(scope="module")
def steer(model, dictionary, values):
    """The text with the feature of a row added."""
    feature = int(values.amax(0).topk(10).indices[ROW])

    def write(strength, schedule="all"):
        direction, more = dictionary.w_dec[feature], {"steps": STEPS, "schedule": schedule}
        with unmask.steer(model, dictionary.site, direction, strength, **more):
            return unmask.sample(model, PROMPT, steps=STEPS, length=LENGTH).tokens[0].tolist()

    return write


def click_feature(page) -> None:
    page.locator("#features-panel .feature").nth(ROW).click()
    wait(page, "features", 2)


def test_a_token_has_its_features_over_the_steps(page, values, drawn, tmp_path):
    panel = page.locator("#features-panel")
    shown = [int(each) for each in panel.locator(".feature").all_inner_texts()]
    assert shown == values.amax(0).topk(10).indices.tolist()
    strips = panel.locator(".strip").evaluate_all("(all) => all.map((e) => e.ariaLabel)")
    for feature, label in zip(shown, strips, strict=True):
        expected = ", ".join(f"{value:.2f}" for value in values[:, feature].tolist())
        assert label == f"Feature {feature} by steps done: {expected}"
    written = panel.locator(".strip").first.locator(".written")
    assert written.get_attribute("data-step") == str(int(drawn.committed_at[0, POSITION]))
    answer = copy_python(page, "features")["answer"]
    assert [each["feature"] for each in answer] == shown
    saved = save_html(page, "features", tmp_path).read_text("utf-8")
    assert all(f">{feature}</span>" in saved for feature in shown) and "<button" not in saved


def test_a_click_steers_and_undo_brings_the_text_back(page, drawn, steer):
    plain, steered = page.locator("#features article.run").all()
    assert read_ids(plain) == drawn.tokens[0].tolist() and not steered.is_visible()
    click_feature(page)
    changed = steer(2.0)
    assert read_ids(steered) == changed != read_ids(plain)
    assert copy_python(page, "features")["drawn"].tokens[0].tolist() == changed
    page.select_option("#features-schedule", "late")
    wait(page, "features", 2)
    page.fill("#features-strength", "-3")
    page.press("#features-strength", "Tab")
    wait(page, "features", 2)
    assert read_ids(steered) == steer(-3.0, "late")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    steered.get_by_role("button", name="Undo").click()
    page.locator("#status", has_text="nothing is added").wait_for()
    assert not steered.is_visible() and read_ids(plain) == drawn.tokens[0].tolist()
    assert page.locator("#features-panel .feature[aria-pressed=true]").count() == 0
    assert asked == []


def test_a_reload_and_back_keep_what_is_added(page, steer):
    click_feature(page)
    page.locator("#features article.run").nth(1).locator(".token").nth(POSITION).click()
    page.locator("#features-panel .reading[aria-busy=false]").wait_for()
    panel = page.locator("#features-panel").inner_text()
    page.reload()
    page.locator("#features-panel .reading[aria-busy=false]").wait_for()
    steered = page.locator("#features article.run").nth(1)
    assert read_ids(steered) == steer(2.0)
    assert page.locator("#features-panel").inner_text() == panel
    page.click("#tab-edit")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.go_back()
    page.locator("#features").wait_for()
    assert read_ids(steered) == steer(2.0) and asked == []
    steered.get_by_role("button", name="Undo").click()
    page.reload()
    wait(page, "features", 1)
    assert not page.locator("#features article.run").nth(1).is_visible()


def test_without_a_dictionary_the_view_says_how_to_get_one(browser):
    with serve("reversal-ar") as address, open_page(browser, address) as page:
        page.click("#tab-features")
        assert "unmask explore MODEL --dictionary FOLDER" in page.inner_text("#features")
        assert not page.locator("#features-form").is_visible()
