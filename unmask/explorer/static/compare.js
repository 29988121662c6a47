// Compare: two prompts, two models or two steps of one run, side by side over one axis of steps.

import { Jobs } from "./api.js";
import { RunCard, TEMPO, makeLegend, wantsStill } from "./canvas.js";
import { announce, byId, drawLines, field, make, select, setOptions } from "./dom.js";
import { Run } from "./run.js";
import { Settings } from "./settings.js";
import { follow, chooseFacts } from "./write.js";

const KINDS = { prompts: "two prompts", models: "two models", steps: "two steps" };

export class CompareView {
  name = "compare";

  constructor(app) {
    this.app = app;
    this.jobs = new Jobs((text) => announce(text, true));
    this.kind = byId("compare-kind");
    setOptions(this.kind, Object.entries(KINDS).map(([value, label]) => ({ value, label })));
    this.settings = new Settings(() => app.remember());
    byId("compare-settings").append(this.settings.element);
    this.sides = ["first", "second"].map((name, i) => this.makeSide(name, i));
    byId("compare-prompts").append(...this.sides.map((side) => side.promptField));
    byId("compare-models").append(...this.sides.map((side) => side.modelField));
    byId("compare-sides").append(...this.sides.map((side) => side.card.element));
    byId("compare-sides").after(makeLegend());
    this.timer = null;
    byId("compare-play").addEventListener("click", () => this.toggle());
    this.axis = byId("compare-step");
    this.axis.addEventListener("input", () => { this.pause(); this.showStep(Number(this.axis.value)); });
    this.kind.addEventListener("change", () => { this.arrange(); app.remember(); });
    byId("compare-form").addEventListener("submit", (event) => { event.preventDefault(); this.compare(); });
    byId("compare-stop").addEventListener("click", () => this.stop());
    this.arrange();
  }

  makeSide(name, i) {
    const prompt = make("textarea", { rows: 2, className: "prompt", id: `compare-${name}` }), model = select([{ value: "model", label: "model" }], "model");
    const side = { name, prompt, model, className: i ? "second" : "first" };
    side.card = new RunCard({ onstep: () => this.draw() });
    side.card.element.classList.add(side.className);
    prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.compare(); }
    });
    side.promptField = field(`${name} prompt`, prompt, "wide");
    side.modelField = field(i ? "and" : "model", model);
    return side;
  }

  start(info) {
    this.settings.offer(info);
    for (const [i, side] of this.sides.entries()) {
      setOptions(side.model, info.models.map((model) => ({ value: model.key, label: model.name })), i && info.models.length > 1 && this.kind.value === "models" ? "twin" : "model");
      side.card.open(null, info.models[0]);
    }
    if (info.models.length < 2) setOptions(this.kind, Object.entries(KINDS).filter(([value]) => value !== "models").map(([value, label]) => ({ value, label })));
    const prompts = chooseFacts(info.facts).map((fact) => fact.prompt);
    this.sides.forEach((side, i) => { if (!side.prompt.value && prompts[i]) side.prompt.value = prompts[i]; });
    this.arrange();
  }

  /** Only what differs between the sides is asked twice. */
  arrange() {
    const [first, second] = this.sides, kind = this.kind.value;
    second.promptField.hidden = kind !== "prompts";
    second.modelField.hidden = kind !== "models";
    first.promptField.firstChild.textContent = kind === "prompts" ? "first prompt" : "prompt";
    // Two steps of one run have a slider each; otherwise one slider moves both runs.
    byId("compare-axis").hidden = kind === "steps";
    byId("compare-sides").classList.toggle("linked", kind !== "steps");
    if (kind === "models" && this.app.info?.models.length > 1 && first.model.value === second.model.value) {
      second.model.value = this.app.info.models.find((model) => model.key !== first.model.value).key;
    }
  }

  read() {
    const [first, second] = this.sides, kind = this.kind.value, settings = this.settings.read();
    const make = (side) => ({
      model: kind === "models" ? side.model.value : first.model.value,
      canvas: { prompt: kind === "prompts" ? side.prompt.value : first.prompt.value, length: settings.length }, settings, top: 5,
    });
    return kind === "steps" ? [make(first)] : [make(first), make(second)];
  }

  async compare() {
    this.stop();
    this.pause();
    announce("");
    this.requests = this.read();
    this.app.remember();
    byId("compare-stop").disabled = false;
    const models = this.app.info.models, runs = this.requests.map((request) => new Run(models.find((model) => model.key === request.model)));
    const isPrompts = this.kind.value === "prompts";
    this.sides.forEach((side, i) => side.card.open(runs[i] ?? runs[0], (runs[i] ?? runs[0]).model, isPrompts ? `${side.name} prompt` : ""));
    await Promise.all(runs.map((run, i) => this.jobs.run((signal) => follow(this.sides[i].card, run, this.requests[i], signal))));
    byId("compare-stop").disabled = true;
    if (runs.length === 1 && runs[0].states.length) {
      this.sides[1].card.say(this.sides[0].card.status.textContent);
      this.sides[0].card.show(Math.floor(runs[0].last / 2));
      this.sides[1].card.show(runs[0].last);
    } else if (runs.every((run) => run.outcome) && !wantsStill()) this.toggle();
    this.draw();
  }

  /** One step on both sides; a run that has ended stays at its end. */
  showStep(step) {
    for (const { card } of this.sides) card.show(step, true);
  }

  toggle() {
    if (this.timer) { this.pause(); return; }
    let step = Number(this.axis.value) >= Number(this.axis.max) ? 0 : Number(this.axis.value);
    this.showStep(step);
    byId("compare-play").textContent = "❚❚ Pause";
    this.timer = setInterval(() => {
      this.showStep(++step);
      if (step >= Number(this.axis.max)) this.pause();
    }, TEMPO);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    byId("compare-play").textContent = "▶ Play";
  }

  draw() {
    const shown = this.sides.filter(({ card }) => card.run?.states.length), chart = byId("compare-chart");
    if (!shown.length) return;
    const last = Math.max(...shown.map(({ card }) => card.run.last)), step = Math.max(...shown.map(({ card }) => card.step));
    this.axis.max = last;
    this.axis.value = step;
    byId("compare-step-name").textContent = `step ${step} of ${last}`;
    const isSteps = this.kind.value === "steps";
    const series = shown.map(({ card, className }) => {
      const { run } = card, next = run.states[card.step + 1]; // None at the end: nothing is open there.
      const points = isSteps
        ? Object.entries(next?.entropy ?? {}).map(([at, value]) => [Number(at), value])
        : run.states.map((_, at) => [at, run.meanEntropy(at)]).filter(([, value]) => value !== null);
      return { className, points };
    });
    const names = isSteps ? shown.map(({ card }) => `step ${card.step}${card.step < card.run.last ? "" : ": nothing is open"}`) : this.kind.value === "models" ? shown.map(({ card }) => card.run.model.name) : ["first prompt", "second prompt"];
    const what = isSteps ? "Entropy at each open position, at both steps" : "Mean entropy of what is still open, step by step";
    const legend = make("ul", { className: "legend" }, ...shown.map(({ className }, i) => make("li", {}, make("span", { className: `swatch line ${className}`, "aria-hidden": "true" }), names[i])));
    const meaning = make("p", { className: "hint", textContent: "Entropy says how unsure the model is of a token that is still open: 0 nats where it is certain, 0.69 where two are equally likely. An autoregressive model has one open position, the next." });
    chart.replaceChildren(make("h3", { textContent: what }), meaning, legend, drawLines(series, { xlabel: isSteps ? "position" : "step", ylabel: "nats", label: `${what}: ${names.join(" and ")}`, width: Math.max(280, Math.min(1300, chart.clientWidth - 34)), marker: isSteps ? null : step }));
  }

  stop() {
    byId("compare-stop").disabled = true;
    return this.jobs.stop();
  }

  state() {
    return { kind: this.kind.value, settings: this.settings.read(), sides: this.sides.map(({ prompt, model, card }) => ({ prompt: prompt.value, model: model.value, step: card.run ? card.step : undefined })), ran: this.requests ? true : undefined };
  }

  async restore(state) {
    this.kind.value = state.kind ?? "prompts";
    this.settings.write(state.settings);
    this.sides.forEach((side, i) => { side.prompt.value = state.sides?.[i]?.prompt ?? ""; side.model.value = state.sides?.[i]?.model ?? "model"; });
    this.arrange();
    if (!state.ran) return;
    await this.compare();
    this.pause();
    this.sides.forEach((side, i) => { if (state.sides[i].step !== undefined) side.card.show(state.sides[i].step, true); });
  }

  calls() {
    return (this.requests ?? []).map((request, i) => ({ title: `${i ? "second" : "first"} run`, view: "write", request }));
  }
}
