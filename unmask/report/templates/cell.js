// A cell of a notebook: as high as it needs, and its scripts one after the other.
// PACKED is plotly, compressed, or nothing; SOURCES are the page's own scripts.
const fit = () => { if (window.frameElement) frameElement.style.height = `${document.body.offsetHeight + 16}px`; };
new ResizeObserver(fit).observe(document.body);
const run = (source) => document.body.append(Object.assign(document.createElement("script"), { textContent: source }));
(async () => {
  if (PACKED) {
    const bytes = Uint8Array.from(atob(PACKED), (each) => each.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    run(await new Response(stream).text());
  }
  SOURCES.forEach(run);
})();
