"""correctors: how far samplers are from a known distribution, at equal numbers of network calls.

The network is replaced by the exact conditionals of a known distribution (the law). There are two
kinds: small languages, which are random distributions over all texts of four tokens from a
vocabulary of three, and a Markov chain over texts of sixteen tokens from a vocabulary of eight
(each token stays or goes on to the next one; any other pair is a slip). Whatever is wrong with the
texts is then the sampler's doing.

Bias: texts of the exact law are corrected once, or until nothing changes any more; the total
variation distance to the law afterwards, by enumeration without sampling. 0 is exact. Samplers:
texts are drawn in several numbers of steps, by the linear plan in random order. A corrector's
network calls are counted, and remaskings (ReMDM's strategies, ancestral plan) take as many steps as
it takes calls. Total variation is over whole texts of the small languages, and over pairs of
neighbouring tokens of the chain. A finite sample of the law itself is at some distance from it,
too: the row "the law itself" is the floor. Intervals are 95 % intervals by language or, for the
chain, by draw; differences are paired by these.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from unmask.base.config import CheckedSettings, option
from unmask.base.errors import UserError
from unmask.blocks import tidy
from unmask.blocks.blocks import Fold, Notice, ReportBlock, Text
from unmask.evaluation.statistics import ENOUGH
from unmask.measures.measure import Argument, Job, Measure, Rows, Summary, Tables
from unmask.measures.result import Result
from unmask.results.comparison import Comparison, Factor, Quantity

if TYPE_CHECKING:
    from unmask.experiments.correctors.laws import MarkovChain, SmallLanguage

EXACT, ALONE = "the law itself", "no corrector"
MANY = 64
"""Corrections after which nothing changes any more."""


@dataclass(frozen=True, kw_only=True)
class CorrectorsSettings(CheckedSettings):
    """Which correctors and remaskings are compared, on how many texts."""

    correctors: tuple[str, ...] = option(
        ("uniform=1", "uniform=3", "margin=1", "gumbel=1/1", "gumbel=2/1", "accepted=1"),
        "Correctors: uniform=K, margin=K, gumbel=K/T or accepted=T, for K tokens and the "
        "temperature T of their choice; a slash stands for the comma of `unmask sample`.",
    )
    remaskings: tuple[str, ...] = option(
        ("cap=0.02", "rescale=0.05", "conf", "loop"),
        "Remaskings at as many calls: cap, rescale, conf, loop or low, some with =NUMBER.",
    )
    languages: int = option(6, "Small languages: random laws of short texts.", least=1, most=1000)
    draws: int = option(6, "Independent sets of texts from the Markov chain.", least=1, most=1000)
    rows: int = option(
        500,
        "Texts of a set from the chain; of a language eight times as many.",
        least=1,
        most=10**6,
    )
    most_calls: int = option(100, "Network calls per text at most; more are left out.", least=1)
    seed: int = option(0, "Seed of languages and draws.", least=0)

    def _problems(self) -> Iterator[str]:
        from unmask.sampling.correctors import get_corrector
        from unmask.sampling.remasking import get_remasking

        named: list[Any] = [(get_corrector, name.replace("/", ",")) for name in self.correctors]
        named += [(get_remasking, name) for name in self.remaskings]
        for get, name in named:
            try:
                get(name)
            except UserError as error:
                yield str(error).removesuffix(".")


@dataclass(frozen=True)
class ExactToys:
    """No model and no data: the laws are made from the settings."""

    def parameters(self) -> Sequence[Argument]:
        return ()

    def read(self, given: Mapping[str, Any], settings: CheckedSettings) -> "ExactToys":
        if given.get("models") or given.get("data") is not None:
            raise UserError(
                "models or data were given: these are compared on exact laws, made from the "
                "settings; leave models and data out."
            )
        return self

    def record(self) -> dict[str, Any]:
        return {}


def list_jobs(inputs: ExactToys, settings: CorrectorsSettings) -> Iterator[Job]:
    """One part for each language and each draw from the chain."""
    from unmask.base.seeds import derive_seed
    from unmask.experiments.correctors.laws import MarkovChain, SmallLanguage

    def measure_language(number: int) -> Mapping[str, Rows]:
        law = SmallLanguage(seed=derive_seed(settings.seed, "language", number) % 2**31)
        rows = _draw_all(law, "language", number, 8 * settings.rows, settings)
        return {"correctors": rows, "bias": list(_list_biases(law, number, settings))}

    def measure_chain(number: int) -> Mapping[str, Rows]:
        return {"correctors": _draw_all(MarkovChain(), "chain", number, settings.rows, settings)}

    for number in range(settings.languages):
        yield Job(f"language-{number}", partial(measure_language, number))
    for number in range(settings.draws):
        yield Job(f"chain-{number}", partial(measure_chain, number))


def _list_biases(
    law: "SmallLanguage", number: int, settings: CorrectorsSettings
) -> Iterator[dict[str, Any]]:
    from unmask.experiments.correctors.laws import find_bias, find_kernel
    from unmask.sampling.correctors import get_corrector

    for name in settings.correctors:
        corrector = get_corrector(name.replace("/", ","))
        if corrector is not None:
            kernel = find_kernel(law, corrector)
            for times, masked in ((1, 0.0), (MANY, 0.0), (1, 0.5)):
                bias = find_bias(law, kernel, masked, times)
                row = {"fact": f"language-{number}", "seed": 0, "corrector": name}
                yield row | {"corrections": times, "masked": masked, "tv": bias}


def _draw_all(
    law: "SmallLanguage | MarkovChain",
    toy: str,
    number: int,
    rows: int,
    settings: CorrectorsSettings,
) -> list[dict[str, Any]]:
    """A row for each sampler: the predictor alone, correctors, and remaskings at their calls."""
    from unmask.base.seeds import derive_seed
    from unmask.experiments.correctors.laws import ExactModel, MarkovChain
    from unmask.sampling.texts import sample

    model, seed = ExactModel.make(law), derive_seed(settings.seed, toy, number, "texts") % 2**31
    results: list[dict[str, Any]] = []

    def keep(sampler: str, family: str, steps: int, calls: int, tokens: Any) -> None:
        slips = law.count_slips(tokens) if isinstance(law, MarkovChain) else None
        results.append(
            {"fact": f"{toy}-{number}", "seed": 0, "toy": toy, "sampler": sampler}
            | {"family": family, "steps": steps, "calls": calls}
            | {"tv": law.find_distance(tokens), "slips": slips}
        )

    def draw(sampler: str, family: str, steps: int, **more: Any) -> None:
        shared: dict[str, Any] = {"plan": "linear", "order": "random", "temperature": 1.0}
        shared |= {"seed": seed, "length": law.length, "keep_states": False} | more
        drawn = sample(model, [[]] * rows, steps=steps, **shared)
        keep(sampler, family, steps, drawn.calls, drawn.tokens)

    keep(EXACT, "exact", 0, 0, law.draw(rows, seed))
    whole = [steps for steps in range(1, law.length + 1) if law.length % steps == 0]
    for steps in whole:
        draw(ALONE, "predictor", steps)
    for name in settings.correctors:
        for steps in whole[:-1]:
            if steps > 1 and _count_calls(name, steps, law.length) <= settings.most_calls:
                draw(name, "corrector", steps, corrector=name.replace("/", ","))
    counts = sorted({row["calls"] for row in results if row["family"] == "corrector"})
    for calls in counts:
        draw("ancestral steps", "ancestral", calls, plan="ancestral")
        for name in settings.remaskings:
            draw(name, "remasking", calls, plan="ancestral", remask=name)
    return results


def _count_calls(name: str, steps: int, length: int) -> int:
    """Network calls of steps and corrections, each step writing as many tokens."""
    choice, _, numbers = name.partition("=")
    k = int(float(numbers.split("/")[0])) if numbers and choice != "accepted" else 1
    written = [length // steps * (i + 1) for i in range(steps)]
    cost = {"uniform": lambda n: min(k, n), "accepted": lambda n: 2 * n, "none": lambda n: 0}
    return steps + sum(cost.get(choice, lambda n: n + min(k, n))(n) for n in written)


DISTANCE = Quantity("total variation distance", digits=3)
LAW = Factor("toy", "law", {"language": "small languages", "chain": "Markov chain"})
COLOURS = {"uniform": "p0", "margin": "p1", "gumbel": "p2", "accepted": "p3"}
"""Colours of correctors by their choice; all other samplers are controls."""
BIAS = Comparison(
    metrics={"tv": DISTANCE},
    groups=(
        Factor("corrector", "corrector"),
        Factor("corrections", "corrections"),
        Factor("masked", "masked before", tidy.say_share),
    ),
    names=("bias", ""),
    title="Bias of correctors",
    means="Bias: total variation distance to the law after its texts are corrected; 0 is exact",
)
SAMPLERS = Comparison(
    metrics={"tv": DISTANCE, "slips": Quantity("slips", "of pairs", digits=4)},
    groups=(LAW,),
    variant=Factor("sampler", "sampler"),
    axis=Factor("calls", "network calls"),
    compared=("tv",),
    counted="languages or draws",
    names=("samplers", "differences"),
    title="Distance from the law, by network calls",
    caption="Total variation distance; 0 is exact. Bands are 95 % intervals by language or draw.",
    means="Distance of each sampler from the law; slips: token pairs that the chain hardly has",
    differences="Total variation distance of correctors minus that of other samplers at as many "
    "network calls; below 0: the corrector is nearer to the law",
    most=130,
)


def summarise(tables: Tables, settings: CorrectorsSettings) -> Summary:
    """Biases, distances of all samplers, and of correctors minus others at as many calls."""
    rows, bias = (tables[name].to_pylist() for name in ("correctors", "bias"))
    rows.sort(key=lambda row: (row["toy"] == "chain", row["calls"]))
    families = dict(tidy.distinct(rows, "sampler", "family"))
    correctors = [name for name, family in families.items() if family == "corrector"]
    pairs = product(correctors, [name for name in families if name not in correctors])
    return {
        "bias": BIAS.average(bias),
        "samplers": SAMPLERS.average(rows, "calls", "steps", "family"),
        "differences": replace(SAMPLERS, against=list(pairs)).subtract(rows, "calls"),
    }


def describe(result: Result) -> Sequence[ReportBlock]:
    """How many comparisons correctors win, the biases, the figure, and the tables."""
    names = ("bias", "samplers", "differences")
    bias, samplers, differences = (result.summary[name] for name in names)
    figure = SAMPLERS.draw(
        [row for row in samplers if row["family"] != "exact"],
        colour=lambda row: COLOURS.get(row["sampler"].partition("=")[0], "control"),
        dash=lambda row: {"corrector": "solid", "predictor": "dash"}.get(row["family"], "dot"),
        panel=LAW.get,
        choose=(),
        is_log2=True,
    )
    tables = SAMPLERS.tabulate(samplers, steps="steps"), SAMPLERS.tabulate_differences(differences)
    return [*_state(differences), BIAS.tabulate(bias), figure, Fold("All samplers", tables)]


def _state(differences: Rows) -> Iterator[ReportBlock]:
    """For each law, how often each corrector is nearer to it than other samplers."""
    rows = [row for row in differences if row["minus"] != ALONE]
    for law, alike in tidy.group_by(rows, LAW.get).items():
        counts = []
        for name, members in tidy.group_by(alike, "sampler").items():
            won, lost = (sum(row["outcome"] == x for row in members) for x in ("below", "above"))
            counts.append(f"`{name}` nearer in {won} and further in {lost} of {len(members)}")
        yield Text(
            "Comparisons with remaskings and plain ancestral steps at as many network calls that "
            f"are clear, {law}: {'; '.join(counts)}."
        )
    if any(row["facts"] < ENOUGH for row in rows):
        yield Notice(
            f"There are fewer than {ENOUGH} languages or draws, too few to call a difference clear."
        )


MEASURE = Measure(
    name="correctors",
    title="Correctors and remaskings on known distributions",
    help="How far correctors and remaskings are from a known distribution, at equal network calls.",
    settings=CorrectorsSettings,
    tables={"correctors": "correctors/1", "bias": "bias/1"},
    inputs=ExactToys(),
    jobs=list_jobs,
    summarise=summarise,
    describe=describe,
    method=__doc__,
)
