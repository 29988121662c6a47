// A run on the page: its canvas of tokens, a player over its steps, and what can be selected.

import { formatCount, formatNumber, make, plural, quoteToken, roveFocus, shadeOf } from "./dom.js";

export const TEMPO = 420; // Milliseconds per step, fewer where a text has many.
const LONGEST = 6000; // Milliseconds that a whole text plays.
/** Whether the reader wants nothing to move by itself. */
export const wantsStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export class RunCard {
  /** With `plays` a text is shown step by step while it arrives. */
  constructor({ onselect = () => {}, onstep = () => {}, plays = false } = {}) {
    this.run = null;
    this.step = 0;
    this.selected = null;
    this.timer = null;
    this.isFollowing = true;
    this.plays = plays;
    this.waiting = []; // What is to be done once the text has played.
    this.onselect = onselect;
    this.onstep = onstep;
    this.title = make("h3", {}, make("span", { textContent: "…" }));
    this.text = make("div", { className: "text", role: "group", "aria-label": "Canvas", "data-empty": "Nothing is written yet." });
    this.play = make("button", { type: "button", textContent: "▶ Play", onclick: () => this.toggle() });
    this.back = make("button", { type: "button", textContent: "‹ Step", "aria-label": "One step back", onclick: () => this.show(this.step - 1, true) });
    this.on = make("button", { type: "button", textContent: "Step ›", "aria-label": "One step on", onclick: () => this.show(this.step + 1, true) });
    this.slider = make("input", { type: "range", min: 0, max: 0, value: 0, oninput: () => this.show(Number(this.slider.value), true) });
    this.label = make("span", { className: "step", textContent: "step 0" });
    this.status = make("p", { className: "status" });
    this.player = make("div", { className: "player" }, this.play, this.back, this.on, make("label", { className: "wide" }, this.label, this.slider));
    this.element = make("article", { className: "run card" }, this.title, this.text, this.player, this.status);
    this.element.card = this;
    roveFocus(this.text, ".token");
    this.text.addEventListener("click", (event) => {
      const token = event.target.closest(".token");
      if (token) this.select(Number(token.dataset.position));
    });
    this.text.addEventListener("keydown", (event) => {
      const token = event.target.closest(".token");
      if (!token || (event.key !== "Enter" && event.key !== " ")) return;
      event.preventDefault();
      this.select(Number(token.dataset.position));
    });
  }

  /** Show another run, or none yet, of a model; `name` says which of several it is. */
  open(run, model, name = "") {
    this.waiting = [];
    this.pause();
    this.run = run;
    this.selected = null;
    this.isFollowing = true;
    this.element.setAttribute("aria-label", `Run of ${model.name}`);
    this.element.dataset.kind = model.mask_id === null ? "causal" : "diffusion";
    this.title.replaceChildren(make("span", { className: "dot" }), name ? `${name}: ${model.name}` : model.name, make("small", { textContent: ` ${describeKind(model)} · ${formatCount(model.parameters)} parameters` }));
    this.say("");
    if (run?.states.length) this.show(run.last);
    else {
      this.text.replaceChildren();
      for (const control of [this.play, this.back, this.on, this.slider]) control.disabled = true;
    }
  }

  say(text, isError = false) {
    this.status.textContent = text;
    this.status.classList.toggle("error", isError);
  }

  /** New states have arrived: follow or play them unless the reader looks at another step. */
  update() {
    if (this.timer || !this.isFollowing) this.drawPlayer();
    else if (this.plays && this.run.last > 0 && !wantsStill()) this.begin(this.step);
    else this.show(this.run.last);
  }

  /** Do something now, or once what is played has been shown. */
  afterPlay(act) {
    if (this.timer) this.waiting.push(act);
    else act();
  }

  show(step, isByReader = false) {
    if (!this.run?.states.length) return;
    this.step = Math.max(0, Math.min(this.run.last, step));
    this.isFollowing = this.step === this.run.last;
    this.draw();
    this.onstep(this);
    if (isByReader) this.pause();
  }

  toggle() {
    if (this.timer) { this.isFollowing = false; this.pause(); }
    else if (this.run?.states.length) this.begin(this.step >= this.run.last ? 0 : this.step);
  }

  /** Show the steps in turn from one on; at the newest of a run that goes on, wait for more. */
  begin(step) {
    this.show(step);
    this.play.textContent = "❚❚ Pause";
    const { run } = this;
    this.timer = setInterval(() => {
      if (this.step < run.last) this.show(this.step + 1);
      if (this.step >= run.last && run.outcome) this.pause();
    }, Math.min(TEMPO, LONGEST / Math.max(1, run.steps)));
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "▶ Play";
    for (const act of this.waiting.splice(0)) act();
  }

  select(position) {
    if (this.timer) { this.isFollowing = false; this.pause(); }
    this.selected = position;
    this.draw();
    this.onselect(this, position);
  }

  draw() {
    const ids = this.run.idsAt(this.step);
    // Before each token stands its space, which is not part of what is coloured.
    while (this.text.children.length > ids.length) for (let i = 0; i < 2; i++) this.text.lastChild.remove();
    while (this.text.children.length < ids.length) {
      this.text.append("", make("span", { role: "button", className: "token", tabIndex: -1, "data-position": this.text.children.length }));
    }
    ids.forEach((id, position) => drawToken(this.text.children[position], this.run, this.step, position, this.selected === position));
    if (!this.text.querySelector('[tabindex="0"]') && ids.length) this.text.children[0].tabIndex = 0;
    this.drawPlayer();
  }

  drawPlayer() {
    const { run, step } = this, open = run.countOpen(step);
    this.slider.max = run.last;
    this.slider.value = step;
    this.label.textContent = `step ${step} of ${Math.max(run.steps, run.last)}`;
    this.slider.setAttribute("aria-valuetext", `${this.label.textContent}, ${plural(open, "mask")} left`);
    this.back.disabled = step <= 0;
    this.on.disabled = step >= run.last;
    this.play.disabled = this.slider.disabled = false;
  }
}

/**
 * A token at a step: what stands there, or the model's guess in a mask. A span with the role of a
 * button, since lines break inside its text only where it is not a box of its own.
 */
export function drawToken(element, run, step, position, isSelected = false) {
  const id = run.idsAt(step)[position], at = run.writtenAt(position, step);
  const isOpen = run.isOpen(position, step), isByHand = run.isByHand(position, step);
  const classes = ["token"];
  let text = run.textOf(id), title = `position ${position}: ${quoteToken(text)}`;
  if (isOpen) {
    const [guess] = run.guessesAt(position, step);
    classes.push("open");
    text = guess ? guess.text : " ░░";
    title = guess ? `position ${position}: masked, would be ${quoteToken(guess.text)} with p ${formatNumber(guess.p)}` : `position ${position}: masked`;
    element.style.setProperty("--p", guess ? guess.p : 0);
    if (guess) classes.push("guess");
  } else if (isByHand) {
    classes.push("hand");
    title += run.isGiven(position, step) ? ", fixed by hand" : ", changed by hand";
  } else if (run.isGiven(position, step) || !at) {
    classes.push("given");
    title += ", given";
  } else {
    const p = run.confidenceAt(position, step);
    classes.push(shadeOf(p));
    if (at === step) classes.push("new");
    title += `, written at step ${at} with confidence ${formatNumber(p)}`;
  }
  const isSpecial = /^\s*\[(END|PAD)\]$|^⏎$|^<\/?s>$|^<\|.*\|>$/.test(text);
  if (isSpecial) classes.push("special");
  if (isSelected) classes.push("selected");
  element.className = classes.join(" ");
  const shown = text.trimStart() || (text.includes("\n") ? "⏎" : "␣");
  if (element.previousSibling) element.previousSibling.data = text.slice(0, text.length - text.trimStart().length);
  element.replaceChildren(shown, ...(at && !isOpen && !isByHand && !isSpecial ? [make("sub", { textContent: at, "aria-hidden": "true" })] : []));
  element.dataset.id = id;
  element.title = title;
  element.setAttribute("aria-pressed", String(isSelected));
}

const describeKind = ({ kind, mask_id }) => mask_id === null ? "autoregressive" : kind === "masked" ? "masked diffusion" : kind;

/** What the colours of a canvas mean. */
export function makeLegend() {
  const items = [["given", "given"], ["open guess", "masked, with the model's guess"], ["c0", "written with confidence 0 to 0.2"], ["c1", "to 0.4"], ["c2", "to 0.6"], ["c3", "to 0.8"], ["c4", "to 1"], ["hand", "by hand"]];
  return make("ul", { className: "legend", "aria-label": "Legend: confidence when written" },
    ...items.map(([name, label]) => make("li", {}, make("span", { className: `swatch ${name}`, "aria-hidden": "true" }), label)));
}
