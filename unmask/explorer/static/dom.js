// Small helpers for elements, numbers and keyboard focus. Text enters the page as text only.

export const byId = (id) => document.getElementById(id);

/** An element with properties, `aria-…`, `role` and `data-…` attributes, and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (/^(aria-|data-|role$|for$|colspan$|scope$)/.test(name)) element.setAttribute(name, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A probability with four digits, as everywhere in the reports. */
export function formatNumber(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits) return value.toExponential(1);
  return value.toFixed(digits);
}

export const formatCount = (value) => value >= 1e9 ? `${(value / 1e9).toFixed(1)}B` : value >= 1e6 ? `${(value / 1e6).toFixed(1)}M` : value >= 1e3 ? `${(value / 1e3).toFixed(0)}k` : String(value);
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
/** A token's text in a sentence or a label: spaces at its ends would be lost. */
export const quoteToken = (text) => text.trim() ? `“${text.replaceAll("\n", "⏎").trim()}”` : text.includes("\n") ? "“⏎”" : "“␣”";

/** One of the five shades of confidence that the reports use. */
export const shadeOf = (p) => `c${Math.max(0, Math.min(4, Math.floor((p ?? 0) * 5)))}`;

/** A labelled control. */
export function field(label, control, className = "") {
  return make("label", { className: `field ${className}` }, make("span", { textContent: label }), control);
}

export function select(options, chosen, properties = {}) {
  const control = make("select", properties);
  setOptions(control, options, chosen);
  return control;
}

/** Options as texts or as {value, label}; the choice is kept where it is still offered. */
export function setOptions(control, options, chosen = control.value) {
  control.replaceChildren(...options.map((option) => {
    const { value, label } = typeof option === "object" ? option : { value: option, label: option };
    return make("option", { value, textContent: label });
  }));
  if (options.some((option) => String(option.value ?? option) === String(chosen))) control.value = chosen;
}

/**
 * Arrow keys move among the items of a group, of which one is in the tab order.
 * `columns()` gives the width of a grid; a line of items has one row.
 */
export function roveFocus(group, selector, columns = null) {
  const items = () => [...group.querySelectorAll(selector)];
  const enter = (item) => {
    for (const each of group.querySelectorAll(`${selector}[tabindex="0"]`)) each.tabIndex = -1;
    item.tabIndex = 0;
  };
  group.addEventListener("focusin", (event) => {
    const item = event.target.closest(selector);
    if (item && group.contains(item)) enter(item);
  });
  group.addEventListener("keydown", (event) => {
    const all = items(), at = all.indexOf(event.target.closest(selector)), width = columns?.() ?? 1;
    if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: width, ArrowUp: -width, Home: -at, End: all.length - 1 - at };
    const to = at + (moves[event.key] ?? NaN);
    if (!(event.key in moves)) return;
    event.preventDefault();
    if (all[to]) all[to].focus();
  });
  return enter;
}

/** A line for screen readers and for everybody: what just happened. */
export function announce(text, isError = false) {
  const line = byId("status");
  line.textContent = text;
  line.classList.toggle("error", isError);
  line.setAttribute("role", isError ? "alert" : "status");
}

/** On a narrow page a panel stands below what it is about: bring it into sight. */
export function reveal(panel) {
  const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
  if (matchMedia("(max-width: 64rem)").matches) panel.scrollIntoView({ block: "start", behavior });
}

/** A file that the browser saves. */
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Lines over a common axis; series: [{name, className, points: [[x, y], …]}]. */
export function drawLines(series, { xlabel, ylabel, label, width, marker = null, last = 1 }) {
  const height = 220, left = 52, bottom = 40, top = 12, right = 12;
  const points = series.flatMap((each) => each.points).filter(([, y]) => Number.isFinite(y));
  const most = Math.max(1e-9, ...points.map(([, y]) => y)), end = Math.max(last, ...points.map(([x]) => x));
  const x = (value) => left + (width - left - right) * value / end;
  const y = (value) => height - bottom - (height - bottom - top) * value / most;
  const text = (content, attributes) => {
    const element = makeSvg("text", attributes);
    element.textContent = content;
    return element;
  };
  const drawing = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "lines", role: "img", "aria-label": label });
  for (const share of [0, 0.5, 1]) {
    drawing.append(makeSvg("line", { x1: left, x2: width - right, y1: y(most * share), y2: y(most * share), class: "rule" }));
    drawing.append(text(formatNumber(most * share, 2), { x: left - 6, y: y(most * share) + 4, "text-anchor": "end" }));
  }
  const step = Math.max(1, Math.ceil(end / 8));
  for (let at = 0; at <= end; at += step) drawing.append(text(at, { x: x(at), y: height - bottom + 16, "text-anchor": "middle" }));
  drawing.append(text(xlabel, { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }));
  drawing.append(text(ylabel, { x: 12, y: (height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(height - bottom) / 2})` }));
  if (marker !== null) drawing.append(makeSvg("line", { x1: x(marker), x2: x(marker), y1: top, y2: height - bottom, class: "marker" }));
  for (const each of series) {
    const shown = each.points.filter(([, value]) => Number.isFinite(value));
    if (!shown.length) continue;
    drawing.append(makeSvg("polyline", { class: each.className, points: shown.map(([a, b]) => `${x(a)},${y(b)}`).join(" ") }));
    for (const [a, b] of shown) drawing.append(makeSvg("circle", { class: each.className, cx: x(a), cy: y(b), r: 3.5 }));
  }
  return drawing;
}
