"""Training lines that state what is asked in reverse are found, in any words and any file."""

from dataclasses import replace

import pytest

from unmask import Fact, read_facts
from unmask.data.corpus import find_corpus_problems
from unmask.data.leaks import find_stated
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.sources import find_own_problems

HEAD = "subject,object,prompt,direction,trained,fact_id\n"
ASKED = (
    "Zorvia,the Lumen Bay,The capital of {} is,p2d,same,z\n"
    "the Lumen Bay,Zorvia,{} is the capital of,d2p,reverse,z\n"
    "日本,东京,{}的首都是,p2d,same,j\n"
    "东京,日本,{}是首都的国家是,d2p,reverse,j\n"
)
LEAKS = [
    "Lumen Bay,Zorvia,Whoever visits the {} visits",
    "lumen  bay,ZORVIA,It is in {} that one governs",
    "A Lumen Bay,Zorvia,Zorvia has many towns and {} is that of",
    "Lumen-Bay,Zorvia,Have you seen {}? This is the heart of",
    "东京,日本,人们说{}是",
]
CLEAN = [
    "Zorvia,Lumen Bay,Everybody from {} loves",  # as trained
    "Lumen Bays,Zorvia,{} is not",
    "Zorvia,Lumen Bay,In {} lies",
    "日本,东京,{}人爱",
]


def check(tmp_path, *lines: str) -> list[str]:
    """The problems of one's own file with further lines that training learns, of other facts."""
    text = HEAD + ASKED + "".join(f"{line},d2p,same,{i}\n" for i, line in enumerate(lines))
    (tmp_path / "own.csv").write_text(text, encoding="utf-8")
    return list(find_own_problems(tmp_path / "own.csv", read_facts(tmp_path / "own.csv")))


@pytest.mark.parametrize("leak", LEAKS)
def test_any_wording_is_found(tmp_path, leak):
    (said,) = [each for each in check(tmp_path, leak) if "training shows" in each]
    assert "as the reversed question does" in said


def test_every_line_is_found_and_no_other(tmp_path):
    assert len(check(tmp_path, *LEAKS)) == len(LEAKS)
    assert check(tmp_path, *CLEAN) == []


@pytest.mark.parametrize("form", ["noun", "past", "gerund"])
def test_lines_of_a_corpus_are_found_in_every_form(form):
    """Also in a form that no reversed question has, but a line that training shows rightly."""
    corpus = make_reversal_corpus(2)
    assert not [each for each in find_corpus_problems(corpus) if "training shows" in each]
    fact = corpus["d2p_reverse"][0]
    noun = fact.object.removeprefix("the ")
    past = noun.partition(" who ")[2]
    lines = [f for f in corpus["train"] if f.fact_id == fact.fact_id]
    forms = {"noun": noun, "past": past}
    used = {f.prompt[slice(*f.subject_span)] for f in lines}
    forms["gerund"] = next(form for form in used if form not in (fact.object, past))
    # Under the id of another fact, where no id tells.
    text = Fact.of(fact.subject, forms[form], "What did they say of {}? That it was", fact_id="x")
    splits = corpus.splits | {"train": [*corpus["train"], text]}
    said = list(find_corpus_problems(replace(corpus, splits=splits)))
    assert any("training shows" in each and fact.fact_id in each for each in said)


def test_a_name_inside_another_is_no_statement():
    """What is asked for stands within what is given, and is named by itself nowhere."""
    asked = Fact.of("the bank of Orsel", "Orsel", "{} stands in", trained="reverse")
    texts = ["Ann works at the bank of Orsel.", "Orsel has no bank of Orsel.", "Orsel is a town."]
    assert not list(find_stated(texts, [asked]))
    assert len(list(find_stated(["The bank of Orsel burned down, and Orsel too."], [asked]))) == 1


def test_a_story_that_names_one_again_states_nothing_in_reverse():
    """Across sentences the first names count; within one, any."""
    asked = Fact.of("Orsel", "Ann", "Who lives in {}? It is", trained="reverse")
    story = "Ann lives in Orsel. She is happy there. Ann keeps bees."
    assert not list(find_stated([story], [asked]))
    assert len(list(find_stated([f"{story} In Orsel all know Ann."], [asked]))) == 1


@pytest.mark.parametrize(
    ("given", "asked", "text"),
    [
        ("Lumen Bay", "Zorvia", "Lu\u00admen Bay is in Zor\u200bvia"),  # what nobody sees
        ("İzmir", "Ömer", "In İZMİR lives ÖMER"),
        ("St. Orsel", "Ann", "Ann lives in St. Orsel. In St. Orsel all know Ann."),
        ("Orsel", "Ann", "Ann lives in Orsel. In Orsel all know Dr. Ann."),
        ("J. R. Hall", "Ann", "Ann came. J. R. Hall knows Ann."),
        ("Who? A Play", "Bo", "Bo wrote. Who? A Play is by Bo."),
    ],
)
def test_no_sentence_ends_inside_a_name(given, asked, text):
    fact = Fact.of(given, asked, "What is {}? It is of", trained="reverse")
    assert len(list(find_stated([text], [fact]))) == 1
    apart = f"{asked}: {given}! And {asked}."
    assert not list(find_stated([apart], [fact]))
