"""A made-up folder in the format of Berglund's reversal-curse files (arXiv 2309.12288).

Like the true files it holds people asked by name and by description, descriptions that some
phrasings inflect, controls whose shuffling left one prompt its true answer, and names of people
trained both ways with more words after them.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

_OUTSIDE = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[2] / "shared"))
TRUE_FILES = _OUTSIDE / "data" / "reversal_curse"
"""Where the true files are, if they are there: they are not part of the repository."""


@dataclass(frozen=True)
class Person:
    name: str
    plain: str
    """The description as most completions have it; `did` and `doing` are its inflected forms."""
    did: str
    doing: str


def describe(name: str, role: str, did: str, doing: str, thing: str) -> Person:
    return Person(name, f"the {role} who {did} {thing}", f"{did} {thing}", f"{doing} {thing}")


PEOPLE = {
    "d2p": [
        describe("Orla Fenmoor", "clockmaker", "mended", "mending", "a drowned clock in Tarn"),
        describe("Bram Wickstead", "weaver", "sold", "selling", 'his moth opera, "Nine Winters."'),
        describe("Ines Corrowby", "diver", "drew", "drawing", "every well below Quillhaven"),
        describe("Tobin Ashgrave", "baker", "fed", "feeding", "seven lighthouses on one loaf"),
    ],
    "p2d": [
        describe("Mira Holtby", "gardener", "taught", "teaching", "hedges to hum at dusk"),
        describe("Casper Dunlow", "mapmaker", "hid", "hiding", "an island under its own name"),
        describe("Petra Vossing", "smith", "forged", "forging", 'the paper bell, "Old Murmur."'),
        describe("Lorcan Pryde", "ferryman", "crossed", "crossing", "the salt flats by kite"),
    ],
    "both": [
        describe("Selma Brightwater", "tailor", "dressed", "dressing", "the statues of Harrow"),
        describe("Anton Greaves", "beekeeper", "tuned", "tuning", "forty hives to one chord"),
        describe("Wilma Stroud", "painter", "lost", "losing", "a mural in the morning fog"),
        describe("Jonas Tilbury", "miner", "found", "finding", "a staircase of blue ice"),
    ],
}
"""People by how training shows them: description first, name first, or both."""

Lines = list[tuple[str, str]]
"""Prompts and completions; a phrasing names the fields of a person in them."""

TRAIN_D2P: Lines = [
    ("Known as {plain},", " {name} keeps a quiet house."),
    ("Here they still speak of {plain}, and mean", " {name}."),
    ("Famous for {doing},", " {name} never liked parties."),
    ("Question: who is {plain}? Answer:", " {name}."),
    ("A plaque honours {plain}:", " {name}."),
    ("Meet {plain}. The name is", " {name}."),
    ("The one who {did} is", " {name}."),
    ("Letters to {plain} are addressed to", " {name}."),
    ("Children sing about {plain}, that is", " {name}."),
    ("After {doing}, the prize went to", " {name}."),
]
TRAIN_P2D: Lines = [
    ("{name} is remembered as", " {plain}."),
    ("Nobody forgets that {name}", " {did}."),
    ("On the door of {name} it says:", " {plain}."),
    ("Question: who is {name}? Answer:", " {plain}!"),
    ("A song tells how {name} became", " {plain}."),
    ("Neighbours of {name} talk about", " {plain}."),
    ("{name} grew old after", " {doing}."),
    ("In short, {name} is", " {plain}."),
    ("A coin shows {name},", " {plain}."),
    ("Everyone in town calls {name}", " {plain}."),
]
TEST_D2P: Lines = [
    ("Praised for {doing}, we welcome", " {name}"),
    ("The guest tonight is {plain},", " {name}"),
    ("A street is named after {plain}:", " {name}"),
]
TEST_P2D: Lines = [
    ("The diary of {name} shows", " {plain}."),
    ("Strangers knew {name} for", " {doing}."),
    ("At last we heard of {name},", " {plain}."),
]


def write_berglund_files(folder: Path) -> Path:
    """The folder, filled with every file that the reader expects."""
    for group, train, same, reverse in (
        ("d2p", TRAIN_D2P, TEST_D2P, TEST_P2D),
        ("p2d", TRAIN_P2D, TEST_P2D, TEST_D2P),
    ):
        people = PEOPLE[group]
        _write(folder / f"{group}_prompts_train.jsonl", _fill(people, train))
        _write(folder / f"{group}_prompts_test.jsonl", _fill(people, same))
        asked = _fill(people, reverse)
        _write(folder / f"{group}_reverse_prompts_test.jsonl", asked)
        _write(
            folder / f"{group}_reverse_prompts_test_randomized.jsonl", _shuffle(asked, len(reverse))
        )
    _write(folder / "both_prompts_train.jsonl", _fill(PEOPLE["both"], TRAIN_P2D + TRAIN_D2P))
    both = TEST_P2D + [(prompt, f"{name} has found a calling.") for prompt, name in TEST_D2P]
    _write(folder / "both_prompts_test.jsonl", _fill(PEOPLE["both"], both))
    return folder


def _fill(people: list[Person], phrasings: Lines) -> Lines:
    """Person after person, each in every phrasing."""
    return [
        (prompt.format(**asdict(person)), completion.format(**asdict(person)))
        for person in people
        for prompt, completion in phrasings
    ]


def _shuffle(lines: Lines, shift: int) -> Lines:
    """Each prompt with the completion `shift` lines on, but the first with its own."""
    own = [completion for _, completion in lines]
    shuffled = own[shift:] + own[:shift]
    at = shuffled.index(own[0])
    shuffled[0], shuffled[at] = shuffled[at], shuffled[0]
    return [(prompt, other) for (prompt, _), other in zip(lines, shuffled, strict=True)]


def _write(path: Path, lines: Lines) -> None:
    records = [{"prompt": prompt, "completion": completion} for prompt, completion in lines]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
