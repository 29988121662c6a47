"""What an edit did: likelihoods, ranks and texts before and after it, and how much of it acted.

Answers are scored as recall scores them: token by token with those before given and the rest
masked. The usual metric of editors, the share of tokens that a network names at positions that hold
them already (EasyEdit's token match), cannot be used here: a bidirectional network sees the token
that it is asked for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.data.facts import FactTokens, tokenize_fact
from unmask.editing.controls import Tuned
from unmask.editing.edit import Edit
from unmask.editing.editor import give_object
from unmask.editing.requests import EditQuestion, EditRequest
from unmask.evaluation.answers import Asked, score_answers
from unmask.evaluation.metrics import is_contained
from unmask.evaluation.questions import check_scored, choose_length, require_tokenizer
from unmask.net.model import Model
from unmask.sampling.texts import sample

WRITTEN = ("edited", "reverse new", "reverse old")
"""Questions that are also answered by generation."""


@dataclass(frozen=True)
class _Reply:
    """How a model answers one question."""

    nll: float
    """Of the right answer, nats per token."""
    nll_rival: float | None
    rank: int | None
    """Of the right answer among all answers in reverse; by the mean field for a masked model."""
    text: str | None


class Examination:
    """Requests in a model's tokens, on one canvas, asked as often as needed."""

    def __init__(
        self,
        model: Model,
        requests: Sequence[EditRequest],
        steps: int = 8,
        length: int | None = None,
    ):
        check_scored(model)
        self.model, self.requests, self.steps = model, list(requests), steps
        self.tokenizer = require_tokenizer(model)
        questions = [question for request in requests for question in request.questions]
        facts = [question.fact for question in questions]
        facts += [give_object(each.fact, each.rival) for each in questions if each.rival]
        self._encoded = {fact: tokenize_fact(fact, self.tokenizer) for fact in dict.fromkeys(facts)}
        self.length = choose_length(model, self._encoded.values(), length)
        self._edited_keys: dict[int, Tensor] = {}
        self._subjects: dict[tuple[str, ...], list[list[int]]] = {}
        for each in questions:
            if each.subjects and each.subjects not in self._subjects:
                facts = [give_object(each.fact, subject) for subject in each.subjects]
                tokens = [tokenize_fact(fact, self.tokenizer) for fact in facts]
                self._subjects[each.subjects] = [self._cut(one)[1] for one in tokens]

    def _cut(self, tokens: FactTokens) -> tuple[list[int], list[int]]:
        """The prompt, and the answer up to the end of the object."""
        return tokens.ids[: tokens.prompt_length], tokens.ids[
            tokens.prompt_length : tokens.object[1]
        ]

    def ask(self, questions: Sequence[EditQuestion]) -> list[_Reply]:
        """The answers of the model as it is now."""
        queries = []
        for question in questions:
            prompt, answer = self._cut(self._encoded[question.fact])
            answers = [answer]
            if question.rival is not None:
                rival = give_object(question.fact, question.rival)
                answers.append(self._cut(self._encoded[rival])[1])
            rivals = self._subjects[question.subjects] if question.subjects else []
            queries.append(Asked(prompt, answers, rivals))
        written = [i for i, question in enumerate(questions) if question.role in WRITTEN]
        texts = self._write(written, queries)
        results = []
        for i, scored in enumerate(score_answers(self.model, queries, self.length)):
            costs = [-each.logp / len(each.terms) for each in scored]
            rival = costs[1] if len(costs) > 1 else None
            rank = scored[0].rank if queries[i].rivals else None
            results.append(_Reply(costs[0], rival, rank, texts.get(i)))
        return results

    def sweep(
        self,
        number: int,
        edit: Edit,
        rows: Sequence[Mapping[str, Any]],
        steps: Sequence[int] = (),
        lengths: Sequence[int] = (),
    ) -> Iterator[dict[str, Any]]:
        """Generations before and after: those of `rows`, other step counts, other canvases.

        Questions that do not fit a canvas are left out.
        """
        names = ("role", "said_before", "said_after", "text_before", "text_after")
        first = {"length": self.length, "steps": self.steps}
        yield from (
            first | {name: row[name] for name in names}
            for row in rows
            if row["text_after"] is not None
        )
        for length in dict.fromkeys([self.length, *lengths]):
            for count in dict.fromkeys([self.steps, *steps]):
                canvas = {"length": length, "steps": count}
                if canvas == first:
                    continue
                before = list(self._ask_on(number, count, length))
                with edit.on(self.model):
                    after = list(self._ask_on(number, count, length))
                for (question, old), (_, new) in zip(before, after, strict=True):
                    row: dict[str, Any] = canvas | {"role": question.role}
                    for name, text in (("before", old), ("after", new)):
                        is_said = is_contained(text, question.fact.object)
                        row |= {f"text_{name}": text, f"said_{name}": is_said}
                    yield row

    def _ask_on(self, number: int, steps: int, length: int) -> Iterator[tuple[EditQuestion, str]]:
        """What the model writes now on another canvas."""
        for question in self.requests[number].questions:
            prompt, answer = self._cut(self._encoded[question.fact])
            if question.role in WRITTEN and len(prompt) + len(answer) <= length:
                (text,) = self._write([0], [Asked(prompt, [answer], [])], steps, length).values()
                yield question, text

    def _write(
        self,
        numbers: Sequence[int],
        queries: Sequence[Asked],
        steps: int | None = None,
        length: int | None = None,
    ) -> dict[int, str]:
        if not numbers:
            return {}
        prompts = [queries[i].prompt for i in numbers]
        steps, length = steps or self.steps, length or self.length
        drawn = sample(self.model, prompts, steps=steps, length=length, keep_states=False)
        rows = zip(drawn.tokens.tolist(), prompts, strict=True)
        texts = [self.tokenizer.decode(row[len(prompt) :]) for row, prompt in rows]
        return dict(zip(numbers, texts, strict=True))

    def compare(
        self, number: int, edit: Edit | Tuned, before: Sequence[_Reply]
    ) -> Iterator[dict[str, Any]]:
        """A row for each question of a request: answers before the edit and with it on.

        Weights that were trained have no shares.
        """
        request = self.requests[number]
        with edit.on(self.model):
            after = self.ask(request.questions)
        shares: Sequence[float | None] = [None] * len(after)
        if isinstance(edit, Edit):
            shares = self._read_shares(request.questions, edit)
        for question, old, new, share in zip(request.questions, before, after, shares, strict=True):
            row: dict[str, Any] = {"role": question.role, "share": share}
            for name, answer in (("before", old), ("after", new)):
                text = answer.text
                row |= {
                    f"nll_{name}": answer.nll,
                    f"nll_rival_{name}": answer.nll_rival,
                    f"success_{name}": None
                    if answer.nll_rival is None
                    else answer.nll < answer.nll_rival,
                    f"rank_{name}": answer.rank,
                    f"text_{name}": text,
                    f"said_{name}": None
                    if text is None
                    else is_contained(text, question.fact.object),
                }
            yield row | {
                "gain": old.nll - new.nll,
                "prompt": question.fact.prompt,
                "wanted": question.fact.object,
                "rival": question.rival,
            }

    def _read_shares(self, questions: Sequence[EditQuestion], edit: Edit) -> list[float]:
        """The share that acts at the end of each question's subject, before anything is written."""
        encoded = [self._encoded[question.fact] for question in questions]
        rows = [self._lay_out(self._cut(tokens)[0]) for tokens in encoded]
        shares = edit.shares(self.model, torch.tensor(rows))[edit.layers[-1]].sum(-1)
        return [float(shares[i, each.subject[1] - 1]) for i, each in enumerate(encoded)]

    def _lay_out(self, prompt: list[int]) -> list[int]:
        """The prompt on its canvas; a causal network does not see what fills it."""
        fill = self.model.mask_id if self.model.paradigm.sees_later else prompt[-1]
        assert fill is not None
        return prompt + [fill] * (self.length - len(prompt))

    def read_cosines(self, number: int, layer: int) -> list[float]:
        """How far each question shares the key of the edited prompt, without the edit.

        The cosine of both keys at the subject's end, minus its mean over the other requests.
        """
        if layer not in self._edited_keys:
            edited = [request.questions[0] for request in self.requests]
            self._edited_keys[layer] = self._read_keys(edited, layer)
        keys = self._read_keys(self.requests[number].questions, layer)
        cosines = keys @ self._edited_keys[layer].T  # [questions, requests]
        others = [i for i in range(len(self.requests)) if i != number]
        mean = cosines[:, others].mean(-1) if others else 0.0
        return (cosines[:, number] - mean).tolist()

    @torch.no_grad()
    def _read_keys(
        self, questions: Sequence[EditQuestion], layer: int
    ) -> Float[Tensor, "questions F"]:
        """The key at the end of each question's subject, of length 1."""
        encoded = [self._encoded[question.fact] for question in questions]
        rows = torch.tensor([self._lay_out(self._cut(tokens)[0]) for tokens in encoded])
        net, site = self.model.net, f"layers.{layer}.mlp_key"
        with net.capture(site) as taken:
            net.run_layers(net.embed(rows.to(self.model.device)), 0, layer + 1)
        ends = [tokens.subject[1] - 1 for tokens in encoded]
        keys = taken[site][range(len(rows)), ends].double().cpu()
        return keys / keys.norm(dim=-1, keepdim=True)

    def follow(self, number: int, edit: Edit) -> Iterator[dict[str, Any]]:
        """The share at the subject in every state of the edited model's own answer."""
        tokens = self._encoded[self.requests[number].questions[0].fact]
        prompt, answer = self._cut(tokens)
        with edit.on(self.model):
            drawn = sample(self.model, [prompt], steps=self.steps, length=self.length)
            assert drawn.states is not None
            shares = edit.shares(self.model, drawn.states[:, 0])[edit.layers[-1]].sum(-1)
        for step, row in enumerate(shares[:, tokens.subject[1] - 1].tolist()):
            yield {"step": step, "share": row, "length": len(answer)}
