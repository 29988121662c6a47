"""Quality of texts: what a judge makes of them, and how varied they are.

A text's generative perplexity falls where a sampler repeats itself, so that entropy and the share
of different n-grams stand beside it: it is better where it is lower at no less of these.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.base.errors import UserError
from unmask.base.reading import parse_yaml
from unmask.base.seeds import derive_seed
from unmask.evaluation.perplexity import score_documents
from unmask.evaluation.questions import require_tokenizer
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.counts import count_flops
from unmask.net.model import Model
from unmask.net.paradigm import Paradigm
from unmask.objectives.likelihood import Estimate
from unmask.sampling.canvas import number_copies
from unmask.sampling.settings import Sampling
from unmask.sampling.texts import draw_rows

_SHARED = ("temperature", "top_k", "top_p", "stochastic", "guidance")
"""Settings that models which do not fill masks read as well, guidance but some."""
_MASKED_ONLY = ("remask", "corrector", "classifier", "rates")
"""Settings without which a sampler would be another one: it is left out for other models."""
_CAUSAL_ONLY = ("drafts",)
"""Settings that only models read which write from left to right."""
_SET_FOR_ALL = ("steps", "length", "seed", "keep_states", "watch")
"""Settings of `unmask.Sampling` that all samplers of a comparison share."""


def parse_sampler(text: str) -> dict[str, Any]:
    """Settings of `unmask.Sampling` such as "random;temperature=1;remask=cap=0.05".

    The first word may be an order by its name alone.
    """
    settings: dict[str, Any] = {}
    for number, part in enumerate(piece.strip() for piece in text.split(";")):
        key, equals, value = part.partition("=")
        if number == 0 and not equals:
            settings["order"] = part
        elif not key or not equals:
            raise UserError(
                f"the sampler {text!r} has the part {part!r}: expected an order, then settings "
                "such as temperature=1, with ; between them."
            )
        else:
            settings[key.strip()] = parse_yaml(value, text)
    if own := [key for key in settings if key in _SET_FOR_ALL]:
        raise UserError(
            f"the sampler {text!r} sets {own[0]!r}, which is the same for all samplers: leave it "
            "out of the sampler, and give the measure's own setting."
        )
    try:
        Sampling(**settings)
    except TypeError:
        known = ", ".join(key for key in Sampling.__dataclass_fields__ if key not in _SET_FOR_ALL)
        raise UserError(
            f"the sampler {text!r} has an unknown setting: known are {known}."
        ) from None
    return settings


def list_samplers(
    paradigm: Paradigm, samplers: Sequence[str], steps: Sequence[int]
) -> list[tuple[str, int | None]]:
    """The samplers and numbers of steps that differ for a model of this kind.

    One that does not fill masks has no order and nothing to remask; one that writes from left to
    right has no steps. Samplers that need what it lacks are left out; gaussian and causal models
    lack guidance.
    """
    has_steps = paradigm.has_steps
    if has_steps:
        samplers = [
            x for x in samplers if not any(parse_sampler(x).get(key) for key in _CAUSAL_ONLY)
        ]
    if not paradigm.fills_masks:
        kept = []
        for text in samplers:
            settings = parse_sampler(text)
            guides = paradigm.sampler == "ancestral"
            lacking = _MASKED_ONLY if guides else (*_MASKED_ONLY, "guidance")
            if any(settings.get(key) for key in lacking):
                continue
            shared = _SHARED if has_steps else (*_SHARED, *_CAUSAL_ONLY)
            own = {key: value for key, value in settings.items() if key in shared}
            kept.append(";".join(f"{key}={value}" for key, value in own.items()) or "temperature=1")
        samplers = kept
    pairs = [(each, number) for each in samplers for number in (steps if has_steps else [None])]
    return list(dict.fromkeys(pairs))


@dataclass(frozen=True)
class DrawnText:
    """A text, its tokens, and what drawing it took."""

    text: str
    tokens: list[int]
    calls: int
    flops: int = 0
    """Operations of these calls; 0 for a text that was not drawn."""


def draw_texts(
    model: Model,
    prompts: Sequence[str],
    sampler: str,
    steps: int | None,
    length: int,
    seed: int = 0,
) -> Iterator[DrawnText]:
    """A text for each prompt, in batches that fit the device; prompts may be empty.

    What is drawn does not depend on the batches.
    """
    tokenizer = require_tokenizer(model)
    end, opening = tokenizer.end_id, tokenizer.opening
    settings: dict[str, Any] = {"temperature": 1.0} | parse_sampler(sampler)
    # One seed for all batches, that of the first: texts that fitted into one are as they were.
    settings |= {"length": length, "keep_states": False, "seed": derive_seed(seed, "batch", 0)}
    if steps is not None:
        settings["steps"] = steps
    # A guided pass over masks has twice the rows.
    passes = 2 if settings.get("guidance") and model.paradigm.fills_masks else 1
    given = [tokenizer.encode(prompt).ids if prompt else opening for prompt in prompts]
    copies = number_copies(map(tuple, given))

    def draw(batch: Sequence[int]) -> list[DrawnText]:
        rows, numbers = [given[i] for i in batch], [copies[i] for i in batch]
        drawn = draw_rows(model, rows, Sampling(**settings), numbers)
        texts = []
        written = drawn.texts or []
        columns = written, drawn.tokens.tolist(), drawn.lengths.tolist(), rows
        for text, row, size, ids in zip(*columns, strict=True):
            # A text begins after the token that stands for nothing before it.
            first = len(opening) if ids == opening else model.count_beginning(ids)
            tokens = row[first:size]
            tokens = tokens[: tokens.index(end)] if end in tokens else tokens
            if ids == opening:
                text = tokenizer.decode(tokens)
            calls = passes * drawn.calls
            drafts = "drafts" in settings
            flops = count_drawing_flops(model, length, len(ids), calls, drafts)
            texts.append(DrawnText(text, tokens, calls, flops))
        return texts

    most = fit_rows(model, count_row_bytes(model, length, length, passes))
    for _, texts in map_batches(range(len(given)), most, draw):
        yield from texts


def take_texts(model: Model, documents: Sequence[str], length: int) -> list[DrawnText]:
    """The beginnings of documents in the model's tokens, as long as texts that are drawn."""
    tokenizer = require_tokenizer(model)
    rows = [ids[: length - 1] for ids in tokenizer.encode_documents(list(documents))]
    return [DrawnText(tokenizer.decode(ids), ids, 0) for ids in rows]


def count_drawing_flops(
    model: Model, length: int, prompt: int, calls: int, drafts: bool = False
) -> int:
    """Operations of the calls that draw one text of that length after that many tokens.

    Passes are counted whole, with the head at every position: a sampler that keeps keys and values
    from step to step, or reads masks alone, takes fewer. A causal model keeps them anyway, and runs
    each position once, unless it verifies drafts.
    """
    config = model.net.config
    if model.paradigm.has_steps or drafts:
        return calls * count_flops(config, length)
    return count_flops(config, prompt + calls - 1, calls)


def require_causal(name: str, paradigm: Paradigm) -> None:
    """Refuse a judge whose likelihoods are not exact."""
    if paradigm.sees_later or not paradigm.is_scored:
        raise UserError(
            f"the judge {name} is a {paradigm.kind} model: expected a causal one, whose "
            "likelihoods are exact."
        )


def judge_texts(judge: Model, texts: Sequence[str]) -> list[Estimate]:
    """What each text costs a causal judge; an empty one has no tokens and costs nothing."""
    require_causal(judge.name, judge.paradigm)
    held = [text for text in texts if text.strip()]
    costs = score_documents(judge, held) if held else iter(())
    return [next(costs) if text.strip() else Estimate(0.0, 0.0, 0) for text in texts]


def assess_texts(drawn: Sequence[DrawnText], judge: Model) -> Iterator[dict[str, Any]]:
    """A row for each text: what drawing it took, what it costs the judge, how varied it is."""
    costs = judge_texts(judge, [each.text for each in drawn])
    for number, (each, cost) in enumerate(zip(drawn, costs, strict=True)):
        row: dict[str, Any] = {"calls": each.calls, "flops": each.flops, "fact": str(number)}
        row |= {"text": each.text, "tokens": len(each.tokens), "nll": cost.nll}
        row |= {"judge_tokens": cost.tokens}
        row["per_token"] = cost.nll / cost.tokens if cost.tokens else None
        yield row | {"entropy": find_text_entropy(each.tokens)}


def find_text_entropy(tokens: Sequence[int]) -> float:
    """Entropy of a text's tokens by their counts, in nats: 0 where one is repeated throughout."""
    counts = Counter(tokens).values()
    return -sum(n / len(tokens) * math.log(n / len(tokens)) for n in counts) if tokens else 0.0


def find_distinct_share(texts: Iterable[str], size: int) -> float | None:
    """Distinct-n: different n-grams of words over all of a set of texts; None where it has none."""
    grams = [gram for text in texts for gram in _list_grams(text.split(), size)]
    return len(set(grams)) / len(grams) if grams else None


def find_pseudo_values(texts: Sequence[str], size: int) -> list[float] | None:
    """Jackknife pseudo-values of a set's distinct-n: for each of n texts, n times the set's share
    less n - 1 times the share of the set without that text.

    Their spread over texts, by the t interval of their mean, is how far other texts would move the
    share (Tukey 1958). The share is no mean over texts: what two of them have in common counts
    once. So a bootstrap, which draws texts twice, finds sets of far less variety than any real one.
    Averages of each text's own share have an interval, but do not see that texts repeat each other.
    None where one text has all n-grams, or none has any.
    """
    own = [_list_grams(text.split(), size) for text in texts]
    holders = Counter(gram for grams in own for gram in set(grams))
    different, number = len(holders), sum(map(len, own))
    if any(number == len(grams) for grams in own):
        return None
    values = []
    for grams in own:
        alone = sum(holders[gram] == 1 for gram in set(grams))
        without = (different - alone) / (number - len(grams))
        values.append(len(own) * different / number - (len(own) - 1) * without)
    return values


def _list_grams(words: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
