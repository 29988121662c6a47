"use strict";
// The charts: each turns a figure's panels into what Plotly draws, in the page's colours.

const Charts = (() => {
  const { looks } = JSON.parse(document.getElementById("page-data").textContent);
  const GROUND = {
    light: { ink: "#1d2129", soft: "#565d6b", line: "#dcd9d1", card: "#ffffff", none: "#ece9e2" },
    dark: { ink: "#e8e6e1", soft: "#a9adb8", line: "#343944", card: "#1c1f26", none: "#2b2f38" },
  };
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up"];
  const NARROW = 560, AXIS = 50; // Pixels.

  function make(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }
  const theme = () => document.documentElement.dataset.theme === "dark" ? "dark" : "light";
  const ground = (name) => GROUND[theme()][name];
  const pick = (name) => looks.colours[theme()][name] ?? looks.colours[theme()][`p${Number(name.slice(1)) % looks.count}`];
  const fade = (hex, share) => hex + Math.round(255 * share).toString(16).padStart(2, "0");
  const say = (x) => x === null || x === undefined ? "–" : Math.abs(x) >= 100 ? x.toFixed(1) : Math.abs(x) >= 10 ? x.toFixed(2) : x.toFixed(4);
  const between = (low, high) => low === null || low === undefined || high === null || high === undefined ? "" : ` [${say(low)}, ${say(high)}]`;
  // Plotly reads a little HTML in its texts.
  const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const cut = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;
  function wrap(text, most) {
    const lines = [""];
    for (const word of text.split(/\s+/)) {
      if (lines.at(-1) && (lines.at(-1) + " " + word).length > most) lines.push(word);
      else lines[lines.length - 1] += (lines.at(-1) ? " " : "") + word;
    }
    return lines.map(plain).join("<br>");
  }

  // Panels side by side, as many in a row as the width holds; heights in pixels. `side` is what labels take of the width.
  function arrange(panels, heights, width, least, side = 40, axis = AXIS) {
    const columns = Math.max(1, Math.min(panels.length, Math.floor(width / least)));
    const titles = panels.map((panel) => wrap(panel.title, Math.max(12, Math.floor(((width - side) / columns - (columns > 1 ? 44 : 0)) / 7.2))));
    const tallest = Math.max(2, ...titles.map((title) => title.split("<br>").length));
    const rows = [], title = titles.some(Boolean) ? 17 * tallest : 8;
    for (let i = 0; i < panels.length; i += columns) rows.push(Math.max(...heights.slice(i, i + columns)));
    const total = rows.reduce((sum, height) => sum + height + title + axis, 0);
    const gap = columns > 1 ? Math.min(0.2 / columns, 44 / width) : 0;
    let top = 0;
    const boxes = [];
    rows.forEach((height, row) => {
      const y = [1 - (top + title + height) / total, 1 - (top + title) / total].map((x) => Math.min(1, Math.max(0, x)));
      for (let column = 0; column < columns && row * columns + column < panels.length; column++) {
        boxes.push({ x: [column / columns + (column ? gap : 0), (column + 1) / columns - (column < columns - 1 ? gap / 2 : 0)], y, column });
      }
      top += height + title + axis;
    });
    return { boxes, titles, total };
  }

  // A layout with a pair of axes for each panel; `fill(i)` says what is particular to them.
  function lay(panels, { boxes, titles, total }, width, fill) {
    const line = ground("line"), soft = ground("soft");
    const usual = { gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line, fixedrange: true };
    const layout = {
      height: total, width, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, showlegend: false,
      font: { family: "system-ui, sans-serif", size: 12, color: soft }, margin: { l: 10, r: 14, t: 2, b: 2 },
      hoverlabel: { font: { size: 13 }, align: "left" }, hovermode: "closest", annotations: [],
    };
    panels.forEach((panel, i) => {
      const number = i ? i + 1 : "", { xaxis, yaxis } = fill(panel, boxes[i]);
      layout[`xaxis${number}`] = { ...usual, ...xaxis, domain: boxes[i].x, anchor: `y${number}` };
      layout[`yaxis${number}`] = { ...usual, automargin: boxes[i].column === 0, ...yaxis, domain: boxes[i].y, anchor: `x${number}` };
      layout.annotations.push({
        text: titles[i], font: { size: 13, color: ground("ink") }, showarrow: false,
        xref: `x${number} domain`, yref: `y${number} domain`, x: 0, y: 1, xanchor: "left", yanchor: "bottom", yshift: 3, align: "left",
      });
    });
    return layout;
  }
  const axesOf = (i) => ({ xaxis: `x${i ? i + 1 : ""}`, yaxis: `y${i ? i + 1 : ""}` });

  // Every entry of a legend once; the first trace of a name stands for it in a saved picture.
  function entitle(data, entries) {
    const seen = new Set();
    for (const trace of data) {
      if (!entries.has(trace.name) || trace.hidden) { trace.showlegend = false; continue; }
      trace.showlegend = !seen.has(trace.name);
      trace.legendgroup = trace.name;
      seen.add(trace.name);
      trace.name = plain(trace.name);
    }
  }

  function lines(figure, panels, range, width) {
    const entries = new Map(), data = [];
    panels.forEach((panel, i) => {
      for (const line of panel.lines) {
        const colour = pick(line.colour), isMain = line.dash === "solid";
        entries.set(line.name, { name: line.name, colour, dash: line.dash, symbol: "circle", size: isMain ? 7 : 4 });
        if (line.low) {
          data.push({ ...axesOf(i), x: [...line.x, ...[...line.x].reverse()], y: [...line.high, ...[...line.low].reverse()],
            fill: "toself", fillcolor: fade(colour, 0.15), line: { width: 0 }, hoverinfo: "skip", mode: "lines", hidden: true });
        }
        data.push({ ...axesOf(i), x: line.x, y: line.y, name: line.name, mode: "lines+markers",
          line: { color: colour, dash: line.dash, width: isMain ? 2.5 : 1.5 }, marker: { size: isMain ? 7 : 4, color: colour },
          customdata: line.x.map((x, j) => `${plain(line.name)}<br>${plain(figure.xlabel)} ${x}: ${say(line.y[j])}${between(line.low?.[j], line.high?.[j])}`),
          hovertemplate: "%{customdata}<extra></extra>" });
      }
    });
    entitle(data, entries);
    const layout = lay(panels, arrange(panels, panels.map(() => 160), width, 220), width, (panel, box) => {
      const all = [...new Set(panel.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
      const powers = figure.is_log2 && all.length > 12 ? { tick0: 0, dtick: Math.log10(2) } : null;
      const ticks = powers ?? (all.length > 8 && !figure.is_log2 ? {} : { tickvals: all, ticktext: all.map(String) });
      return {
        xaxis: { title: { text: plain(figure.xlabel), standoff: 6 }, type: figure.is_log2 ? "log" : "linear", ...ticks, ...(panel === panels[0] ? {} : { matches: "x" }) },
        yaxis: { title: box.column ? undefined : { text: wrap(figure.ylabel, 22), standoff: 8 }, range },
      };
    });
    return { data, layout, legend: [...entries.values()] };
  }

  function dots(figure, panels, range, width) {
    const all = panels.flatMap((panel) => panel.dots), groups = [...new Set(all.map((dot) => dot.group))];
    const symbol = (dot) => SYMBOLS[groups.indexOf(dot.group) % SYMBOLS.length] + (dot.colour === "control" ? "-open" : "");
    const entries = new Map(), data = [], narrow = width < 520;
    for (const dot of all) if (dot.group) entries.set(dot.group, { name: dot.group, colour: pick(dot.colour), dash: "solid", symbol: symbol(dot), size: 9 });
    if (all.some((dot) => dot.null)) entries.set("by chance", { name: "by chance", colour: fade(pick("control"), 0.45), band: true });
    // Dots of one label share a line, each group a little below the one before.
    const labels = panels.map((panel) => [...new Set(panel.dots.map((dot) => dot.label))]);
    const sharing = (panel, label) => groups.filter((group) => panel.dots.some((dot) => dot.label === label && dot.group === group));
    const most = narrow ? 20 : 44, tall = labels.map((each) => Math.max(1, ...each.map((label) => narrow ? wrap(label, most).split("<br>").length : 1)));
    const room = panels.map((panel, i) => Math.max(22, 4 + 15 * tall[i], 6 + 12 * Math.max(...labels[i].map((label) => sharing(panel, label).length))));
    panels.forEach((panel, i) => {
      const at = (dot) => {
        const others = sharing(panel, dot.label);
        return labels[i].indexOf(dot.label) + 12 / room[i] * (others.indexOf(dot.group) - (others.length - 1) / 2);
      };
      for (const dot of panel.dots) {
        const y = at(dot), { mean, low, high } = dot.value, colour = pick(dot.colour);
        if (dot.null) {
          data.push({ ...axesOf(i), x: [dot.null.low, dot.null.high], y: [y, y], mode: "lines", name: "by chance", hoverinfo: "skip",
            line: { color: fade(pick("control"), 0.45), width: 9 } });
        }
        if (low !== null && high !== null) {
          data.push({ ...axesOf(i), x: [low, high], y: [y, y], mode: "lines", hoverinfo: "skip", line: { color: colour, width: 2 }, hidden: true });
        }
        data.push({ ...axesOf(i), x: [mean], y: [y], mode: "markers", name: dot.group, marker: { color: colour, size: 9, symbol: symbol(dot) },
          customdata: [`${plain(dot.label)}<br>${plain(dot.group)}: ${say(mean)}${between(low, high)}${dot.note ? `<br>${plain(dot.note)}` : ""}`],
          hovertemplate: "%{customdata}<extra></extra>" });
      }
    });
    entitle(data, entries);
    const heights = panels.map((_, i) => 14 + room[i] * labels[i].length), isShared = labels.every((each) => each.join("\0") === labels[0].join("\0"));
    const layout = lay(panels, arrange(panels, heights, width, isShared ? 220 : Infinity, 150), width, (panel, box) => {
      const shown = labels[panels.indexOf(panel)];
      return {
        xaxis: { title: { text: wrap(figure.xlabel, Math.floor(width / 8)), standoff: 6 }, range, zeroline: true, zerolinecolor: ground("soft") },
        yaxis: { tickvals: shown.map((_, i) => i), ticktext: box.column ? shown.map(() => "") : shown.map((label) => narrow ? wrap(label, most) : plain(cut(label, most))),
          range: [shown.length - 0.4, -0.6], zeroline: false },
      };
    });
    return { data, layout, legend: [...entries.values()] };
  }

  function heatmap(figure, panels, range, width) {
    const narrow = width < NARROW, most = width < 400 ? 15 : narrow ? 24 : 34;
    const isShared = panels.every((panel) => panel.y.join("\0") === panels[0].y.join("\0"));
    // Labels below that do not fit beside each other are turned.
    const longest = Math.max(1, ...panels.flatMap((panel) => panel.x.map((label) => Math.min(14, label.length))));
    // Cells with words are as wide as these need.
    const least = !isShared ? Infinity : Math.max(220, ...panels.map((panel) => panel.words.length ? 72 * panel.x.length : 0));
    const columns = isShared ? Math.max(1, Math.min(panels.length, Math.floor(width / least))) : 1, room = 0.75 * width / columns;
    const isTurned = longest > 3 && Math.max(...panels.map((panel) => panel.x.length)) * (7 * longest + 8) > room;
    const held = Math.floor(room / (isTurned || longest < 2 ? 14 : 7 * longest + 8));
    // Labels at the side are whole: long ones take several lines.
    const lines = Math.max(1, ...panels.flatMap((panel) => panel.y.map((label) => wrap(label, most).split("<br>").length)));
    const heights = panels.map((panel) => Math.max(40, Math.max(panel.y.length > 12 ? 14 : 18, 13 * lines + 3) * panel.y.length));
    const grid = arrange(panels, heights, width, least, narrow ? 150 : 240, AXIS + (isTurned ? 5 * longest : 0));
    const data = panels.map((panel, i) => ({
      ...axesOf(i), type: "heatmap", x: panel.x.map((_, j) => j), y: panel.y.map((_, j) => j), z: panel.z, xgap: 1, ygap: 1, coloraxis: "coloraxis",
      hoverinfo: "text", showlegend: false, ...(panel.words.length ? { text: panel.words.map((row) => row.map((word) => plain(cut(word.trim() || "·", 11)))), texttemplate: "%{text}" } : {}),
      hovertext: panel.z.map((row, r) => row.map((value, c) => [
        plain(panel.y[r]), plain(panel.words[r]?.[c] ?? ""), `${plain(figure.xlabel)} ${plain(panel.x[c])}`,
        `${plain(figure.ylabel)} ${say(value)}${between(panel.low?.[r]?.[c], panel.high?.[r]?.[c])}`, plain(panel.notes[r] ?? ""),
        panel.unscaled.some(([i, j]) => i === r && j === c) ? "beyond the scale of colours" : "",
      ].filter(Boolean).join("<br>"))),
    }));
    // A pair of axes without any value would be drawn nowhere.
    panels.forEach((panel, i) => {
      if (panel.z.flat().every((value) => value === null)) data.push({ ...axesOf(i), x: [0], y: [0], mode: "markers", marker: { opacity: 0 }, hoverinfo: "skip", showlegend: false });
    });
    const layout = lay(panels, grid, width, (panel, box) => {
      const rows = panel.y.map((_, j) => j), step = Math.ceil(panel.x.length / Math.max(1, held));
      const kept = panel.x.map((_, j) => j).filter((j) => j % step === 0);
      return {
        xaxis: { title: { text: plain(figure.xlabel), standoff: 6 }, tickvals: kept, ticktext: kept.map((j) => plain(cut(panel.x[j], 14))), showgrid: false, zeroline: false, tickangle: isTurned ? -45 : 0, range: [-0.5, panel.x.length - 0.5] },
        yaxis: { tickvals: rows, ticktext: box.column ? rows.map(() => "") : rows.map((j) => wrap(panel.y[j], most)), range: [rows.length - 0.5, -0.5], showgrid: false, zeroline: false },
      };
    });
    const colours = looks.scales[theme()][figure.is_signed ? "signed" : "unsigned"];
    const bar = { thickness: 10, outlinewidth: 0 }, tall = Math.min(layout.height, 260);
    // A bar above the panels has room of its own: titles of two lines reach up to it.
    const above = 1 + 16 / layout.height;
    if (narrow) layout.height += 44;
    if (figure.is_paired) layout.shapes = panels.flatMap((panel, i) => panel.y.flatMap((name, row) => {
      const column = panel.x.indexOf(name), { xaxis, yaxis } = axesOf(i), line = { color: ground("ink"), width: 1.5 };
      return column < 0 ? [] : [{ type: "rect", xref: xaxis, yref: yaxis, x0: column - 0.5, x1: column + 0.5, y0: row - 0.5, y1: row + 0.5, line }];
    }));
    layout.plot_bgcolor = ground("none"); // Cells where nothing was measured.
    layout.coloraxis = {
      cmin: range[0], cmax: range[1], colorscale: colours.map((colour, i) => [i / (colours.length - 1), colour]),
      colorbar: narrow
        ? { ...bar, orientation: "h", x: 0, xanchor: "left", y: above, yanchor: "bottom", len: 1 }
        : { ...bar, title: { text: wrap(figure.ylabel, Math.floor(tall / 8)), side: "right" }, len: tall, lenmode: "pixels", y: 1, yanchor: "top" },
    };
    return { data, layout, legend: narrow ? [{ name: `colour: ${figure.ylabel}` }] : [] };
  }

  // A legend shows the marks that are drawn.
  function drawMark({ colour, dash, symbol, size, band }) {
    if (!colour) return "";
    const open = symbol?.endsWith("-open"), r = (size ?? 0) / 2;
    const fill = `fill="${open ? "none" : colour}" stroke="${colour}" stroke-width="1.4"`;
    const shapes = {
      circle: `<circle cx="14" cy="7" r="${r}" ${fill}/>`,
      square: `<rect x="${14 - r}" y="${7 - r}" width="${2 * r}" height="${2 * r}" ${fill}/>`,
      diamond: `<path d="M14 ${6 - r}L${15 + r} 7L14 ${8 + r}L${13 - r} 7Z" ${fill}/>`,
      "triangle-up": `<path d="M14 ${6 - r}L${15 + r} ${7 + r}L${13 - r} ${7 + r}Z" ${fill}/>`,
    };
    const dashes = { solid: "", dot: "2 3", dash: "7 4" };
    const line = `<line x1="0" y1="7" x2="28" y2="7" stroke="${colour}" stroke-width="${band ? 9 : 2}" stroke-dasharray="${dashes[dash] ?? ""}"/>`;
    return `<svg width="28" height="14" aria-hidden="true">${line}${shapes[symbol?.replace("-open", "")] ?? ""}</svg>`;
  }

  return { build: { lines, dots, heatmap }, drawMark, ground, make, plain };
})();
