"use strict";
// The page: figures with their controls, the un-masking animation, downloads, light and dark.

(() => {
  const { figures } = JSON.parse(document.getElementById("page-data").textContent);
  const STICKY = "asked"; // The choice that all figures share.
  const cards = [];

  function make(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }

  // Light and dark: the system's wish, until the reader says otherwise.
  const button = document.getElementById("page-theme"), wish = matchMedia("(prefers-color-scheme: dark)");
  const memory = {
    // A browser may refuse to remember, as some do for files.
    read() { try { return localStorage.getItem("unmask-theme"); } catch { return null; } },
    write(theme) { try { localStorage.setItem("unmask-theme", theme); } catch { /* Forgotten on reload. */ } },
  };
  function setTheme(isDark) {
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(isDark));
    button.textContent = isDark ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${isDark ? "light" : "dark"} colours`);
    for (const card of cards) card.draw();
  }
  button.addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme !== "dark");
    memory.write(document.documentElement.dataset.theme);
  });
  wish.addEventListener("change", () => { if (!memory.read()) setTheme(wish.matches); });

  function addControls(place, controls, changed) {
    const state = controls.map(() => 0), inputs = [];
    controls.forEach((control, number) => {
      const name = make("span", { textContent: control.label });
      const input = control.is_slider
        ? make("input", { type: "range", min: 0, max: control.options.length - 1, step: 1, value: 0 })
        : make("select", {}, ...control.options.map((option, value) => make("option", { value, textContent: option })));
      const show = () => {
        input.value = state[number];
        if (!control.is_slider) return;
        const option = control.options[state[number]];
        name.textContent = `${control.label}: ${option}`;
        input.setAttribute("aria-valuetext", option);
      };
      input.addEventListener(control.is_slider ? "input" : "change", () => {
        state[number] = Number(input.value);
        show();
        changed(control, control.options[state[number]]);
      });
      show();
      inputs.push(show);
      if (control.options.length > 1) place.append(make("label", { className: control.is_slider ? "wide" : "" }, name, input));
    });
    const choose = (number, option) => { state[number] = option; inputs[number](); };
    return { state, choose };
  }

  // A choice of the way of asking holds in every figure that offers it.
  function carry(from, option) {
    for (const card of cards) {
      const number = card.figure.controls.findIndex((control) => control.label === STICKY);
      const at = card.figure.controls[number]?.options.indexOf(option) ?? -1;
      if (card === from || at < 0 || card.state[number] === at) continue;
      card.choose(number, at);
      card.draw();
    }
  }

  function drawChart(card, chart) {
    const key = card.state.join("|"), panels = card.figure.views[key], width = chart.clientWidth;
    card.spec = null;
    if (!width) return; // Folded away: drawn when it is unfolded.
    if (!panels) {
      chart.replaceChildren(make("p", { className: "status", textContent: "Nothing was measured for this choice." }));
      return;
    }
    const range = card.figure.ranges[card.state.length ? card.state[0] : ""];
    card.spec = Charts.build[card.figure.chart](card.figure, panels, range, width);
    if (!chart.querySelector(".plot")) chart.replaceChildren(make("ul", { className: "legend" }), make("div", { className: "plot" }));
    const [legend, plot] = chart.children;
    legend.replaceChildren(...card.spec.legend.map((entry) => {
      const item = make("li", { innerHTML: Charts.drawMark(entry) });
      item.append(entry.name);
      return item;
    }));
    legend.hidden = !card.spec.legend.length;
    Plotly.react(plot, card.spec.data, card.spec.layout, { displayModeBar: false }).then(() => {
      plot.querySelectorAll("svg").forEach((svg, i) => {
        if (i === 0) { svg.setAttribute("role", "img"); svg.setAttribute("aria-label", card.figure.alt); }
        else svg.setAttribute("aria-hidden", "true");
      });
    });
  }

  // Texts that appear step by step, all panels at once.
  function animate(card, chart, controls) {
    const texts = make("div", { className: "texts" });
    const list = make("ul", { className: "legend" }, make("li", { textContent: "confidence:" }));
    for (let i = 0; i < 5; i++) list.append(make("li", { className: `c${i}`, textContent: `■ ${(i / 5).toFixed(1)} to ${((i + 1) / 5).toFixed(1)}` }));
    chart.setAttribute("role", "group"); // Its texts are read out, unlike those of a picture.
    chart.append(list, texts);
    const play = make("button", { type: "button" }), slider = make("input", { type: "range", min: 0, step: 1 });
    const back = make("button", { type: "button", textContent: "‹ Step" }), on = make("button", { type: "button", textContent: "Step ›" });
    back.setAttribute("aria-label", "One step back");
    on.setAttribute("aria-label", "One step on");
    const name = make("span", {});
    controls.append(play, back, on, make("label", { className: "wide" }, name, slider));
    let panels = [], step = 0, last = 0, timer = null;

    function write(panel, i) {
      const at = panel.steps[i], p = panel.confidence[i] ?? 0;
      if (at === 0) return make("span", { className: "given", textContent: panel.pieces[i] });
      if (at > step) return make("span", { className: "hidden", textContent: " ░░" });
      const shade = Math.max(0, Math.min(4, Math.floor(p * 5)));
      const token = make("span", { className: `c${shade}${at === step ? " new" : ""}`, textContent: panel.pieces[i] }, make("sub", { textContent: at }));
      token.title = `step ${at}, confidence ${p.toFixed(3)}`;
      return token;
    }
    function show() {
      texts.replaceChildren(...panels.map((panel) => {
        const left = panel.steps.filter((at) => at > step).length;
        const status = make("p", { className: "status", textContent: left
          ? `${left} tokens still masked`
          : `${panel.is_hit ? "Recalled" : "Not recalled"}: the true answer is “${panel.expected}”.` });
        status.setAttribute("aria-live", "polite");
        return make("div", {}, make("h4", { textContent: panel.title }), make("div", { className: "text" }, ...panel.pieces.map((_, i) => write(panel, i))), status);
      }));
      if (!panels.length) texts.append(make("p", { className: "status", textContent: "Nothing was measured for this choice." }));
      slider.value = step;
      name.textContent = `step ${step} of ${last}`;
    }
    function pause() { clearInterval(timer); timer = null; play.textContent = "▶ Play"; }
    function go(to) { step = Math.max(0, Math.min(last, to)); show(); }
    play.addEventListener("click", () => {
      if (timer) return pause();
      if (step >= last) go(0);
      play.textContent = "❚❚ Pause";
      timer = setInterval(() => { go(step + 1); if (step >= last) pause(); }, 420);
    });
    back.addEventListener("click", () => { pause(); go(step - 1); });
    on.addEventListener("click", () => { pause(); go(step + 1); });
    slider.addEventListener("input", () => { pause(); go(Number(slider.value)); });
    let shown = null;
    return () => {
      const key = card.state.join("|");
      if (shown === key) return; // Colours are the style sheet's.
      shown = key;
      panels = card.figure.views[key] ?? [];
      last = Math.max(0, ...panels.flatMap((panel) => panel.steps));
      slider.max = last;
      pause();
      go(last);
    };
  }

  // A figure's values as rows: what is drawn is what is downloaded.
  function tabulate(figure, keys) {
    const heads = figure.controls.map((control) => control.label), value = figure.ylabel || "value";
    const rowsOf = {
      lines: [["panel", "line", figure.xlabel, value, "low", "high"], (panel) => panel.lines.flatMap((line) =>
        line.x.map((x, i) => [panel.title, line.name, x, line.y[i], line.low?.[i], line.high?.[i]]))],
      dots: [["panel", "label", "group", figure.xlabel, "low", "high", "by chance, low", "by chance, high"], (panel) => panel.dots.map((dot) =>
        [panel.title, dot.label, dot.group, dot.value.mean, dot.value.low, dot.value.high, dot.null?.low, dot.null?.high])],
      heatmap: [["panel", "row", figure.xlabel, value, "low", "high"], (panel) => panel.z.flatMap((row, i) =>
        row.map((x, j) => [panel.title, panel.y[i], panel.x[j], x, panel.low?.[i]?.[j], panel.high?.[i]?.[j]]))],
      unmasking: [["panel", "position", "token", "step", "confidence"], (panel) => panel.pieces.map((piece, i) =>
        [panel.title, i, piece, panel.steps[i], panel.confidence[i]])],
    };
    const [columns, list] = rowsOf[figure.chart];
    const options = (key) => heads.map((_, i) => figure.controls[i].options[Number(key.split("|")[i])]);
    return [[...heads, ...columns], ...keys.flatMap((key) => (figure.views[key] ?? []).flatMap(list).map((row) => [...options(key), ...row]))];
  }
  // A text that a spreadsheet would compute is kept a text.
  function quote(cell) {
    if (cell === null || cell === undefined) return "";
    const text = typeof cell === "string" && /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : String(cell);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  async function save(card, link) {
    const { ground, plain } = Charts, { data, layout } = card.spec;
    const room = { ...layout.margin, t: 40, b: card.spec.legend.length ? 40 : 10 };
    const picture = { ...layout, paper_bgcolor: ground("card"), showlegend: data.some((trace) => trace.showlegend), margin: room, height: layout.height + room.t + room.b,
      legend: { orientation: "h", y: 0, yanchor: "top", yref: "paper" }, title: { text: plain(card.figure.title), x: 0.01, y: 1, yanchor: "top", yref: "container", pad: { t: 10 } } };
    const format = link.dataset.format;
    const url = await Plotly.toImage({ data, layout: picture }, { format, width: layout.width, height: picture.height, scale: format === "png" ? 2 : 1 });
    make("a", { href: url, download: link.download }).click();
  }

  for (const element of document.querySelectorAll("figure[data-figure]")) {
    const figure = figures[element.dataset.figure], chart = element.querySelector(".chart"), values = element.querySelector(".values");
    const controls = element.querySelector(".controls"), card = { figure, spec: null };
    const list = () => {
      const place = values.querySelector("div");
      place.replaceChildren();
      if (!values.open) return;
      const [head, ...rows] = tabulate(figure, [card.state.join("|")]).map((row) => row.slice(figure.controls.length));
      const line = (cells, tag) => make("tr", {}, ...cells.map((cell) => make(tag, { textContent: cell ?? "–" })));
      place.append(make("table", {}, make("thead", {}, line(head, "th")), make("tbody", {}, ...rows.map((row) => line(row, "td")))));
    };
    Object.assign(card, addControls(controls, figure.controls, (control, option) => {
      card.draw();
      if (control.label === STICKY) carry(card, option);
    }));
    const show = figure.chart === "unmasking" ? animate(card, chart, controls) : () => drawChart(card, chart);
    card.draw = () => { show(); list(); };
    values.addEventListener("toggle", list);
    element.querySelector(".download").addEventListener("click", (event) => {
      const rows = tabulate(figure, Object.keys(figure.views));
      event.target.href = "data:text/csv;charset=utf-8," + encodeURIComponent(rows.map((row) => row.map(quote).join(",")).join("\n") + "\n");
    });
    for (const link of element.querySelectorAll(".save")) {
      link.addEventListener("click", (event) => { event.preventDefault(); if (card.spec) save(card, link); });
    }
    for (let fold = element.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.addEventListener("toggle", () => card.draw());
    cards.push(card);
  }
  let waiting = null;
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // A phone's address bar changes the height only.
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => { for (const card of cards) card.draw(); }, 150);
  });
  const kept = memory.read();
  setTheme(kept ? kept === "dark" : wish.matches);
})();
