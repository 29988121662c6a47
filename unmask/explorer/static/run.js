// A run of a model: every state of its canvas, as the server streams them, and what is changed by hand.

export class Run {
  constructor(model) {
    this.model = model;
    this.texts = new Map(); // Of token ids.
    this.states = []; // {ids, written, back, confidence, entropy, guesses, hand}; the first is the canvas.
    this.given = []; // Positions that stay as they are, as booleans.
    this.draft = null; // {step, ids, given, hand}: changes by hand that wait for the model.
    this.steps = 0;
    this.wasChanged = false; // By hand, at any step.
    this.outcome = null;
  }

  /** The canvas a call starts from; what came before the state `from` stays. */
  begin({ tokens, fixed, steps }, from = null) {
    for (const token of tokens) this.texts.set(token.id, token.text);
    const first = { ids: tokens.map((token) => token.id), written: [], back: [], confidence: {}, entropy: {}, guesses: {}, hand: new Set() };
    if (from === null) {
      this.states = [first];
      this.given = [...fixed];
    } else {
      const kept = this.states[from], draft = this.draft?.step === from ? this.draft : null;
      this.states = [...this.states.slice(0, from), { ...kept, ids: first.ids, hand: new Set([...kept.hand, ...(draft?.hand ?? [])]) }];
      this.given = draft?.given ?? this.given;
    }
    this.offset = this.last;
    this.steps = this.offset + steps;
    this.draft = null;
    this.outcome = null;
  }

  add(event) {
    for (const candidates of Object.values(event.guesses ?? {})) for (const { id, text } of candidates) this.texts.set(id, text);
    for (const [position, text] of Object.entries(event.texts ?? {})) this.texts.set(event.tokens[position], text);
    this.states.push({
      ids: event.tokens, written: event.written, back: event.back ?? [], confidence: event.confidence ?? {},
      entropy: event.entropy ?? {}, guesses: event.guesses ?? {}, hand: new Set(),
    });
    this.steps = Math.max(this.steps, this.last);
  }

  get last() { return this.states.length - 1; }
  get isCausal() { return this.model.mask_id === null || this.model.mask_id === undefined; }

  idsAt(step) { return this.draft?.step === step ? this.draft.ids : this.states[step].ids; }
  isGiven(position, step) {
    const given = this.draft?.step === step ? this.draft.given : this.given;
    return given[position] ?? false;
  }
  isByHand(position, step) {
    if (this.draft?.step === step && this.draft.hand.has(position)) return true;
    if (!this.wasChanged) return false;
    const state = this.states.slice(0, step + 1).findLastIndex((each) => each.hand.has(position));
    return state >= 0 && this.writtenAt(position, step) <= state;
  }
  isOpen(position, step) { return !this.isCausal && this.idsAt(step)[position] === this.model.mask_id; }
  textOf(id) { return id === this.model.mask_id ? this.model.mask_text ?? "[MASK]" : this.texts.get(id) ?? `⟨${id}⟩`; }

  /** The step that wrote a position as it stands at `step`; 0 where nothing did. */
  writtenAt(position, step) {
    for (let at = step; at > 0; at--) {
      if (this.states[at].back.includes(position)) return 0;
      if (this.states[at].written.includes(position)) return at;
    }
    return 0;
  }

  /** What the model would say at an open position of a state; the last one has only what came before. */
  guessesAt(position, step) {
    if (this.draft?.step === step && this.draft.hand.has(position)) return [];
    return (this.states[step + 1] ?? this.states[step]).guesses[position] ?? [];
  }

  confidenceAt(position, step) { return this.states[this.writtenAt(position, step)]?.confidence[position]; }

  /** Entropy of what would be said at open positions of a state, in nats; null once nothing is open. */
  meanEntropy(step) {
    const next = this.states[step + 1];
    const values = next ? Object.values(next.entropy) : [];
    return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
  }

  countOpen(step) { return this.idsAt(step).filter((_, position) => this.isOpen(position, step)).length; }

  /** Text of a state, masks as they are typed. */
  textAt(step) { return this.idsAt(step).map((id) => this.textOf(id)).join(""); }

  /** The state in which a position is read: as it stands, or before it was written. */
  stateToRead(position, step) {
    const at = this.writtenAt(position, step);
    return at && this.draft?.step !== step ? at - 1 : step;
  }

  /** The canvas to send for a state; only fixed tokens stay where tokens may be taken back. */
  canvasAt(step) {
    const ids = this.idsAt(step), masks = ids.map((_, position) => this.isOpen(position, step));
    return { tokens: [...ids], fixed: ids.map((_, position) => !masks[position] && this.isGiven(position, step)) };
  }

  /** Put a token at a position of a state by hand; `id` null hides what stands there. */
  change(position, step, id, text = null) {
    if (text !== null) this.texts.set(id, text);
    const draft = this.#open(step);
    if (this.isCausal) {
      // What follows was written after what is changed.
      draft.ids = [...draft.ids.slice(0, position), id];
      draft.given = draft.ids.map(() => true);
      draft.hand = new Set([...draft.hand].filter((at) => at < position));
    } else {
      draft.ids[position] = id ?? this.model.mask_id;
      draft.given[position] = id !== null;
    }
    draft.hand.add(position);
  }

  /** Let a token stay as it is whatever comes, or give it back to the model. */
  fix(position, step, isFixed) {
    const draft = this.#open(step);
    draft.given[position] = isFixed;
    draft.hand.add(position);
  }

  discard() { this.draft = null; }

  #open(step) {
    this.wasChanged = true;
    if (this.draft?.step !== step) {
      const given = this.idsAt(step).map((_, position) => this.isGiven(position, step));
      this.draft = { step, ids: [...this.states[step].ids], given, hand: new Set() };
    }
    return this.draft;
  }

  /** Steps for going on from a state: those that were left, or enough for what is open again. */
  stepsLeft(step, wanted) {
    const left = this.steps - step;
    return left > 0 && step < this.last ? left : Math.max(1, Math.min(wanted, this.countOpen(step)));
  }
}
