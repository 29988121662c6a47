"use strict";
// Texts that are written step by step, all at once: guesses stand in the masks, and what is
// written from left to right has a caret.

const Player = (() => {
  const { make } = Charts;
  const PAUSE = 420, WAIT = 900; // Milliseconds: of a step, and before the first screen plays.

  const shade = (p) => Math.max(0, Math.min(4, Math.floor((p ?? 0) * 5)));
  const percent = (p) => p === null || p === undefined ? "–" : `${(100 * p).toFixed(p < 0.1 ? 1 : 0)} %`;
  // Tokens that are given before anything is written: the question, where nothing is given after.
  function findQuestion(panel) {
    const first = panel.steps.findIndex((at) => at > 0);
    if (first < 0 || panel.steps.slice(first).some((at) => at === 0)) return null;
    return panel.pieces.slice(0, first).join("");
  }

  // What is known of a token at a step: its guesses while it is open, then when it was written.
  function explain(panel, i, step) {
    const at = panel.steps[i], isOpen = at > step, guesses = panel.guesses?.[i]?.[isOpen ? step : at - 1] ?? [];
    const lines = [isOpen ? `Step ${step}: still masked` : `“${panel.pieces[i]}”: written at step ${at}, confidence ${percent(panel.confidence[i])}`];
    if (guesses.length) lines.push(isOpen ? "It would be:" : "It could have been:");
    return [...lines, ...guesses.map(([piece, p]) => `${percent(p).padStart(6)}  ${piece.trim() || "·"}`)];
  }

  function mount(card, chart, controls) {
    const texts = make("div", { className: "ways" }), tip = make("div", { className: "tip", hidden: true });
    const legend = make("ul", { className: "legend" }, make("li", { textContent: "confidence:" }));
    for (let i = 0; i < 5; i++) legend.append(make("li", { className: `c${i}`, textContent: `■ ${20 * i} to ${20 * i + 20} %` }));
    const masked = make("li", {}, make("span", { className: "mask", textContent: "guess" }), " in a mask, darker if surer");
    legend.append(masked);
    chart.setAttribute("role", "group"); // Its texts are read out, unlike those of a picture.
    tip.setAttribute("role", "status");
    chart.append(texts, legend, tip);
    const play = make("button", { type: "button" }), slider = make("input", { type: "range", min: 0, step: 1 });
    const back = make("button", { type: "button", textContent: "‹ Step" }), on = make("button", { type: "button", textContent: "Step ›" });
    back.setAttribute("aria-label", "One step back");
    on.setAttribute("aria-label", "One step on");
    const name = make("span", {});
    controls.append(play, back, on, make("label", { className: "wide" }, name, slider));
    let panels = [], step = 0, last = 0, timer = null;

    function write(panel, i, isFirst) {
      const at = panel.steps[i], trim = (piece) => isFirst ? piece.trimStart() : piece;
      if (at === 0) return make("span", { className: "given", textContent: panel.pieces[i] });
      if (at > step && panel.is_causal) return make("span", { className: "later", textContent: trim(panel.pieces[i]) });
      if (at > step) {
        const [piece, p] = panel.guesses?.[i]?.[step]?.[0] ?? [" ░░", 0];
        const mask = make("span", { className: "mask hidden", textContent: trim(piece) || "·" });
        mask.style.setProperty("--sure", `${Math.round(40 * (p ?? 0))}%`);
        return Object.assign(mask, { known: [panel, i] });
      }
      const token = make("span", { className: `token c${shade(panel.confidence[i])}${at === step ? " new" : ""}`, textContent: trim(panel.pieces[i]) });
      return Object.assign(token, { known: [panel, i] });
    }
    function writeAnswer(panel, question) {
      const left = panel.steps.filter((at) => at > step).length;
      const kept = panel.pieces.map((_, i) => i).filter((i) => question === null || panel.steps[i] > 0);
      const text = make("div", { className: "text", tabIndex: 0 }, ...kept.map((i) => write(panel, i, question !== null && i === kept[0])));
      if (panel.is_causal && left) text.insertBefore(make("span", { className: "caret", textContent: "▏" }), text.querySelector(".later"));
      text.setAttribute("role", "group");
      text.setAttribute("aria-label", `${panel.title}: arrow keys go from token to token`);
      const status = make("p", { className: `status${left || !panel.expected ? "" : panel.is_hit ? " hit" : " miss"}`, textContent: left
        ? (panel.is_causal ? "writing …" : `${left} still masked`)
        : !panel.expected ? "" : panel.is_hit ? "✓ recalled" : `✗ not recalled: “${panel.expected}”` });
      return make("div", {}, make("p", { className: "model", textContent: panel.title }), text, status);
    }
    function show() {
      const ways = [...new Set(panels.map((panel) => panel.way))];
      tip.hidden = true;
      texts.replaceChildren(...ways.map((way) => {
        const own = panels.filter((panel) => panel.way === way), questions = [...new Set(own.map(findQuestion))];
        const question = questions.length === 1 ? questions[0] : null;
        const row = make("div", { className: "way" });
        if (way) row.append(make("h4", { textContent: way }));
        if (question !== null) row.append(make("p", { className: "question", textContent: `${question.trim()} …` }));
        row.append(make("div", { className: "texts" }, ...own.map((panel) => writeAnswer(panel, question))));
        return row;
      }));
      if (!panels.length) texts.append(make("p", { className: "status", textContent: "Nothing was measured for this choice." }));
      slider.value = step;
      name.textContent = `step ${step} of ${last}`;
      slider.setAttribute("aria-valuetext", name.textContent);
    }

    // By pointer, or by arrow keys inside a text: what is known of a token.
    function point(token) {
      texts.querySelectorAll(".pointed").forEach((other) => other.classList.remove("pointed"));
      tip.hidden = !token?.known;
      if (tip.hidden) return;
      token.classList.add("pointed");
      tip.replaceChildren(...explain(...token.known, step).map((line) => make("div", { textContent: line })));
      const place = token.getBoundingClientRect(), room = chart.getBoundingClientRect();
      tip.style.left = `${Math.max(0, Math.min(place.left - room.left, room.width - tip.offsetWidth))}px`;
      tip.style.top = `${place.bottom - room.top + 4}px`;
    }
    texts.addEventListener("pointerover", (event) => point(event.target));
    texts.addEventListener("pointerleave", () => point(null));
    texts.addEventListener("focusout", () => point(null));
    texts.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key], text = event.target.closest(".text");
      if (event.key === "Escape") point(null);
      if (!move || !text) return;
      event.preventDefault();
      const tokens = [...text.querySelectorAll(".token, .mask")], at = tokens.findIndex((token) => token.classList.contains("pointed"));
      point(tokens[Math.max(0, Math.min(tokens.length - 1, at + move))]);
    });

    function pause() { clearInterval(timer); timer = null; play.textContent = "▶ Play"; }
    function go(to) { step = Math.max(0, Math.min(last, to)); show(); }
    function start() {
      if (step >= last) go(0);
      play.textContent = "❚❚ Pause";
      timer = setInterval(() => { go(step + 1); if (step >= last) pause(); }, PAUSE);
    }
    play.addEventListener("click", () => timer ? pause() : start());
    back.addEventListener("click", () => { pause(); go(step - 1); });
    on.addEventListener("click", () => { pause(); go(step + 1); });
    slider.addEventListener("input", () => { pause(); go(Number(slider.value)); });
    let shown = null;
    const isFirst = chart.closest(".opening") && !matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (isFirst) setTimeout(() => { if (!timer && step === last) start(); }, WAIT);
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

  return { mount };
})();
