// The settings of sampling as controls; they work before the server has answered.

import { field, make, select, setOptions } from "./dom.js";

const ORDERS = ["confidence", "entropy", "margin", "left", "random"];
const REMASKINGS = ["none", "cap", "rescale", "conf", "loop", "low"];

export class Settings {
  constructor(changed = () => {}) {
    const number = (properties) => make("input", { type: "number", ...properties });
    this.controls = {
      steps: number({ value: 16, min: 1, max: 4096 }),
      order: select(ORDERS, "confidence"),
      guidance: number({ value: 0, step: 0.1 }),
      temperature: number({ value: 0, min: 0, step: 0.1 }),
      remasking: select(REMASKINGS, "none"),
      length: number({ placeholder: "context", min: 1 }),
      seed: number({ value: 0, min: 0 }),
    };
    const labels = { steps: "steps", order: "order", guidance: "guidance", temperature: "temperature", remasking: "remasking", length: "canvas length", seed: "seed" };
    this.element = make("div", { className: "settings row" }, ...Object.entries(this.controls).map(([name, control]) => field(labels[name], control)));
    this.element.addEventListener("input", () => { this.isTouched = true; });
    this.element.addEventListener("change", changed);
  }

  /** What the server offers; choices made meanwhile stay. */
  offer({ orders = ORDERS, remaskings = REMASKINGS, defaults = {} }) {
    setOptions(this.controls.order, orders);
    setOptions(this.controls.remasking, remaskings);
    if (!this.isTouched) this.#fill(defaults);
  }

  read() {
    const number = (name) => this.controls[name].value === "" ? null : Number(this.controls[name].value);
    return {
      steps: number("steps") ?? 16, order: this.controls.order.value, guidance: number("guidance") ?? 0, temperature: number("temperature") ?? 0,
      remasking: this.controls.remasking.value, length: number("length"), seed: number("seed") ?? 0,
    };
  }

  write(values = {}) {
    this.isTouched = true;
    this.#fill(values);
  }

  #fill(values) {
    for (const [name, value] of Object.entries(values)) if (this.controls[name]) this.controls[name].value = value ?? "";
  }
}
