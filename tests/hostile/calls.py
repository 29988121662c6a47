"""Public calls on a tiny pair of models, and values that their arguments must not take."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, nan
from pathlib import Path
from typing import Any

import torch

import unmask
from tests.hostile.fuzzing import Odd
from tests.hostile.trained import own_drawn, own_lines, run_small_sweep, train
from tests.hostile.values import (
    ANSWER,
    COUNT,
    DEVICE,
    DRAWING,
    DTYPE,
    FACT,
    LAYER,
    MEMORY,
    MODEL,
    NUMBER,
    PATH,
    PLACES,
    PROMPTS,
    SEED,
    SPAN,
    STRATEGIES,
    TOKENS,
)
from tests.study.pair import make_two_way_corpus
from unmask.data.corpus import Corpus
from unmask.data.facts import Fact, tokenize_fact
from unmask.data.sources import split_own
from unmask.dictionaries.dictionary_training import DictionarySettings
from unmask.editing.settings import Editing
from unmask.experiments.guidance.corpus import make_biographies
from unmask.experiments.planted.corpus import make_sealed_corpus
from unmask.measures.table import find_measure
from unmask.representation.prompts import put_before
from unmask.study.settings import StudySettings
from unmask.toy.settings import ToySettings
from unmask.training.data_settings import DataSettings


@dataclass(frozen=True)
class Pieces:
    """What calls are made with."""

    folder: Path
    """Inputs; nothing may change them."""
    model: unmask.Model
    twin: unmask.Model
    corpus: Corpus
    fact: Fact
    represent: Path
    pairs: Path
    """Runs of `represent`: a real one, and one of made-up vectors that is large enough."""

    @property
    def places(self) -> dict[str, str]:
        return {name: str(self.folder / name) for name in ("diffusion", "twin", "corpus")}


@dataclass(frozen=True)
class Call:
    """A call that works as it stands; `bad` has values for arguments, one of them at a time."""

    call: Callable[[Pieces, Path, Mapping[str, Any]], Any]
    """(what to call with, where to write, arguments that differ)"""
    settings: type | None = None
    bad: Mapping[str, list[Any]] = field(default_factory=dict)
    leave_out: tuple[str, ...] = ()
    """Settings that are no arguments of this call."""


SUBJECTS = {"subjects": [None, 3, b"x", "", "no such model", "x" * 10_000, Odd(), [], "a\0b"]}
QUESTIONS = {"data": [3, b"x", "absent", "", "a\0b", Odd(), [], [None], ["x"]], "out": PATH[1:],
             "fresh": [3, "x"], "device": DEVICE, "dtype": DTYPE}  # fmt: skip


def ask(name: str) -> Callable:
    """The call of a measure on the pair's corpus."""

    def call(pieces: Pieces, out: Path, changes: Mapping[str, Any]) -> Any:
        given = {"out": out, "device": "cpu", **TINY.get(name, {})} | dict(changes)
        if name == "symmetry":
            given.pop("device", None)
            return unmask.symmetry(given.pop("subjects", str(pieces.pairs)), **given)
        given = {"data": pieces.corpus} | given
        if name in ("knowns", *RUNNING_TEXT) and given["data"] is pieces.corpus:
            file = "knowns.json" if name == "knowns" else "perplexity.txt"
            given["data"] = pieces.folder / file
        if name in CORPORA and given["data"] is pieces.corpus:
            given["data"] = CORPORA[name]
        return find_measure(name)(given.pop("subjects", pieces.model), **given)

    return call


RUNNING_TEXT = ("perplexity", "quality", "mending", "infilling")
"""Measures whose data are texts, not facts."""
LIVES = [f"Ada ({'born' if i // 2 % 2 else 'in'} {1900 + i}) was {'here ' * 12}" for i in range(24)]
CORPORA = {"planted": make_sealed_corpus(2), "guidance": make_biographies(LIVES, 24)}
CORPORA["relearn"] = BOTH_WAYS = make_two_way_corpus()
SAID = [fact for facts in BOTH_WAYS.splits.values() for fact in facts]
SAID += [replace(put_before("So", fact), phrasing=1) for fact in SAID]
CORPORA["subspaces"] = split_own("own", SAID)
"""Measures that have corpora of their own."""
TINY: dict[str, dict[str, Any]] = {
    "recall": {"limit": 1, "steps": (2,), "guidance": 0.0}, "order": {"limit": 1, "steps": 2},
    "nll": {"limit": 1}, "factorization": {"limit": 1}, "perplexity": {"repeats": 2, "limit": 40},
    "quality": {"judge": "reversal-ar", "texts": 2, "length": 3, "steps": (2,)},
    "mending": {"texts": 2, "length": 8, "calls": (2,)}, "symmetry": {"permutations": 19},
    "infilling": {"texts": 2, "length": 8, "gaps": (1,), "candidates": 1},
    "parallel": {"limit": 1, "steps": (1,), "thresholds": (), "blocks": (), "languages": 1},
    "transparency": {"limit": 1, "steps": 2, "languages": 1, "texts": 2, "states": 1},
    "planted": {"counts": (1,), "shapes": ("prefix",), "at_steps": (1,), "steps": 2, "people": 1,
                "lengths": (40,), "orders": ("left",), "remasks": ("none",), "guidances": (0.0,)},
    "guidance": {"passes": (6,), "strengths": (1.0,), "guidances": (1.0,), "draws": (2,),
                 "texts": 1, "length": 16}, "alignment": {"facts": 2},
    "correctors": {"correctors": ("uniform=1",), "remaskings": ("conf",), "languages": 1,
                   "draws": 1, "rows": 2, "most_calls": 8},
    "gradients": {"number": 2, "length": 2, "draws": 2, "policies": ("table",)},
    "circuit": {"facts": 1, "known": 0, "edges": 1e-3, "strongest": 1e-3, "splits": ("p2d_same",)},
    "subspaces": {"facts": 6, "known": 0, "phrasings": 1, "updates": 1, "rows": 2, "ranks": (2,),
                  "variables": ("fact",), "ways": ("within",), "roles": ("subject",)},
    "bench": {"methods": ("lens",), "mechanisms": ("decoy",), "forms": 1},
    "trace": {"facts": 1, "samples": 1, "steps": 2, "at": ("first",), "splits": ("p2d_same",)},
    "knockout": {"facts": 1, "samples": 1, "steps": 2, "windows": (1,), "splits": ("p2d_same",)},
    "paths": {"facts": 1, "steps": 2, "bands": 1, "heads": False, "splits": ("p2d_same",)},
    "represent": {"facts": 2, "steps": 2, "prefixes": 1, "probes": False},
    "relearn": {"groups": ("both",), "facts": 2, "rehearsed": 0, "updates": 1, "rows": 2},
    "interchange": {"facts": 2, "tokens": ("last",), "layers": (0,), "splits": ("p2d_same",)},
    "erasure": {"facts": 2, "groups": ("p2d",), "phrasings": 1, "states": 4, "starts": (0,)},
    "features": {"facts": 2, "texts": 2, "steps": 2, "size": 16, "k": 2, "train_steps": 2},
    "slots": {"facts": 4, "groups": ("p2d",), "phrasings": 2, "permutations": 19},
    "lens": {"limit": 2, "steps": 2, "splits": ("p2d_same",)},
    "steer": {"words": ("who",), "texts": 2, "lines": 2, "steps": 2, "facts": 1,
              "schedules": ("all",), "strengths": (0.4,)},
    "edit": {"facts": 1, "groups": ("p2d",), "layer": "0", "objects": "swap", "steps": 2,
             "moments": "identity", "prefixes": 1},
}  # fmt: skip
"""What keeps a measure short."""


def trace(function: Callable) -> Callable:
    def call(pieces: Pieces, out: Path, changes: Mapping[str, Any]) -> Any:
        row = tokenize_fact(pieces.fact, pieces.model.tokenizer)
        last = len(row.ids) - 1
        given: dict[str, Any] = {"tokens": row.ids, "subject": row.subject}
        given |= {"answer": {last: row.ids[last]}, "prompt_length": row.prompt_length}
        given |= {"model": pieces.model, "samples": 1} | changes
        first = [given.pop(name) for name in ("model", "tokens", "subject", "answer")]
        return function(*first, **given)

    return call


TRACING = {"model": MODEL, "tokens": TOKENS, "subject": SPAN, "answer": ANSWER,
           "prompt_length": [-1, 99, 1.5, "x", nan, b"1"], "settings": [3, "x", Odd()],
           "corruption": ["x", None, 3, b"x", "gaussian=x", "gaussian=nan", "gaussian=-1", Odd()],
           "metric": ["x", None, 3, b"p", Odd()]}  # fmt: skip
MANY = {"foil": [3, {99: 1}, {6: -1}, {6: 10**9}, "x"], "places": PLACES, "memory": MEMORY}


def with_first(function: Callable, **usual: Any) -> Callable:
    """A call whose arguments are all given by name; `usual` may be functions of the pieces."""

    def call(pieces: Pieces, out: Path, changes: Mapping[str, Any]) -> Any:
        made = {k: v(pieces, out) if callable(v) else v for k, v in usual.items()} | dict(changes)
        return function(**made)

    return call


def own_model(pieces: Pieces, out: Path) -> Any:
    return pieces.model


def own_fact(pieces: Pieces, out: Path) -> Any:
    return pieces.fact


def own_out(pieces: Pieces, out: Path) -> Any:
    return out


def steer(pieces: Pieces, out: Path, changes: Mapping[str, Any]) -> Any:
    size = pieces.model.net.config.width
    given = {"model": pieces.model, "site": "embed", "direction": torch.ones(size), "steps": 2}
    with unmask.steer(**given | dict(changes)):
        return unmask.sample(pieces.model, "They say", steps=2, length=9)


CUT: dict[str, Any] = {"model": own_model, "fact": own_fact, "steps": 1, "corruption": "mean"}
CUTTING = {"model": MODEL, "fact": FACT, "memory": MEMORY, "step": ["x", 0, -1, nan, b"1", Odd()]}
NODES = [None, "x", (), ("x", 0, "mlp"), ("subject", 99, "mlp"), ("subject", 0, "x"), Odd()]
EXTRACTING = {"model": MODEL, "fact": FACT, "layer": LAYER}
PROCESS = {"num_tokens": COUNT, "schedule": [3, "x", None, Odd()]}
CALLS: dict[str, Call] = {
    **{
        name: Call(ask(name), find_measure(name).settings, SUBJECTS | QUESTIONS)
        for name in ("knowns", *({*TINY} - {"symmetry", "edit", "steer", "correctors", "bench"}))
    },
    # `unmask.steer` steers any sampler: its measure has no public name.
    "steer as a verb": Call(ask("steer"), find_measure("steer").settings, SUBJECTS | QUESTIONS),
    **{name: Call(with_first(getattr(unmask, name), out=own_out, **TINY[name]),
        find_measure(name).settings, {"data": [3, "x"], "out": PATH[1:], "fresh": [3, "x"]})
        for name in ("correctors", "bench", "gradients")},
    "symmetry": Call(ask("symmetry"), find_measure("symmetry").settings,
        SUBJECTS | {"out": PATH[1:]}),
    "read_trajectories": Call(
        with_first(unmask.read_trajectories, model=own_model, path=own_lines),
        bad={"model": MODEL, "path": [*PATH, "absent", "a\0b"], "watch": [3, "x"]}),
    "find_clean_run": Call(
        with_first(unmask.find_clean_run, model=own_model, fact=own_fact, drawn=own_drawn),
        bad={"model": MODEL, "fact": FACT, "drawn": [None, 3, "x", Odd()],
             "row": [-1, 99, "x", nan, 1.5], "any_answer": [3, "x"]}),
    "sample": Call(
        with_first(unmask.sample, model=own_model, prompts="They say Ada", steps=2, length=10),
        unmask.Sampling,
        DRAWING | {"model": MODEL, "prompts": PROMPTS, "settings": [3, "x", Odd()]}),
    "infill": Call(
        with_first(unmask.infill, model=own_model, texts="They say [MASK]*3 boats", steps=2),
        unmask.Sampling,
        STRATEGIES | {"model": MODEL, "texts": PROMPTS},
        leave_out=("length", "chat", "fixed"),
    ),
    "likelihood": Call(
        with_first(unmask.likelihood, model=own_model, text="They say Ada", strata=2, repeats=1),
        bad={"model": MODEL, "text": TOKENS[:3] + TOKENS[3:], "method": ["x", None, 3, b"chain"],
             "prompt": TOKENS[1:], "guidance": NUMBER, "strata": COUNT, "repeats": COUNT,
             "seed": SEED, "order": [3, "x", [0, 0], [99], [1.5], [None]]},
    ),
    "logit_lens": Call(
        with_first(unmask.logit_lens, model=own_model, text="They say [MASK]*2 boats", steps=2),
        bad={"model": MODEL, "text": TOKENS, "steps": COUNT[:6] + COUNT[7:], "row": LAYER,
             "top": COUNT, "positions": ["x", 3, [99], [-1], [None], ["x"], [1.5], []]},
    ),
    "activations": Call(
        with_first(lambda **given: next(iter(unmask.activations(**given))), model=own_model,
                   source="They say Ada", site="layers.0.resid_out"),
        bad={"model": MODEL, "source": [*PROMPTS, []], "site": [None, 3, "x", [], [3], Odd()],
             "states": ["x", 3, None], "batch": COUNT, "rows": COUNT, "buffer": COUNT,
             "seed": SEED, "epochs": COUNT[:6], "length": COUNT[:6], "shard": [3, (2, 2), (0,)],
             "place": [3, (-1, 0), "x"], "steps": [3], "nothing": [3]}),
    "train_dictionary": Call(
        with_first(unmask.train_dictionary, size=4, k=1, steps=1, stream=lambda p, out:
                   unmask.activations(p.model, "layers.0.resid_out", "They say Ada")),
        DictionarySettings, {"stream": [None, 3, "x", Odd()], "out": [3, b"x", "a\0b"]}),
    "steer": Call(steer,
        bad={"model": MODEL, "site": [None, 3, "x"], "steps": COUNT, "strength": [nan, inf, "x"],
             "direction": [None, 3, "x", torch.ones(1, 2)], "schedule": ["x", 3, None, (0,), ()]}),
    "Dictionary": Call(
        with_first(unmask.Dictionary.load, folder=lambda p, out: p.folder / "dictionary"),
        bad={"folder": [*PATH, "absent", "a\0b", "."]}),
    "show": Call(
        with_first(unmask.show, thing=own_model),
        bad={"thing": [None, 3, "x", b"x", Odd(), [], [3]], "is_still": [3, "x"]}),
    "load": Call(
        with_first(unmask.load, name=lambda p, out: p.places["diffusion"], device="cpu"),
        bad={"name": [*PATH, "", "no such model", "x" * 100_000, "a\0b", "../x", "~nobody", "a//b"],
             "device": DEVICE, "dtype": DTYPE,
             "tokenizer": [3, b"x", "absent.json", "a\0b", Odd()]}),
    "save": Call(
        with_first(unmask.save, model=own_model, folder=own_out),
        bad={"model": [*MODEL], "folder": [*PATH, "a\0b"], "dialect": ["x", None, 3, b"unmask"],
             "shard_bytes": COUNT[:-1]}),
    "preset": Call(
        with_first(unmask.preset, name="tiny"),
        bad={"name": ["x", None, 3, b"tiny", ""], "width": COUNT[:-2], "layers": COUNT[:-2],
             "heads": COUNT[:-2], "context": COUNT[:-2], "mlp_width": COUNT[:-2],
             "norm_eps": NUMBER, "rotary_base": NUMBER, "rotary_share": [*NUMBER, 2],
             "residual": [3, None], "no_such_field": [1]},
    ),
    "make_corpus": Call(
        with_first(unmask.make_corpus, out=own_out, facts=1),
        bad={"out": [*PATH, "a\0b"], "facts": COUNT, "seed": SEED, "vocab": COUNT}),
    "read_facts": Call(
        with_first(unmask.read_facts, path=lambda p, out: p.folder / "facts.csv"),
        bad={"path": [*PATH, "", "absent.csv", "a\0b.csv", ".", "x" * 10_000 + ".csv"]}),
    "draw_report": Call(
        with_first(unmask.draw_report, runs=lambda p, out: [p.represent],
                   out=lambda p, out: out.with_suffix(".md")),
        bad={"runs": [None, 3, [], ["absent"], [3], [None], ["a\0b"], b"x", Odd()],
             "out": [3, b"x", "a\0b.md", Odd()]}),
    "extract_key": Call(
        with_first(unmask.extract_key, model=own_model, fact=own_fact, layer=0, prefixes=1),
        bad=EXTRACTING | {"prefixes": [0, -1, 1.5, "x", nan, None, [3]], "length": [1, "x", 10**9]},
    ),
    "extract_value": Call(
        with_first(unmask.extract_value, model=own_model, fact=own_fact, layer=0, steps=1,
                   prefixes=1),
        unmask.Extraction,
        EXTRACTING | {"settings": [3, "x", b"seed", Odd()]}),
    "edit": Call(
        with_first(
            unmask.edit, model=own_model, facts=own_fact, objects="red kites", layers=0, steps=2,
            prefixes=1,
        ),
        Editing,
        {"model": MODEL, "facts": [*FACT, [], [None], ["x"]],
         "objects": [3, b"x", "", " ", [], [None], ["a", "b"], "[MASK]", Odd()],
         "layers": [-1, 99, 1.5, "x", nan, True, b"0", 10**30, [], ["x"], [99], Odd()],
         "moments": [3, "x", Odd()], "settings": [3, "x", Odd()], "length": [1, "x", 10**9]},
    ),
    "Edit": Call(
        with_first(unmask.Edit.load, path=lambda p, out: p.folder / "edit.safetensors"),
        bad={"path": [*PATH, "absent", "a\0b", "."]}),
    "moments": Call(
        with_first(
            unmask.moments, model=own_model, texts=lambda p, out: ["They say Ada"] * 60, layers=0,
            shrink=0.5, length=8,
        ),
        bad={"model": MODEL, "texts": [None, 3, b"x", [], [None], [3], [b"x"], Odd()],
             "layers": [-1, 99, 1.5, "x", nan, True, b"0", 10**30, [], ["x"], [99], None, Odd()],
             "states": ["x", 3, b"met", Odd()], "tokens": COUNT, "seed": SEED,
             "length": [0, 1, -1, 1.5, "x", nan, 10**9, 10**30, b"8"],
             "shrink": [*NUMBER, 2]}),
    "estimate_effects": Call(trace(unmask.estimate_effects), unmask.Tracing, TRACING),
    "trace_tokens": Call(trace(unmask.trace_tokens), unmask.Tracing, TRACING | MANY),
    "trace_steps": Call(
        with_first(unmask.trace_steps, model=own_model, fact=own_fact, samples=1, steps=1),
        unmask.Tracing, {"model": MODEL, "fact": FACT} | MANY),
    "patch_paths": Call(
        with_first(unmask.patch_paths, sender=("subject", 0, "mlp"), receivers=["final"], **CUT),
        unmask.Tracing,
        CUTTING | {"sender": NODES, "receivers": [None, 3, [], [3], ["x"], [[None]], Odd()]}),
    "cut_edges": Call(with_first(unmask.cut_edges, **CUT), unmask.Tracing,
        CUTTING | {"edges": [None, 3, "x", b"x", [], [3], ["x"], [("answer", "x")], Odd()],
                   "foil": MANY["foil"], "window": COUNT[:-2],
                   "layers": [3, "x", [3], [(1, 0)], [(0, 99)], [(nan, 1)], [("a", "b")], Odd()]}),
    "run_study": Call(
        with_first(unmask.run_study, out=own_out, stages=("nll",), size="quick", device="cpu",
                   model=lambda p, out: p.places["diffusion"],
                   data=lambda p, out: p.places["corpus"]),
        StudySettings,
        {"stages": ["x", 3, [3], ["no such stage"], None], "out": PATH, "settings": [3, "x"]}),
    "resume_study": Call(with_first(unmask.resume_study, out=lambda p, out: p.represent),
        bad={"out": [*PATH, "absent", "", "a\0b"]}),
    "run_toy": Call(
        with_first(unmask.run_toy, variants=("masked",), steps=1, samples=1, out=own_out),
        ToySettings,
        {"out": PATH, "settings": [3, "x"]}),
    "train": Call(
        train,
        bad={"recipe": [3, b"x", "", "absent", "a\0b", "absent.yaml", Odd()],
             "out": PATH[1:], "device": DEVICE, "minutes": [0, -1, nan, inf, "x", b"1", Odd()],
             "resume": ["absent", 3, b"x", "a\0b"], "words": [["x"], ["x=1"], ["=1"], ["seed=x"],
             ["batch.rows=0"], ["budget.steps=nan"], ["a=[["], ["seed=1", "data=3"]]}),
    "run_sweep": Call(
        run_small_sweep,
        bad={"file": [None, 3, b"x", "", "absent", "a\0b", "absent.yaml", Odd()], "out": PATH[1:],
             "device": DEVICE, "minutes": [0, -1, nan, inf, "x", b"1", Odd()],
             "words": [["x"], ["grids=[]"], ["batch.rows=0"], ["best=none"], ["a=[["], ["seed=x"]]},
    ),
    "train_seeds": Call(
        with_first(unmask.train_seeds, recipe="reversal-mdm", seeds=[0], out=own_out),
        bad={"recipe": [3, b"x", "", "absent", Odd()], "seeds": [None, 3, "x", [-1], [1.5], ["x"],
             [], [0, 0], [10**30]], "out": PATH[1:], "device": DEVICE},
    ),
    "register": Call(
        with_first(unmask.register, kind="rule", name="x", thing=lambda p, out: max),
        bad={"kind": [None, 3, "x", "", b"rule", {}, Odd()], "thing": [None, 3, "x", {}, Odd()],
             "name": [3, "", "a b", b"x", "a\0b", "x=1", Odd()]}),
    "Tokenizer": Call(
        with_first(unmask.Tokenizer.load, path=lambda p, out: p.folder / "corpus"),
        bad={"path": [*PATH, "absent", "a\0b"], "mask": ["no such token", 10**9, b"x"]}),
    "Transformer": Call(
        with_first(unmask.Transformer, config=lambda p, out: p.model.net.config),
        bad={"config": [None, 3, "tiny", Odd()], "seed": [-1, 1.5, "x", nan, 10**30]}),
    "Masked": Call(with_first(unmask.Masked, num_tokens=9, mask_id=8), bad=PROCESS | {
        "mask_id": [-1, 1.5, "x", None, nan, 10**30]}),
    "Uniform": Call(with_first(unmask.Uniform, num_tokens=9), bad=PROCESS),
    "Hybrid": Call(with_first(unmask.Hybrid, num_tokens=9), bad=PROCESS | {
        "share_start": [*NUMBER, 2], "share_stop": [*NUMBER, 2]}),
    "Gaussian": Call(with_first(unmask.Gaussian, table=lambda p, out: torch.ones(9, 2)), bad={
        "table": [torch.ones(0, 2), torch.ones(1, 2)], "schedule": PROCESS["schedule"]}),
    "Recipe": Call(
        with_first(unmask.Recipe, kind="masked",
                   data=lambda p, out: DataSettings(source="reversal")),
        bad={"kind": ["x", None, 3], "data": [None, 3, "x"], "seed": SEED, "batch": [None, 3]}),
    "NetConfig": Call(
        with_first(unmask.NetConfig, vocab_size=9, width=8, layers=1, heads=2, mlp_width=8),
        unmask.NetConfig,
        {"num_logits": COUNT[:6], "kv_heads": COUNT[:6], "head_width": COUNT[:6], "norm": ["x", 3]},
    ),
}  # fmt: skip
"""By public name."""
NOT_CALLED = {
    **dict.fromkeys(("Extraction", "Sampling", "StudySettings", "ToySettings", "Tracing"),
                    "settings, made by the calls that take them"),
    "Process": "a contract", "Fact": "its files are spoiled", "StepState": "handed to strategies",
    "Model": "loaded parts", "TraceGrid": "a result", "__version__": "a text",
    "corruptions": "functions", "UserError": "raised", "Trajectory": "its files are spoiled",
}  # fmt: skip
"""Public names without a call of their own, and why."""
