// Trace: where a state has to be restored for a fact to be recalled again, cell by cell.

import { Jobs, call, stream } from "./api.js";
import { CircuitTool } from "./circuit.js";
import { announce, byId, formatNumber, make, plural, quoteToken, reveal, setOptions } from "./dom.js";
import { HeatMap, nameOf } from "./heatmap.js";
import { MoveTool } from "./move.js";
import { chooseFacts, offerFacts } from "./write.js";

const PARTS = ["resid", "mlp", "attn"];

export class TraceView {
  name = "trace";

  constructor(app) {
    this.app = app;
    this.text = byId("trace-text");
    this.facts = byId("trace-fact");
    this.subject = null; // Characters of the text, [start, end].
    this.answer = null;
    this.jobs = new Jobs((text) => announce(text, true));
    this.restoring = new Jobs((text) => announce(text, true));
    this.map = new HeatMap(byId("trace-map"), (part, layer, position) => this.restoreCell(part, layer, position));
    this.panel = byId("trace-panel");
    this.move = new MoveTool(app);
    this.circuit = new CircuitTool(app, () => this.read());
    this.request = null;
    this.picked = null;
    this.clearPanel();
    byId("trace-form").addEventListener("submit", (event) => { event.preventDefault(); this.trace(); });
    byId("trace-stop").addEventListener("click", () => this.stop());
    byId("trace-subject").addEventListener("click", () => this.mark("subject"));
    byId("trace-answer").addEventListener("click", () => this.mark("answer"));
    this.text.addEventListener("keydown", (event) => {
      if (event.altKey && event.key.toLowerCase() === "s") { event.preventDefault(); this.mark("subject"); }
      else if (event.altKey && event.key.toLowerCase() === "a") { event.preventDefault(); this.mark("answer"); }
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.trace(); }
    });
    this.text.addEventListener("input", () => { this.subject = null; this.answer = null; this.facts.value = ""; this.drawMarks(); });
    this.facts.addEventListener("change", () => {
      const fact = app.info.facts[this.facts.value];
      if (fact) { this.take(fact); this.trace(); }
    });
    this.drawMarks();
  }

  start(info) {
    this.models = info.models;
    setOptions(byId("trace-model"), info.models.map((model) => ({ value: model.key, label: model.name })));
    if (info.corruptions) setOptions(byId("trace-corruption"), info.corruptions);
    this.showSamples();
    offerFacts(this.facts, info);
    const [first] = chooseFacts(info.facts);
    if (!this.text.value && first) this.take(first);
    this.move.start(info);
  }

  /** Samples are asked for where noise is drawn. */
  showSamples() {
    byId("trace-samples").closest("label").hidden = ["mask", "mean"].includes(byId("trace-corruption").value);
  }

  /** A fact as a whole sentence, with its subject and its answer marked. */
  take({ prompt, answer, span }) {
    const gap = /\s$/.test(prompt) || /^\s/.test(answer) ? "" : " ";
    this.text.value = prompt + gap + answer;
    this.subject = [...span];
    this.answer = [prompt.length + gap.length, this.text.value.length];
    this.drawMarks();
  }

  /** What is selected in the text becomes the subject or the answer. */
  mark(role) {
    const { selectionStart: start, selectionEnd: end, value } = this.text;
    if (start === end) { announce(`Select the ${role} in the sentence first: with the mouse, or with Shift and the arrow keys.`, true); return; }
    const selected = value.slice(start, end), lead = selected.length - selected.trimStart().length;
    this[role] = [start + lead, start + lead + selected.trim().length];
    announce(`${quoteToken(selected)} is the ${role}.`);
    this.drawMarks();
    this.app.remember();
  }

  drawMarks() {
    const { value } = this.text, marks = byId("trace-marks"), pieces = [];
    const spans = [["subject", this.subject], ["answer", this.answer]].filter(([, span]) => span).sort((a, b) => a[1][0] - b[1][0]);
    let at = 0;
    for (const [role, [start, end]] of spans) {
      if (start < at) continue;
      pieces.push(value.slice(at, start), make("mark", { className: role, textContent: value.slice(start, end), title: role }));
      at = end;
    }
    const rest = value.slice(at);
    if (rest) pieces.push(this.answer ? make("s", { textContent: rest, title: "after the answer: not used" }) : rest);
    marks.replaceChildren(...pieces);
    const missing = ["subject", "answer"].filter((role) => !this[role]);
    byId("trace-hint").textContent = !value ? "Write a sentence that states a fact, or pick one." : missing.length ? `Select the ${missing.join(" and the ")} in the sentence and press its button.` : `Hidden: ${quoteToken(value.slice(...this.subject))}. Asked for: ${quoteToken(value.slice(...this.answer))}.`;
  }

  /** The request, or a sentence that says what is missing. */
  read() {
    const { value } = this.text;
    if (!this.subject || !this.answer) return "Select the subject and the answer in the sentence first.";
    if (this.subject[1] > this.answer[0]) return "The subject must stand before the answer: ask for what comes last.";
    const prompt = value.slice(0, this.answer[0]).trimEnd(), parts = PARTS.filter((part) => byId(`trace-${part}`).checked);
    if (!parts.length) return "Choose at least one of hidden state, MLP and attention to restore.";
    return {
      model: byId("trace-model").value, prompt, answer: value.slice(prompt.length, this.answer[1]), subject: this.subject, parts,
      corruption: byId("trace-corruption").value, samples: Number(byId("trace-samples").value), step: Number(byId("trace-step").value) || byId("trace-step").value, steps: Number(byId("trace-steps").value),
    };
  }

  async trace() {
    this.stop();
    const request = this.read(), status = byId("trace-status");
    if (typeof request === "string") { announce(request, true); return; }
    announce("");
    this.request = request;
    this.circuit.leave(request);
    this.picked = null;
    this.clearPanel();
    this.app.remember();
    byId("trace-stop").disabled = false;
    status.textContent = "asking …";
    this.map.element.setAttribute("aria-busy", "true");
    await this.jobs.run(async (signal) => {
      signal.addEventListener("abort", () => { status.textContent = `stopped with ${plural(this.map.values.size, "cell")}`; });
      for await (const [name, data] of stream("/api/trace", request, signal)) {
        if (name === "queued") status.textContent = `waiting: ${plural(data.before, "job")} before this one`;
        else if (name === "start") { this.map.begin(data); this.describeStart(data); status.textContent = "tracing …"; }
        else if (name === "estimate") this.map.estimate(data);
        else if (name === "cells") { this.map.add(data); status.textContent = `${plural(this.map.values.size, "cell")} of ${this.map.cells.size}`; }
        else if (name === "end") status.textContent = `${plural(this.map.values.size, "cell")} in ${data.seconds.toFixed(2)} s`;
      }
    });
    this.map.element.setAttribute("aria-busy", "false");
    if (status.textContent === "asking …") status.textContent = "";
    byId("trace-stop").disabled = true;
  }

  /** What is traced, and whether the model says it of itself. */
  describeStart({ step, forced, said, window }) {
    const { answer } = this.request, notes = [`The state before step ${step} is traced; MLP and attention outputs are restored ${window} layers at a time.`];
    if (forced) notes.push(`The model itself writes ${quoteToken(said)}: ${quoteToken(answer)} was put in its place.`);
    byId("trace-notes").textContent = notes.join(" ");
  }

  clearPanel() {
    this.panel.replaceChildren(make("h3", { textContent: "A cell, closely" }), make("p", { className: "hint", textContent: "Each cell puts one clean state back into the run whose subject was hidden. Strongly coloured cells bring the answer back. Choose a cell to read what the model then writes." }));
  }

  async restoreCell(part, layer, position) {
    this.restoring.stop();
    this.picked = { part, layer, position };
    this.app.remember();
    const value = this.map.values.get(`${part} ${layer} ${position}`), token = this.map.tokens[position];
    const texts = make("dl", { className: "texts" }, make("p", { className: "hint", textContent: "Writing with this state restored …" }));
    this.panel.replaceChildren(make("h3", {}, `${quoteToken(token.text)}, layer ${layer}`),
      make("p", { className: "facts", textContent: `${nameOf(part)} restored: p ${formatNumber(value)} · subject hidden: p ${formatNumber(this.map.corrupted)} · clean: p ${formatNumber(this.map.clean)}` }), texts);
    reveal(this.panel);
    const answer = await this.restoring.run((signal) => call("/api/restore", { ...this.request, ...this.picked }, signal));
    if (!answer) { texts.replaceChildren(); return; }
    const rows = [["clean", answer.clean], ["subject hidden", answer.corrupted], ["state restored", answer.restored]];
    texts.replaceChildren(...rows.flatMap(([name, text]) => [make("dt", { textContent: name }), make("dd", { className: name.split(" ").at(-1), textContent: text.trim() })]));
  }

  stop() {
    byId("trace-stop").disabled = true;
    const wasBusy = this.jobs.stop();
    return [this.move.stop(), this.circuit.stop(), wasBusy].some(Boolean);
  }

  state() {
    const request = this.read();
    const form = Object.fromEntries(["model", "corruption", "samples", "step", "steps"].map((name) => [name, byId(`trace-${name}`).value]));
    return { text: this.text.value, subject: this.subject, answer: this.answer, form, parts: PARTS.filter((part) => byId(`trace-${part}`).checked), ran: this.request !== null && typeof request !== "string" || undefined, picked: this.picked ?? undefined, move: this.move.state(), circuit: this.circuit.state() };
  }

  async restore(state) {
    this.text.value = state.text ?? "";
    this.subject = state.subject ?? null;
    this.answer = state.answer ?? null;
    for (const [name, value] of Object.entries(state.form ?? {})) byId(`trace-${name}`).value = value;
    this.showSamples();
    for (const part of PARTS) byId(`trace-${part}`).checked = (state.parts ?? PARTS).includes(part);
    this.drawMarks();
    this.move.restore(state.move);
    if (state.ran) {
      await this.trace();
      if (state.picked) this.map.select(state.picked.part, state.picked.layer, state.picked.position);
    }
    await this.circuit.restore(state.circuit);
  }

  calls() {
    const calls = this.request ? [{ title: "trace", view: "trace", request: this.request }] : [];
    if (this.picked) calls.push({ title: "restored generation", view: "restore", request: { ...this.request, ...this.picked } });
    if (this.circuit.request) calls.push({ title: "circuit", view: "circuit", request: this.circuit.request });
    if (this.move.request) calls.push({ title: "moved state", view: "move", request: this.move.request });
    return calls;
  }
}
