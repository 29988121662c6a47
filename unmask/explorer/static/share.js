// Of every view: the same as Python, as a file that needs nothing, and as a link.

import { call, CallError } from "./api.js";
import { drawToken } from "./canvas.js";
import { announce, byId, download, make } from "./dom.js";

/** The three buttons of a view. */
export function addShareButtons(app, view) {
  const buttons = [["Copy as Python", () => copyPython(view)], ["Save as HTML", () => saveHtml(view)], ["Copy link", () => copyLink(app)]];
  document.querySelector(`#${view.name} .share`).append(...buttons.map(([textContent, onclick]) => make("button", { type: "button", textContent, onclick })));
}

async function copy(text, done) {
  try {
    await navigator.clipboard.writeText(text);
    announce(done);
  } catch {
    announce("The browser did not allow copying: select the text and copy it yourself.", true);
  }
}

/** The calls of a view as one program. */
async function writePython(view) {
  const calls = view.calls();
  const codes = await Promise.all(calls.map(({ view: name, request }) => call("/api/python", { view: name, request })));
  return codes.map(({ code }, i) => calls.length > 1 ? `# ${calls[i].title}\n${code.trimEnd()}\n` : code).join("\n");
}

async function copyPython(view) {
  if (!view.calls().length) { announce("Run something first: then it can be copied as Python.", true); return; }
  try {
    const code = await writePython(view);
    byId("code-text").textContent = code;
    byId("code").showModal();
    await copy(code, "Copied as Python.");
  } catch (error) {
    announce(error.message, true);
  }
}

async function copyLink(app) {
  app.remember();
  await copy(location.href, "Copied a link to this view; it works while this explorer runs.");
}

async function saveHtml(view) {
  const style = await (await fetch("/static/explorer.css")).text();
  const code = await writePython(view).catch((error) => { if (error instanceof CallError) return ""; throw error; });
  const body = make("main", { className: "saved" }, make("h1", { textContent: byId(`tab-${view.name}`).textContent }), freeze(view));
  if (code) body.append(make("details", {}, make("summary", { textContent: "The same in Python" }), make("pre", { textContent: code })));
  // As text: this page's own policy forbids styles and scripts inside of it. The body is escaped by the browser.
  const { theme } = document.documentElement.dataset, attribute = theme === "dark" || theme === "light" ? ` data-theme="${theme}"` : "";
  const page = `<!doctype html>
<html lang="en"${attribute}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>unmask: ${view.name}</title>
<style>${style}</style>
</head>
<body>${body.outerHTML}<script>(${playFrames})();</script></body>
</html>
`;
  download(`unmask-${view.name}.html`, page, "text/html");
  announce("Saved: the file needs no network and no server.");
}

/** A view's content without what only works with a server: forms as text, a run as all of its steps. */
function freeze(view) {
  const section = byId(view.name), still = section.cloneNode(true);
  const cards = [...section.querySelectorAll("article.run")];
  [...still.querySelectorAll("article.run")].forEach((article, i) => {
    const card = cards[i].card;
    if (!card?.run?.states.length) { article.remove(); return; }
    article.querySelector(".text").replaceWith(make("div", { className: "frames" }, ...card.run.states.map((_, step) => makeFrame(card, step))));
  });
  const old = [...section.querySelectorAll("textarea, input, select")], copies = [...still.querySelectorAll("textarea, input, select")].filter((each) => !each.closest("article.run"));
  const kept = old.filter((each) => !each.closest("article.run"));
  copies.forEach((control, i) => control.replaceWith(make("output", { className: "value", textContent: describe(kept[i]) })));
  for (const element of still.querySelectorAll(".player, .changes, .actions, .close, .share, button, [hidden], iframe")) {
    if (element.matches(".candidate")) element.replaceWith(make("span", { className: "candidate", textContent: element.textContent }));
    else element.remove();
  }
  for (const label of still.querySelectorAll("label")) label.replaceWith(make("span", { className: label.className }, ...label.childNodes));
  for (const element of still.querySelectorAll("[id], [tabindex], [aria-labelledby]")) for (const name of ["id", "tabindex", "aria-labelledby"]) element.removeAttribute(name);
  still.removeAttribute("aria-labelledby");
  still.removeAttribute("role");
  return still;
}

function describe(control) {
  if (control.type === "checkbox") return control.checked ? "yes" : "no";
  if (control.tagName === "SELECT") return control.selectedOptions[0]?.textContent ?? "";
  return control.value || control.placeholder || "";
}

function makeFrame(card, step) {
  const text = make("div", { className: "text" });
  card.run.states[step].ids.forEach((_, position) => {
    const token = make("span");
    text.append("", token);
    drawToken(token, card.run, step, position);
    token.removeAttribute("aria-pressed");
  });
  return make("div", { className: "frame" }, make("p", { className: "step", textContent: `step ${step}` }), text);
}

/** Runs inside a saved file: one step of each run at a time; without scripts all steps are shown. */
function playFrames() {
  for (const frames of document.querySelectorAll(".frames")) {
    const all = [...frames.children], slider = document.createElement("input");
    const show = () => all.forEach((frame, i) => { frame.hidden = i !== Number(slider.value); });
    Object.assign(slider, { type: "range", min: 0, max: all.length - 1, value: all.length - 1, oninput: show });
    slider.setAttribute("aria-label", "step");
    frames.before(slider);
    show();
  }
}
