// All steps of a run at once: steps down, positions across, as sure as the model was of its guess; what each
// state expects and smears is measured once the text is written.

import { stream } from "./api.js";
import { drawLines, formatNumber, make, plural, quoteToken, roveFocus } from "./dom.js";

const MOST_CELLS = 6000;
const LEAST_SHOWN = 0.05; // Of smearing: less is not drawn, yet said of its step.
const percent = (share) => `${Math.round(100 * share)} %`;

export class StepMap {
  /** `onpick(step, position)` is called for a cell that was clicked or chosen by Enter. */
  constructor(onpick) {
    this.onpick = onpick;
    this.place = make("div", { className: "scroll" });
    this.element = make("details", { className: "fold stepmap", open: true, hidden: true }, make("summary", { textContent: "Every step at once" }), this.place,
      make("p", { className: "hint", textContent: "How sure the model was of its likeliest token while a position was open; the framed cell is the step that wrote it. ⏎ ends a text." }), this.makeSmearing());
    this.place.addEventListener("click", (event) => this.pick(event));
    this.place.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") this.pick(event); });
    roveFocus(this.place, "td.cell", () => this.positions?.length ?? 1);
  }

  pick(event) {
    const cell = event.target.closest("td.cell");
    if (!cell) return;
    event.preventDefault();
    this.onpick(Number(cell.dataset.step), Number(cell.dataset.position));
  }

  /** Draw a run that has ended or was stopped. */
  draw(run) {
    const { last } = run, ids = run.states[last].ids;
    this.run = run;
    this.forget();
    this.positions = ids.map((_, position) => position).filter((position) => run.states.some((_, step) => step <= last && run.isOpen(position, step)));
    const isShown = this.positions.length > 0 && last > 0 && this.positions.length * last <= MOST_CELLS;
    this.element.hidden = !isShown;
    if (!isShown) { this.place.replaceChildren(); return; }
    const head = make("tr", { role: "row" }, make("th", { role: "columnheader", scope: "col", textContent: "step" }),
      ...this.positions.map((position) => make("th", { role: "columnheader", scope: "col" }, make("span", { textContent: run.textOf(ids[position]).trim() || "␣" }))));
    const rows = run.states.slice(0, -1).map((_, step) => make("tr", { role: "row" }, make("th", { role: "rowheader", scope: "row", textContent: step + 1, "data-row": step }),
      ...this.positions.map((position) => this.makeCell(run, step, position))));
    const table = make("table", { className: "map", role: "grid", "aria-label": "Steps down, positions across" }, make("thead", { role: "rowgroup" }, head), make("tbody", { role: "rowgroup" }, ...rows));
    this.place.replaceChildren(table);
    table.querySelector("td.cell").tabIndex = 0;
  }

  makeCell(run, step, position) {
    const isOpen = run.states[step].ids[position] === run.model.mask_id, [guess] = run.states[step + 1].guesses[position] ?? [];
    const isWritten = run.states[step + 1].written.includes(position);
    const label = isOpen && guess
      ? `step ${step + 1}: ${quoteToken(guess.text)} p ${formatNumber(guess.p)}${isWritten ? ", then written" : ""}`
      : `step ${step + 1}: ${quoteToken(run.textOf(run.states[step].ids[position]))}, written`;
    return make("td", { role: "gridcell", className: `cell${isOpen ? "" : " done"}${isWritten ? " written" : ""}`, tabIndex: -1, "data-step": step, "data-position": position, "--p": isOpen && guess ? guess.p : 0, title: label, "aria-label": label });
  }

  /** Below the map: a line of expected lengths, and what its marks mean. */
  makeSmearing() {
    this.chart = make("div", { className: "chart" });
    this.says = make("p", { className: "hint", role: "status" });
    const items = [["home", "a smeared token, sure to come but not yet where: here it is likeliest"], ["lost", "its probability here, which goes away once it is written there"], ["rival", "here two texts are still possible: choosing one token or the other changes other places"]];
    const legend = make("ul", { className: "legend", "aria-label": "Legend of smearing" }, ...items.map(([name, label]) => make("li", {}, make("span", { className: `swatch cell smear ${name}`, "aria-hidden": "true" }), label)));
    this.smearing = make("section", { className: "smearing", hidden: true }, legend, this.says, make("h4", { textContent: "Expected length, step by step" }), this.chart,
      make("p", { className: "hint" }, "How many tokens the text has up to its end, the prompt included: the sum over positions of 1 − p(end). Length and smearing are those of ", make("code", { textContent: "unmask transparency" }), ", from predictions without guidance; a marked cell and a step's number say how much is smeared when the pointer rests there."));
    return this.smearing;
  }

  /** Take measurements of another run, or those that are not wanted, off the map. */
  forget() {
    this.request = null;
    this.lengths = [];
    this.smearing.hidden = true;
    this.chart.replaceChildren();
    for (const header of this.place.querySelectorAll("th[data-row]")) header.title = "";
    for (const cell of this.place.querySelectorAll("td.smear")) {
      cell.classList.remove("smear", "home", "lost", "rival");
      describe(cell, cell.dataset.plain);
    }
  }

  /** Ask what every state expects and smears; marks appear as answers come. */
  async measure(request, signal) {
    this.forget();
    this.request = request;
    this.smearing.hidden = false;
    await this.goOn(signal);
  }

  /** Measure the states that are left. */
  async goOn(signal) {
    const { states } = this.request ?? { states: [] }, done = this.lengths.length;
    if (done >= states.length) return;
    try {
      for await (const [name, data] of stream("/api/smearing", { ...this.request, states: states.slice(done) }, signal)) {
        if (name === "queued") this.says.textContent = `waiting: ${plural(data.before, "job")} before this one`;
        if (name !== "state") continue;
        this.add({ ...data, state: done + data.state });
        this.says.textContent = `measured: ${this.lengths.length} of ${plural(states.length, "state")}`;
      }
      this.says.textContent = "";
    } catch (error) {
      this.says.textContent = `stopped after ${plural(this.lengths.length, "state")}`;
      throw error;
    }
  }

  /** One state's expected length on the line, and its smears on the map. */
  add({ state, expected, token, sequence }) {
    this.lengths.push([state, expected]);
    const isKnown = expected !== null, label = isKnown ? `Expected length by steps done: ${this.lengths.map(([, length]) => length.toFixed(1)).join(", ")}` : "";
    this.chart.replaceChildren(isKnown
      ? drawLines([{ className: "first", points: this.lengths }], { xlabel: "steps done", ylabel: "tokens", label, width: Math.max(260, Math.min(700, this.element.clientWidth - 20)), last: this.request.states.length - 1 })
      : make("p", { className: "hint", textContent: "This model's texts have no end token: no length can be expected." }));
    const row = this.place.querySelector(`th[data-row="${state}"]`);
    if (!row) return; // Of the finished text: no step follows it.
    const [one, other] = sequence.texts, says = [isKnown ? `step ${state + 1}: expected length ${expected.toFixed(1)}` : `step ${state + 1}`,
      `${percent(token.amount)} of ${quoteToken(token.text)} is smeared`, `two texts are possible to ${percent(sequence.amount)}`];
    row.title = says.join("; ");
    for (const [at, lost] of Object.entries(token.lost)) if (lost >= LEAST_SHOWN) this.tag(state, at, "lost", lost, `${percent(lost)} of ${quoteToken(token.text)} goes away here once it is written at position ${token.home}`);
    if (token.amount >= LEAST_SHOWN) this.tag(state, token.home, "home", 1, `${quoteToken(token.text)} is smeared: ${percent(token.amount)} of it is spread over places near by, and here it is likeliest`);
    const places = Object.values(sequence.apart).filter((apart) => apart >= 0.5).length;
    if (sequence.amount >= LEAST_SHOWN) this.tag(state, sequence.place, "rival", sequence.amount, `${quoteToken(one)} here or ${quoteToken(other)} are two texts: ${plural(places, "other position")} would mostly change (${percent(sequence.amount)})`);
  }

  /** Draw a smear on a cell, and say it there. */
  tag(step, position, kind, share, text) {
    const cell = this.cellAt(step, position);
    if (!cell) return;
    if (!cell.classList.contains("smear")) cell.dataset.plain = cell.title;
    cell.classList.add("smear", kind);
    cell.style.setProperty(`--${kind}`, share);
    describe(cell, `${cell.title}; ${text}`);
  }

  /** Mark what the card shows. */
  mark(step, position) {
    for (const cell of this.place.querySelectorAll("td.selected")) cell.classList.remove("selected");
    this.cellAt(step, position)?.classList.add("selected");
  }

  cellAt(step, position) { return this.place.querySelector(`td[data-step="${step}"][data-position="${position}"]`); }
}

function describe(cell, text) {
  cell.title = text;
  cell.setAttribute("aria-label", text);
}
