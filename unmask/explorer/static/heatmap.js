// Heat maps of a trace: a table per part, tokens down, layers across, filled in as cells arrive.

import { formatNumber, make, quoteToken, roveFocus } from "./dom.js";

const NAMES = { resid: "hidden state", mlp: "MLP output", attn: "attention output" };

export const nameOf = (part) => NAMES[part] ?? part;

export class HeatMap {
  /** `onpick(part, layer, position)` is called for a cell that was clicked or chosen by Enter. */
  constructor(element, onpick) {
    Object.assign(this, { element, onpick, cells: new Map(), values: new Map() });
  }

  begin({ tokens, layers, parts, clean, corrupted, subject, answer }) {
    Object.assign(this, { tokens, clean, corrupted, range: Math.abs(clean - corrupted) || 1e-9 });
    this.values.clear();
    this.cells.clear();
    const roles = tokens.map((_, i) => subject.includes(i) ? "subject" : answer.includes(i) ? "answer" : "");
    const grids = parts.map((part) => this.#makeGrid(part, layers, roles));
    this.element.replaceChildren(this.#makeScale(), make("div", { className: "maps" }, ...grids));
  }

  #makeGrid(part, layers, roles) {
    const every = layers > 12 ? 4 : 1;
    const head = make("tr", { role: "row" }, make("th", { role: "columnheader", textContent: "layer", scope: "col" }),
      ...Array.from({ length: layers }, (_, i) => make("th", { role: "columnheader", scope: "col", textContent: i % every ? "" : i, "aria-label": `layer ${i}` })));
    const rows = this.tokens.map((token, position) => make("tr", { role: "row", className: roles[position] },
      make("th", { role: "rowheader", scope: "row", title: roles[position] || null, textContent: token.text.trim() || quoteToken(token.text) }),
      ...Array.from({ length: layers }, (_, layer) => {
        const cell = make("td", { role: "gridcell", className: "cell waiting", tabIndex: -1, "data-part": part, "data-layer": layer, "data-position": position, "aria-label": `${quoteToken(token.text)}, layer ${layer}: not measured yet` });
        this.cells.set(`${part} ${layer} ${position}`, cell);
        return cell;
      })));
    const table = make("table", { className: "map", role: "grid", "aria-label": `Restored ${nameOf(part)}: tokens down, layers across` }, make("thead", { role: "rowgroup" }, head), make("tbody", { role: "rowgroup" }, ...rows));
    rows[0].querySelector("td").tabIndex = 0;
    roveFocus(table, "td", () => layers);
    const pick = (event) => {
      const cell = event.target.closest("td");
      if (!cell || cell.classList.contains("waiting")) return;
      for (const each of this.element.querySelectorAll("td.selected")) each.classList.remove("selected");
      cell.classList.add("selected");
      cell.focus();
      this.onpick(part, Number(cell.dataset.layer), Number(cell.dataset.position));
    };
    table.addEventListener("click", pick);
    table.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(event); } });
    return make("section", {}, make("h4", { textContent: `restored ${nameOf(part)}` }), make("div", { className: "scroll" }, table));
  }

  #makeScale() {
    this.highest = make("span");
    this.#drawScale();
    const items = [["cell minus full", "takes from the answer"], ["cell waiting", "hatched: an estimate to first order, not measured yet"]];
    const legend = make("ul", { className: "legend", "aria-label": "Legend of the maps" }, ...items.map(([name, label]) => make("li", {}, make("span", { className: `swatch ${name}`, "aria-hidden": "true" }), label)), ...["subject", "answer"].map((role) => make("li", { className: role, textContent: `row of the ${role}` })));
    return make("div", {}, make("div", { className: "scale" }, make("span", { textContent: `subject hidden: p ${formatNumber(this.corrupted)}` }), make("span", { className: "ramp", "aria-hidden": "true" }), this.highest), legend);
  }

  #drawScale() {
    const most = this.corrupted + this.range, clean = `clean: p ${formatNumber(this.clean)}`;
    this.highest.textContent = most > this.clean ? `p ${formatNumber(most)} · ${clean}` : clean;
  }

  /** Estimates of all cells of a part, [position][layer], as shares of what is lost: shown hatched until they are measured. */
  estimate({ part, values }) {
    values.forEach((row, position) => row.forEach((share, layer) => {
      const cell = this.cells.get(`${part} ${layer} ${position}`);
      if (!cell?.classList.contains("waiting")) return;
      cell.classList.toggle("minus", share < 0);
      cell.title = `${quoteToken(this.tokens[position].text)}, layer ${layer}: not measured yet; to first order ${share < 0 ? "−" : ""}${Math.round(100 * Math.abs(share))} % of the log p that is lost`;
      cell.setAttribute("aria-label", cell.title);
      cell.style.setProperty("--p", Math.abs(share).toFixed(4));
    }));
  }

  /** Values of one part and layer: [[position, probability of the answer], …]. */
  add({ part, layer, values }) {
    const most = Math.max(...values.map(([, value]) => Math.abs(value - this.corrupted)));
    for (const [position, value] of values) {
      const key = `${part} ${layer} ${position}`, cell = this.cells.get(key);
      if (!cell) continue;
      const effect = value - this.corrupted;
      this.values.set(key, value);
      cell.className = effect < 0 ? "cell minus" : "cell";
      cell.dataset.value = value;
      const label = `${quoteToken(this.tokens[position].text)}, layer ${layer}: p ${formatNumber(value)}, effect ${effect >= 0 ? "+" : "−"}${formatNumber(Math.abs(effect))}`;
      cell.setAttribute("aria-label", label);
      cell.title = label;
      this.#paint(key, cell);
    }
    if (most <= this.range) return;
    // A state may give more than the clean run has: all cells keep one scale.
    this.range = most;
    this.#drawScale();
    for (const key of this.values.keys()) this.#paint(key, this.cells.get(key));
  }

  #paint(key, cell) { cell.style.setProperty("--p", Math.min(1, Math.abs(this.values.get(key) - this.corrupted) / this.range).toFixed(4)); }

  select(part, layer, position) {
    const cell = this.cells.get(`${part} ${layer} ${position}`);
    if (cell) cell.click();
  }
}
