"""bench: which methods find what carries an answer, where the mechanism is known?

Networks with hand-written weights answer facts by six mechanisms, at several depths, in several
bases, masked and causal (`unmask.compiled`). Every method scores states (the stream after a layer,
what attention and what the MLP adds, at each position and denoising step) or edges of attention, by
how much the next word of an answer depends on them. It sees the model and questions with their
answers; the mechanism stays with the programs that the weights are made from.

A state matters where exchanging it for the same state of another question changes the word in the
program, and is enough where it brings the other's; an edge matters where the word changes without
it. The method `interchange` makes the same exchanges in the network: its score shows that networks
do what their programs say. Networks may also be trained to have a mechanism
(`unmask.compiled.forced`): of these the stream alone is scored, at states whose exchange leaves the
program with a word, and the edges that it decides: one that reads or feeds a state which may be
another question's carries nothing, and one that leads from the only state that the word depends on
to the only one of the next layer carries it.

AUROC is how often a place that matters scores above one that does not: 0.5 is chance. A place is
called clear above the threshold that does best on hand-written networks of other mechanisms. Among
the strongest: the share of places that matter among as many of the highest scores. Passes are texts
through the whole network; gradients are not counted. Intervals are 95 % intervals by network, of
which those of one mechanism are much alike.

One store or two: what a method says that both directions of a fact share, held against whether the
network has one entry for both or one for each. The threshold comes from other mechanisms.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from unmask.base.config import CheckedSettings, option
from unmask.base.errors import UserError
from unmask.base.runs import DIGESTS
from unmask.compiled.mechanisms import MECHANISMS
from unmask.experiments.bench.section import describe, summarise
from unmask.measures.measure import Argument, Job, Measure, Rows

if TYPE_CHECKING:
    from torch import Tensor

    from unmask.experiments.bench.networks import KnownNetwork


@dataclass(frozen=True, kw_only=True)
class BenchSettings(CheckedSettings):
    """Which methods are scored on which networks."""

    filled = ("mechanisms",)
    distinct = ("methods", "mechanisms")

    methods: tuple[str, ...] = option(
        (), "Methods, also other packages'; all of them by default.", plugin="method"
    )
    mechanisms: tuple[str, ...] = option(
        MECHANISMS, "Mechanisms of the networks.", choices=lambda: MECHANISMS
    )
    forms: int | None = option(
        None, "Hand-written networks of each mechanism; all of them by default.", least=0
    )

    def _problems(self) -> Iterator[str]:
        from unmask.experiments.bench.methods import METHODS

        for name in self.methods:
            if name not in METHODS:
                yield f"'methods' has {name!r}, expected some of {', '.join(METHODS)}"


@dataclass(frozen=True)
class KnownNetworks:
    """Networks that are made from the settings, and folders of trained ones."""

    trained: "Sequence[KnownNetwork]" = ()

    def parameters(self) -> Sequence[Argument]:
        help = "Folders of networks that were trained to have a mechanism (paper/forced.py)."
        return (Argument("models", help, "FOLDER…", is_list=True, is_required=False),)

    def read(self, given: Mapping[str, Any], settings: CheckedSettings) -> "KnownNetworks":
        from unmask.experiments.bench.networks import read_trained

        if given.get("data") is not None:
            raise UserError(
                "data were given: networks whose mechanism is known have their own questions; "
                "leave the data out."
            )
        return KnownNetworks(read_trained(given.get("models") or ()))

    def record(self) -> dict[str, Any]:
        from unmask.base.identity import digest_path

        folders = {each.name: each.folder for each in self.trained if each.folder is not None}
        return {
            "networks": {name: str(folder) for name, folder in folders.items()},
            DIGESTS: {name: {"contents": digest_path(each)} for name, each in folders.items()},
        }


def list_jobs(inputs: KnownNetworks, settings: BenchSettings) -> Iterator[Job]:
    """One part for what is true of each network, and one for each method and network."""
    from unmask.experiments.bench.methods import METHODS
    from unmask.experiments.bench.networks import list_networks, list_truth

    def list_true(network: "KnownNetwork") -> Mapping[str, Rows]:
        rows = list_truth(network.compiled, network.folder is not None)
        return {"truth": [network.columns | row for row in rows]}

    for network in [*list_networks(settings.mechanisms, settings.forms), *inputs.trained]:
        yield Job(f"{network.name}-truth", partial(list_true, network))
        for name in settings.methods or METHODS:
            yield Job(f"{network.name}-{name}", partial(ask_method, name, network))


def ask_method(name: str, network: "KnownNetwork") -> Mapping[str, Rows]:
    """The scores of a method on a network, what they cost, and what it says is shared."""
    from unmask.experiments.bench.methods import METHODS, Locator, Mapped, NotApplicableError
    from unmask.experiments.bench.task import count_positions, list_localisations

    known, method, compiled = network.columns, METHODS[name], network.compiled
    method = method if isinstance(method, Locator) else Mapped(method)
    here, there = (list_localisations(compiled, verb) for verb in range(2))
    rows, begin = [], time.perf_counter()
    try:
        with count_positions(compiled.model) as cost:
            for task in here:
                for place in _list_scores(method.localise(task)):
                    rows.append(
                        {"network": known["network"], "method": name, "step": task.step, **place}
                    )
        seconds = time.perf_counter() - begin
        shared = method.compare(here[0], there[0])
    except NotApplicableError:
        return {}
    whole = compiled.model.net.config.layers * here[0].tokens.shape[1]
    run = {"method": name, "passes": cost.positions / whole, "seconds": seconds, "shared": shared}
    return {"bench": rows, "runs": [known | run]}


def _list_scores(scores: "Mapping[str, Tensor]") -> Iterator[dict[str, Any]]:
    import numpy as np

    from unmask.experiments.bench.task import EDGES

    for part, values in scores.items():
        for place, score in np.ndenumerate(values.float().numpy()):
            layer, at, is_read = place if part == EDGES else (place[1], place[0], None)
            yield {
                "part": part,
                "layer": layer,
                "position": at,
                "is_read": is_read,
                "score": float(score),
            }


MEASURE = Measure(
    name="bench",
    title="Methods on networks whose mechanism is known",
    help="Score methods that locate facts on networks whose mechanism is known.",
    settings=BenchSettings,
    tables={"bench": "bench/1", "runs": "runs/1", "truth": "truth/1"},
    inputs=KnownNetworks(),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
