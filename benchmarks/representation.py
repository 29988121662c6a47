"""Keys and values of many facts at once, against one fact at a time, on the same weights.

    python benchmarks/representation.py --out docs/results/representation-cpu.md

Three ways find the same values: all facts in batches; our code, a fact at a time; and the
reference's way, a fact at a time by whole forward passes from the tokens to all logits, the delta
added by a hook. The ways that go one by one are timed on `--single` facts spread over both
directions and counted up to all; the values they find are compared with ours.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from timing import describe_run, format_table, write_record
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from unmask.base.devices import resolve_device, resolve_dtype
from unmask.base.units import format_number
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.tokenizer import Tokenizer
from unmask.net.config import NetConfig
from unmask.net.counts import count_parameters
from unmask.net.model import Blueprint, Model
from unmask.net.transformer import Transformer
from unmask.representation.extraction import choose_group_facts
from unmask.representation.keys import find_keys
from unmask.representation.prompts import Case, lay_out_case, make_prefixes, stack_rows
from unmask.representation.settings import Extraction, choose_extraction
from unmask.representation.values import find_values


def make_model(options: argparse.Namespace, causal: bool, tokenizer: Tokenizer) -> Model:
    """A random network of the shapes asked for."""
    rows = tokenizer.vocab_size
    config = NetConfig(
        vocab_size=rows,
        num_logits=rows - 1,
        width=options.width,
        layers=options.layers,
        heads=options.width // 64,
        mlp_width=4 * options.width,
        context=64,
        causal=causal,
    )
    with torch.device(resolve_device(options.device)):
        net = Transformer(config).to(resolve_dtype(options.dtype)).eval().requires_grad_(False)
    kind = ("causal", None) if causal else ("masked", tokenizer.mask_id)
    return Model("random", net, Blueprint(config, *kind), tokenizer)


def search_plainly(model: Model, case: Case, layer: int, settings: Extraction) -> Tensor:
    """The delta of one fact, by whole forward passes."""
    net, device = model.net, model.device
    rows = stack_rows([*case.rows, case.kl_prompt], device)
    at, count = torch.arange(len(rows.tokens), device=device), len(case.rows)
    delta: Tensor | None = None

    def add(_module: object, _given: object, x: Tensor) -> Tensor:
        if delta is None:
            values.append(x[0, rows.position[0]].detach().float())
            return x
        return x.index_put((at, rows.position), x[at, rows.position] + delta.to(x.dtype))

    def predict() -> Tensor:
        logits = net(rows.tokens).float()
        if model.mask_id is not None and model.mask_id < logits.shape[-1]:
            logits[..., model.mask_id] = torch.finfo(torch.float32).min / 4
        return logits.log_softmax(-1)

    values: list[Tensor] = []
    down = net.block(layer).mlp.down
    assert isinstance(down, torch.nn.Module), "keys of experts have no single down projection"
    hook = down.register_forward_hook(add)
    try:
        with torch.no_grad():
            meant = predict()[count, rows.reads[count, 0]]
        delta = torch.zeros_like(values[0], requires_grad=True)
        adam = torch.optim.Adam([delta], lr=settings.lr)
        most = (settings.clamp or torch.inf) * values[0].norm()
        for step in range(settings.search_steps):
            logp = predict()
            said = logp[at[:count, None], rows.reads[:count]]
            said = said.gather(-1, rows.targets[:count, :, None])[..., 0]
            asked = torch.arange(said.shape[1], device=device) < rows.num_targets[:count, None]
            nll = -(torch.where(asked, said, 0.0).sum(-1) / rows.num_targets[:count]).mean()
            now = logp[count, rows.reads[count, 0]]
            loss = nll + settings.kl * (now.exp() * (now - meant)).sum()
            if step + 1 == settings.search_steps or not torch.isfinite(loss):
                break
            adam.zero_grad()
            loss.backward()
            adam.step()
            if delta.norm() > most:
                delta.data *= most / delta.norm()
    finally:
        hook.remove()
    return delta.detach()


def time_call(call: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Seconds of the clock and of the processors for one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start, used = time.perf_counter(), time.process_time()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, time.process_time() - used


def measure(model: Model, options: argparse.Namespace, layer: int) -> list[list[str]]:
    """One line a way."""
    settings = choose_extraction("seed", search_steps=options.steps)
    corpus = make_reversal_corpus(max(2, options.facts))
    asked = choose_group_facts(corpus, ["p2d"], ["p2d", "d2p"], options.facts)
    texts = corpus.training_texts()
    prefixes = make_prefixes(model, options.prefixes, texts=texts)
    cases = [lay_out_case(model, each.fact, prefixes, settings) for each in asked]
    device = model.device

    def together() -> list[Tensor]:
        find_keys(model, cases, layer)
        return [found.delta for found in find_values(model, cases, layer, settings)]

    few = list(range(0, len(cases), max(1, len(cases) // options.single)))[: options.single]

    def alone() -> list[Tensor]:
        found = []
        for i in few:
            find_keys(model, [cases[i]], layer)
            found += find_values(model, [cases[i]], layer, settings)
        return [each.delta for each in found]

    def plainly() -> list[Tensor]:
        found = []
        for i in few:
            find_keys(model, [cases[i]], layer)
            found.append(search_plainly(model, cases[i], layer, settings).cpu())
        return found

    find_values(model, cases[:2], layer, settings)
    search_plainly(model, cases[0], layer, settings)
    ways = (("all facts together", together, len(cases)),)
    ways += (("ours, one by one", alone, len(few)), ("whole passes, one by one", plainly, len(few)))
    lines, deltas, base = [], {}, None
    for name, call, count in ways:
        found: list[list[Tensor]] = []
        counter = FlopCounterMode(display=False)
        # Counting costs nothing beside products on a CPU; a GPU would wait for it.
        with counter if device.type == "cpu" else nullcontext():
            clock, used = time_call(lambda call=call, found=found: found.append(call()), device)
        deltas[name] = found[0]
        if device.type != "cpu":
            with counter:
                call()
        share = len(cases) / count
        base = clock if base is None else base
        apart = 0.0
        if count < len(cases) or name != "all facts together":
            pairs = zip(few, found[0], strict=True)
            apart = max(
                float((deltas["all facts together"][i] - d).norm() / d.norm()) for i, d in pairs
            )
        lines.append(
            [
                name,
                str(count),
                f"{clock * share:.1f}",
                "–" if device.type == "cuda" else f"{used * share:.1f}",
                f"{clock * share / base:.2f} ×",
                f"{format_number(counter.get_total_flops() * share)}FLOP",
                f"{apart:.1e}",
            ]
        )
        print(" ".join(lines[-1]), flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layer", type=int, help="the middle one by default")
    parser.add_argument("--facts", type=int, default=30)
    parser.add_argument("--prefixes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--single", type=int, default=4, help="facts timed one by one")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--kinds", default="masked,causal")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = resolve_device(options.device)
    layer = options.layers // 2 if options.layer is None else options.layer
    tokenizer = Tokenizer.train(make_reversal_corpus(30).training_texts(), options.vocabulary)
    header = ["way", "searches timed", "all, s", "of processors, s", "against together"]
    header += ["operations", "largest relative difference of delta"]
    text = ""
    for kind in options.kinds.split(","):
        model = make_model(options, kind == "causal", tokenizer)
        size = format_number(count_parameters(model.net.config).total)
        text += f"\n## {kind}, {size.strip()} parameters\n\n"
        text += format_table(header, measure(model, options, layer)) + "\n"
    text = (
        f"# Keys and values of {options.facts} facts, {device.type}, {options.dtype}\n\n"
        f"{describe_run(device)}.\nBoth directions, {options.prefixes} prefixes, {options.steps} "
        f"evaluations, layer {layer} of {options.layers}, width {options.width}; random weights. "
        "One by one: counted up from the searches timed. Operations are products of matrices; "
        "attention on the CPU is not counted.\n" + text
    )
    write_record(text, options.out)


if __name__ == "__main__":
    main()
