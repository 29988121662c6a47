// All steps of a run at once: steps down, positions across, as sure as the model was of its guess.

import { formatNumber, make, quoteToken, roveFocus } from "./dom.js";

const MOST_CELLS = 6000;

export class StepMap {
  /** `onpick(step, position)` is called for a cell that was clicked or chosen by Enter. */
  constructor(onpick) {
    this.onpick = onpick;
    this.place = make("div", { className: "scroll" });
    this.element = make("details", { className: "fold stepmap", open: true, hidden: true }, make("summary", { textContent: "Every step at once" }), this.place,
      make("p", { className: "hint", textContent: "How sure the model was of its likeliest token while a position was open; the framed cell is the step that wrote it. ⏎ ends a text." }));
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
    this.positions = ids.map((_, position) => position).filter((position) => run.states.some((_, step) => step <= last && run.isOpen(position, step)));
    const isShown = this.positions.length > 0 && last > 0 && this.positions.length * last <= MOST_CELLS;
    this.element.hidden = !isShown;
    if (!isShown) { this.place.replaceChildren(); return; }
    const head = make("tr", { role: "row" }, make("th", { role: "columnheader", scope: "col", textContent: "step" }),
      ...this.positions.map((position) => make("th", { role: "columnheader", scope: "col" }, make("span", { textContent: run.textOf(ids[position]).trim() || "␣" }))));
    const rows = run.states.slice(0, -1).map((_, step) => make("tr", { role: "row" }, make("th", { role: "rowheader", scope: "row", textContent: step + 1 }),
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

  /** Mark what the card shows. */
  mark(step, position) {
    for (const cell of this.place.querySelectorAll("td.selected")) cell.classList.remove("selected");
    this.place.querySelector(`td[data-step="${step}"][data-position="${position}"]`)?.classList.add("selected");
  }
}
