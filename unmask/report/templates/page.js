"use strict";
// The page: figures with their controls, one choice of the way of asking, downloads, light and dark.

(() => {
  const { figures, terms } = JSON.parse(document.getElementById("page-data").textContent);
  const { make } = Charts;
  const STICKY = "asked"; // The choice that all figures share.
  const cards = [];

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
        changed();
      });
      show();
      inputs.push(show);
      if (control.options.length > 1 && control.label !== STICKY) place.append(make("label", { className: control.is_slider ? "wide" : "" }, name, input));
    });
    const choose = (number, option) => { state[number] = option; inputs[number](); };
    return { state, choose };
  }

  // One choice of the way of asking, which every figure follows as far as it has it.
  const asking = document.getElementById("page-asked");
  function follow(option) {
    for (const card of cards) {
      const number = card.figure.controls.findIndex((control) => control.label === STICKY);
      if (number < 0) continue;
      const options = card.figure.controls[number].options, at = options.indexOf(option);
      const other = card.element.querySelector(".other");
      if (at >= 0) card.choose(number, at);
      other.textContent = at >= 0 ? "" : `${option}: not measured here. Shown: ${options[card.state[number]]}.`;
      card.draw();
    }
    // Sentences follow the choice as well; where none is about it, those stay that every page has.
    for (const section of document.querySelectorAll("main section")) {
      const told = [...section.querySelectorAll(":scope > .finding[data-ways]")], isAbout = (each) => JSON.parse(each.dataset.ways).includes(option);
      const known = told.some(isAbout);
      for (const each of told) each.hidden = known ? !isAbout(each) : "further" in each.dataset;
    }
  }
  function offerWays() {
    const lists = cards.flatMap((card) => card.figure.controls.filter((control) => control.label === STICKY).map((control) => control.options));
    const options = [...new Set(lists.flat())];
    if (!options.length) return;
    const first = make("div", { className: "options" });
    options.forEach((option, number) => {
      const input = make("input", { type: "radio", name: "asked", value: option, checked: number === 0 });
      input.addEventListener("change", () => follow(option));
      first.append(make("label", {}, input, make("span", { textContent: option })));
    });
    asking.append(first);
    asking.hidden = options.length < 2;
    follow(options[0]);
  }

  function drawChart(card, chart) {
    const key = card.state.join("|"), panels = card.figure.views[key], width = chart.clientWidth;
    card.spec = null;
    if (!width || !window.Plotly) return; // Folded away or not yet unpacked: drawn when it is.
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
      for (const label of plot.querySelectorAll(".ytick text")) {
        const start = label.textContent.replace("…", ""), term = start && Object.keys(terms).find((each) => each.startsWith(start));
        if (!term || label.querySelector("title")) continue;
        label.style.pointerEvents = "all";
        const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
        title.textContent = terms[term];
        label.append(title);
      }
    });
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
      unmasking: [["panel", "way of asking", "position", "token", "step", "confidence", "guesses before each step"], (panel) => panel.pieces.map((piece, i) =>
        [panel.title, panel.way, i, piece, panel.steps[i], panel.confidence[i], (panel.guesses?.[i] ?? []).map((each, at) => each.length ? `${at + 1}: ${each[0][0].trim()} ${each[0][1]}` : "").filter(Boolean).join("; ")])],
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
    const controls = element.querySelector(".controls"), card = { element, figure, spec: null };
    const list = () => {
      const place = values.querySelector("div");
      place.replaceChildren();
      if (!values.open) return;
      const [head, ...rows] = tabulate(figure, [card.state.join("|")]).map((row) => row.slice(figure.controls.length));
      const line = (cells, tag) => make("tr", {}, ...cells.map((cell) => make(tag, { textContent: cell ?? "–" })));
      place.append(make("table", {}, make("thead", {}, line(head, "th")), make("tbody", {}, ...rows.map((row) => line(row, "td")))));
    };
    Object.assign(card, addControls(controls, figure.controls, () => card.draw()));
    const show = figure.chart === "unmasking" ? Player.mount(card, chart, controls) : () => drawChart(card, chart);
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
  offerWays();

  // Plotly comes compressed: texts and players are there before its charts are.
  async function unpack(packed) {
    try {
      const bytes = Uint8Array.from(atob(packed), (each) => each.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      document.body.append(make("script", { textContent: await new Response(stream).text() }));
    } catch {
      const text = "The charts could not be drawn: they need a browser of 2023 or later. Their values are in the tables below them.";
      return document.querySelector("main").prepend(make("p", { className: "notice", role: "note", textContent: text }));
    }
    for (const card of cards) card.draw();
    if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  }
  // In a notebook one cell has Plotly, and others take it from there as soon as it is shown.
  const library = document.getElementById("page-library").textContent;
  const isFramed = window.parent !== window, missing = make("p", { className: "notice", role: "note", textContent: "The charts wait for the first picture of this notebook, which brings along what draws them: run its cell again, or the whole notebook." });
  function lend() {
    try { window.parent.unmaskLibrary = library; } catch { /* A parent that is kept apart has no other pictures. */ }
  }
  function borrow(tries = 0) {
    let lent = "";
    try { lent = window.parent.unmaskLibrary; } catch { /* Said below. */ }
    if (lent) { missing.remove(); unpack(lent); return; }
    if (tries === 6) document.querySelector("main").prepend(missing);
    setTimeout(() => borrow(tries + 1), 500);
  }
  if (library) { unpack(library); if (isFramed) lend(); }
  else if (isFramed && cards.some((card) => card.figure.chart !== "unmasking")) borrow();

  // The contents say where the reader is.
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      links.forEach((link, name) => name === entry.target.id ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current"));
    }
  }, { rootMargin: "-25% 0px -70% 0px" });
  for (const section of document.querySelectorAll("main section")) watcher.observe(section);
})();
