"use strict";
// The charts: each takes a figure's data and the element to draw into, and reads the page's colours.

const Charts = (() => {
  // Okabe and Ito's palette; brighter on a dark ground.
  const COLOURS = {
    light: { diffusion: "#0072B2", causal: "#C26A00", control: "#767676", ink: "#1d2129", soft: "#565d6b",
      line: "#dcd9d1", p: ["#0072B2", "#C26A00", "#00795A", "#A8568A", "#B34700", "#2B7FB0"] },
    dark: { diffusion: "#56B4E9", causal: "#E69F00", control: "#9a9a9a", ink: "#e8e6e1", soft: "#a9adb8",
      line: "#343944", p: ["#56B4E9", "#E69F00", "#2fc79c", "#e39cc6", "#ff8a4a", "#9fd3f5"] },
  };
  // Purple gives, orange takes away, the ground's own colour is nothing.
  const SIGNED = {
    light: [[0, "#9a4a00"], [0.25, "#eba55b"], [0.5, "#fbfaf7"], [0.75, "#a294c9"], [1, "#3d1a78"]],
    dark: [[0, "#ffb35c"], [0.25, "#a8682a"], [0.5, "#1c1f26"], [0.75, "#7a66b8"], [1, "#cdbcff"]],
  };
  const SHARE = {
    light: [[0, "#fbfaf7"], [0.5, "#6aa6c8"], [1, "#003a5d"]],
    dark: [[0, "#1c1f26"], [0.5, "#2f7fae"], [1, "#c4e7ff"]],
  };
  const theme = () => document.documentElement.dataset.theme === "dark" ? "dark" : "light";
  const pick = (name) => {
    const all = COLOURS[theme()];
    return all[name] ?? all.p[Number(name.slice(1)) % all.p.length];
  };
  const fade = (hex, share) => hex + Math.round(255 * share).toString(16).padStart(2, "0");
  const say = (x) => x === null || x === undefined ? "–" : Number(x).toFixed(4);
  const options = { responsive: true, displaylogo: false, displayModeBar: false };

  function layout(more) {
    const soft = pick("soft"), line = pick("line");
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line, fixedrange: true, automargin: true };
    const { xaxis, yaxis, ...rest } = more;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, showlegend: false,
      font: { family: "system-ui, sans-serif", size: 12, color: soft }, margin: { l: 48, r: 12, t: 30, b: 42 },
      hoverlabel: { font: { size: 13 } },
      ...rest, xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis },
    };
  }

  function legend(element, entries) {
    const list = document.createElement("ul");
    list.className = "legend";
    const dashes = { solid: "", dot: "2 3", dash: "7 4" };
    for (const [name, colour, dash] of entries) {
      const item = document.createElement("li");
      item.innerHTML = `<svg width="28" height="8" aria-hidden="true"><line x1="0" y1="4" x2="28" y2="4" stroke="${pick(colour)}" stroke-width="2.5" stroke-dasharray="${dashes[dash] ?? ""}"/></svg>`;
      item.append(name);
      list.append(item);
    }
    element.append(list);
  }

  function lines(element, data) {
    element.replaceChildren();
    const seen = new Map();
    for (const panel of data.panels) for (const line of panel.lines) seen.set(line.name, [line.name, line.colour, line.dash]);
    legend(element, seen.values());
    const grid = document.createElement("div");
    grid.className = "panels";
    element.append(grid);
    for (const panel of data.panels) {
      const place = document.createElement("div");
      grid.append(place);
      const traces = [];
      for (const line of panel.lines) {
        const colour = pick(line.colour);
        if (line.low) {
          traces.push({ x: [...line.x, ...[...line.x].reverse()], y: [...line.high, ...[...line.low].reverse()],
            fill: "toself", fillcolor: fade(colour, 0.15), line: { width: 0 }, hoverinfo: "skip", mode: "lines" });
        }
        const between = line.low ? line.low.map((low, i) => ` [${low.toFixed(1)}, ${line.high[i].toFixed(1)}]`) : line.x.map(() => "");
        traces.push({ x: line.x, y: line.y, name: line.name, mode: "lines+markers", customdata: between,
          line: { color: colour, dash: line.dash, width: line.dash === "solid" ? 2.5 : 1.5 },
          marker: { size: line.dash === "solid" ? 7 : 3, color: colour },
          hovertemplate: `${line.name}<br>%{x}: %{y:.1f}%{customdata}<extra></extra>` });
      }
      const ticks = panel.lines[0]?.x ?? [];
      Plotly.newPlot(place, traces, layout({
        title: { text: panel.title, font: { size: 14, color: pick("ink") } }, height: 270,
        xaxis: { title: { text: data.xlabel }, type: data.log2 ? "log" : "linear", tickvals: ticks, ticktext: ticks.map(String) },
        yaxis: { title: { text: data.ylabel }, range: data.range },
      }), options);
    }
  }

  function dots(element, data, view) {
    element.replaceChildren();
    const rows = (view ?? data).rows;
    const groups = [...new Set(rows.map((row) => row.group))];
    const colourOf = (group) => rows.find((row) => row.group === group && row.colour !== "control")?.colour ?? "control";
    legend(element, groups.map((group) => [group, colourOf(group), "solid"]));
    const place = document.createElement("div");
    element.append(place);
    // Rows of one label share a line, a little apart.
    const labels = [...new Set(rows.map((row) => row.label))].reverse();
    const apart = (row) => (groups.length > 1 && rows.filter((other) => other.label === row.label).length > 1)
      ? 0.16 * (groups.indexOf(row.group) - (groups.length - 1) / 2) : 0;
    const at = (row) => labels.indexOf(row.label) - apart(row);
    const nulls = rows.filter((row) => row.null_low !== undefined);
    const traces = nulls.map((row) => ({ x: [row.null_low, row.null_high], y: [at(row), at(row)], mode: "lines",
      line: { color: fade(pick("control"), 0.45), width: 9 }, hoverinfo: "skip" }));
    traces.push({
      x: rows.map((row) => row.mean), y: rows.map(at), mode: "markers",
      marker: { color: rows.map((row) => pick(row.colour)), size: 9, symbol: rows.map((row) => row.colour === "control" ? "diamond-open" : groups.indexOf(row.group) % 2 ? "square" : "circle") },
      customdata: rows.map((row) => [row.label, row.group, `${say(row.mean)} [${say(row.low)}, ${say(row.high)}]`, row.note ?? ""]),
      hovertemplate: "%{customdata[0]}<br>%{customdata[1]}<br>%{customdata[2]}<br>%{customdata[3]}<extra></extra>",
    });
    for (const row of rows) {
      if (row.low === null || row.high === null) continue;
      traces.push({ x: [row.low, row.high], y: [at(row), at(row)], mode: "lines", hoverinfo: "skip", line: { color: pick(row.colour), width: 2 } });
    }
    const narrow = element.clientWidth < 520;
    Plotly.newPlot(place, traces, layout({
      height: 90 + 26 * labels.length, hovermode: "closest", margin: { l: narrow ? 8 : 48, r: 12, t: 8, b: narrow ? 56 : 42 },
      xaxis: { title: { text: narrow ? data.xlabel.replace(/[,(]/, (mark) => mark === "(" ? "<br>(" : ",<br>") : data.xlabel }, range: data.range, zeroline: true },
      yaxis: { tickvals: labels.map((_, i) => i), ticktext: narrow ? labels.map((label) => label.length > 22 ? label.slice(0, 21) + "…" : label) : labels,
        range: [-0.7, labels.length - 0.3], zeroline: false },
    }), options);
  }

  function heatmap(element, data, view, key) {
    if (!view) {
      element.replaceChildren(Object.assign(document.createElement("p"), { className: "status", textContent: "Nothing was traced here: the answer is already complete, or was not recalled." }));
      return;
    }
    if (!element.querySelector(".js-plotly-plot")) element.replaceChildren(document.createElement("div"));
    const place = element.firstElementChild;
    // One scale for all views of the first control's choice, so that steps can be compared.
    let most = 0;
    for (const [name, one] of Object.entries(data.views)) {
      if (name.split("|")[0] !== key.split("|")[0]) continue;
      for (const row of one.z) for (const x of row) most = Math.max(most, Math.abs(x ?? 0));
    }
    most = most || 1;
    const text = view.z.map((row, i) => row.map((value, j) => {
      const low = view.low?.[i]?.[j], high = view.high?.[i]?.[j];
      const interval = low === undefined || low === null ? "" : `<br>average of the role: 95 % in [${say(low)}, ${say(high)}]`;
      const own = view.low && !view.title ? interval.replace("average of the role: ", "") : interval;
      const note = view.note?.[i]?.[j] ?? view.row_note?.[i];
      return `${view.y[i]}<br>${data.xlabel} ${view.x[j]}<br>${data.value} ${say(value)}${own}${note ? `<br>${note}` : ""}`;
    }));
    const rows = view.y.map((_, i) => i), narrow = element.clientWidth < 520;
    const short = (label) => label.length > (narrow ? 13 : 30) ? label.slice(0, narrow ? 12 : 29) + "…" : label;
    Plotly.react(place, [{
      type: "heatmap", x: view.x.map(String), y: rows, z: view.z, text, hoverinfo: "text", xgap: 1, ygap: 1,
      zmin: data.signed ? -most : 0, zmax: most, colorscale: (data.signed ? SIGNED : SHARE)[theme()],
      colorbar: { thickness: 10, title: { text: data.value, side: "right" }, outlinewidth: 0 },
    }], layout({
      height: Math.max(260, 110 + 19 * view.y.length), margin: { l: 20, r: 10, t: view.title ? (narrow ? 48 : 34) : 10, b: 44 },
      title: view.title ? { text: narrow ? view.title.replace(", ", ",<br>") : view.title, font: { size: 13, color: pick("ink") } } : undefined,
      xaxis: { title: { text: data.xlabel }, type: "category", showgrid: false },
      yaxis: { tickvals: rows, ticktext: view.y.map(short), autorange: "reversed", showgrid: false, zeroline: false },
    }), options);
  }

  return { lines, dots, heatmap };
})();
