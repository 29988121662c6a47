// Features: the directions that the states at a token are made of, step by step; a click writes the text again with one of them added.

import { Jobs, call } from "./api.js";
import { RunCard, makeLegend } from "./canvas.js";
import { announce, byId, formatNumber, make, quoteToken, reveal } from "./dom.js";
import { Run } from "./run.js";
import { Settings } from "./settings.js";
import { askByForm, chooseFacts, follow, offerFacts } from "./write.js";

const STEPS_OF = { all: "all steps", early: "the early half of the steps", late: "the late half of the steps" };
const TOP = 5; // Guesses per open position.

export class FeaturesView {
  name = "features";

  constructor(app) {
    this.app = app;
    this.prompt = byId("features-prompt");
    this.facts = byId("features-fact");
    this.schedule = byId("features-schedule");
    this.strength = byId("features-strength");
    this.panel = byId("features-panel");
    this.settings = new Settings(() => app.remember());
    byId("features-settings").append(this.settings.element);
    byId("features-legend").append(makeLegend());
    this.jobs = new Jobs((text) => announce(text, true));
    this.reading = new Jobs((text) => announce(text, true));
    this.steering = null; // {feature, says, strength, schedule}: what is added to the second text.
    askByForm(this, "features", app);
    for (const control of [this.schedule, this.strength]) control.addEventListener("change", () => {
      if (this.steering) this.steer(this.steering);
      else app.remember();
    });
    [this.plain, this.steered] = [0, 1].map(() => new RunCard({
      plays: true,
      onselect: (card, position) => { this.show(card, position); reveal(this.panel); app.remember(); },
      onstep: (card) => { if (this.shown?.card === card) this.mark(); },
    }));
    this.added = make("div", { className: "changes" });
    this.steered.element.append(this.added);
    byId("features-runs").append(this.plain.element, this.steered.element);
    this.steered.element.hidden = true;
    this.clear();
  }

  start(info) {
    [this.model] = info.models;
    this.settings.offer(info);
    offerFacts(this.facts, info);
    const [first] = chooseFacts(info.facts);
    if (!this.prompt.value && first) this.prompt.value = first.prompt;
    byId("features-none").hidden = Boolean(info.features);
    byId("features-form").hidden = byId("features-layout").hidden = !info.features;
    this.plain.open(null, this.model);
  }

  /** The panel before a token is selected. */
  clear() {
    this.shown = null;
    this.panel.replaceChildren(make("h3", { textContent: "A token's features" }),
      make("p", { className: "hint", textContent: "Select a token or a mask of a written canvas: the ten features that its states have most of, step by step, and what each one says. Then click a feature to write the text again with it added." }));
  }

  async write() {
    this.stop();
    this.clear();
    this.drop();
    const settings = this.settings.read();
    this.request = { model: this.model.key, canvas: { prompt: this.prompt.value, length: settings.length }, settings, top: TOP };
    await this.fill(this.plain, this.request, "as it is");
    this.app.remember();
  }

  /** Write a request into a card. */
  async fill(card, request, name) {
    const run = new Run(this.model);
    announce("");
    card.open(run, this.model, name);
    byId("features-stop").disabled = false;
    await this.jobs.run((signal) => follow(card, run, request, signal));
    byId("features-stop").disabled = !this.jobs.isBusy;
  }

  /** Write the text again with a feature added; the text as it is stays beside it. */
  async steer({ feature, says }) {
    if (!this.request) return;
    this.jobs.stop();
    if (this.shown?.card === this.steered) this.clear();
    this.steering = { feature, says, strength: Number(this.strength.value), schedule: this.schedule.value };
    const { strength, schedule } = this.steering;
    this.steered.element.hidden = false;
    this.added.replaceChildren(
      make("span", { textContent: `${nameFeature(feature, says)} is added with strength ${strength} in ${STEPS_OF[schedule]}, at every position.` }),
      make("button", { type: "button", textContent: "Undo", onclick: () => this.undo() }));
    this.press();
    reveal(this.steered.element);
    this.app.remember();
    await this.fill(this.steered, { ...this.request, steering: { feature, strength, schedule } }, `with feature ${feature}`);
    this.app.remember();
  }

  undo() {
    this.jobs.stop();
    this.drop();
    this.app.remember();
    announce("Undone: nothing is added.");
  }

  /** Take the steered text away. */
  drop() {
    this.steering = null;
    this.steered.element.hidden = true;
    this.steered.pause();
    this.steered.run = null;
    if (this.shown?.card === this.steered) this.clear();
    this.press();
  }

  /** Read the features at a position over all states of a run. */
  async show(card, position) {
    this.reading.stop();
    const { run } = card, other = card === this.plain ? this.steered : this.plain;
    if (other.run && other.selected !== null) { other.selected = null; other.draw(); }
    // What comes later changes no state of a causal model.
    const states = (run.isCausal ? run.states.slice(-1) : run.states).map((state) => state.ids);
    const request = { model: this.model.key, states, position };
    this.shown = { card, position, request };
    const reading = make("div", { className: "reading", "aria-busy": "true" }, make("p", { className: "hint", textContent: "Reading …" }));
    this.panel.replaceChildren(this.makeHead(), reading);
    const found = await this.reading.run((signal) => call("/api/features", request, signal));
    if (!found) return;
    reading.setAttribute("aria-busy", "false");
    reading.replaceChildren(this.makeTable(found));
    this.press();
    this.mark();
  }

  makeHead() {
    const { card, position } = this.shown, { run } = card, at = run.writtenAt(position, run.last);
    const facts = [`position ${position}`, at ? `written at step ${at}` : run.isOpen(position, run.last) ? "still masked" : "given"];
    const close = make("button", { type: "button", className: "plain close", textContent: "Close", onclick: () => { card.selected = null; card.draw(); this.clear(); this.app.remember(); } });
    return make("div", { className: "head" }, close, make("h3", { textContent: quoteToken(run.textOf(run.states[run.last].ids[position])) }), make("p", { className: "facts", textContent: facts.join(" · ") }));
  }

  /** Features down, states across, as strong as each fires. */
  makeTable(found) {
    const { features } = this.app.info, { card, position } = this.shown, { run } = card, written = run.writtenAt(position, run.last);
    if (!found.length) return make("p", { className: "hint", textContent: "No feature fires here." });
    const most = Math.max(...found.flatMap(({ values }) => values));
    const rows = found.map(({ feature, says, values }) => make("tr", {},
      make("th", { scope: "row" }, make("button", { type: "button", className: "candidate feature", title: `Write again with feature ${feature} added`, "data-feature": feature, "aria-pressed": "false", textContent: feature, onclick: () => this.steer({ feature, says }) })),
      make("td", { className: "word", title: says.map(quoteToken).join(" "), textContent: says.slice(0, 3).map((text) => text.trim() || quoteToken(text)).join(", ") }),
      make("td", {}, make("div", { className: "strip", role: "img", "aria-label": `Feature ${feature} by steps done: ${values.map((value) => value.toFixed(2)).join(", ")}` }, ...values.map((value, step) => make("span", {
        className: step === written && step ? "written" : "", "--p": value / most, "data-step": values.length > 1 ? step : undefined,
        title: `${values.length > 1 ? `after step ${step}` : "in every step"}: ${formatNumber(value, 2)}${step === written && step ? "; the token has just been written" : ""}` })))),
      make("td", { className: "number", textContent: formatNumber(Math.max(...values), 2) })));
    const head = make("tr", {}, ...["feature", "says", nameSteps(found), "most"].map((name) => make("th", { scope: "col", textContent: name })));
    return make("section", {}, make("h4", { textContent: `What the states of layer ${layerOf(features.site)} here are made of` }),
      make("p", { className: "facts", textContent: `the strongest of ${features.size.toLocaleString("en")} features · click one to add it` }),
      make("table", { className: "lens features" }, make("thead", {}, head), make("tbody", {}, ...rows)),
      make("p", { className: "hint", textContent: "A value is how far the state goes along the feature's direction, in the network as it is: nothing is added there. A feature says the tokens that its direction is read as by the head (logit lens). The framed state is the first in which the token is written." }));
  }

  /** Which feature is added. */
  press() {
    for (const button of this.panel.querySelectorAll("[data-feature]")) button.setAttribute("aria-pressed", String(Number(button.dataset.feature) === this.steering?.feature));
  }

  /** The step that the card shows, in every row. */
  mark() {
    for (const cell of this.panel.querySelectorAll(".strip span")) cell.classList.toggle("now", Number(cell.dataset.step) === this.shown.card.step);
  }

  stop() {
    byId("features-stop").disabled = true;
    return this.jobs.stop();
  }

  state() {
    const { shown, steering } = this;
    return {
      prompt: this.prompt.value, settings: this.settings.read(), schedule: this.schedule.value, strength: this.strength.value, ran: this.request ? true : undefined,
      steering: steering ? { feature: steering.feature, says: steering.says } : undefined, at: shown ? { steered: shown.card === this.steered, position: shown.position, step: shown.card.step } : undefined,
    };
  }

  async restore(state) {
    this.prompt.value = state.prompt ?? "";
    this.settings.write(state.settings);
    this.schedule.value = state.schedule ?? "all";
    this.strength.value = state.strength ?? 2;
    if (!state.ran || !this.app.info.features) return;
    const { steering, at } = state;
    await this.write();
    if (Number.isInteger(steering?.feature)) await this.steer({ feature: steering.feature, says: [steering.says ?? []].flat().map(String) });
    for (const card of [this.plain, this.steered]) card.show(card.run?.last, true); // A link shows what was written, at once.
    const card = at?.steered ? this.steered : this.plain;
    if (!at || !card.run?.states.length) return;
    card.show(at.step, true);
    card.select(at.position);
  }

  calls() {
    const calls = this.request ? [{ title: "as it is", view: "write", request: this.request }] : [];
    const { steering, shown } = this;
    if (steering) calls.push({ title: `with feature ${steering.feature}`, view: "write", request: { ...this.request, steering: { feature: steering.feature, strength: steering.strength, schedule: steering.schedule } } });
    if (shown) calls.push({ title: `features at position ${shown.position}`, view: "features", request: shown.request });
    return calls;
  }
}

const layerOf = (site) => /^layers\.(\d+)\./.exec(site)?.[1] ?? site;
const nameFeature = (feature, says) => `Feature ${feature}${says.length ? ` (${says.slice(0, 2).map(quoteToken).join(", ")})` : ""}`;
const nameSteps = ([{ values }]) => values.length > 1 ? `steps 0 to ${values.length - 1}` : "value";
