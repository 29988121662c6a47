// The side panel: one position of a canvas at a step, as the model reads it, and what can be done there.

import { call } from "./api.js";
import { field, formatNumber, make, quoteToken, select } from "./dom.js";

/** A bar beside a number; its length is the number. */
export const makeBar = (share, className = "") => make("span", { className: `bar ${className}`, "--p": Math.max(0, Math.min(1, share)), "aria-hidden": "true" });

export class PositionPanel {
  constructor(element, jobs, { onchange }) {
    Object.assign(this, { element, jobs, onchange });
    this.request = null;
    this.clear();
  }

  clear() {
    this.card = null;
    this.request = null;
    this.element.replaceChildren(
      make("h3", { textContent: "A token, closely" }),
      make("p", { className: "hint", textContent: "Select a token or a mask of a canvas: what the model would say there, how sure it is, what it looks at, and how the answer forms over its layers. Then choose another token, hide it again or fix it, and go on from there." }),
    );
  }

  /** Read a position at the step that its card shows. */
  async show(card, position) {
    this.jobs.stop();
    const { run, step } = card;
    const state = run.stateToRead(position, step);
    Object.assign(this, { card, position });
    this.request = {
      model: run.model.key, canvas: run.canvasAt(state), step: state, steps: Math.max(1, run.steps), position, guidance: card.settings?.guidance ?? 0,
    };
    const reading = make("div", { className: "reading", "aria-busy": "true" }, make("p", { className: "hint", textContent: "Reading …" }));
    this.element.replaceChildren(this.makeHead(state), this.makeActions(), reading);
    const answer = await this.jobs.run((signal) => call("/api/position", this.request, signal));
    if (!answer) return;
    for (const { id, text } of answer.top) run.texts.set(id, text);
    this.answer = answer;
    reading.setAttribute("aria-busy", "false");
    reading.replaceChildren(this.makeTop(answer), this.makeLens(answer.lens), this.makeAttention(answer.attention, state));
  }

  makeHead(state) {
    const { run, step } = this.card, { position } = this;
    const text = run.textOf(run.idsAt(step)[position]), at = run.writtenAt(position, step);
    const facts = [`position ${position}`, `step ${step} of ${run.steps}`];
    if (run.isOpen(position, step)) facts.push("still masked");
    else if (run.isByHand(position, step)) facts.push("changed by hand");
    else if (at) facts.push(`committed at step ${at} with confidence ${formatNumber(run.confidenceAt(position, step))}`);
    else facts.push("given");
    const close = make("button", { type: "button", className: "plain close", textContent: "Close", onclick: () => { this.card.selected = null; this.card.draw(); this.clear(); } });
    const note = at && state !== step ? make("p", { className: "hint", textContent: `Read at step ${state}, just before it was written.` }) : null;
    return make("div", { className: "head" }, close, make("h3", {}, run.isOpen(position, step) ? "A mask" : quoteToken(text)), make("p", { className: "facts", textContent: facts.join(" · ") }), note);
  }

  makeActions() {
    const { run, step } = this.card, { position } = this, actions = make("div", { className: "actions" });
    const isOpen = run.isOpen(position, step), change = (act) => { act(); this.onchange(this.card); this.show(this.card, position); };
    if (!run.isCausal) {
      const isFixed = run.isGiven(position, step);
      actions.append(
        make("button", { type: "button", textContent: "Re-mask", disabled: isOpen, onclick: () => change(() => run.change(position, step, null)) }),
        make("button", { type: "button", textContent: "Fix", title: "From here on it counts as given, as the prompt does", "aria-pressed": String(isFixed && !isOpen), disabled: isOpen, onclick: () => change(() => run.fix(position, step, !isFixed)) }),
      );
    }
    const word = make("input", { type: "text", placeholder: "another word", "aria-label": "Write another word here" });
    const put = async (event) => {
      event.preventDefault();
      event.stopPropagation();
      if (!word.value) return;
      // A word inside a sentence begins with its space.
      const old = run.textOf(run.idsAt(step)[position]), lead = /^\s/.test(word.value) || (position > 0 && (isOpen || /^\s/.test(old))) ? "" : null;
      const text = lead === "" && !/^\s/.test(word.value) ? ` ${word.value}` : word.value;
      const answer = await this.jobs.run((signal) => call("/api/tokenize", { model: run.model.key, text }, signal));
      if (!answer) return;
      const room = run.idsAt(step).length - position;
      if (answer.tokens.length > room && !run.isCausal) {
        this.jobs.fail(`${quoteToken(text)} takes ${answer.tokens.length} tokens and ${room} are left from position ${position}: write a shorter word or begin earlier.`);
        return;
      }
      change(() => answer.tokens.forEach((token, i) => run.change(position + i, step, token.id, token.text)));
    };
    actions.append(make("form", { className: "inline", onsubmit: put }, word, make("button", { type: "submit", textContent: "Put" })));
    return actions;
  }

  makeTop({ top, entropy }) {
    const { run, step } = this.card, { position } = this;
    const choose = (candidate) => {
      run.change(position, step, candidate.id, candidate.text);
      this.onchange(this.card);
      this.show(this.card, position);
    };
    const rows = top.map((candidate) => make("li", {},
      make("button", { type: "button", className: "plain candidate", title: "Put this token here by hand", onclick: () => choose(candidate) }, candidate.text.trim() ? candidate.text : quoteToken(candidate.text)),
      makeBar(candidate.p), make("span", { className: "number", textContent: formatNumber(candidate.p) })));
    return make("section", {}, make("h4", { textContent: "What the model would say" }),
      make("p", { className: "facts" }, "entropy ", make("b", { className: "entropy", textContent: formatNumber(entropy) }), " nats · choose one to put it here"),
      make("ol", { className: "top" }, ...rows));
  }

  makeLens(lens) {
    const rows = lens.map((candidates, layer) => {
      const [best, ...others] = candidates;
      return make("tr", { title: others.map(({ text, p }) => `${quoteToken(text)} ${formatNumber(p)}`).join("\n") },
        make("th", { scope: "row", textContent: layer }), make("td", { className: "word", textContent: best.text.trim() || quoteToken(best.text) }),
        make("td", {}, makeBar(best.p)), make("td", { className: "number", textContent: formatNumber(best.p) }),
        make("td", { className: "others", textContent: others.slice(0, 2).map(({ text }) => text.trim()).join(", ") }));
    });
    const head = make("tr", {}, ...["layer", "likeliest", "", "p", "then"].map((name) => make(name ? "th" : "td", { textContent: name, scope: name ? "col" : null })));
    return make("section", {}, make("h4", { textContent: "Logit lens: the answer over the layers" }), make("table", { className: "lens" }, make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  makeAttention(attention, state) {
    const { run } = this.card, heads = attention[0]?.length ?? 0, last = attention.length - 1;
    const layers = [{ value: "mean", label: "all, mean" }, ...attention.map((_, i) => ({ value: i, label: i }))];
    const layer = select(layers, last), head = select([{ value: "mean", label: "all, mean" }, ...Array.from({ length: heads }, (_, i) => ({ value: i, label: i }))], "mean");
    const text = make("div", { className: "text attention", role: "group", "aria-label": "Attention from this position" });
    const draw = () => {
      const rows = attention.filter((_, i) => layer.value === "mean" || i === Number(layer.value)).flatMap((each) => each.filter((_, i) => head.value === "mean" || i === Number(head.value)));
      const ids = run.idsAt(state), most = Math.max(1e-9, ...ids.map((_, at) => mean(rows, at)));
      text.replaceChildren(...ids.map((id, at) => {
        const weight = mean(rows, at), word = run.isOpen(at, state) ? " ░" : run.textOf(id);
        return make("span", { className: `seen${at === this.position ? " self" : ""}`, "--p": weight / most, title: `${quoteToken(word)}: ${formatNumber(weight)}`, textContent: word, "data-weight": weight });
      }));
    };
    layer.addEventListener("change", draw);
    head.addEventListener("change", draw);
    draw();
    return make("section", {}, make("h4", { textContent: "Attention: what it looks at from here" }), make("div", { className: "row" }, field("layer", layer), field("head", head)), text);
  }
}

const mean = (rows, at) => rows.reduce((sum, row) => sum + (row[at] ?? 0), 0) / Math.max(1, rows.length);
