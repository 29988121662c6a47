"""Any row of the factorial asked alike: left to right, one token per step, by the chain rule.

What a model reads differs: a canvas of masks, plain text, text after its masked copy, or tokens
between masks. What it is asked does not: the next token of a text, given all before it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.data.facts import Fact
from unmask.evaluation.chain import log_softmax
from unmask.evaluation.metrics import is_contained, starts_with
from unmask.evaluation.questions import Split, encode_facts, spread
from unmask.net.batches import count_row_bytes, fit_rows, map_batches
from unmask.net.model import Model
from unmask.net.transformer import Transformer
from unmask.sampling.texts import sample

Form = Literal["canvas", "plain", "copy", "interleaved"]


class Query(NamedTuple):
    """A text of which the next token is asked."""

    tokens: list[int]
    prompt: int
    """How many of them were given."""
    end: int
    """Positions of the canvas that it stands on."""


@dataclass(frozen=True)
class Reader:
    """A model, and the form in which it reads texts of at most `length` tokens."""

    model: Model
    form: Form
    length: int

    @torch.inference_mode()
    def predict(self, queries: Sequence[Query]) -> Float[Tensor, "N V"]:
        """log p of each text's next token; on CUDA products are in bfloat16, as in training."""
        net, device, mask_id = self.model.net, self.model.device, self.model.mask_id or 0
        masks = [mask_id] * self.length
        rows = torch.tensor([query.tokens + masks[len(query.tokens) :] for query in queries])
        rows, real, positions = rows.to(device), None, None
        written, prompt, end = (
            torch.tensor(x, device=device)[:, None]
            for x in zip(*((len(q.tokens), q.prompt, q.end) for q in queries), strict=True)
        )
        place, longest = torch.arange(self.length, device=device), int(written.max())
        if self.form == "canvas":
            tokens, at = rows, written
            real = place < end if bool((end < self.length).any()) else None
        elif self.form == "plain":
            tokens, at = rows[:, :longest], written - 1
        elif self.form == "copy":
            assert self.model.tokenizer is not None
            copy = torch.where(place < prompt, rows, mask_id)
            separator = torch.full_like(written, self.model.tokenizer.end_id)
            tokens, at = torch.cat((copy, separator, rows[:, :longest]), 1), self.length + written
        else:
            tokens = torch.stack((torch.full_like(rows, mask_id), rows), -1).flatten(1)
            tokens, at = tokens[:, : 2 * longest + 2], 2 * written
            positions = place.repeat_interleave(2)[: tokens.shape[1]].expand_as(tokens)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            x = net.run_layers(net.embed(tokens, real), real=real, positions=positions)
        # The head in full: rounded logits would blur log p.
        return log_softmax(self.model, net.unembed(self.model.align(x, real).float(), at)[:, 0])

    @property
    def rows(self) -> int:
        """Texts of one batch."""
        longest = 2 * self.length + 1 if self.form in ("copy", "interleaved") else self.length
        return fit_rows(self.model, count_row_bytes(self.model, longest, 1))

    def write(self, prompts: Sequence[list[int]], ends: Sequence[int]) -> list[list[int]]:
        """The likeliest token after the other, up to the end token or the end of the canvas."""
        assert self.model.tokenizer is not None
        texts, end_id = [list(prompt) for prompt in prompts], self.model.tokenizer.end_id

        def choose(batch: Sequence[int]) -> list[int]:
            queries = [Query(texts[i], len(prompts[i]), ends[i]) for i in batch]
            return self.predict(queries).argmax(-1).tolist()

        going = [i for i, end in enumerate(ends) if len(texts[i]) < end]
        while going:
            for batch, tokens in map_batches(going, self.rows, choose):
                for i, token in zip(batch, tokens, strict=True):
                    texts[i].append(token)
            going = [i for i in going if texts[i][-1] != end_id and len(texts[i]) < ends[i]]
        return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]

    def score_next(self, queries: Sequence[tuple[Query, int]]) -> list[float]:
        """log p of one token each, as the next one of its text."""

        def score(batch: Sequence[tuple[Query, int]]) -> list[float]:
            tokens = torch.tensor([token for _, token in batch], device=self.model.device)
            logp = self.predict([query for query, _ in batch])
            return logp.gather(-1, tokens[:, None])[:, 0].tolist()

        scored = map_batches(queries, self.rows, score)
        return [value for _, values in scored for value in values]

    def score(self, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> list[float]:
        """log p of each answer after its prompt, by the chain rule."""
        queries = [
            (i, Query([*prompt, *answer[:k]], len(prompt), self.length), token)
            for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
            for k, token in enumerate(answer)
        ]
        totals = [0.0] * len(prompts)
        terms = self.score_next([(query, token) for _, query, token in queries])
        for (i, _, _), term in zip(queries, terms, strict=True):
            totals[i] += term
        return totals

    def rank(
        self,
        prompts: Sequence[list[int]],
        answers: Sequence[list[int]],
        rivals: Sequence[Sequence[list[int]]],
        totals: Sequence[float],
    ) -> list[int]:
        """The rank of each answer, with its log p in `totals`, among the rivals that fit.

        log p of a rival only falls while it is written: one that falls below the answer's is asked
        no further. Rivals that begin alike share what they begin with.
        """
        ranks, known = [1] * len(prompts), dict[tuple[int, tuple[int, ...]], float]()
        ahead = [
            (i, tuple(rival), 0.0)
            for i, each in enumerate(rivals)
            for rival in each
            if rival != answers[i] and len(prompts[i]) + len(rival) <= self.length
        ]
        depth = 0
        while ahead:
            depth += 1
            needed = dict.fromkeys((i, rival[:depth]) for i, rival, _ in ahead)
            queries = [
                (Query([*prompts[i], *text[:-1]], len(prompts[i]), self.length), text[-1])
                for i, text in needed
            ]
            known = dict(zip(needed, self.score_next(queries), strict=True))
            moved = [(i, rival, logp + known[i, rival[:depth]]) for i, rival, logp in ahead]
            moved = [each for each in moved if each[2] > totals[each[0]]]
            for i, rival, _ in moved:
                ranks[i] += len(rival) == depth
            ahead = [each for each in moved if len(each[1]) > depth]
        return ranks


def ask(
    reader: Reader, split: Split, decoder: str, ranked: int | None = None
) -> Iterator[dict[str, Any]]:
    """A row for each prompt of the split: what was written, and for some how likely the truth is.

    With `ranked` all have log p, and so many of them, spread over facts and phrasings, a rank.
    Decoders: `left` on the whole canvas, `exact` on one that ends with the answer, and for masked
    models `confidence=G`, 32 steps by confidence with guidance G.
    """
    model, tokenizer = reader.model, reader.model.tokenizer
    assert tokenizer is not None
    rivals = {id(group): group for group in split.rivals}
    everyone = [*split.facts, *(fact for group in rivals.values() for fact in group)]
    encoded = encode_facts(everyone, tokenizer)

    def cut(fact: Fact) -> tuple[list[int], list[int]]:
        whole, start = encoded[fact].ids, encoded[fact].prompt_length
        return whole[:start], whole[start:]

    prompts, answers = map(list, zip(*map(cut, split.facts), strict=True))
    if decoder.startswith("confidence="):
        guidance = float(decoder.partition("=")[2])
        texts = _sample(model, prompts, reader.length, guidance)
    else:
        exact = (len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        ends = list(exact) if decoder == "exact" else [reader.length] * len(prompts)
        texts = reader.write(prompts, ends)
    logp: Sequence[float | None] = [None] * len(prompts)
    ranks: Sequence[int | None] = logp
    if ranked is not None:
        logp = totals = reader.score(prompts, answers)
        chosen = set(spread(split.facts, ranked))
        others = {key: [cut(fact)[1] for fact in group] for key, group in rivals.items()}
        groups = [
            others[id(group)] if fact in chosen else []
            for fact, group in zip(split.facts, split.rivals, strict=True)
        ]
        all_ranks = reader.rank(prompts, answers, groups, totals)
        ranks = [rank if group else None for rank, group in zip(all_ranks, groups, strict=True)]
    for i, fact in enumerate(split.facts):
        text = (
            texts[i][: texts[i].index(tokenizer.end_id)]
            if tokenizer.end_id in texts[i]
            else texts[i]
        )
        generation = tokenizer.decode(text)
        yield {
            "split": split.name,
            "decoder": decoder,
            "fact": fact.fact_id,
            "phrasing": fact.phrasing,
            "prompt": fact.prompt,
            "completion": fact.completion,
            "generation": generation,
            "contained": is_contained(generation, fact.completion),
            "starts_with": starts_with(generation, fact.completion),
            "tokens": len(answers[i]),
            "logp": logp[i],
            "rank": ranks[i],
            "rivals": len(split.rivals[i]),
        }


def _sample(
    model: Model, prompts: Sequence[list[int]], length: int, guidance: float
) -> list[list[int]]:
    def write(batch: Sequence[list[int]]) -> list[list[int]]:
        drawn = sample(
            model,
            batch,
            steps=32,
            guidance=guidance,
            length=length,
            keep_states=False,
            cache="exact",
        )
        rows = zip(drawn.tokens.tolist(), batch, strict=True)
        return [row[len(prompt) :] for row, prompt in rows]

    each = count_row_bytes(model, length, length - min(map(len, prompts)), 2 if guidance else 1)
    batches = map_batches(prompts, fit_rows(model, each), write)
    return [text for _, texts in batches for text in texts]


def shorten(reader: Reader) -> Reader:
    """The same in bfloat16, as the package samples on CUDA; elsewhere as it is."""
    net, device = reader.model.net, reader.model.device
    if device.type != "cuda":
        return reader
    with torch.device(device):
        short = Transformer(net.config, seed=None).to(torch.bfloat16)
    short.load_state_dict(net.state_dict())
    short.tie_head()
    return replace(reader, model=replace(reader.model, net=short.eval().requires_grad_(False)))
