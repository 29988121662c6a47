// Below a trace: the circuit of its fact, roles down and denoising steps across, drawn as steps are measured.

import { Jobs, stream } from "./api.js";
import { announce, byId, formatNumber, make, makeSvg, plural, quoteToken } from "./dom.js";

const ROLES = {
  before: "before the subject", first: "first subject token", middle: "middle of subject", last: "last subject token", further: "further prompt",
  committed: "committed answer", answer: "predicting now", masks: "other masks", written: "other written",
};
const UNIT = 14, ROW = 52, LEFT = 150, TOP = 40, GAP = 44, LIST = 5;

export class CircuitTool {
  /** `read()` gives the fact of the trace's form, or a sentence that says what is missing. */
  constructor(app, read) {
    Object.assign(this, { app, read, request: null });
    this.place = byId("circuit-picture");
    this.status = byId("circuit-status");
    this.jobs = new Jobs((text) => { this.status.textContent = ""; announce(text, true); });
    byId("circuit-find").addEventListener("click", () => this.find());
  }

  /** What is asked: the fact, and what stands beside it. */
  async find() {
    this.jobs.stop();
    const fact = this.read();
    if (typeof fact === "string") { announce(fact, true); return; }
    const { model, prompt, subject, answer, steps } = fact;
    this.request = { model, prompt, subject, answer, steps, other_subject: byId("circuit-subject").value.trim(), other_answer: byId("circuit-answer").value.trim() };
    announce("");
    this.app.remember();
    this.place.replaceChildren();
    byId("circuit-notes").textContent = "";
    this.status.textContent = "asking …";
    this.place.setAttribute("aria-busy", "true");
    await this.jobs.run(async (signal) => {
      signal.addEventListener("abort", () => { this.status.textContent = `stopped after ${plural(this.steps?.length ?? 0, "step")}`; });
      for await (const [name, data] of stream("/api/circuit", this.request, signal)) {
        if (name === "queued") this.status.textContent = `waiting: ${plural(data.before, "job")} before this one`;
        else if (name === "start") this.begin(data);
        else if (name === "step") { this.steps.push(data); this.draw(); this.say(); }
        else if (name === "end") this.status.textContent = `${plural(this.steps.length, "step")} in ${data.seconds.toFixed(1)} s`;
      }
    });
    this.place.setAttribute("aria-busy", "false");
  }

  /** Another fact is traced: its circuit has not been asked for. */
  leave(fact) {
    if (!this.request || ["model", "prompt", "answer", "steps"].every((name) => this.request[name] === fact[name])) return;
    this.request = null;
    this.place.replaceChildren();
    this.status.textContent = byId("circuit-notes").textContent = "";
  }

  begin(data) {
    Object.assign(this, data, { all: data.steps, steps: [] });
    const notes = [`Beside it stands ${quoteToken(data.other)}.`], alike = data.steps.filter((step) => !data.asked.includes(step));
    if (data.forced) notes.push(`The model itself writes ${quoteToken(data.said)}: ${quoteToken(this.request.answer)} was put in its place.`);
    if (alike.length) notes.push(`Both answers have the same tokens at step ${alike.join(", ")}: nothing is asked there.`);
    byId("circuit-notes").textContent = notes.join(" ");
    this.say();
  }

  say() { this.status.textContent = this.steps.length < this.asked.length ? `measuring step ${this.asked[this.steps.length]}: ${this.steps.length + 1} of ${plural(this.asked.length, "step")}` : ""; }

  draw() {
    const roles = Object.keys(ROLES).filter((role) => this.steps.some((each) => role in each.roles));
    const wide = UNIT * (2 * this.layers + 1), column = wide + GAP;
    const width = LEFT + this.asked.length * column, height = TOP + roles.length * ROW + 24;
    const drawing = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "circuit", role: "img", "aria-label": this.summarise() });
    const text = (content, x, y, className = "", anchor = "start") => {
      const element = makeSvg("text", { x, y, class: className, "text-anchor": anchor });
      element.textContent = content;
      drawing.append(element);
    };
    roles.forEach((role, row) => {
      const y = TOP + row * ROW, tokens = this.steps.findLast((each) => role in each.roles).roles[role].join("").trim();
      drawing.append(makeSvg("line", { x1: 0, x2: width, y1: y, y2: y, class: "rule" }));
      text(ROLES[role], 0, y + 23, `role ${role}`);
      text(tokens.length > 20 ? `${tokens.slice(0, 19)}…` : tokens, 0, y + 39, "tokens");
    });
    // A node's place: its step's column, its layer across and its role down; heads of a layer below each other.
    const placeOf = (index, { layer, part, head, role }) => {
      const slot = part === "embed" ? 0 : part === "logits" ? 2 * this.layers + 1 : part === "head" ? 1 + 2 * layer : 2 + 2 * layer;
      const shift = part === "head" ? (head - (this.heads - 1) / 2) * (ROW - 14) / this.heads : 0;
      return [LEFT + index * column + slot * UNIT, TOP + roles.indexOf(role) * ROW + ROW / 2 + shift];
    };
    this.steps.forEach((each, index) => {
      const left = LEFT + index * column;
      text(`step ${each.step}`, left, 14, "step");
      text(each.nodes.length ? `${formatNumber(each.clean - each.other, 1)} logits apart` : "not told apart", left, 30, "tokens");
      text("layer 0", left + UNIT, height - 6, "tokens");
      text(this.layers - 1, left + UNIT * (2 * this.layers - 0.5), height - 6, "tokens", "middle");
      // What an earlier step committed reaches this one by its embeddings alone.
      if (index && "committed" in each.roles && this.steps[index - 1].nodes.length) {
        const from = placeOf(index - 1, { part: "logits", role: "answer" }), to = placeOf(index, { part: "embed", role: "committed" });
        drawing.append(titled(makeSvg("path", { d: curve(from, to), class: "commit" }), "A token that was committed: between steps there is no other way."));
      }
      for (const edge of [...each.edges].reverse()) {
        const [from, to] = [placeOf(index, edge.from), placeOf(index, edge.to)];
        const path = makeSvg("path", { d: curve(from, to), class: `edge ${edge.effect < 0 ? "minus" : ""}`, "stroke-width": 1 + 4 * Math.min(1, Math.abs(edge.effect)) });
        drawing.append(titled(path, `${nameOf(edge.from)} → ${nameOf(edge.to)}: ${share(edge.effect)}`));
      }
      for (const node of [...each.nodes].reverse()) drawing.append(titled(drawNode(node, ...placeOf(index, node)), `${nameOf(node)}: ${share(node.effect)} of the answer is lost without it`));
      if (each.nodes.length) drawing.append(titled(drawNode({ part: "logits", effect: 0.3 }, ...placeOf(index, { part: "logits", role: "answer" })), "the logits of the answer"));
    });
    const before = this.place.querySelector(".scroll")?.scrollLeft ?? 0, scroll = make("div", { className: "scroll", tabIndex: 0, role: "group", "aria-label": "The circuit, which may be wider than the page" });
    scroll.append(drawing);
    this.place.replaceChildren(scroll, makeLegend(), this.makeList());
    scroll.scrollLeft = before;
  }

  /** The strongest nodes in words, for readers who see no picture, and in a saved file. */
  makeList() {
    const rows = this.steps.map((each) => make("tr", {}, make("th", { scope: "row", className: "step", textContent: `step ${each.step}` }),
      make("td", { textContent: each.nodes.slice(0, LIST).map((node) => `${nameOf(node)} ${share(node.effect)}`).join(" · ") || "the two answers are not told apart here: nothing brings this one" })));
    return make("table", { className: "lens" }, make("thead", {}, make("tr", {}, make("td"), make("th", { scope: "col", textContent: "strongest, by what is lost without them" }))), make("tbody", {}, ...rows));
  }

  summarise() { return `Circuit: ${this.steps.map((each) => `step ${each.step}: ${each.nodes.slice(0, 3).map(nameOf).join(", ") || "nothing"}`).join("; ")}`; }

  stop() { return this.jobs.stop(); }

  state() { return { open: byId("circuit").open || undefined, subject: byId("circuit-subject").value || undefined, answer: byId("circuit-answer").value || undefined, ran: this.request ? true : undefined }; }

  async restore({ open, subject, answer, ran } = {}) {
    byId("circuit").open = Boolean(open);
    byId("circuit-subject").value = subject ?? "";
    byId("circuit-answer").value = answer ?? "";
    if (ran) await this.find();
  }
}

const PARTS = { embed: "embeddings", logits: "answer" };
const nameOf = ({ layer, part, head, role }) => `${PARTS[part] ?? (part === "head" ? `layer ${layer} head ${head}` : `layer ${layer} MLP`)}${role && part !== "logits" ? ` at ${ROLES[role]}` : ""}`;
const share = (effect) => `${effect < 0 ? "−" : ""}${Math.round(100 * Math.abs(effect))} %`;

function curve([x0, y0], [x1, y1]) {
  // Along a row it goes above the nodes that stand between.
  const bend = Math.max(UNIT, (x1 - x0) / 2), lift = y0 === y1 && x1 - x0 > UNIT ? 12 : 0;
  return `M${x0},${y0} C${x0 + bend},${y0 - lift} ${x1 - bend},${y1 - lift} ${x1},${y1}`;
}

/** Heads are round, MLPs square, embeddings stand on a corner; the area is the effect. */
function drawNode({ part, effect }, x, y) {
  const r = 2.5 + 6.5 * Math.sqrt(Math.min(1, Math.abs(effect))), kind = `node ${part} ${effect < 0 ? "minus" : ""}`;
  if (part === "head" || part === "logits") return makeSvg("circle", { cx: x, cy: y, r, class: kind });
  const square = { x: x - 0.9 * r, y: y - 0.9 * r, width: 1.8 * r, height: 1.8 * r, class: kind };
  return makeSvg("rect", part === "embed" ? { ...square, transform: `rotate(45 ${x} ${y})` } : square);
}

function titled(element, words) {
  const title = makeSvg("title");
  title.textContent = words;
  element.append(title);
  return element;
}

function makeLegend() {
  const shape = (part, effect) => { const svg = makeSvg("svg", { width: 18, height: 18, viewBox: "0 0 18 18", class: "circuit key", "aria-hidden": "true" }); svg.append(drawNode({ part, effect }, 9, 9)); return svg; };
  const items = [["head", 0.6, "a head"], ["mlp", 0.6, "an MLP"], ["embed", 0.4, "embeddings"], ["logits", 0.3, "the answer's logits"], ["mlp", -0.6, "works against the answer"]];
  return make("ul", { className: "legend", "aria-label": "Legend of the circuit" }, ...items.map(([part, effect, label]) => make("li", {}, shape(part, effect), ` ${label}`)), make("li", { textContent: "dashed: a token that an earlier step committed" }));
}
