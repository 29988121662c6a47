"""The study's table of recall, timed, against one prompt at a time.

    python benchmarks/recall.py --size 1028M --dtype bfloat16 --prompts 300 --data FOLDER \\
        --out docs/results/recall-speed-cuda.md
    python benchmarks/recall.py --device cpu --size 6M --vocab 2048 --context 64 --prompts 40 \\
        --out docs/results/recall-speed-cpu.md

All step counts of the four splits with guidance, the answers' likelihoods, every metric and the
table on disk, for a masked network and its causal twin with random weights: what they say is
nonsense, but costs what sense would cost. The peer's evaluation samples one prompt at a time;
that is measured on a few prompts in the same run and extrapolated to all of them.
"""

import argparse
import time
from pathlib import Path

import torch
from timing import describe_run, format_table, write_record

from unmask.base.devices import resolve_device, resolve_dtype
from unmask.data.corpus import TESTS, Corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.sources import read_corpus_folder
from unmask.data.tokenizer import Tokenizer
from unmask.measures.recall import MEASURE, RecallSettings
from unmask.net.counts import count_flops
from unmask.net.model import Blueprint, Model
from unmask.net.paradigm import Kind
from unmask.net.presets import preset
from unmask.net.transformer import Transformer
from unmask.sampling.texts import sample


def make_model(
    kind: Kind, size: str, vocab: int, context: int, texts: list[str], place: dict
) -> Model:
    """A network of that size with random weights, and a tokenizer learned from the texts."""
    causal = kind == "causal"
    rows = {} if vocab == 0 else {"vocab_size": vocab + (not causal), "num_logits": vocab}
    config = preset(size, causal=causal, context=context, **rows)
    learned = Tokenizer.train(texts, min(config.logit_rows, 4096))
    mask_id = None if causal else config.vocab_size - 1
    tokenizer = Tokenizer(learned.backend, mask_id, learned.pad_id, learned.end_id)
    with torch.device(place["device"]):
        net = Transformer(config).to(place["dtype"]).eval().requires_grad_(False)
    return Model(kind, net, Blueprint(config, kind, mask_id), tokenizer)


def run_table(
    model: Model, corpus: Corpus, settings: RecallSettings
) -> tuple[float, dict[int | None, float], list[dict]]:
    """Seconds in all, seconds of sampling by step count, and the table's rows."""
    start = time.perf_counter()
    result = MEASURE(model, data=corpus, splits=TESTS, settings=settings)
    total = time.perf_counter() - start
    rows = [row for row in result.rows() if row["split"] in TESTS]
    sampling: dict[int | None, float] = {}
    for row in rows:
        sampling[row["steps"]] = sampling.get(row["steps"], 0.0) + row["seconds"]
    return total, sampling, rows


def run_alone(
    model: Model, rows: list[dict], settings: RecallSettings, prompts: int
) -> tuple[dict[int | None, float], int, int]:
    """Seconds a prompt by step count, one at a time; and how many texts agree, of how many."""
    assert model.tokenizer is not None
    seconds: dict[int | None, float] = {}
    agree = total = 0
    for steps in dict.fromkeys(row["steps"] for row in rows):
        some = [row for row in rows if row["steps"] == steps]
        some = some[:: max(1, len(some) // prompts)][:prompts]
        times = []
        for i, row in enumerate([some[0], *some]):  # the first warms up
            start = time.perf_counter()
            found = sample(
                model,
                [row["prompt"]],
                steps=steps or 1,
                guidance=settings.guidance if steps else 0.0,
                length=row["length"],
                keep_states=False,
            )
            tokens = found.tokens[0].tolist()
            if i:
                times.append(time.perf_counter() - start)
                given = len(model.tokenizer.encode(row["prompt"]).ids)
                agree += model.tokenizer.decode(tokens[given:]) == row["generation"]
                total += 1
        seconds[steps] = sum(times) / len(times)
    return seconds, agree, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--size", default="1028M")
    parser.add_argument("--vocab", type=int, default=0, help="0: the preset's")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--prompts", type=int, default=300, help="of each split")
    parser.add_argument("--data", type=Path, help="a corpus folder; the project's own by default")
    parser.add_argument("--kinds", default="masked,causal")
    parser.add_argument("--guidance", type=float, default=0.8)
    parser.add_argument("--length", type=int)
    parser.add_argument("--controls", action="store_true")
    parser.add_argument("--alone", type=int, default=4, help="prompts to run one at a time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device, dtype = resolve_device(options.device), resolve_dtype(options.dtype)
    corpus = (
        make_reversal_corpus(30, 0) if options.data is None else read_corpus_folder(options.data)
    )
    settings = RecallSettings(
        guidance=options.guidance,
        length=options.length,
        limit=options.prompts,
        controls=options.controls,
    )
    lines, notes, whole = [], [], 0.0
    for kind in options.kinds.split(","):
        place = {"device": device, "dtype": dtype}
        texts = [fact.text for facts in corpus.splits.values() for fact in facts]
        model = make_model(kind, options.size, options.vocab, options.context, texts, place)
        sample(model, [[1, 2, 3]] * 2, steps=1, length=16)  # the libraries wake up
        total, sampling, rows = run_table(model, corpus, settings)
        num_prompts = len({(row["split"], row["prompt"]) for row in rows})
        alone, agree, tried = run_alone(model, rows, settings, options.alone)
        whole += total
        length, config = rows[0]["length"], model.net.config
        for steps, seconds in sampling.items():
            one = alone[steps] * num_prompts
            rate = ""
            if steps is not None:
                passes = 2 if settings.guidance else 1
                flops = passes * steps * num_prompts * count_flops(config, length, 0)
                rate = f"{flops / seconds / 1e12:.3g}"
            lines.append(
                [
                    kind,
                    str(steps or "–"),
                    f"{seconds:.1f}",
                    rate,
                    f"{one:.1f}",
                    f"{one / seconds:.1f} ×",
                ]
            )
        sampled, one = sum(sampling.values()), sum(alone.values()) * num_prompts
        lines.append([kind, "likelihoods, metrics, table", f"{total - sampled:.1f}", "", "", ""])
        lines.append(
            [kind, "**all**", f"**{total:.1f}**", "", f"{one:.1f}", f"{one / total:.1f} ×"]
        )
        notes.append(f"{kind}: {agree} of {tried} texts are the same alone and in the batch")
    header = ["kind", "steps", "seconds", "TFLOP/s", "one at a time, extrapolated", "faster"]
    write_record(
        f"# Recall, the whole table, {device.type}, {options.dtype}\n\n"
        f"{describe_run(device)}.\n{len(TESTS)} splits × {num_prompts // len(TESTS)} prompts, "
        f"{options.size} shapes with random weights, guidance {options.guidance}, canvas of "
        f"{length} tokens. All together: {whole:.1f} s.\n\n"
        f"{format_table(header, lines)}\n\n"
        f"One at a time: as the peer's evaluation runs, timed on {options.alone} prompts a step "
        f"count in the same run with this project's sampler, times {num_prompts}. TFLOP/s count "
        f"the layers' products alone.\n{'; '.join(notes)}.\n",
        options.out,
    )


if __name__ == "__main__":
    main()
