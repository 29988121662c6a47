"""Edits of one checkpoint, examined: edits, controls, answers, shares.

All requests of a part are searched in one batch and, on an accelerator, asked in one; questions
without an edit are asked once. What stays one by one are statements that are learned.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.base.errors import UserError
from unmask.base.seeds import python_stream
from unmask.data.corpus import Corpus
from unmask.editing.controls import Swap, Tuned, UnrelatedText, find_cost, swap_factors, tune
from unmask.editing.edit import Edit
from unmask.editing.editor import edit_each
from unmask.editing.moments import Moments, moments
from unmask.editing.outcomes import Change, Examination, Reply
from unmask.editing.requests import EditRequest, find_recalled, make_requests
from unmask.editing.settings import EditWorkSettings
from unmask.editing.sharing import compare_directions, list_prompts, probe_directions, read_shares
from unmask.evaluation.metrics import is_contained
from unmask.net.model import Model
from unmask.representation.prompts import make_prefixes

SWAPS: tuple[Swap, ...] = ("key", "delta")
SEARCH = ("method", "ridge", "null_share", "reveal", "search_steps", "lr", "clamp", "kl")
SEARCH += ("bare_weight", "seed")
FOUND = ("nll_before", "nll", "relative_distance", "stopped", "diverged")
WRITTEN = ("said_before", "said_after", "text_before", "text_after")
NO_TEXT = {"text_kl": None, "text_bits_before": None, "text_bits_after": None}


@dataclass(frozen=True)
class EditData:
    """What is edited, texts to gather moments on, and texts on which nothing should change."""

    requests: list[EditRequest]
    texts: list[str]
    other_texts: list[str]
    corpus: Corpus | None = None
    """Where requests come from; a file of requests has none."""


class EditWork:
    """The edits of one model: what they share is read off it first, the same in every process."""

    def __init__(
        self,
        model: Model,
        layers: tuple[int, ...],
        data: EditData,
        settings: EditWorkSettings,
        groups: tuple[str, ...],
        length: int | None,
    ):
        self.model, self.layers, self.settings = model, layers, settings
        self.groups, self.length, steps, seed = groups, length, settings.steps, settings.seed
        self.other_layers = self._draw_layer() if "layer" in settings.controls else ()
        self.requests = self._find_requests(data)
        self.examination = Examination(model, self.requests, steps, length, settings.write_all)
        self.moments = gathered = self._gather_moments(data.texts)
        self.condition = None if gathered is None else max(map(gathered.condition, layers))
        self.prefixes = make_prefixes(model, settings.prefixes, seed)
        self.probes: dict[tuple[str, str], float] = {}
        if data.corpus is not None:
            facts = [request.fact.fact_id for request in self.requests]
            prompts = list_prompts(data.corpus, groups, facts)
            self.probes = probe_directions(model, prompts, layers[-1], length)
        others, rows = data.other_texts, settings.text_rows
        self.text = UnrelatedText(model, others, rows, seed) if others else None
        self.cosines = compare_directions(self.examination, layers[-1])

    def _draw_layer(self) -> tuple[int]:
        """The layer of the control that edits another one."""
        # The last layer is not edited: what it writes at a subject is read nowhere else.
        others = [i for i in range(self.model.net.config.layers - 1) if i not in self.layers]
        if not others:
            raise UserError(
                f"{self.model.name} has no layer beside those that are edited and its last: leave "
                "out the control layer, or edit fewer."
            )
        return (python_stream(self.settings.seed, "layer").choice(others),)

    def _find_requests(self, data: EditData) -> list[EditRequest]:
        """The requests that were given, or those about facts that the model recalls."""
        settings, name = self.settings, self.model.name
        if not settings.recalled:
            return data.requests
        assert data.corpus is not None
        where = data.corpus, self.groups, settings.steps, self.length
        known = find_recalled(self.model, *where)
        requests = choose_requests(data.corpus, settings, self.groups, known)
        if len(requests) < 2:
            raise UserError(
                f"{name} says {len(requests)} of the facts, asked as they were trained: "
                "expected at least 2; leave recalled out, or train it for longer."
            )
        return requests

    def _gather_moments(self, texts: Iterable[str]) -> Moments | None:
        """The moments that edits are weighed by; None is the identity."""
        settings, layers = self.settings, sorted({*self.layers, *self.other_layers})
        if settings.moments == "identity":
            return None
        states = None if settings.moments == "states" else "clean"
        count, shrink, seed = settings.moment_tokens, settings.shrink, settings.seed
        return moments(self.model, texts, layers, states, tokens=count, shrink=shrink, seed=seed)

    def work(self, columns: Mapping[str, Any], chunk: range) -> dict[str, list[dict[str, Any]]]:
        """The rows of some requests; a model that recalls fewer facts has fewer."""
        examination = self.examination
        numbers = [i for i in chunk if i < len(self.requests)]
        if not numbers:
            return {}
        # 1. Answers without an edit; the edits and their controls, asked together.
        before = dict(zip(numbers, examination.ask_clean(numbers), strict=True))
        edits = list(self._make_edits(numbers))
        after = examination.ask_each([(i, edit) for i, _, edit in edits])
        made = {i: edit for i, variant, edit in edits if variant == "edit"}
        which = {i: {**columns, **self._describe(i, made[i], before[i][0])} for i in numbers}
        # 2. Where they act: in every state of the edits, in the first one of the controls.
        acting = list(read_shares(examination, [(i, edit) for i, _, edit in edits], after))
        by_state = [which[edits[at][0]] | row for at, _, row in acting if edits[at][1] == "edit"]
        first = {
            (at, place): {"share": row["share"]}
            for at, place, row in acting
            if (row["states"], row["step"]) == ("given", 0)
        }

        # 3. A row for each question of a request under each change; statements are learned in turn.
        def compare(
            i: int, variant: str, change: Change, replies: Sequence[Reply]
        ) -> list[dict[str, Any]]:
            one = which[i] | {"variant": variant, "magnitude": change.magnitude, "share": None}
            one |= {name: getattr(change, name, None) for name in ("updates", "reached")}
            one |= NO_TEXT if self.text is None else self.text.compare(change)
            return [one | row for row in examination.compare(i, change, before[i], replies)]

        rows: list[dict[str, Any]] = []
        for at, edit in enumerate(edits):
            rows += [row | first[at, j] for j, row in enumerate(compare(*edit, after[at]))]
        for i, variant, learned in self._learn_each(made):
            rows += compare(i, variant, learned, examination.ask_each([(i, learned)])[0])
        # 4. Texts written on the usual canvas, and on others.
        here = {"length": examination.length, "steps": self.settings.steps}
        names = [*which[numbers[0]], "role", *WRITTEN]
        own = [row for row in rows if row["variant"] == "edit" and row["text_after"] is not None]
        canvases = [{name: row[name] for name in names} | here for row in own]
        more = self.settings.step_counts, self.settings.lengths
        swept = examination.sweep(list(made.items()), *more)
        canvases += [which[numbers[at]] | row for at, row in swept]
        return {"edit": rows, "edit_steps": by_state, "edit_canvases": canvases}

    def _make_edits(self, numbers: Sequence[int]) -> Iterator[tuple[int, str, Edit]]:
        """The edit of each request, and its controls."""
        # The next request's edit gives its key and its delta, whatever part it is in.
        following = {i: (i + 1) % len(self.requests) for i in numbers}
        swaps = [swap for swap in SWAPS if swap in self.settings.controls]
        wanted = sorted({*numbers, *(following.values() if swaps else ())})
        made = self._edit_each(wanted, self.layers)
        moved = self._edit_each(numbers, self.other_layers) if self.other_layers else {}
        for i in numbers:
            yield i, "edit", made[i]
            if i in moved:
                yield i, "layer", moved[i]
            for swap in swaps:
                yield i, swap, swap_factors(self.model, made[i], made[following[i]], swap)

    def _edit_each(self, numbers: Sequence[int], layers: tuple[int, ...]) -> dict[int, Edit]:
        requests = [self.requests[i] for i in numbers]
        facts, objects = ([getattr(each, name) for each in requests] for name in ("fact", "object"))
        chosen = {name: getattr(self.settings, name) for name in SEARCH}
        chosen |= {"prefixes": self.prefixes, "length": self.length}
        edits = edit_each(self.model, facts, objects, layers, self.moments, **chosen)
        return dict(zip(numbers, edits, strict=True))

    def _learn_each(self, made: Mapping[int, Edit]) -> Iterator[tuple[int, str, Tuned]]:
        """Statements learned until their objects cost as much as under their edits."""
        model, settings, length = self.model, self.settings, self.examination.length
        chosen: dict[str, Any] = {"updates": settings.tune_updates, "lr": settings.tune_lr}
        chosen |= {"length": length, "seed": settings.seed}
        for i, edit in made.items():
            statement = self.requests[i].questions[0].fact
            for name, layers in (("tuned", None), ("tuned-layer", edit.layers)):
                if name in settings.controls:
                    with edit.on(model):
                        target = find_cost(model, statement, length)
                    yield i, name, tune(model, statement, target, layers, **chosen)

    def _describe(self, number: int, made: Edit, before: Reply) -> dict[str, Any]:
        """What every row of a request's edit says."""
        (search,) = made.record["facts"]
        request, text = self.requests[number], before.text
        fact = request.fact
        return {
            "group": request.group,
            "fact": fact.fact_id,
            "direction": fact.direction,
            "trained": fact.trained,
            "subject": fact.subject,
            "old": fact.object,
            "new": request.object,
            "objects": request.objects,
            "recalled": text is not None and is_contained(text, fact.object),
            "layers": ",".join(map(str, self.layers)),
            "condition": self.condition,
            "cosine": self.cosines[number],
            "probe": self.probes.get((fact.fact_id, fact.direction)),
            **{f"search_{name}": search[name] for name in FOUND},
        }


def choose_requests(
    corpus: Corpus,
    settings: EditWorkSettings,
    groups: tuple[str, ...],
    only: set[str] | None = None,
) -> list[EditRequest]:
    """The requests of a corpus, of some of its facts."""
    names = ("facts", "objects", "paraphrases", "neighbours", "seed", "skip")
    chosen = {name: getattr(settings, name) for name in names}
    return make_requests(corpus, groups=groups, **chosen, only=only)
