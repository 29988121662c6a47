"use strict";
// The page: controls, the un-masking animation, downloads, light and dark.

(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const redraw = [];

  function make(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }

  // Light and dark: the system's wish, until the reader says otherwise.
  const button = document.getElementById("theme");
  const wish = matchMedia("(prefers-color-scheme: dark)");
  function setTheme(dark) {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(dark));
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${dark ? "light" : "dark"} colours`);
    for (const draw of redraw) draw();
  }
  button.addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
  wish.addEventListener("change", () => setTheme(wish.matches));

  function addControls(place, controls, changed) {
    const state = controls.map(() => 0);
    controls.forEach((control, number) => {
      const name = make("span", { textContent: control.label });
      let input;
      if (control.slider) {
        input = make("input", { type: "range", min: 0, max: control.options.length - 1, step: 1, value: 0 });
        const tell = () => {
          name.textContent = `${control.label}: ${control.options[state[number]].replace(/^step /, "")} (${state[number] + 1} of ${control.options.length})`;
          input.setAttribute("aria-valuetext", control.options[state[number]]);
        };
        input.addEventListener("input", () => { state[number] = Number(input.value); tell(); changed(); });
        tell();
      } else {
        input = make("select", {}, ...control.options.map((option, value) => make("option", { value, textContent: option })));
        input.addEventListener("change", () => { state[number] = Number(input.value); changed(); });
      }
      if (control.options.length > 1 || control.slider) {
        place.append(make("label", { className: control.slider ? "wide" : "" }, name, input));
      }
    });
    return state;
  }

  function animate(figure, data) {
    const chart = figure.querySelector(".chart"), controls = figure.querySelector(".controls");
    const text = make("div", { className: "text" }), status = make("p", { className: "status" });
    status.setAttribute("aria-live", "polite");
    chart.setAttribute("role", "group"); // Its texts are read out, unlike those of a picture.
    chart.append(legendOfConfidence(), text, status);
    const choose = make("select", {}, ...data.examples.map((example, value) => make("option", { value, textContent: example.label })));
    const play = make("button", { type: "button", textContent: "▶ Play" });
    const back = make("button", { type: "button", textContent: "‹ Step" });
    const on = make("button", { type: "button", textContent: "Step ›" });
    const slider = make("input", { type: "range", min: 0, step: 1, value: 0 });
    back.setAttribute("aria-label", "One step back");
    on.setAttribute("aria-label", "One step on");
    const name = make("span", { textContent: "step" });
    controls.append(make("label", {}, "text", choose), play, back, on, make("label", { className: "wide" }, name, slider));
    let example, step = 0, timer = null;

    function show() {
      text.replaceChildren(...example.pieces.map((piece, i) => {
        const at = example.at[i], p = example.p[i];
        if (at === 0) return make("span", { className: "given", textContent: piece });
        if (at > step) return make("span", { className: "hidden", textContent: " ░░" });
        const token = make("span", { className: `c${Math.min(4, Math.floor(p * 5))}${at === step ? " new" : ""}`, textContent: piece },
          make("sub", { textContent: at }));
        token.title = `step ${at}, confidence ${p.toFixed(3)}`;
        return token;
      }));
      slider.value = step;
      name.textContent = `step ${step} of ${example.steps}`;
      const left = example.at.filter((at) => at > step).length;
      status.textContent = left ? `${left} tokens still masked` : `${example.hit ? "Recalled" : "Not recalled"}: the true answer is “${example.wanted}”.`;
    }
    function pause() { clearInterval(timer); timer = null; play.textContent = "▶ Play"; }
    function go(to) { step = Math.max(0, Math.min(example.steps, to)); show(); }
    function start() { example = data.examples[Number(choose.value)]; slider.max = example.steps; pause(); go(0); }
    play.addEventListener("click", () => {
      if (timer) return pause();
      if (step >= example.steps) go(0);
      play.textContent = "❚❚ Pause";
      timer = setInterval(() => { go(step + 1); if (step >= example.steps) pause(); }, 420);
    });
    back.addEventListener("click", () => { pause(); go(step - 1); });
    on.addEventListener("click", () => { pause(); go(step + 1); });
    slider.addEventListener("input", () => { pause(); go(Number(slider.value)); });
    choose.addEventListener("change", start);
    start();
    go(example.steps);
  }

  function legendOfConfidence() {
    const list = make("ul", { className: "legend" }, make("li", { textContent: "confidence:" }));
    for (let i = 0; i < 5; i++) list.append(make("li", { className: `c${i}`, textContent: `■ ${(i / 5).toFixed(1)} to ${((i + 1) / 5).toFixed(1)}` }));
    return list;
  }

  // Each figure's data as rows of text: what is drawn is what is downloaded.
  function tabulate(data) {
    if (data.chart === "lines") {
      return [["panel", "line", "x", "y", "low", "high"], ...data.panels.flatMap((panel) => panel.lines.flatMap((line) =>
        line.x.map((x, i) => [panel.title, line.name, x, line.y[i], line.low?.[i], line.high?.[i]])))];
    }
    if (data.chart === "unmasking") {
      return [["text", "position", "token", "step", "confidence"], ...data.examples.flatMap((example) =>
        example.pieces.map((piece, i) => [example.label, i, piece, example.at[i], example.p[i]]))];
    }
    const controls = data.controls ?? [], heads = controls.map((control) => control.label);
    const named = (key) => key.split("|").map((at, i) => controls[i]?.options[Number(at)]);
    const views = data.views ? Object.entries(data.views) : [["", data]];
    if (data.chart === "dots") {
      return [[...heads, "label", "group", "mean", "low", "high"], ...views.flatMap(([key, view]) => view.rows.map((row) =>
        [...(heads.length ? named(key) : []), row.label, row.group, row.mean, row.low, row.high]))];
    }
    return [[...heads, "row", data.xlabel, data.value, "low", "high"], ...views.flatMap(([key, view]) => view.z.flatMap((line, i) =>
      line.map((value, j) => [...named(key), view.y[i], view.x[j], value, view.low?.[i]?.[j], view.high?.[i]?.[j]])))];
  }
  const quote = (cell) => cell === null || cell === undefined ? "" : /[",\n]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell);

  for (const figure of document.querySelectorAll("figure[data-figure]")) {
    const data = figures[figure.dataset.figure], chart = figure.querySelector(".chart");
    const link = figure.querySelector(".download");
    link.addEventListener("click", () => {
      const text = tabulate(data).map((row) => row.map(quote).join(",")).join("\n") + "\n";
      link.href = "data:text/csv;charset=utf-8," + encodeURIComponent(text);
    });
    if (data.chart === "unmasking") { animate(figure, data); continue; }
    let state = [];
    const draw = () => Charts[data.chart](chart, data, data.views?.[state.join("|")], state.join("|"));
    state = addControls(figure.querySelector(".controls"), data.controls ?? [], draw);
    redraw.push(draw);
  }
  setTheme(wish.matches);
})();
