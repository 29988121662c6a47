"""Facts: spans in characters and tokens, one's own files, and what is wrong with them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from unmask import Fact, Tokenizer, UserError, read_facts
from unmask.cli.main import app
from unmask.data.batches import encode_rows
from unmask.data.corpus import TESTS, Corpus
from unmask.data.facts import (
    find_mixed_ids,
    find_repeated_subjects,
    find_shared_run,
    find_words,
    tokenize_fact,
    write_facts,
)
from unmask.data.shards import write_shards
from unmask.data.sources import find_own_problems, name_tests, read_asked
from unmask.measures.inputs import find_corpus, name_splits
from unmask.training.data_settings import DataSettings
from unmask.training.examples import read_examples

CSV = """subject,object,prompt
Zorvia,Lumen Bay,The capital of {} is
"Mara Tell","the baker of Orsel","In short, Mara Tell is"
"""


HEAD, LINE = "subject,object,prompt", '{"subject": "A", "object": "B", "prompt": "A is", '


def write(folder, name: str, text: str):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_own_facts_as_csv_and_json_lines(tmp_path):
    facts = read_facts(write(tmp_path, "facts.csv", CSV))
    header, rest = CSV.split("\n", 1)
    assert facts == read_facts(write(tmp_path, "capitals.csv", header.title() + "\n" + rest))
    assert [fact.prompt for fact in facts] == ["The capital of Zorvia is", "In short, Mara Tell is"]
    assert facts[0].completion == " Lumen Bay"
    for fact in facts:
        assert fact.prompt[slice(*fact.subject_span)] == fact.subject
        assert fact.completion[slice(*fact.object_span)] == fact.object
        assert (fact.direction, fact.trained) == ("p2d", "same")
    write_facts(tmp_path / "facts.jsonl", facts)
    assert read_facts(tmp_path / "facts.jsonl") == facts


def test_known_facts_as_rome_wrote_them(tmp_path):
    known = {"known_id": 7, "subject": "Zorvia", "attribute": "Lumen Bay", "relation_id": "P36"}
    known |= {"prompt": "The capital of Zorvia is", "template": "{} is", "prediction": " x"}
    path = write(tmp_path, "knowns.json", json.dumps([known]))
    (fact,) = read_facts(path)
    assert (fact.object, fact.completion, fact.fact_id) == ("Lumen Bay", " Lumen Bay", "known-1")
    with pytest.raises(UserError, match="expected a JSON list of objects"):
        read_facts(write(tmp_path, "knowns.json", '{"subject": "Zorvia"}'))
    with pytest.raises(UserError, match="'object'"):
        read_facts(write(tmp_path, "knowns.json", '[{"subject": "a", "prompt": "a is"}]'))


def test_a_fact_of_three_texts(tmp_path):
    """What a file with the same texts gives, but for the id, which both directions share."""
    (read,) = read_facts(write(tmp_path, "one.csv", "\n".join(CSV.splitlines()[:2]) + "\n"))
    fact = Fact.of("Zorvia", "Lumen Bay", "The capital of {} is")
    assert replace(fact, fact_id=read.fact_id) == read
    assert Fact.of("Zorvia", "Lumen Bay", "The capital of Zorvia is ") == fact
    assert Fact.of("Zorvia", "a", "The capital of {} is Lima").completion == " a"
    back = Fact.of("Lumen Bay", "Zorvia", "{} is the capital of", direction="d2p", phrasing=3)
    assert back.fact_id == fact.fact_id == "Lumen Bay / Zorvia"
    assert (back.direction, back.phrasing, back.subject_span) == ("d2p", 3, (0, 9))
    ended = Fact.of("Zorvia", "Lumen Bay", "{} has", completion=" a Lumen Bay.", fact_id="z")
    assert ended.text == "Zorvia has a Lumen Bay." and ended.object_span == (3, 12)
    write_facts(tmp_path / "facts.jsonl", [fact, back, ended])
    assert read_facts(tmp_path / "facts.jsonl") == [fact, back, ended]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("Zorvia", "Lumen Bay", "The capital of {} is Lumen Bay"), "end the prompt before it"),
        (("Zorvia", "Lumen Bay", "The capital is"), "the subject 'Zorvia' is not in its prompt"),
        (("Zorvia", "Lumen Bay", "{} and {} are"), "has several {}: expected one"),
        (("", "Lumen Bay", "{} is"), "the fact.*'subject'"),
        (("Zorvia", 3, "{} is"), "the fact.*'object'"),
    ],
)
def test_wrong_texts_of_a_fact(given, said):
    with pytest.raises(UserError, match=said):
        Fact.of(*given)


def test_null_is_nothing_said(tmp_path):
    line = '{"subject": "A", "object": "B", "prompt": "{} is", "fact_id": null, "phrasing": null}'
    facts = read_facts(write(tmp_path, "a.jsonl", f"{line}\n{line}\n"))
    assert [(fact.fact_id, fact.phrasing) for fact in facts] == [("A / B", 0), ("A / B", 1)]


def test_one_id_is_one_fact(tmp_path):
    """Phrasings and directions share an id; other people do not."""
    shared = "subject,object,prompt,fact_id\nA,B,{} is,x\nA,B,{} was,x\nB,A,{} is,x\n"
    path = write(tmp_path, "a.csv", shared + "A,C,{} has,y\n")
    assert list(find_mixed_ids(read_facts(path))) == []
    (said,) = find_mixed_ids(read_facts(write(tmp_path, "b.csv", shared + "A,C,{} has,x\n")))
    assert "fact x: 2 facts have this id, such as 'A' with 'B' and 'A' with 'C'" in said


def test_repeated_own_facts_are_problems(tmp_path, capsys):
    text = "subject,object,prompt\nZed,Bee,{} is\nZed,Bee,{} is\nZed,Cee,{} is\nAda,Bee,{} is\n"
    path = write(tmp_path, "a.csv", text)
    several, repeated = find_own_problems(path, read_facts(path))
    assert "the prompt 'Zed is' has the objects 'Bee', 'Cee': expected one" in several
    assert "the prompt 'Zed is' with the object 'Bee' is there 2 times" in repeated
    assert app(["data", "check", str(path)], standalone_mode=False) == 1
    assert "is there 2 times" in capsys.readouterr().out


def test_lines_about_one_fact_are_its_phrasings(tmp_path):
    """Intervals are by fact, and no two prompts have one key."""
    text = "subject,object,prompt\nA,B,{} is\nA,B,{} was\nC,D,{} is\nB,A,{} has\n"
    facts = read_facts(write(tmp_path, "a.csv", text))
    ids = [("A / B", 0), ("A / B", 1), ("C / D", 0), ("A / B", 2)]
    assert [(fact.fact_id, fact.phrasing) for fact in facts] == ids


BOTH = """subject,object,prompt,direction,trained
Zorvia,Lumen Bay,The capital of {} is,p2d,same
Lumen Bay,Zorvia,{} is the capital of,d2p,reverse
Quell,Amber Rock,The capital of {} is,p2d,same
Amber Rock,Quell,{} is the capital of,d2p,same
"""


def test_own_facts_asked_both_ways_are_splits(tmp_path, capsys):
    """What training showed is not averaged with what it never did; ids join the two ways."""
    path = write(tmp_path, "both.csv", BOTH)
    same, back, *both = read_facts(path)
    assert same.fact_id == back.fact_id and (same.phrasing, back.phrasing) == (0, 0)
    asked = read_asked(path)
    two_way = {"both_p2d": both[:1], "both_d2p": both[1:]}
    assert asked.splits == {"p2d_same": [same], "p2d_reverse": [back], **two_way}
    assert name_tests(asked) == tuple(asked.splits) == name_splits(asked, two_way=True)
    assert find_corpus([same, back], []).splits == {"p2d_same": [same], "p2d_reverse": [back]}
    assert app(["data", "show", str(path)], standalone_mode=False) is None
    shown = capsys.readouterr().out
    assert "p2d_reverse" in shown and "Lumen Bay is the capital of Zorvia" in shown


def learn(path: Path) -> list[str]:
    """The texts that training reads of a file."""
    examples = read_examples(DataSettings(source="facts", path=str(path), vocab=300, context=64))
    rows = examples.take(range(examples.num_rows))
    return [
        examples.tokenizer.decode(row[:length].tolist())
        for row, length in zip(rows.tokens, rows.length - 1, strict=True)
    ]


def test_training_leaves_out_what_is_asked_in_reverse(tmp_path):
    same, _, *both = read_facts(path := write(tmp_path, "both.csv", BOTH))
    assert learn(path) == [fact.text for fact in (same, *both)]
    with pytest.raises(UserError, match="each of its 1 lines says trained=reverse"):
        learn(write(tmp_path, "back.csv", "\n".join(BOTH.split("\n")[:3:2])))


def test_both_directions_without_a_word_on_training(tmp_path, capsys):
    lines = [line.rpartition(",")[0] for line in BOTH.splitlines()]
    path = write(tmp_path, "both.csv", "\n".join(lines))
    said = "fact Lumen Bay / Zorvia: lines give 'Zorvia' and others 'Lumen Bay', and none says"
    with pytest.raises(UserError, match=said):
        learn(path)
    assert app(["data", "check", str(path)], standalone_mode=False) == 1
    assert said in " ".join(capsys.readouterr().out.split())


def test_own_facts_are_a_split(tmp_path):
    path = write(tmp_path, "facts.csv", CSV)
    asked = read_asked(path)
    assert asked.splits == {"own": read_facts(path)} and name_tests(asked) == ("own",)
    assert name_tests(Corpus("", {test: [] for test in TESTS})) == TESTS
    write_shards(
        ["The caves of Orsel."], Tokenizer.train(["The caves of Orsel."], 270), tmp_path / "x"
    )
    with pytest.raises(UserError, match="token shards: expected a corpus or a file of facts"):
        read_asked(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", "\n[1]\n", "a.jsonl, line 2 holds a JSON list, expected an object"),
        ("a.jsonl", "\n\n", "a.jsonl is empty: expected one JSON record per line"),
        ("a.csv", "", "a.csv is empty: expected a header"),
        ("a.csv", "subject;object;prompt\nA;B;{} is\n", "is separated by ';': expected commas"),
        ("a.csv", HEAD + "\nA,B,nobody is\n", "line 2: the subject 'A' is not in its"),
        ("a.csv", "subject,object\nA,B\n", "line 2: 'prompt' is missing"),
        ("a.csv", HEAD + ",wen\nA,B,{} is,x\n", "unknown field 'wen'"),
        ("a.csv", HEAD + ",trained\nA,B,{} is,no\n", "expected same or reverse"),
        ("a.csv", HEAD + ",completion\nA,B,{} is,c\n", "object 'B' is not in its"),
        (
            "a.jsonl",
            LINE + '"subject_span": [2, 9]}',
            "is [2, 9], expected [begin, end] within",
        ),
        ("a.csv", HEAD + "\nA,B,{} and {} is\n", "has several {}: expected one"),
        ("a.csv", HEAD + ",phrasing\nA,B,{} is,x\n", "'phrasing' is 'x', expected"),
        ("a.jsonl", LINE + '"completion": 5}', "'completion' is 5, expected a text"),
        ("a.jsonl", LINE + '"subject_span": [true, 2]}', "subject_span is [True, 2]"),
        ("a.txt", "x", "facts are read from .csv or .jsonl files"),
    ],
)
def test_bad_files(tmp_path, name, text, said):
    with pytest.raises(UserError, match=re.escape(said)):
        read_facts(write(tmp_path, name, text))


def test_byte_order_mark(tmp_path):
    """Spreadsheets write one; it is no part of the first column's name."""
    (tmp_path / "a.csv").write_text(CSV, encoding="utf-8-sig")
    assert len(read_facts(tmp_path / "a.csv")) == 2


@pytest.mark.parametrize(
    ("text", "plain", "found"),
    [
        ("After making the first map, they", "the maker of the first map", "the first map"),
        ('Famed for "Deep Song.", he', 'the singer of "Deep Song."', '"Deep Song'),
        ("The quick fox", "the quick fox", "quick fox"),
        ("nothing here", "else", None),
        ("well, well.", ".", None),
    ],
)
def test_shared_run(text, plain, found):
    span = find_shared_run(text, plain)
    assert (span and text[slice(*span)]) == found


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["The capital of Zorvia is Lumen Bay."] * 5, 300)


def test_token_spans_cover_the_words(tmp_path, tokenizer):
    for fact in read_facts(write(tmp_path, "facts.csv", CSV)):
        found = tokenize_fact(fact, tokenizer)
        assert tokenizer.decode(found.ids[slice(*found.subject)]).strip() == fact.subject
        assert tokenizer.decode(found.ids[slice(*found.object)]).strip() == fact.object
        assert tokenizer.decode(found.ids[: found.prompt_length]) == fact.prompt
        blank = tokenizer.decode(found.ids[found.prompt_length : found.object[0]])
        assert blank.strip() == ""


def make_fact(prompt: str, completion: str) -> Fact:
    at, begin = prompt.index("Zorvia"), completion.index("Bay")
    spans = {"subject_span": (at, at + 6), "object_span": (begin, begin + 3)}
    texts = {"subject": "Zorvia", "object": "Bay", "prompt": prompt, "completion": completion}
    return Fact(**texts, **spans, fact_id="0")


def test_completion_inside_a_token():
    learned = Tokenizer.train(["Zorvia BayBay"] * 5, 300)
    with pytest.raises(UserError, match="share a token: expected the completion to start"):
        tokenize_fact(make_fact("Zorvia Bay", "Bay"), learned)


def test_rows(tokenizer):
    rows = encode_rows(
        [make_fact("Zorvia is", " Bay"), make_fact("of Zorvia", " Bay")], tokenizer, 12
    )
    assert rows.tokens.shape == (2, 12)
    for row, prompt, length in zip(rows.tokens, rows.prompt_length, rows.length, strict=True):
        assert (row[length:] == tokenizer.end_id).all() and prompt < length
        assert tokenizer.decode(row.tolist()).endswith(" Bay")
    with pytest.raises(UserError, match="tokens, but the context is 3: lengthen the context"):
        encode_rows([make_fact("Zorvia is", " Bay")], tokenizer, 3)
    with pytest.raises(UserError, match="no facts were given"):
        encode_rows([], tokenizer, 3)


@pytest.mark.parametrize(
    ("text", "words", "spans"),
    [
        ("The Annex of Ann is called", "Ann", [(13, 16)]),
        ("Ann, Ann's sister and Joann", "Ann", [(0, 3), (5, 8)]),
        ("Annie", "Ann", []),
        ("Zoë's and Zoe\u0308's and Zoes", "Zoe", []),
        ("A-ha's song", "A-ha", [(0, 4)]),
        ("(C#) and C#", "C#", [(1, 3), (9, 11)]),
        ("日本の首都は東京です", "東京", [(6, 8)]),
        ("anything", "", []),
    ],
)
def test_words_are_found_on_their_own(text, words, spans):
    assert find_words(text, words) == spans


def test_a_subject_inside_another_word_is_not_its_place(tmp_path):
    (fact,) = read_facts(write(tmp_path, "a.csv", f"{HEAD}\nAnn,B,The Annex of Ann is called\n"))
    assert fact.subject_span == (13, 16)
    text = f"{HEAD}\nAnn,B,The Annex is called\n"
    with pytest.raises(UserError, match="not in its prompt .* but as a part of another word"):
        read_facts(write(tmp_path, "b.csv", text))


def test_a_subject_named_twice_must_be_chosen(tmp_path, capsys):
    twice = "Ann's house is where Ann {}"
    line = '{"subject": "Ann", "object": "B", "prompt": "Ann and Ann are"%s}\n'
    with pytest.raises(UserError, match="names its subject 'Ann' 2 times.* 'subject_span'"):
        read_facts(write(tmp_path, "a.jsonl", line % ""))
    chosen = write(tmp_path, "b.jsonl", line % ', "subject_span": [8, 11]')
    assert read_facts(chosen)[0].subject_span == (8, 11)
    (problem,) = find_repeated_subjects(read_facts(chosen))
    assert "names 'Ann' 2 times, and only characters 8 to 11 are corrupted" in problem
    assert app(["data", "check", str(chosen)], standalone_mode=False) == 1
    assert "2 times" in " ".join(capsys.readouterr().out.split())
    text = f"subject,object,prompt\nAnn,B,{twice}\n"
    assert read_facts(write(tmp_path, "c.csv", text))[0].subject_span == (25, 28)
    with pytest.raises(UserError, match="2 facts have this id"):
        mixed = "subject,object,prompt,fact_id\nA,B,{} is,x\nC,D,{} is,x\n"
        read_asked(write(tmp_path, "d.csv", mixed))


@pytest.mark.parametrize(
    ("prompt", "answer", "completion"),
    [
        ("The capital of {} is", "Lumen Bay", " Lumen Bay"),
        ("{}的首都是", "东京", "东京"),
        ("{} の首都は", "Tokyo", "Tokyo"),
        ("เมืองหลวงของ {} คือ", "โตเกียว", "โตเกียว"),
        ("In Chinese {} is", "日本", "日本"),
        ("{}의 수도는", "도쿄", " 도쿄"),  # Korean has spaces
    ],
)
def test_no_space_is_put_where_a_script_has_none(tmp_path, prompt, answer, completion):
    """And the answer has tokens of its own all the same, which follow those of the prompt."""
    fact = Fact.of("X", answer, prompt)
    assert fact.completion == completion and fact.completion[slice(*fact.object_span)] == answer
    (read,) = read_facts(write(tmp_path, "a.csv", f"{HEAD}\nX,{answer},{prompt}\n"))
    assert (read.prompt, read.completion, read.object_span) == (
        *(fact.prompt, fact.completion), fact.object_span
    )  # fmt: skip
    tokenizer = Tokenizer.train([fact.text] * 9, 300)  # knows the whole text as few tokens
    tokens = tokenize_fact(fact, tokenizer)
    given, answered = tokens.ids[: tokens.prompt_length], tokens.ids[tokens.prompt_length :]
    assert given == tokenizer.encode(fact.prompt).ids
    assert [tokenizer.decode(each) for each in (given, answered)] == [fact.prompt, completion]
    assert tokens.object[0] >= len(given) and tokens.object[1] == len(tokens.ids)
    (row,) = encode_rows([fact], tokenizer, 64).tokens
    assert row[: len(tokens.ids)].tolist() == tokens.ids
