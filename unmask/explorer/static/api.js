// Calls of the server: plain ones, and answers that arrive as a stream of events.

const token = new URLSearchParams(location.search).get("token") ?? "";

/** A mistake that the server explained, or that kept it from answering. */
export class CallError extends Error {}

const headers = { "X-Unmask-Token": token, "Content-Type": "application/json" };

async function request(path, body, signal) {
  let response;
  try {
    response = await fetch(path, body === undefined ? { headers, signal } : { method: "POST", headers, signal, body: JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("The explorer's server does not answer: see whether `unmask explore` still runs.");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  throw new CallError(answer.error ?? `The server refused this (${response.status}).`);
}

/** The JSON answer of a call; without a body it is a GET. */
export async function call(path, body, signal) {
  return (await request(path, body, signal)).json();
}

/** Events of a call as [name, data] up to "end"; aborting the signal stops the server's work. */
export async function* stream(path, body, signal) {
  const response = await request(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", last = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        if (error.name === "AbortError") throw error;
        return { done: true };
      });
      if (done && last === "end") return;
      if (done) {
        await request("/api/start"); // Says so where the server is gone.
        throw new CallError("The connection ended before the answer did: try again.");
      }
      const pieces = (rest + value).split(/\r?\n\r?\n/);
      rest = pieces.pop();
      for (const piece of pieces) {
        const event = readEvent(piece);
        if (!event) continue;
        if (event[0] === "error") throw new CallError(event[1].error);
        last = event[0];
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function readEvent(piece) {
  let name = "message";
  const data = [];
  for (const line of piece.split(/\r?\n/)) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? [name, JSON.parse(data.join("\n"))] : null; // Else a comment that keeps the line open.
}

/** The address of a run's report for a frame, which cannot send a header. */
export const reportAddress = (name) => `/api/runs/${encodeURIComponent(name)}?token=${encodeURIComponent(token)}`;

/**
 * The work of one view, which can be stopped. `run(task)` calls `task(signal)`; an abort is silent, a
 * mistake goes to `fail`.
 */
export class Jobs {
  #controllers = new Set();

  constructor(fail) { this.fail = fail; }

  get isBusy() { return this.#controllers.size > 0; }

  async run(task) {
    const controller = new AbortController();
    this.#controllers.add(controller);
    try {
      return await task(controller.signal);
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      if (!(error instanceof CallError)) console.error(error);
      this.fail(error.message);
      return undefined;
    } finally {
      this.#controllers.delete(controller);
    }
  }

  stop() {
    const wasBusy = this.isBusy;
    for (const controller of this.#controllers) controller.abort();
    this.#controllers.clear();
    return wasBusy;
  }
}
