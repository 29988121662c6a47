// The explorer: tabs, light and dark, the state in the address, and what the server offers.

import { call, reportAddress } from "./api.js";
import { CompareView } from "./compare.js";
import { announce, byId, formatCount, make, plural, roveFocus } from "./dom.js";
import { EditView } from "./edit.js";
import { FeaturesView } from "./features.js";
import { addShareButtons } from "./share.js";
import { TraceView } from "./trace.js";
import { WriteView } from "./write.js";

/** Runs of the study and of measures, as their own reports. */
class RunsView {
  name = "runs";
  constructor(app) { this.app = app; }

  start({ runs }) {
    const list = byId("runs-list");
    if (!runs.length) {
      list.replaceChildren(make("p", { className: "hint" }, "No runs are open here. Start the explorer with ", make("code", { textContent: "unmask explore --runs FOLDER" }), ", where FOLDER is a run of the study or of a measure, or holds several."));
      return;
    }
    list.replaceChildren(make("ul", { className: "runs-list" }, ...runs.map((run) => make("li", {},
      make("button", { type: "button", "data-run": run.name, "aria-pressed": "false", onclick: () => this.open(run.name) }, run.name),
      make("span", { className: "hint", textContent: ` ${run.error ?? run.measures.join(", ")}` })))));
  }

  open(name) {
    this.run = name;
    for (const button of document.querySelectorAll("[data-run]")) button.setAttribute("aria-pressed", String(button.dataset.run === name));
    byId("runs-frame").replaceChildren(make("iframe", { src: reportAddress(name), title: `Report of the run ${name}`, sandbox: "allow-scripts allow-downloads" }));
    this.app.remember();
  }

  stop() { return false; }
  state() { return { run: this.run }; }
  restore({ run }) { if (run) this.open(run); }
  calls() { return []; }
}

class App {
  info = null;

  constructor() {
    this.views = [new WriteView(this), new TraceView(this), new FeaturesView(this), new EditView(this), new CompareView(this), new RunsView(this)];
    this.view = this.views[0];
    for (const view of this.views) {
      byId(`tab-${view.name}`).addEventListener("click", () => this.show(view.name));
      if (document.querySelector(`#${view.name} .share`)) addShareButtons(this, view);
    }
    const tabs = document.querySelector("[role=tablist]");
    roveFocus(tabs, "[role=tab]");
    tabs.addEventListener("keydown", (event) => { if (event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End") document.activeElement.click(); });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !byId("code").open && this.view.stop()) announce("Stopped.");
    });
    addEventListener("hashchange", () => this.readAddress());
    byId("code-close").addEventListener("click", () => byId("code").close());
    this.show(this.readHash().name, false);
    byId("write-prompt").focus({ preventScroll: true });
  }

  show(name, isRemembered = true) {
    const before = this.view;
    this.view = this.views.find((view) => view.name === name) ?? this.views[0];
    for (const view of this.views) {
      const isShown = view === this.view, tab = byId(`tab-${view.name}`);
      byId(view.name).hidden = !isShown;
      tab.setAttribute("aria-selected", String(isShown));
      tab.tabIndex = isShown ? 0 : -1;
    }
    announce("");
    if (isRemembered) this.remember(this.view !== before);
  }

  /** The address holds the view and its state, so that it can be kept, shared and reloaded; another view is a step that Back undoes. */
  remember(isStep = false) {
    if (!this.info) return; // Nothing may overwrite a link that has not been read.
    history[isStep ? "pushState" : "replaceState"](null, "", `#${this.view.name}=${encodeURIComponent(JSON.stringify(this.view.state()))}`);
  }

  readHash() {
    const [, name, text] = /^#(\w+)=?(.*)$/s.exec(location.hash) ?? [];
    if (!text) return { name, state: null };
    try {
      const state = JSON.parse(decodeURIComponent(text));
      return { name, state: state && typeof state === "object" ? state : null };
    } catch {
      return { name, state: null, isBroken: true };
    }
  }

  async readAddress() {
    const { name, state, isBroken } = this.readHash();
    this.show(name, false);
    if (isBroken) announce("The state in this link cannot be read: it may have been cut off. The view starts empty.", true);
    // Back to a view that still shows this: nothing is to be computed again.
    if (state && JSON.stringify(state) !== JSON.stringify(this.view.state())) await this.view.restore(state);
  }

  async start() {
    try {
      this.info = await call("/api/start");
    } catch (error) {
      announce(error.message, true);
      return;
    }
    const { models } = this.info;
    byId("models").textContent = models.map((model) => `${model.name} (${formatCount(model.parameters)}, ${plural(model.layers, "layer")}, ${model.dtype}, ${model.device})`).join(" · ");
    for (const view of this.views) view.start(this.info);
    await this.readAddress();
  }
}

// Light and dark: the system's wish, until the reader says otherwise.
const theme = byId("theme"), wish = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (wish.matches ? "dark" : "light")) === "dark";
function showTheme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
}
theme.addEventListener("click", () => {
  showTheme(isDark() ? "light" : "dark");
  try { localStorage.setItem("unmask-theme", document.documentElement.dataset.theme); } catch { /* Forgotten on reload. */ }
});
wish.addEventListener("change", () => showTheme());
let kept = null;
try { kept = localStorage.getItem("unmask-theme"); } catch { /* A browser may refuse to remember. */ }
showTheme(kept === "dark" || kept === "light" ? kept : null);

new App().start();
