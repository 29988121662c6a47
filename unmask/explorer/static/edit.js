// Edit: a fact gets a new answer; the model and its twin are asked before and after, forwards and in reverse.

import { Jobs, call, stream } from "./api.js";
import { announce, byId, formatNumber, make, plural, quoteToken, setOptions } from "./dom.js";
import { chooseFacts, offerFacts } from "./write.js";

const FIELDS = ["prompt", "subject", "old", "new", "reverse"];
const NUMBERS = ["search", "clamp", "steps", "length"];
const ASKED = { edited: "Asked as edited", "reverse new": "In reverse, given the new answer", "reverse old": "In reverse, given the old answer" };

export class EditView {
  name = "edit";

  constructor(app) {
    this.app = app;
    this.fields = Object.fromEntries(FIELDS.map((name) => [name, byId(`edit-${name}`)]));
    this.facts = byId("edit-fact");
    this.withTwin = byId("edit-twin");
    this.jobs = new Jobs((text) => announce(text, true));
    this.requests = []; // Of the edits that are shown.
    this.edits = {}; // That are on, {request, end} by the key of their model.
    byId("edit-form").addEventListener("submit", (event) => { event.preventDefault(); this.edit(); });
    byId("edit-stop").addEventListener("click", () => this.stop());
    byId("edit-undo").addEventListener("click", () => this.undo());
    this.fields.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.edit();
    });
    this.facts.addEventListener("change", () => {
      const fact = app.info.facts[this.facts.value];
      if (!fact) return;
      this.take(fact);
      app.remember();
    });
  }

  start(info) {
    this.models = info.models;
    const layers = Array.from({ length: Math.max(...info.models.map((model) => model.layers)) }, (_, i) => i);
    setOptions(byId("edit-layer"), [{ value: "", label: "the middle one" }, ...layers.map((i) => ({ value: String(i), label: String(i) }))]);
    byId("edit-twin-field").hidden = info.models.length < 2;
    byId("edit-length").value ||= info.defaults.length;
    offerFacts(this.facts, info);
    const [first] = chooseFacts(info.facts);
    if (!this.fields.prompt.value && first) this.take(first);
    this.edits = info.edits;
    this.showEdits();
  }

  /** A fact, its question in reverse, and another fact's answer as the new one. */
  take(fact) {
    const { facts } = this.app.info ?? { facts: [] }, answer = fact.answer.trim();
    const back = facts.find((each) => each.answer.trim().toLowerCase() === fact.subject.toLowerCase());
    const other = facts.find((each) => each.split === fact.split && each.answer.trim() !== answer);
    const { prompt, subject, old, new: wanted, reverse } = this.fields;
    [prompt.value, subject.value, old.value, wanted.value] = [fact.prompt.trimEnd(), fact.subject, answer, other?.answer.trim() ?? ""];
    reverse.value = back ? `${back.prompt.slice(0, back.span[0])}{}${back.prompt.slice(back.span[1])}`.trimEnd() : "";
  }

  /** The request without its model, or a sentence that says what is missing. */
  read() {
    const values = Object.fromEntries(FIELDS.map((name) => [name, this.fields[name].value.trim()]));
    const { prompt, subject } = values, begin = subject ? prompt.indexOf(subject) : -1;
    if (begin < 0) return "The subject must be words of the question, spelled alike: what the new answer is about.";
    for (const name of ["old", "new"]) if (!values[name]) return `Say what the ${name} answer is.`;
    const [search, clamp, steps, length] = NUMBERS.map((name) => Number(byId(`edit-${name}`).value));
    const layer = byId("edit-layer").value;
    return { ...values, subject: [begin, begin + subject.length], layer: layer === "" ? null : Number(layer), search_steps: search, reveal: byId("edit-reveal").value, clamp, steps, length: length || null };
  }

  async edit() {
    this.stop();
    const request = this.read();
    if (typeof request === "string") { announce(request, true); return; }
    announce("");
    const models = this.withTwin.checked ? this.models : this.models.slice(0, 1);
    const cards = this.open(models, models.map((model) => ({ model: model.key, ...request })));
    byId("edit-stop").disabled = byId("edit-undo").disabled = false;
    await Promise.all(cards.map((card, i) => this.jobs.run((signal) => this.fill(card, this.requests[i].request, signal))));
    byId("edit-stop").disabled = !this.jobs.isBusy;
    this.showEdits();
    this.app.remember();
  }

  /** A card for each model, and what it is asked. */
  open(models, requests) {
    this.requests = requests.map((request, i) => ({ title: models[i].name, view: "edit", request }));
    this.cards = models.map(makeCard);
    byId("edit-answers").replaceChildren(...this.cards.map((card) => card.element));
    return this.cards;
  }

  async fill(card, request, signal) {
    const say = (text) => { card.status.textContent = text; };
    card.element.setAttribute("aria-busy", "true");
    try {
      for await (const [name, data] of stream("/api/edit", request, signal)) {
        if (name === "queued") say(`waiting: ${plural(data.before, "job")} before this one`);
        else if (name === "before") {
          say("searching for the value that gives the new answer …");
          card.body.replaceChildren(...data.answers.map((row) => drawQuestion(row, [["before", row.text, row.nll]])));
        } else if (name === "search") say(`searching for the value that gives the new answer: evaluation ${data.step} of ${request.search_steps}`);
        else if (name === "progress") say("asking again …");
        else if (name === "end") {
          this.edits[request.model] = { request, end: data };
          this.showEdits();
          drawEnd(card, data);
        }
      }
    } catch (error) {
      const what = error.name === "AbortError" ? "stopped." : error.message;
      say(`${what} Asking which edit holds …`);
      say(`${what} ${await this.learnEdit(request.model)}`);
      throw error;
    } finally {
      card.element.setAttribute("aria-busy", "false");
    }
  }

  /** Which edit a model has after a call that did not end as it should, asked of the server. */
  async learnEdit(key) {
    try {
      this.edits = await call("/api/edits", {});
    } catch {
      return "No edit outlives the server.";
    }
    this.showEdits();
    const kept = this.edits[key]?.request;
    return kept ? `This edit holds: ${quoteToken(kept.prompt)} gets ${quoteToken(kept.new)}.` : "No edit holds.";
  }

  async undo() {
    this.stop();
    byId("edit-undo").disabled = true;
    // Of every model: an edit that is running, or was made on another page, is not known here.
    for (const { key } of this.models) {
      const answer = await this.jobs.run((signal) => call("/api/undo", { model: key }, signal));
      if (!answer) { this.showEdits(); return; }
      delete this.edits[key];
    }
    for (const card of this.cards ?? []) card.status.textContent = "undone: the weights are as before, to the bit";
    this.showEdits();
    announce("Undone: the weights are as before.");
  }

  /** Which models are edited, said above every view. */
  showEdits() {
    const all = Object.entries(this.edits), line = byId("edited");
    byId("edit-undo").disabled = !all.length && !this.jobs.isBusy;
    line.hidden = !all.length;
    // Both models usually have the same edit, which is said once.
    const names = new Map();
    for (const [key, { request: each }] of all) {
      const what = `edited: ${quoteToken(each.prompt)} gets ${quoteToken(each.new)} for ${quoteToken(each.old)}.`;
      names.set(what, [...(names.get(what) ?? []), this.models.find((model) => model.key === key)?.name ?? key]);
    }
    const texts = [...names].map(([what, which]) => `${which.join(" and ")} ${which.length > 1 ? "are" : "is"} ${what}`);
    line.replaceChildren(...texts.map((text) => make("span", { textContent: `${text} ` })), make("button", { type: "button", textContent: "Undo", onclick: () => this.undo() }));
  }

  stop() {
    byId("edit-stop").disabled = true;
    return this.jobs.stop();
  }

  state() {
    const form = Object.fromEntries([...FIELDS, ...NUMBERS, "layer", "reveal"].map((name) => [name, byId(`edit-${name}`).value]));
    return { form, twin: this.withTwin.checked, ran: this.requests.length > 0 || undefined };
  }

  /** A link fills in the form and changes no weights; of an edit that is on it shows what was found. */
  async restore({ form, twin, ran }) {
    for (const [name, value] of Object.entries(form ?? {})) { const control = byId(`edit-${name}`); if (control) control.value = value; }
    this.withTwin.checked = twin ?? true;
    const wanted = this.read(), models = this.models.filter(({ key }) => ["prompt", "old", "new"].every((name) => this.edits[key]?.request[name] === wanted[name]));
    if (!ran || !models.length) return;
    const kept = models.map(({ key }) => this.edits[key]);
    this.open(models, kept.map(({ request }) => request)).forEach((card, i) => {
      drawEnd(card, kept[i].end);
      card.element.setAttribute("aria-busy", "false");
    });
  }

  calls() { return this.requests; }
}

function makeCard(model) {
  const status = make("p", { className: "status", role: "status", textContent: "asking …" }), body = make("div");
  const name = make("h3", {}, make("span", { className: "dot", "aria-hidden": "true" }), model.name);
  return { status, body, element: make("article", { className: "card edited", "data-kind": model.kind, "aria-busy": "true" }, name, status, body) };
}

/** What an edit found: how it was made, and each question before and after. */
function drawEnd({ status, body }, { layers, seconds, magnitude, rows }) {
  status.textContent = `edited layer ${layers.join(", ")} in ${seconds.toFixed(2)} s; the change has a norm of ${formatNumber(magnitude, 2)}`;
  body.replaceChildren(...rows.map((row) => drawQuestion(row, [["before", row.text_before, row.nll_before, row.said_before], ["after", row.text_after, row.nll_after, row.said_after]])));
}

/** A question with its answers: what was written, and how likely each token of the right answer is. */
function drawQuestion({ role, prompt, wanted }, answers) {
  return make("section", { "data-role": role }, make("h4", { textContent: ASKED[role] }), make("p", { className: "hint", textContent: `${prompt} … ${quoteToken(wanted)}?` }),
    make("dl", { className: "texts" }, ...answers.flatMap(([name, text, nll, isSaid]) => [
      make("dt", {}, name, make("span", { className: "number", textContent: ` · p per token ${formatNumber(Math.exp(-nll))} ` }),
        isSaid === undefined ? null : make("span", { className: `verdict ${isSaid ? "hit" : "miss"}`, textContent: isSaid ? "said" : "not said" })),
      make("dd", { className: name, textContent: text.trim() })])));
}
