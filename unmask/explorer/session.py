"""What is explored: models, the texts of their tokens, facts to pick, runs to look at."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.devices import name_dtype
from unmask.base.errors import UserError, suggest
from unmask.base.runs import RECORD, read_record
from unmask.blocks.labels import name_split
from unmask.data.corpus import TESTS, Corpus
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.tokenizer import MASK
from unmask.dictionaries.dictionary import Dictionary, shipped_dictionaries
from unmask.editing.edit import Edit
from unmask.evaluation.questions import STUDY_LENGTH
from unmask.explorer.requests import EditFactRequest, WriteSettings
from unmask.net.families import parse_families
from unmask.net.loading import load
from unmask.net.model import Model
from unmask.net.readings import split_reading
from unmask.net.sites import find_sites
from unmask.sampling.orders import ORDERS
from unmask.sampling.remasking import REMASKINGS
from unmask.tracing.corruption import CORRUPTIONS

FACTS_SHOWN = 4
"""Facts of each group, asked as trained and reversed."""


class TokenTexts:
    """The texts of a model's tokens, as they stand inside a sentence."""

    def __init__(self, model: Model):
        self.tokenizer, self.mask_id = model.tokenizer, model.mask_id
        self._texts: dict[int, str] = {}

    def __getitem__(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = self._find(token)
        return self._texts[token]

    def _find(self, token: int) -> str:
        if token == self.mask_id:
            return MASK
        if self.tokenizer is None:
            return f" {token}"
        if token == self.tokenizer.end_id:
            return "⏎"
        return self.tokenizer.piece(token) or self.tokenizer.backend.id_to_token(token) or ""

    def describe(self, tokens: Sequence[int]) -> list[dict[str, Any]]:
        """Tokens as the page gets them."""
        return [{"id": t, "text": self[t], "mask": t == self.mask_id} for t in tokens]

    def rank(self, logp: Float[Tensor, "V"], top: int) -> list[dict[str, Any]]:
        """The likeliest tokens of a prediction, with their probabilities."""
        best = logp.topk(min(top, len(logp)))
        return self.list_candidates(best.indices.tolist(), best.values.exp().tolist())

    def list_candidates(self, tokens: list[int], p: list[float]) -> list[dict[str, Any]]:
        """Candidates as the page gets them; those that cannot be are left out."""
        pairs = zip(tokens, p, strict=True)
        return [{"id": token, "text": self[token], "p": each} for token, each in pairs if each > 0]


@dataclass(frozen=True)
class KeptEdit:
    """An edit that a model has until it is undone, and the call that made it."""

    request: EditFactRequest
    edit: Edit
    end: dict[str, Any]
    """What the call found: its last event."""
    stack: ExitStack


@dataclass(frozen=True)
class OpenDictionary:
    """Features of the first model's states."""

    place: str
    """The folder that it was read from, or the name of a shipped model."""
    dictionary: Dictionary


@dataclass(frozen=True)
class Explorer:
    """What is explored: one model or two, and a folder of runs."""

    models: dict[str, Model]
    """By key: "model", and "twin" where there is one."""
    runs: Path | None = None
    features: OpenDictionary | None = None
    """Features of the first model."""
    edits: dict[str, KeptEdit] = field(init=False, default_factory=dict)
    """By the key of the model that has it; changed by the worker alone."""

    def pick(self, key: str) -> Model:
        """A model by its key."""
        if key not in self.models:
            raise UserError(f"there is no model {key!r:.60} here: {suggest(key, self.models)}.")
        return self.models[key]

    def pick_features(self, key: str) -> Dictionary:
        """The features of a model, by its key."""
        model = self.pick(key)
        if key != "model" or self.features is None:
            raise UserError(
                f"no dictionary of {model.name} is open here: start the explorer with --dictionary "
                "FOLDER, a dictionary of the first model's states in SAELens' format."
            )
        return self.features.dictionary

    # Weights are written outside of inference mode: a later search needs gradients through them.
    @torch.inference_mode(False)
    def keep_edit(self, request: EditFactRequest, edit: Edit, end: dict[str, Any]) -> None:
        """Put an edit on until it is undone."""
        stack = ExitStack()
        stack.enter_context(edit.on(self.models[request.model]))
        self.edits[request.model] = KeptEdit(request, edit, end, stack)

    @torch.inference_mode(False)
    def undo_edit(self, key: str) -> bool:
        """Take the edit of a model off; False where it has none."""
        kept = self.edits.pop(key, None)
        if kept is not None:
            kept.stack.close()
        return kept is not None

    def list_runs(self) -> dict[str, Path]:
        """The run folders that can be opened: the folder itself, or those right below it."""
        if self.runs is None or not self.runs.is_dir():
            return {}
        folders = [self.runs, *sorted(self.runs.iterdir())]
        return {each.name: each for each in folders if (each / RECORD).is_file()}


def load_readings(names: Mapping[str, str | None], device: str, dtype: str) -> dict[str, Model]:
    """The models of names by their keys; those that differ by their reading share one network."""
    loaded, models = dict[str, Model](), dict[str, Model]()
    for key, name in names.items():
        if name:
            place, reading = split_reading(name)
            if place not in loaded:
                loaded[place] = load(place, device=device, dtype=dtype)
            models[key] = loaded[place] if reading is None else loaded[place].reading(reading)
    return models


def open_dictionary(model: Model, place: str | None = None) -> OpenDictionary | None:
    """A dictionary of a model's states; by default the shipped one, where the model has one."""
    if place is None:
        if model.name not in shipped_dictionaries():
            return None
        place = model.name
    dictionary = Dictionary.load(place, model.device)
    (site,) = find_sites(dictionary.site, model.net.config.layers)
    width = dictionary.w_enc.shape[0]
    if model.net.config.width != width:
        raise UserError(
            f"the dictionary in {place} is of states of {width} numbers at {site}, and those of "
            f"{model.name} have {model.net.config.width}: name a dictionary of this model."
        )
    return OpenDictionary(place, dictionary)


def describe_start(explorer: Explorer) -> dict[str, Any]:
    """What there is from the start: models, facts to pick, names of settings."""
    context = max(model.net.config.context for model in explorer.models.values())
    defaults = {**vars(WriteSettings()), "temperature": 0.0, "length": min(STUDY_LENGTH, context)}
    return {
        "models": [_describe_model(key, model) for key, model in explorer.models.items()],
        "facts": _list_facts(explorer.models["model"]),
        "orders": list(ORDERS),
        "remaskings": list(REMASKINGS),
        "corruptions": [name for name in CORRUPTIONS if name != "replace"],  # it needs facts
        "defaults": defaults,
        "features": _describe_features(explorer.features),
    }


def describe_edits(explorer: Explorer) -> dict[str, dict[str, Any]]:
    """The edits that are on, by the key of their model: what was asked for, and what was found."""
    edits = explorer.edits.copy().items()
    return {key: {"request": asdict(kept.request), "end": kept.end} for key, kept in edits}


def _describe_features(opened: OpenDictionary | None) -> dict[str, Any] | None:
    if opened is None:
        return None
    return {"site": opened.dictionary.site, "size": opened.dictionary.size}


def _describe_model(key: str, model: Model) -> dict[str, Any]:
    config, weight = model.net.config, model.net.embedding.weight
    has_mask = model.paradigm.has_mask
    return {
        "key": key,
        "name": model.name,
        "kind": model.kind,
        "layers": config.layers,
        "parameters": sum(each.numel() for each in model.net.parameters()),
        "mask_id": model.mask_id if has_mask else None,
        "fills_masks": model.paradigm.fills_masks,
        "mask_text": MASK if has_mask else None,
        "dtype": name_dtype(weight.dtype),
        "device": str(model.device),
    }


def read_shipped_corpus(model: Model) -> Corpus | None:
    """What a shipped model was trained and tested on; None for other models."""
    (family,) = parse_families([model])
    recipe = family.read_shipped_recipe()
    return None if recipe is None else _make_corpus(recipe["facts"], recipe["seed"])


_make_corpus = cache(make_reversal_corpus)


def _list_facts(model: Model) -> list[dict[str, Any]]:
    """Facts that a shipped model was trained on, each asked both ways; none for other models."""
    corpus, rows = read_shipped_corpus(model), []
    if corpus is None:
        return rows
    for same, reverse in zip(TESTS[::2], TESTS[1::2], strict=True):
        ids = list(dict.fromkeys(fact.fact_id for fact in corpus[same]))[:FACTS_SHOWN]
        for fact_id, split in product(ids, (same, reverse)):
            fact = next(each for each in corpus[split] if each.fact_id == fact_id)
            texts = {"subject": fact.prompt[slice(*fact.subject_span)]}
            texts |= {"answer": fact.completion[slice(*fact.object_span)]}
            way = {"way": "as trained" if split == same else "reversed", "split": name_split(split)}
            rows.append({"prompt": fact.prompt, "span": list(fact.subject_span)} | texts | way)
    return rows


def list_measured_runs(explorer: Explorer) -> list[dict[str, Any]]:
    """The runs that are there by now, and what each of them measured."""
    return [_describe_run(name, folder) for name, folder in explorer.list_runs().items()]


def _describe_run(name: str, folder: Path) -> dict[str, Any]:
    try:
        verb = read_record(folder).verb
    except UserError as error:
        return {"name": name, "measures": [], "error": str(error)}
    stages = sorted(path.parent.name for path in folder.glob(f"*/{RECORD}"))
    return {"name": name, "measures": stages if verb == "study" else [verb]}


def draw_run(explorer: Explorer, name: str) -> str:
    """The report of a run as an HTML page."""
    from unmask.report.document import read_document
    from unmask.report.render_html import render_html

    runs = explorer.list_runs()
    if name not in runs:
        known = suggest(name, runs) if runs else "start with --runs FOLDER to have some"
        raise UserError(f"there is no run {name!r:.60} here: {known}.")
    return render_html(read_document([runs[name]]))
