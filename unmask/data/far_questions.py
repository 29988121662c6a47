"""Berglund's facts in phrasings that end as no training prompt does.

His test phrasings share many endings with those of training ("… is known as"), so that a model may
answer an ending that it knows. The phrasings here, of `assets/reversal-curse-far.yaml`, share none:
splits `…_far`, and for choosing settings others in `…_far_valid`.
"""

from collections.abc import Mapping
from importlib.resources import files

from unmask.base.reading import parse_yaml
from unmask.data.facts import OTHER_WAY, Direction, Fact, Trained

FILE = "reversal-curse-far.yaml"
_ENDINGS = {"test": ("_far", 40), "valid": ("_far_valid", 60)}
"""What the splits of each set of phrasings are called, and the number of its first phrasing."""


def make_far_splits(splits: Mapping[str, list[Fact]]) -> dict[str, list[Fact]]:
    """The far splits of both groups of one-way facts, which are taken from the near tests."""
    phrasings = parse_yaml(files("unmask.assets").joinpath(FILE).read_text("utf-8"), FILE)
    far: dict[str, list[Fact]] = {}
    for group, named in (("d2p", "d2p_reverse"), ("p2d", "p2d_same")):
        people = {fact.fact_id: fact for fact in splits[named]}
        ways: tuple[tuple[Trained, Direction], ...] = ("same", group), ("reverse", OTHER_WAY[group])
        for trained, way in ways:
            for kind, (ending, first) in _ENDINGS.items():
                frames = enumerate(phrasings[way][kind], first)
                far[f"{group}_{trained}{ending}"] = [
                    _ask(frame, number, way, trained, fact)
                    for number, frame in frames
                    for fact in people.values()
                ]
    return far


def _ask(frame: str, number: int, way: Direction, trained: Trained, named: Fact) -> Fact:
    """A question on a fact of which the name is the subject: the frame with its slot filled."""
    name, noun = named.subject, named.object
    slot, subject, object_ = ("{noun}", noun, name) if way == "d2p" else ("{name}", name, noun)
    begin = frame.index(slot)
    return Fact(
        subject=subject,
        object=object_,
        prompt=frame.replace(slot, subject),
        completion=f" {object_}" if way == "d2p" else f" {object_}.",
        subject_span=(begin, begin + len(subject)),
        object_span=(1, 1 + len(object_)),
        direction=way,
        trained=trained,
        fact_id=named.fact_id,
        phrasing=number,
    )
