"""What the numbers of symmetry say, in plain words, by fixed rules.

What passes the corrected test is told, what does not is told to have not been found.
"""

from collections.abc import Mapping, Sequence

from unmask.evaluation.statistics import ALPHA
from unmask.report.markdown import format_table
from unmask.report.symmetry_table import LABELS, describe_facts
from unmask.representation.symmetry import ASKED, OVERLAP, Difference, Line

CLEAREST = 5
"""Differences between models that are told one by one."""


def conclude(lines: Sequence[Line], differences: Sequence[Difference]) -> str:
    """A sentence for each model, group of facts and comparison; of layers, the best is told."""
    told = []
    for (model, kind, group), members in _group(lines).items():
        sentences, silent, flat = [], [], []
        for comparison in dict.fromkeys(line.comparison for line in members if not line.is_control):
            mine = [ln for ln in members if ln.comparison == comparison and ln.is_tested]
            if not mine:
                flat.append(comparison)
            elif any(line.p_holm <= ALPHA for line in mine):
                sentences.append(_tell_comparison(comparison, mine, members))
            else:
                silent.append(comparison)
        if silent:
            sentences.append(
                f"No measure tells true pairs from shuffled ones after correction in {len(silent)} "
                f"of {len(silent) + len(sentences)} comparisons ({'; '.join(silent)})."
            )
        if flat:
            sentences.append(
                f"Not measurable, since one side is the same for all facts: {'; '.join(flat)}."
            )
        layers = sorted({line.layer for line in members})
        where = f"layer{'s' if len(layers) > 1 else ''} {_enumerate(layers)}"
        facts = describe_facts(group, members[0])
        told.append(f"- **{model} ({kind}), {where}, {facts}.** " + " ".join(sentences))
    if differences:
        told.append(_tell_differences(differences))
    return "\n".join(told)


def tabulate_layers(lines: Sequence[Line]) -> str:
    """How many measures tell true pairs apart, and how often a value finds its key, by layer."""
    layers = sorted({line.layer for line in lines})
    rows = []
    for (model, _, group), members in _group(lines).items():
        for comparison in dict.fromkeys(line.comparison for line in members):
            mine = [line for line in members if line.comparison == comparison]
            cells = [_tell_cell([line for line in mine if line.layer == each]) for each in layers]
            rows.append([model, group, comparison, *cells])
    header = ["model", "facts trained", "comparison", *(f"layer {layer}" for layer in layers)]
    return format_table(header, rows)


def find_best_layers(lines: Sequence[Line]) -> set[int]:
    """Where each model tells keys and values apart best: by measures passed, then by retrieval."""
    best = set()
    for model in dict.fromkeys(line.model for line in lines):
        asked = [
            line
            for line in lines
            if line.model == model and line.comparison.endswith(ASKED) and line.is_tested
        ]
        scores = {
            layer: (
                sum(line.p_holm <= ALPHA for line in asked if line.layer == layer),
                sum(
                    ln.found.value.mean
                    for ln in asked
                    if (ln.layer, ln.measure) == (layer, "retrieval")
                ),
            )
            for layer in dict.fromkeys(line.layer for line in asked)
        }
        if scores:
            best.add(max(scores, key=lambda layer: scores[layer]))
    return best


def _group(lines: Sequence[Line]) -> dict[tuple[str, str, str], list[Line]]:
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.model, line.kind, line.group), []).append(line)
    return groups


def _tell_comparison(comparison: str, mine: Sequence[Line], members: Sequence[Line]) -> str:
    """At which layers true pairs are told apart, and by what at the layers that do it best."""
    passed: dict[int, list[str]] = {}
    for line in mine:
        if line.p_holm <= ALPHA:
            passed.setdefault(line.layer, []).append(line.measure)
    most = max(map(len, passed.values()))
    best = {layer: found for layer, found in sorted(passed.items()) if len(found) == most}
    of = sum(line.layer == next(iter(best)) for line in mine)
    which, listed = f"all {of}", ""
    if most < of:
        which, listed = f"{most} of {of}", f" ({_list_measures(best)})"
    place = ""
    if len({line.layer for line in mine}) > 1:
        place = f" at layer{'s' * (len(best) > 1)} {_enumerate(list(best))}"
        if fewer := sorted(passed.keys() - best.keys()):
            place += f", fewer at {_enumerate(fewer)}"
    name = comparison[0].upper() + comparison[1:]
    tell = "tells" if most == 1 else "tell"
    sentence = f"{name}: {which} measures {tell} true pairs apart{place}{listed}"
    return f"{sentence}{_tell_v0(comparison, best, members)}."


def _list_measures(best: Mapping[int, Sequence[str]]) -> str:
    """The measures by name, layer by layer where they are not the same in all."""
    told = {layer: "; ".join(LABELS[name] for name in found) for layer, found in best.items()}
    if len(set(told.values())) == 1:
        return next(iter(told.values()))
    return " – ".join(f"layer {layer}: {names}" for layer, names in told.items())


def _tell_v0(comparison: str, best: Mapping[int, Sequence[str]], members: Sequence[Line]) -> str:
    """Which of the measures tell pairs apart before any search as well."""
    control = comparison.replace(ASKED, "key and v0")
    if control == comparison:
        return ""
    told = {}
    for layer, found in best.items():
        also = {
            line.measure
            for line in members
            if (line.comparison, line.layer) == (control, layer) and line.p_holm <= ALPHA
        }
        if shared := [name for name in found if name in also]:
            who = f"{len(shared)} of them"
            if len(shared) == len(found):
                who = "it" if len(found) == 1 else "they"
            told[layer] = f"{who} {'does' if len(shared) == 1 else 'do'} so"
    if not told:
        return ""
    said = ", ".join(f"at layer {layer} {each}" for layer, each in told.items())
    if len(told) == len(best) and len(set(told.values())) == 1:
        said = next(iter(told.values()))
    return f"; {said} with v0 as well, so that the search is not needed for it"


def _tell_differences(differences: Sequence[Difference]) -> str:
    asked = [
        each for each in differences if each.comparison.endswith(ASKED) and each.measure != OVERLAP
    ]
    clear = [each for each in asked if not each.value.low <= 0 <= each.value.high]
    clear.sort(key=lambda each: -min(abs(each.value.low), abs(each.value.high)))
    told = (
        f"- **Between models** {len(clear)} of {len(asked)} differences of *key and value* have "
        "intervals that leave out 0 (not corrected for their number)"
    )
    if clear:
        which = f", the clearest {CLEAREST}" if len(clear) > CLEAREST else ""
        told += f"{which}: " + "; ".join(map(_tell_difference, clear[:CLEAREST]))
    return told + "."


def _tell_difference(each: Difference) -> str:
    value = each.value
    return (
        f"{each.one} − {each.other}, {each.group}, layer {each.place}, {each.comparison}, "
        f"{LABELS[each.measure]}: {value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]"
    )


def _tell_cell(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    tested = [line for line in lines if line.is_tested]
    if not tested:
        return "–"
    passed = sum(line.p_holm <= ALPHA for line in tested)
    hits = next((line.found.value.mean for line in tested if line.measure == "top-1"), None)
    told = f"{passed} of {len(tested)}" + ("" if hits is None else f", {100 * hits:.0f} %")
    return f"**{told}**" if passed else told


def _enumerate(layers: Sequence[int]) -> str:
    *most, last = map(str, layers)
    return f"{', '.join(most)} and {last}" if most else last
