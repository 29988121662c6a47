"""What an edit did: likelihoods, ranks and texts before and after it.

Answers are scored as recall scores them: token by token with those before given and the rest
masked. The usual metric of editors, the share of tokens that a network names at positions that hold
them already (EasyEdit's token match), cannot be used here: a bidirectional network sees the token
that it is asked for.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

from jaxtyping import Int
from torch import Tensor

from unmask.data.facts import FactTokens, tokenize_fact
from unmask.editing.controls import Tuned
from unmask.editing.edit import Edit
from unmask.editing.editor import give_object
from unmask.editing.requests import EditQuestion, EditRequest
from unmask.editing.rows import RowEdits
from unmask.evaluation.answers import Asked, score_answers
from unmask.evaluation.metrics import is_contained
from unmask.evaluation.questions import check_scored, choose_length, require_tokenizer
from unmask.net.model import Model
from unmask.sampling.texts import sample

WRITTEN = ("edited", "reverse new", "reverse old")
"""Questions that are also answered by generation, unless all are."""
Change = Edit | Tuned


@dataclass(frozen=True)
class Reply:
    """How a model answers one question."""

    nll: float
    """Nats per token of the right answer."""
    nll_rival: float | None
    rank: int | None
    """The right answer's rank among all in reverse; by the mean field for a masked model."""
    text: str | None
    states: Int[Tensor, "S L"] | None = None
    """The states of the text that was written, from the prompt to its end."""


class Examination:
    """Requests in a model's tokens, on one canvas, asked as often as needed.

    On an accelerator all edits are asked in the same passes (`RowEdits`). A processor gains nothing
    by that: there each is put on in turn, so that a causal model can keep its prompts.
    """

    def __init__(
        self,
        model: Model,
        requests: Sequence[EditRequest],
        steps: int = 8,
        length: int | None = None,
        write_all: bool = False,
    ):
        check_scored(model)
        self.model, self.requests, self.steps = model, list(requests), steps
        self.write_all = write_all
        self.tokenizer = require_tokenizer(model)
        questions = [question for request in requests for question in request.questions]
        facts = [question.fact for question in questions]
        facts += [give_object(each.fact, each.rival) for each in questions if each.rival]
        self._encoded = {fact: tokenize_fact(fact, self.tokenizer) for fact in dict.fromkeys(facts)}
        self.length = choose_length(model, self._encoded.values(), length)
        self.is_together = model.device.type != "cpu"
        self._clean: dict[EditQuestion, Reply] = {}
        self._subjects: dict[tuple[str, ...], list[list[int]]] = {}
        for each in questions:
            if each.subjects and each.subjects not in self._subjects:
                facts = [give_object(each.fact, subject) for subject in each.subjects]
                tokens = [tokenize_fact(fact, self.tokenizer) for fact in facts]
                self._subjects[each.subjects] = [self.cut(one)[1] for one in tokens]

    def encode(self, question: EditQuestion) -> FactTokens:
        """A question with its right answer, in tokens."""
        return self._encoded[question.fact]

    def cut(self, tokens: FactTokens) -> tuple[list[int], list[int]]:
        """The prompt, and the answer up to the end of the object."""
        return tokens.ids[: tokens.prompt_length], tokens.ids[
            tokens.prompt_length : tokens.object[1]
        ]

    def _is_written(self, question: EditQuestion) -> bool:
        return self.write_all or question.role in WRITTEN

    def ask(
        self,
        questions: Sequence[EditQuestion],
        edits: RowEdits | None = None,
        owners: Sequence[int] = (),
    ) -> list[Reply]:
        """The answers of the model as it is now, each with one of the `edits` if there are any."""
        queries = []
        for question in questions:
            prompt, answer = self.cut(self.encode(question))
            answers = [answer]
            if question.rival is not None:
                rival = give_object(question.fact, question.rival)
                answers.append(self.cut(self._encoded[rival])[1])
            rivals = self._subjects[question.subjects] if question.subjects else []
            queries.append(Asked(prompt, answers, rivals))
        written = [i for i, question in enumerate(questions) if self._is_written(question)]
        prompts = [queries[i].prompt for i in written]
        drawn = self._write(prompts, edits, [owners[i] for i in written] if edits else ())
        texts = dict(zip(written, drawn, strict=True))
        with nullcontext() if edits is None else edits.on(owners):
            scores = score_answers(self.model, queries, self.length)
        results = []
        for i, scored in enumerate(scores):
            costs = [-each.logp / len(each.terms) for each in scored]
            rival = costs[1] if len(costs) > 1 else None
            rank = scored[0].rank if queries[i].rivals else None
            results.append(Reply(costs[0], rival, rank, *texts.get(i, (None, None))))
        return results

    def _write(
        self,
        prompts: Sequence[list[int]],
        edits: RowEdits | None = None,
        owners: Sequence[int] = (),
        canvas: tuple[int, int] | None = None,
    ) -> list[tuple[str, Tensor]]:
        """What the model writes after each prompt, and the states that it went through.

        `canvas` is a length and a number of steps other than the usual ones.
        """
        if not prompts:
            return []
        length, steps = canvas or (self.length, self.steps)
        with nullcontext() if edits is None else edits.on(owners):
            drawn = sample(self.model, list(prompts), steps=steps, length=length)
        assert drawn.states is not None
        texts, states = [], drawn.states.cpu()
        for i, prompt in enumerate(prompts):
            own = states[:, i]
            # A row that is done waits for the others of its batch.
            moved = (own[1:] != own[:-1]).any(-1).nonzero()[:, 0]
            end = int(moved[-1]) + 2 if len(moved) else 1
            texts.append((self.tokenizer.decode(own[-1].tolist()[len(prompt) :]), own[:end]))
        return texts

    def ask_clean(self, numbers: Sequence[int]) -> list[list[Reply]]:
        """Answers to some requests' questions without an edit; the same question is asked once."""
        questions = [self.requests[i].questions for i in numbers]
        new = [each for own in questions for each in own if each not in self._clean]
        new = list(dict.fromkeys(new))
        if new:
            self._clean |= zip(new, self.ask(new), strict=True)
        return [[self._clean[each] for each in own] for own in questions]

    def ask_each(self, changes: Sequence[tuple[int, Change]]) -> list[list[Reply]]:
        """Answers to the questions of requests, each asked with its own change on."""
        edits = [(at, change) for at, (_, change) in enumerate(changes) if isinstance(change, Edit)]
        replies: dict[int, list[Reply]] = {}
        if self.is_together and edits:
            items = [(owner, question) for owner, (at, _) in enumerate(edits)
                     for question in self.requests[changes[at][0]].questions]  # fmt: skip
            owners, questions = zip(*items, strict=True)
            answered = iter(
                self.ask(questions, RowEdits(self.model, [e for _, e in edits]), owners)
            )
            for at, _ in edits:
                own = self.requests[changes[at][0]].questions
                replies[at] = [next(answered) for _ in own]
        for at, (number, change) in enumerate(changes):
            if at not in replies:
                with change.on(self.model):
                    replies[at] = self.ask(self.requests[number].questions)
        return [replies[at] for at in range(len(changes))]

    def compare(
        self,
        number: int,
        change: Change,
        before: Sequence[Reply] | None = None,
        after: Sequence[Reply] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """A row for each question of a request: answers before the edit and with it on."""
        before = self.ask_clean([number])[0] if before is None else before
        after = self.ask_each([(number, change)])[0] if after is None else after
        for question, old, new in zip(self.requests[number].questions, before, after, strict=True):
            row: dict[str, Any] = {"role": question.role}
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
                "tokens": len(self.cut(self.encode(question))[1]),
            }

    def sweep(
        self,
        edits: Sequence[tuple[int, Edit]],
        steps: Sequence[int] = (),
        lengths: Sequence[int] = (),
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Generations before and after on further canvases and in further step counts.

        Each with the place of its edit in `edits`. Questions that do not fit a canvas are left out.
        """
        settings = product(
            dict.fromkeys([self.length, *lengths]), dict.fromkeys([self.steps, *steps])
        )
        for length, count in settings:
            if (length, count) == (self.length, self.steps):
                continue
            items = [
                (at, question, self.cut(self.encode(question))[0])
                for at, (number, _) in enumerate(edits)
                for question in self.requests[number].questions
                if self._is_written(question)
                and sum(map(len, self.cut(self.encode(question)))) <= length
            ]
            prompts = list(dict.fromkeys(tuple(prompt) for _, _, prompt in items))
            clean = self._write([list(prompt) for prompt in prompts], canvas=(length, count))
            before = dict(zip(prompts, clean, strict=True))
            after = self._write_each(
                edits, [(at, prompt) for at, _, prompt in items], (length, count)
            )
            for (at, question, prompt), new in zip(items, after, strict=True):
                row: dict[str, Any] = {"role": question.role, "length": length, "steps": count}
                for name, text in (("before", before[tuple(prompt)][0]), ("after", new)):
                    is_said = is_contained(text, question.fact.object)
                    row |= {f"text_{name}": text, f"said_{name}": is_said}
                yield at, row

    def _write_each(
        self,
        edits: Sequence[tuple[int, Edit]],
        items: Sequence[tuple[int, list[int]]],
        canvas: tuple[int, int],
    ) -> list[str]:
        """What is written after prompts, each with the edit of its number on."""
        if self.is_together:
            together = RowEdits(self.model, [edit for _, edit in edits])
            owners = [at for at, _ in items]
            drawn = self._write([prompt for _, prompt in items], together, owners, canvas)
            return [text for text, _ in drawn]
        texts = []
        for at, (_, edit) in enumerate(edits):
            with edit.on(self.model):
                own = [prompt for owner, prompt in items if owner == at]
                drawn = self._write(own, canvas=canvas)
            texts += [text for text, _ in drawn]
        return texts
