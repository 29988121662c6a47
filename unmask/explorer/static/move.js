// A state of one prompt or step is put into another run: dragged, or picked up and put down by keyboard.

import { Jobs, call } from "./api.js";
import { RunCard } from "./canvas.js";
import { announce, byId, field, formatNumber, make, quoteToken, select, setOptions } from "./dom.js";
import { Run } from "./run.js";
import { follow, chooseFacts } from "./write.js";

export class MoveTool {
  constructor(app) {
    this.app = app;
    this.jobs = new Jobs((text) => announce(text, true));
    this.held = null; // {position, step, text} of the source that waits for a target.
    this.request = null;
    this.model = byId("move-model");
    this.sides = { from: this.makeSide("from", "Take a state of"), to: this.makeSide("to", "Put it into") };
    byId("move-sides").append(this.sides.from.element, this.sides.to.element);
    byId("move-load").addEventListener("click", () => this.load());
    this.answer = byId("move-answer");
  }

  makeSide(name, label) {
    const prompt = make("textarea", { rows: 2, id: `move-${name}`, className: "prompt", "aria-label": `${label} this prompt` });
    const layer = select([0], 0), side = { name, prompt, layer };
    side.card = new RunCard({
      onselect: (card, position) => { if (name === "from") this.pickUp(position); else this.putDown(position); },
      onstep: () => { if (name === "from") this.letGo(); },
    });
    side.card.element.classList.add(name);
    prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.load(); }
    });
    const text = side.card.text;
    if (name === "from") {
      text.addEventListener("dragstart", (event) => {
        const token = event.target.closest(".token");
        if (!token) return;
        event.dataTransfer.setData("text/plain", token.textContent);
        event.dataTransfer.effectAllowed = "copy";
        this.pickUp(Number(token.dataset.position));
      });
      new MutationObserver(() => { for (const token of text.children) token.draggable = true; }).observe(text, { childList: true });
    } else {
      const over = (event) => {
        const token = event.target.closest(".token");
        if (!token || !this.held) return;
        event.preventDefault();
        for (const each of text.querySelectorAll(".over")) each.classList.remove("over");
        token.classList.add("over");
      };
      text.addEventListener("dragover", over);
      text.addEventListener("dragenter", over);
      text.addEventListener("drop", (event) => {
        const token = event.target.closest(".token");
        if (!token) return;
        event.preventDefault();
        const { card } = this.sides.from;
        card.selected = this.held?.position ?? null;
        card.draw();
        side.card.select(Number(token.dataset.position));
      });
    }
    side.element = make("div", { className: "side" }, field(label, prompt), side.card.element);
    side.card.player.append(field("layer", layer));
    return side;
  }

  start({ models, facts }) {
    setOptions(this.model, models.map((model) => ({ value: model.key, label: model.name })));
    const offer = () => {
      const model = models.find((each) => each.key === this.model.value), layers = Array.from({ length: model.layers }, (_, i) => i);
      for (const side of Object.values(this.sides)) {
        setOptions(side.layer, layers, Math.floor(layers.length / 2));
        side.card.open(null, model);
      }
      this.letGo();
    };
    this.model.addEventListener("change", offer);
    offer();
    const prompts = chooseFacts(facts).map((fact) => fact.prompt);
    if (!this.sides.from.prompt.value && prompts.length > 1) [this.sides.from.prompt.value, this.sides.to.prompt.value] = prompts;
  }

  /** Both prompts are written, so that any step of theirs can be chosen. */
  async load() {
    this.stop();
    this.letGo();
    this.answer.replaceChildren();
    const model = this.app.info.models.find((each) => each.key === this.model.value), { defaults } = this.app.info;
    this.settings = { ...defaults, steps: Number(byId("move-steps").value) };
    for (const { card, prompt } of Object.values(this.sides)) {
      const run = new Run(model);
      card.open(run, model);
      await this.jobs.run(async (signal) => {
        await follow(card, run, { model: model.key, canvas: { prompt: prompt.value, length: this.settings.length }, settings: this.settings, top: 1 }, signal);
        card.show(0);
      });
    }
    announce("Drag a token of the first run onto a token of the second; or select one, then the other.");
  }

  pickUp(position) {
    const { run, step } = this.sides.from.card;
    this.held = { position, step, text: run.isOpen(position, step) ? "a mask" : quoteToken(run.textOf(run.idsAt(step)[position])) };
    this.app.remember();
    byId("move-held").textContent = `Holding the state at ${this.held.text}, step ${step}, layer ${this.sides.from.layer.value}: now choose where it goes.`;
  }

  letGo() {
    this.held = null;
    byId("move-held").textContent = "Drag a token of the first run onto a token of the second. By keyboard: Enter on the one, then Enter on the other.";
  }

  async putDown(position) {
    if (!this.held) { announce("Take a state first: select a token of the first run.", true); return; }
    const { from, to } = this.sides, target = { step: to.card.step, position };
    const place = (side, { step, position: at }) => ({ canvas: side.card.run.canvasAt(step), step: step + 1, steps: Math.max(1, side.card.run.steps), position: at, layer: Number(side.layer.value) });
    this.request = { model: this.model.value, from: place(from, this.held), to: place(to, target), settings: this.settings };
    this.moved = { from: this.held, to: target };
    this.answer.replaceChildren(make("p", { className: "hint", textContent: "Writing with the moved state …" }));
    announce("");
    const answer = await this.jobs.run((signal) => call("/api/move", this.request, signal));
    if (!answer) { this.answer.replaceChildren(); return; }
    const name = to.card.run.isOpen(position, target.step) ? "a mask" : quoteToken(to.card.run.textOf(to.card.run.idsAt(target.step)[position]));
    const rows = [["before", answer.before, answer.before_p], ["after", answer.after, answer.after_p]];
    this.answer.replaceChildren(
      make("p", { className: "facts", textContent: `${this.held.text} (step ${this.held.step}, layer ${from.layer.value}) put at ${name} (step ${target.step}, layer ${to.layer.value})` }),
      make("dl", { className: "texts" }, ...rows.flatMap(([label, text, p]) => [
        make("dt", {}, label, make("span", { className: "number", textContent: ` p ${formatNumber(p)}` })), make("dd", { className: label }, ...markChanges(text, answer.before))])),
      make("p", { className: "hint", textContent: `p of ${quoteToken(answer.token.text)} at position ${answer.position}, the first that is open there. After the move the likeliest are ${answer.candidates.map(({ text, p }) => `${quoteToken(text)} ${formatNumber(p)}`).join(", ")}.` }));
    this.app.remember();
  }

  stop() { return this.jobs.stop(); }

  state() {
    const { from, to } = this.sides;
    return { model: this.model.value, from: from.prompt.value, to: to.prompt.value, layers: [from.layer.value, to.layer.value], steps: byId("move-steps").value, moved: this.moved };
  }

  async restore(state) {
    if (!state) return;
    const { from, to } = this.sides;
    from.prompt.value = state.from ?? "";
    to.prompt.value = state.to ?? "";
    if (state.steps) byId("move-steps").value = state.steps;
    if (state.layers) [from.layer.value, to.layer.value] = state.layers;
    if (!state.moved) return;
    byId("move").open = true;
    await this.load();
    from.card.show(state.moved.from.step);
    to.card.show(state.moved.to.step);
    from.card.select(state.moved.from.position);
    to.card.select(state.moved.to.position);
  }
}

/** The words of a text, those marked that differ from another text's at the same place. */
function markChanges(text, other) {
  const words = other.split(/(\s+)/);
  return text.split(/(\s+)/).map((word, i) => word === words[i] ? word : make("mark", { className: "answer", textContent: word }));
}
