// Write: a prompt is un-masked before one's eyes, by the model and its twin; its canvas can be changed in flight.

import { Jobs, stream } from "./api.js";
import { RunCard, makeLegend } from "./canvas.js";
import { announce, byId, make, plural, quoteToken, reveal } from "./dom.js";
import { PositionPanel } from "./position.js";
import { Run } from "./run.js";
import { Settings } from "./settings.js";
import { StepMap } from "./stepmap.js";

const TOP = 5; // Guesses per open position.

const nameWay = (fact) => fact.split ?? fact.way;

/** Facts to begin with: those asked in reverse, whose answers are names rather than descriptions. */
export function chooseFacts(facts) {
  const reversed = facts.filter((fact) => fact.way.includes("reverse")), pool = reversed.length ? reversed : facts;
  const shortest = Math.min(...pool.map((fact) => fact.answer.length));
  return pool.filter((fact) => fact.answer.length < 2 * shortest);
}

/** Asked the other way round than trained: a twin that reads from left to right has never seen what comes next. */
export const mustFail = (fact, model) => fact.way === "reversed" && model?.mask_id === null;

/** Facts as the options of a select, by the way of asking; those that the twin must fail are marked. */
export function offerFacts(control, { facts, models }) {
  const ways = [...new Set(facts.map(nameWay))], twin = models.find((model) => model.key === "twin");
  const mark = (way) => mustFail(facts.find((fact) => nameWay(fact) === way), twin) ? `${way} (the twin must fail)` : way;
  control.replaceChildren(make("option", { value: "", textContent: "pick a fact …" }), ...ways.map((way) => make("optgroup", { label: mark(way) },
    ...facts.map((fact, i) => [fact, i]).filter(([fact]) => nameWay(fact) === way).map(([fact, i]) => make("option", { value: i, textContent: `${fact.prompt.trim()} … ${fact.answer.trim()}` })))));
}

/** The view's form writes: by its button, by Enter in the prompt, or when a fact is picked, whose prompt it takes. */
export function askByForm(view, name, app) {
  byId(`${name}-form`).addEventListener("submit", (event) => { event.preventDefault(); view.write(); });
  byId(`${name}-stop`).addEventListener("click", () => view.stop());
  view.prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    view.write();
  });
  view.prompt.addEventListener("input", () => { view.facts.value = ""; });
  view.facts.addEventListener("change", () => {
    const fact = app.info.facts[view.facts.value];
    if (!fact) return;
    view.prompt.value = fact.prompt;
    view.write();
  });
}

/** A call of `/api/write` into a run: the card follows what arrives. */
export async function follow(card, run, request, signal, from = null, ended = () => {}) {
  card.say("asking …");
  card.element.setAttribute("aria-busy", "true");
  try {
    for await (const [name, data] of stream("/api/write", request, signal)) {
      if (name === "queued") card.say(`waiting: ${plural(data.before, "job")} before this one`);
      else if (name === "start") {
        run.begin(data, from);
        card.isFollowing = true;
        card.say("writing …");
        card.update();
      } else if (name === "step") {
        run.add(data);
        card.update();
      } else if (name === "end") {
        run.outcome = data;
        run.steps = run.last;
        card.update();
        card.afterPlay(() => {
          card.say(`${plural(data.calls, "call")} of the network, ${data.seconds.toFixed(2)} s`);
          ended(data);
        });
      }
    }
  } catch (error) {
    card.pause();
    card.say(error.name === "AbortError" ? `stopped after step ${Math.max(0, run.last)}` : error.message, error.name !== "AbortError");
    throw error;
  } finally {
    card.element.setAttribute("aria-busy", "false");
  }
}

export class WriteView {
  name = "write";

  constructor(app) {
    this.app = app;
    this.prompt = byId("write-prompt");
    this.facts = byId("write-fact");
    this.withTwin = byId("write-twin");
    this.settings = new Settings(() => app.remember());
    byId("write-settings").append(this.settings.element);
    this.jobs = new Jobs((text) => announce(text, true));
    this.reading = new Jobs((text) => announce(text, true));
    this.smearing = byId("write-smearing");
    this.looking = new Jobs((text) => announce(text, true));
    this.panel = new PositionPanel(byId("write-panel"), this.reading, { onchange: (card) => { card.draw(); this.drawChanges(card); } });
    this.cards = [];
    this.place = byId("write-runs");
    byId("write-legend").append(makeLegend());
    askByForm(this, "write", app);
    this.withTwin.addEventListener("change", () => this.showCards());
    this.smearing.addEventListener("change", () => { this.looking.stop(); for (const card of this.cards) this.look(card); app.remember(); });
    this.models = [{ key: "model", name: "model", kind: "masked", parameters: 0, mask_id: undefined }];
    this.showCards();
  }

  start(info) {
    this.models = info.models;
    this.settings.offer(info);
    offerFacts(this.facts, info);
    byId("write-twin-field").hidden = info.models.length < 2;
    const [first] = chooseFacts(info.facts);
    if (!this.prompt.value && first) this.prompt.value = first.prompt;
    this.showCards();
  }

  showCards() {
    const models = this.withTwin.checked ? this.models : this.models.slice(0, 1);
    this.cards = models.map((model) => {
      const old = this.cards.find((card) => card.model?.key === model.key && card.model.name === model.name);
      return old ?? this.makeCard(model);
    });
    this.place.replaceChildren(...this.cards.map((card) => card.element));
  }

  makeCard(model) {
    const card = new RunCard({
      plays: true,
      onselect: (each, position) => { each.map.mark(each.step, position); this.read(each, position); reveal(this.panel.element); this.app.remember(); },
      onstep: (each) => {
        if (this.panel.card === each && each.selected !== null && !each.timer && !this.jobs.isBusy) this.read(each, each.selected);
        each.map.mark(each.step, each.selected);
        this.drawChanges(each);
      },
    });
    card.model = model;
    card.changes = make("div", { className: "changes", hidden: true });
    card.map = new StepMap((step, position) => { card.show(step, true); card.select(position); });
    card.element.append(card.changes, card.map.element);
    card.open(null, model);
    return card;
  }

  /** The fact that is asked, where it is one of those to pick. */
  get fact() { return this.app.info?.facts.find((each) => each.prompt === this.prompt.value); }

  async write() {
    this.stop();
    this.panel.clear();
    const settings = this.settings.read();
    const canvas = { prompt: this.prompt.value, length: settings.length };
    announce("");
    this.app.remember();
    byId("write-stop").disabled = false;
    await Promise.all(this.cards.map((card) => this.fill(card, { model: card.model.key, canvas, settings, top: TOP })));
    byId("write-stop").disabled = !this.jobs.isBusy;
    this.app.remember();
  }

  /** Run a request into a card, from a state of the run that is there or anew. */
  async fill(card, request, from = null) {
    this.looking.stop();
    const run = from === null ? new Run(card.model) : card.run;
    if (from === null) card.open(run, card.model);
    if (run.isCausal && request.canvas.prompt?.includes("[MASK]")) {
      card.request = null;
      card.say("An autoregressive model continues a text: it cannot fill the gaps of this one.");
      card.element.setAttribute("aria-busy", "false");
      return;
    }
    card.map.element.hidden = true;
    card.settings = request.settings;
    card.request = request;
    await this.jobs.run((signal) => follow(card, run, request, signal, from, () => this.judge(card)));
    card.afterPlay(() => {
      if (run.states.length) card.map.draw(run);
      this.look(card);
      this.drawChanges(card);
    });
  }

  /** Open a position; what is being measured lets it go first. */
  async read(card, position) {
    const isMeasuring = this.looking.stop();
    await this.panel.show(card, position);
    if (isMeasuring) for (const { map } of this.cards) this.looking.run((signal) => map.goOn(signal));
  }

  /** What each state of a written canvas expects and smears, below its map of steps. */
  look(card) {
    const { map, model, run } = card;
    if (map.element.hidden || !model.fills_masks || card.timer) return;
    if (!this.smearing.checked) { map.forget(); return; }
    this.looking.run((signal) => map.measure({ model: model.key, states: run.states.map((state) => state.ids) }, signal));
  }

  judge(card) {
    const { fact } = this, expected = fact?.answer.trim();
    if (!expected) return;
    const why = mustFail(fact, card.model) ? ", which it must fail to say: it was trained on the other direction" : "";
    const isHit = card.run.textAt(card.run.last).includes(expected);
    card.status.append(" · ", make("span", { className: `verdict ${isHit ? "hit" : "miss"}`, textContent: isHit ? `recalled: ${expected}` : `not recalled: the true answer is ${quoteToken(expected)}${why}` }));
  }

  /** What was changed by hand and what can be done with it. */
  drawChanges(card) {
    const { run, step, changes } = card;
    if (!run?.states.length || this.jobs.isBusy || card.timer) { changes.hidden = true; return; }
    const draft = run.draft?.step === step ? run.draft : null;
    const canGoOn = run.isCausal ? draft !== null || step < run.last : run.countOpen(step) > 0 || draft !== null;
    changes.hidden = !canGoOn;
    if (!canGoOn) return;
    const steps = run.stepsLeft(step, this.settings.read().steps);
    const go = make("button", { type: "button", className: "main", textContent: run.isCausal ? "Go on from here" : `Go on from here (${plural(steps, "step")})`, onclick: () => this.goOn(card) });
    const drop = draft ? make("button", { type: "button", textContent: "Undo changes", onclick: () => { run.discard(); card.draw(); this.drawChanges(card); } }) : null;
    changes.replaceChildren(...[draft ? make("span", { textContent: `${plural(draft.hand.size, "change")} by hand at step ${step}` }) : null, go, drop].filter(Boolean));
  }

  async goOn(card) {
    const { run, step } = card, settings = { ...this.settings.read(), steps: run.stepsLeft(step, this.settings.read().steps) };
    const ids = run.idsAt(step).length;
    await this.fill(card, { model: card.model.key, canvas: run.canvasAt(step), settings: { ...settings, length: run.isCausal ? settings.length : ids }, top: TOP }, step);
    this.app.remember();
  }

  stop() {
    byId("write-stop").disabled = true;
    const isMeasuring = this.looking.stop();
    return this.jobs.stop() || isMeasuring;
  }

  state() {
    const [card] = this.cards, { panel } = this;
    const at = panel.card ? { card: this.cards.indexOf(panel.card), step: panel.card.step, position: panel.position } : undefined;
    const canvas = card?.request?.canvas.tokens ? card.request.canvas : undefined;
    const hasRun = this.cards.some((each) => each.run);
    return { prompt: this.prompt.value, settings: this.settings.read(), twin: this.withTwin.checked, smearing: this.smearing.checked, ran: hasRun || undefined, canvas, canvasSteps: canvas && card.request.settings.steps, at };
  }

  async restore(state) {
    this.prompt.value = state.prompt ?? "";
    this.settings.write(state.settings);
    this.withTwin.checked = state.twin ?? true;
    this.smearing.checked = state.smearing ?? true;
    this.showCards();
    if (!state.ran) return;
    await this.write();
    for (const card of this.cards) card.show(card.run?.last, true); // A link shows what was written, at once.
    if (state.canvas) {
      const settings = { ...this.settings.read(), steps: state.canvasSteps ?? 1, length: state.canvas.tokens.length };
      await this.fill(this.cards[0], { model: this.cards[0].model.key, canvas: state.canvas, settings, top: TOP });
    }
    const card = this.cards[state.at?.card];
    if (!card?.run) return;
    card.show(state.at.step, true);
    card.select(state.at.position);
  }

  calls() {
    const calls = this.cards.filter((card) => card.request).map((card) => ({ title: card.model.name, view: "write", request: card.request }));
    for (const { map, model } of this.cards) if (map.request) calls.push({ title: `${model.name}: expected length and smearing`, view: "smearing", request: map.request });
    if (this.panel.request) calls.push({ title: `position ${this.panel.position}`, view: "position", request: this.panel.request });
    return calls;
  }
}
