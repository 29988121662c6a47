"""Edits, made and asked about together, against edit by edit in ROME's way, on the same weights.

    python benchmarks/editing.py --size smollm2-135m --facts 20 --out docs/results/editing-cuda.md
    python benchmarks/editing.py --model reversal-mdm --device cpu --groups both --facts 10 \\
        --out docs/results/editing-cpu.md

Ours searches the values of all facts in one batch, runs only the layers above the edit, asks every
question without an edit once, and (on an accelerator) all edits in the same passes. ROME's way, as
its code has it: for one fact after the other, the whole network forwards and backwards at every
evaluation of the search, then all questions of the fact before and after, as one batch. It is timed
on `--plain` edits in the same run, and extrapolated. Moments and prefixes are shared by both. A
network of a size has random weights: what it says is nonsense, but costs what sense would cost.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from recall import make_model
from timing import describe_run, format_table, write_record
from torch import Tensor

import unmask
from unmask.base.devices import resolve_device, resolve_dtype
from unmask.data.corpus import Corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.editing.edit import Edit, Factors, digest_downs, get_down
from unmask.editing.editor import average_keys, edit_each, give_object, read_keys
from unmask.editing.moments import Moments, moments
from unmask.editing.outcomes import Examination, Reply
from unmask.editing.requests import EditRequest, make_requests
from unmask.editing.settings import Editing
from unmask.editing.update import solve_readers, weigh_by
from unmask.measures.edit import MEASURE
from unmask.net.model import Model
from unmask.representation.prompts import Case, lay_out_case, make_prefixes, stack_rows

Answers = list[list[Reply]]


class PassCounter:
    """How often the network is run, and on how many positions, in whole-network passes."""

    def __init__(self, model: Model):
        self.passes, self.rows, layers = 0.0, 0.0, model.net.config.layers
        self.hooks = [
            get_down(model, i).register_forward_hook(self._make_hook(layers)) for i in range(layers)
        ]

    def _make_hook(self, layers: int) -> Callable[..., None]:
        def count(_module: object, given: tuple[Tensor, ...], _out: object) -> None:
            self.passes += 1 / layers
            self.rows += given[0].shape[0] / layers

        return count

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()


def search_whole(model: Model, case: Case, layer: int, settings: Editing) -> Tensor:
    """ROME's search: a delta at the subject, the whole network run at every evaluation."""
    rows, aside = (stack_rows(own, model.device) for own in (case.rows, [case.kl_prompt]))
    delta = torch.zeros(model.net.config.width, device=model.device, requires_grad=True)
    adam, size = torch.optim.Adam([delta], lr=settings.lr), 1.0
    first: Tensor | None = None
    is_logit = model.mask_id is not None and model.mask_id < model.net.config.logit_rows
    never = torch.tensor([model.mask_id] if is_logit else [], device=model.device).long()
    assert settings.clamp

    def predict(batch: Any) -> tuple[Tensor, Tensor]:
        at = torch.arange(len(batch.tokens), device=model.device)
        kept: list[Tensor] = []

        def add(_module: object, _given: object, out: Tensor) -> Tensor:
            kept.append(out[0, batch.position[0]].detach())
            moved = torch.zeros_like(out).index_put((at, batch.position), delta.expand(len(at), -1))
            return out + moved

        hook = get_down(model, layer).register_forward_hook(add)
        try:
            logits = model.logits(batch.tokens)
        finally:
            hook.remove()
        logits = logits.take_along_dim(batch.reads[..., None], dim=1)
        if len(never):
            logits = logits.index_fill(-1, never, torch.finfo(logits.dtype).min / 4)
        return logits.log_softmax(-1), kept[0]

    for step in range(settings.search_steps):
        with torch.enable_grad():
            logp, value = predict(rows)
            size = value.norm() if step == 0 else size
            own = logp.gather(-1, rows.targets[..., None])[..., 0]
            nll = -(torch.where(rows.is_target, own, 0.0).sum(-1) / rows.num_targets).mean()
            kl_logp = predict(aside)[0][:, 0]
            first = kl_logp.detach() if first is None else first
            loss = nll + settings.kl * (kl_logp.exp() * (kl_logp - first)).sum(-1).mean()
        if step == settings.search_steps - 1:
            break
        (delta.grad,) = torch.autograd.grad(loss, delta)
        adam.step()
        with torch.no_grad():
            delta *= (settings.clamp * size / delta.norm().clamp(min=1e-30)).clamp(max=1.0)
    return delta.detach()


class PlainEditor:
    """One edit after the other, each searched, written, asked about and undone."""

    def __init__(self, examination: Examination, gathered: Moments, layer: int, settings: Editing):
        self.examination, self.layer, self.settings = examination, layer, settings
        self.model = examination.model
        self.weigh = weigh_by(gathered.at(layer))

    def run(self, request: EditRequest) -> list[Reply]:
        """The answers with the edit on; those without it are asked as well."""
        model, prefixes = self.model, self.settings.prefixes
        assert not isinstance(prefixes, int)
        fact = give_object(request.fact, request.object)
        case = lay_out_case(model, fact, ("", *filter(None, prefixes)), self.settings)
        delta = search_whole(model, case, self.layer, self.settings)
        key = average_keys(read_keys(model, [case], self.layer)).T
        readers = solve_readers(key, self.weigh(key))
        factors = {self.layer: Factors(delta.double().cpu()[:, None], readers)}
        edit = Edit(factors, digest_downs(model, [self.layer]))
        self.examination.ask(request.questions)
        with edit.on(model):
            return self.examination.ask(request.questions)


def edit_together(
    examination: Examination, gathered: Moments, layer: int, settings: Editing
) -> Answers:
    """Ours: all edits, and all answers before and after."""
    requests = examination.requests
    facts, objects = zip(*((each.fact, each.object) for each in requests), strict=True)
    edits = edit_each(examination.model, facts, objects, layer, gathered, settings)
    examination.ask_clean(range(len(requests)))
    return examination.ask_each(list(enumerate(edits)))


def time_call(call: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Seconds of a call with everything on the device done, and what it gave."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def measure(model: Model, corpus: Corpus, options: argparse.Namespace) -> list[list[str]]:
    """A row of the table for each way, and one for the verb as a whole."""
    device, layer = model.device, options.layer
    requests = make_requests(corpus, options.groups, options.facts)
    texts = list(dict.fromkeys(corpus.training_texts()))
    gathered = moments(model, texts, layer, tokens=20_000)
    settings = Editing(prefixes=make_prefixes(model, 4, 0))
    # Warm: kernels, caches of tokenisers, the canvas.
    warm = Examination(model, requests[:2])
    edit_together(warm, gathered, layer, settings)
    PlainEditor(warm, gathered, layer, settings).run(requests[0])
    rows = []

    def add(
        name: str, call: Callable[[], Any], edits: int, is_counted: bool = True
    ) -> tuple[float, Any]:
        seconds, result = time_call(call, device)
        numbers = ["", ""]
        if is_counted:  # apart: a hook keeps passes from being replayed as graphs
            counter = PassCounter(model)
            call()
            counter.close()
            numbers = [f"{number / edits:.1f}" for number in (counter.passes, counter.rows)]
        rows.append([name, str(edits), f"{seconds:.1f}", f"{seconds / edits:.2f}", *numbers])
        print(" ".join(rows[-1]), flush=True)
        return seconds / edits, result

    def run_together() -> Answers:
        return edit_together(Examination(model, requests), gathered, layer, settings)

    def run_plainly() -> Answers:
        plain = PlainEditor(Examination(model, requests), gathered, layer, settings)
        return [plain.run(each) for each in few]

    few = requests[:: max(1, len(requests) // options.plain)][: options.plain]
    ours, together = add("together", run_together, len(requests))
    theirs, alone = add("edit by edit", run_plainly, len(few))
    places = [requests.index(each) for each in few]
    apart = [abs(together[i][0].nll - own[0].nll) for i, own in zip(places, alone, strict=True)]
    rows.append(["**faster**", "", "", f"**{theirs / ours:.1f} ×**", "", ""])
    rows.append(["largest difference of nats per token", "", "", f"{max(apart):.1e}", "", ""])
    changes: dict[str, Any] = {"facts": options.facts, "groups": options.groups}
    changes["layer"] = str(layer)

    def run_verb() -> object:
        return MEASURE(model, data=corpus, **changes)

    add("`unmask edit`, all of it", run_verb, len(requests), is_counted=False)
    return rows


def list_models(options: argparse.Namespace, corpus: Corpus) -> Sequence[Model]:
    device, dtype = resolve_device(options.device), resolve_dtype(options.dtype)
    if options.model:
        return [
            unmask.load(name, device=str(device), dtype=options.dtype) for name in options.model
        ]
    place = {"device": device, "dtype": dtype}
    texts = corpus.training_texts()
    return [
        make_model(kind, options.size, 0, options.context, texts, place) for kind in options.kinds
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", default="smollm2-135m", help="of a network with random weights")
    parser.add_argument("--kinds", nargs="+", default=["masked", "causal"], help="of that network")
    parser.add_argument("--model", nargs="+", help="models in its place")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--facts", type=int, default=20, help="of each group")
    parser.add_argument("--groups", nargs="+", default=["p2d", "d2p", "both"])
    parser.add_argument("--layer", type=int, default=1)
    parser.add_argument("--plain", type=int, default=4, help="edits made edit by edit")
    parser.add_argument("--out", type=Path, help="where the record goes")
    options = parser.parse_args()
    options.groups = tuple(options.groups)
    corpus = make_reversal_corpus(30, 0)
    tables = []
    for model in list_models(options, corpus):
        tables.append(f"## {model.name}\n\n{_format(measure(model, corpus, options))}")
    device = resolve_device(options.device)
    text = "\n\n".join(tables)
    write_record(
        f"# Edits together and edit by edit, {device.type}\n\n{describe_run(device)}.\n\n{text}\n\n"
        "Seconds of all edits that were made, and per edit. A pass is one run of the whole network "
        "forwards; a part of its layers counts as that part, and what runs backwards is not "
        "counted. Rows are those of all passes. `unmask edit` also gathers moments, reads probes "
        "and shares, compares other text and writes its tables.\n",
        options.out,
    )


def _format(rows: list[list[str]]) -> str:
    header = ["way", "edits", "seconds", "per edit", "passes per edit", "rows per edit"]
    return format_table(header, rows)


if __name__ == "__main__":
    main()
