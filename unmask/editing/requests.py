"""Requests: which fact gets which new object, and the questions that show what the edit did.

New objects are of two kinds, never mixed. A *fresh* one is a name or description that no training
text holds: in reverse it has no other owner. A *swap* is another fact's, whose own owner answers
the reverse question. Only fresh ones test whether the reverse follows.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from unmask.base.errors import UserError
from unmask.base.reading import read_text
from unmask.base.seeds import python_stream
from unmask.data.corpus import Corpus
from unmask.data.facts import Direction, Fact, tokenize_facts
from unmask.data.reversal_corpus import make_reversal_corpus
from unmask.data.sources import OWN
from unmask.data.words import put_space
from unmask.editing.editor import give_object
from unmask.evaluation.metrics import is_contained
from unmask.evaluation.questions import choose_length, require_tokenizer
from unmask.net.model import Model
from unmask.representation.extraction import find_groups
from unmask.sampling.texts import sample

Role = Literal[
    "edited", "paraphrase", "neighbour", "reverse new", "reverse old", "reverse neighbour"
]
OTHER: dict[Direction, Direction] = {"p2d": "d2p", "d2p": "p2d"}
_WORD = re.compile(r"[\w'-]+")
_FRESH_SEEDS = 20
"""Other corpora that are looked through for fresh objects."""
_TRIED_SEEDS = 5
"""How many seeds are looked through for fresh objects of known words."""
_ENOUGH_FRESH = 30
"""Fresh objects of known words that are enough to draw from."""


@dataclass(frozen=True)
class EditQuestion:
    """A prompt with the answer that a perfect edit gives, and the one that it is held against."""

    role: Role
    fact: Fact
    """Its object is the right answer after the edit."""
    rival: str | None = None
    """The old object, for a neighbour the new one; in reverse another subject, and for a neighbour
    the edited one, so that who always names the edited subject is wrong half of the time."""
    subjects: tuple[str, ...] = ()
    """In reverse: all that could be the answer, to rank it among."""


@dataclass(frozen=True)
class EditRequest:
    """One edit: the prompt that it is made with, the new object, and what is asked about it."""

    fact: Fact
    """With its old object."""
    object: str
    group: str
    questions: tuple[EditQuestion, ...]
    objects: str = "given"
    """What kind the new object is of: fresh, swap, or given by whoever made the request."""


def make_requests(
    corpus: Corpus,
    groups: Sequence[str],
    facts: int,
    objects: Literal["fresh", "swap"] = "fresh",
    paraphrases: int = 2,
    neighbours: int = 3,
    seed: int = 0,
    skip: int = 0,
    only: Collection[str] | None = None,
) -> list[EditRequest]:
    """The first facts of each group, edited name → description and the other way in turn.

    The first `skip` are left out, and those that are not among `only` if there are such.

    Paraphrases are further phrasings of the same question; neighbours are other facts of the group,
    asked alike. The reverse questions give the new object, and the old one, and ask for the
    subject. Statements are judged from two sides: given the new object, the subject against another
    one, and given that one's own object, the other way round.
    """
    list_fresh = cache(partial(_list_fresh, corpus, seed=seed))
    requests, num_before = [], 0
    for group, splits in find_groups(corpus, groups).items():
        prompts = _sort_prompts(fact for split in splits for fact in corpus[split])
        chosen = [fact_id for fact_id in prompts if only is None or fact_id in only]
        for number, fact_id in enumerate(chosen[skip : skip + facts]):
            ways = list(prompts[fact_id])
            way = ways[number % len(ways)]
            fact, *again = prompts[fact_id][way]
            others = [own[way][0] for key, own in prompts.items() if key != fact_id and way in own]
            owned = [other.object for other in others if other.object != fact.object]
            if not owned:
                raise UserError(
                    f"{corpus.source} has one fact of the group {group} asked like {fact_id}: an "
                    "edit is judged beside its neighbours; give at least two with other objects."
                )
            if objects == "swap":
                text = python_stream(seed, "object", fact_id, way).choice(owned)
            else:
                # A fact's new object is the same whichever others are chosen.
                place, fresh = num_before + list(prompts).index(fact_id), list_fresh(way)
                text = fresh[place % len(fresh)]
            stream = python_stream(seed, "neighbours", fact_id)
            near = stream.sample(others, min(neighbours, len(others)))
            reverse = _choose_reverse(prompts, fact_id, OTHER[way], seed)
            questions = _list_questions(fact, text, again[:paraphrases], near, *reverse)
            requests.append(EditRequest(fact, text, group, tuple(questions), objects))
        num_before += len(prompts)
    return requests


def _sort_prompts(facts: Iterable[Fact]) -> dict[str, dict[Direction, list[Fact]]]:
    """The phrasings of each fact by the direction that they ask in, in the order they are met."""
    prompts: dict[str, dict[Direction, list[Fact]]] = {}
    for fact in facts:
        prompts.setdefault(fact.fact_id, {}).setdefault(fact.direction, []).append(fact)
    return prompts


def _choose_reverse(
    prompts: Mapping[str, Mapping[Direction, list[Fact]]], fact_id: str, way: Direction, seed: int
) -> tuple[list[Fact], tuple[str, ...], Fact | None]:
    """A fact's question asked this way, all subjects to rank, and another fact's to judge by."""
    questions = {name: own[way][0] for name, own in prompts.items() if way in own}
    subjects = tuple(dict.fromkeys(fact.object for fact in questions.values()))
    others = [fact for name, fact in questions.items() if name != fact_id]
    judged = python_stream(seed, "judged", fact_id).choice(others) if others else None
    return [questions[fact_id]] if fact_id in questions else [], subjects, judged


def find_recalled(
    model: Model, corpus: Corpus, groups: Sequence[str], steps: int = 8, length: int | None = None
) -> set[str]:
    """Facts whose object the model says in every direction that training showed them in."""
    tokenizer, questions = require_tokenizer(model), dict[tuple[str, Direction], Fact]()
    for splits in find_groups(corpus, groups).values():
        for fact in (fact for split in splits for fact in corpus[split]):
            if fact.trained == "same":
                questions.setdefault((fact.fact_id, fact.direction), fact)
    facts = list(questions.values())
    encoded = list(tokenize_facts(facts, tokenizer))
    length = choose_length(model, encoded, length)
    prompts = [each.ids[: each.prompt_length] for each in encoded]
    drawn = sample(model, prompts, steps=steps, length=length, keep_states=False)
    rows = zip(drawn.tokens.tolist(), prompts, facts, strict=True)
    missed = {
        fact.fact_id
        for row, prompt, fact in rows
        if not is_contained(tokenizer.decode(row[len(prompt) :]), fact.object)
    }
    return {fact.fact_id for fact in facts} - missed


def make_request(fact: Fact, text: str, back: Fact | None = None) -> EditRequest:
    """A request of one's own: the fact's new object, asked as edited and by `back` in reverse.

    Args:
        fact: With its old object.
        text: The new object.
        back: The question in reverse, which gives the old object and asks for the subject.
    """
    questions = _list_questions(fact, text, (), (), () if back is None else (back,))
    return EditRequest(fact, text, "own", tuple(questions))


def _list_questions(
    fact: Fact,
    text: str,
    again: Sequence[Fact],
    near: Sequence[Fact],
    back: Sequence[Fact] = (),
    subjects: tuple[str, ...] = (),
    judged: Fact | None = None,
) -> Iterator[EditQuestion]:
    yield EditQuestion("edited", give_object(fact, text), fact.object)
    for other in again:
        yield EditQuestion("paraphrase", give_object(other, text), fact.object)
    for other in near:
        yield EditQuestion("neighbour", other, text)
    for other in back:
        wrong = None if judged is None else judged.object
        yield EditQuestion("reverse new", give_subject(other, text), wrong, subjects)
        yield EditQuestion("reverse old", other, None, subjects)
        if judged is not None:
            yield EditQuestion("reverse neighbour", judged, other.object)


def give_subject(fact: Fact, text: str) -> Fact:
    """The fact with another subject in the same place of its prompt, capitalised alike."""
    begin, end = fact.subject_span
    if fact.prompt[begin].isupper() and fact.subject[:1].islower():
        text = text[0].upper() + text[1:]
    prompt = fact.prompt[:begin] + text + fact.prompt[end:]
    return replace(fact, subject=text, prompt=prompt, subject_span=(begin, begin + len(text)))


def _list_fresh(corpus: Corpus, way: Direction, seed: int) -> list[str]:
    """Names or descriptions of the kind that this way asks for, in no training text.

    Where there are enough, their words are in training texts: a word that a network never saw
    cannot be written by one value.
    """
    if OWN in corpus.splits or "train" not in corpus.splits:
        raise UserError(
            f"{corpus.source} does not say what training showed: fresh objects are made for "
            "reversal corpora; use --objects swap (and --moments identity or --moment-text FILE), "
            "or a file of requests with new objects."
        )
    known = "\n".join(corpus.training_texts()).lower()
    words, fresh = set(_WORD.findall(known)), set[str]()
    for number in range(1, 1 + _FRESH_SEEDS):
        people = _make_others(seed + number)[f"{way}_same"]
        fresh |= {each.object for each in people if each.object.lower() not in known}
        familiar = {text for text in fresh if words.issuperset(_WORD.findall(text.lower()))}
        if len(familiar) >= _ENOUGH_FRESH or (number >= _TRIED_SEEDS and fresh):
            chosen = sorted(familiar if len(familiar) >= _ENOUGH_FRESH else fresh)
            python_stream(seed, "fresh", way).shuffle(chosen)
            return chosen
    raise UserError("no fresh object was found: training shows all that there are; use swap.")


@cache
def _make_others(seed: int) -> Corpus:
    return make_reversal_corpus(30, seed, endings=1)


def list_other_texts(corpus: Corpus, count: int, seed: int) -> list[str]:
    """Statements about people of whom no training text speaks; none for one's own facts."""
    if OWN in corpus.splits or "train" not in corpus.splits:
        return []
    known = "\n".join(corpus.training_texts()).lower()
    facts = _make_others(seed + 1)["train"]
    names = {name.lower() for fact in facts for name in (fact.subject, fact.object)}
    strange = {name for name in names if name not in known}
    texts = [
        fact.text
        for fact in facts
        if fact.subject.lower() in strange and fact.object.lower() in strange
    ]
    return python_stream(seed, "other texts").sample(texts, min(count, len(texts)))


def read_requests(path: str | Path) -> list[EditRequest]:
    """Requests of CounterFact, of BAKE, which has reverse questions, or of zsRE: a JSON list.

    What CounterFact calls neighbourhood are other subjects with the same old object. BAKE's
    `reverse_judge` is not read: "yes" is right in all of them, so that who always says yes is, too.
    """
    try:
        records = json.loads(read_text(Path(path)))
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): expected a list of records.") from None
    if not isinstance(records, list) or not records:
        raise UserError(
            f"{path} holds no list of records: expected CounterFact's, BAKE's or zsRE's."
        )
    return [_read_record(record, f"{path}, record {i}") for i, record in enumerate(records)]


def _read_record(record: Any, where: str) -> EditRequest:
    try:
        if "requested_rewrite" in record:
            return _read_counterfact(record, where)
        return _read_zsre(record, where)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        problem = f"lacks {error}" if isinstance(error, KeyError) else "has another form"
        raise UserError(
            f"{where} {problem}: expected CounterFact's `requested_rewrite`, or zsRE's `src`, "
            "`subject`, `answers` and `alt`."
        ) from None


def _read_counterfact(record: Mapping[str, Any], where: str) -> EditRequest:
    rewrite, fact_id = record["requested_rewrite"], _name_case(record, where)
    subject, old = rewrite["subject"], rewrite["target_true"]["str"].strip()
    new = rewrite["target_new"]["str"].strip()
    fact, *again = (
        Fact.of(subject, old, prompt, fact_id=fact_id)
        for prompt in (rewrite["prompt"], *record.get("paraphrase_prompts", ()))
    )
    # Neighbours name their own subjects; what is asked about them is their old object.
    others = record.get("neighborhood_prompts", ())
    near = [_place_freely(prompt, old, fact_id) for prompt in others]
    questions = list(_list_questions(fact, new, again, near))
    if "reverse_qa" in record:
        back = record["reverse_qa"]
        asked_back = _place_freely(back["prompt"], back["target_new"]["str"], fact_id)
        questions.append(EditQuestion("reverse new", asked_back))
    return EditRequest(fact, new, "CounterFact", tuple(questions))


def _read_zsre(record: Mapping[str, Any], where: str) -> EditRequest:
    """`alt` is the new answer; the locality question is a neighbour, its answer is to stay."""
    fact_id, again, near = _name_case(record, where), [], []
    fact = Fact.of(record["subject"], record["answers"][0], record["src"], fact_id=fact_id)
    if "rephrase" in record:
        again = [_place_freely(record["rephrase"], fact.object, fact_id)]
    if "loc" in record:
        prompt = record["loc"].removeprefix("nq question: ")
        near = [_place_freely(prompt, record["loc_ans"], fact_id)]
    questions = tuple(_list_questions(fact, record["alt"], again, near))
    return EditRequest(fact, record["alt"], "zsRE", questions)


def _name_case(record: Mapping[str, Any], where: str) -> str:
    return f"case-{record.get('case_id', where)}"


def _place_freely(prompt: str, answer: str, fact_id: str) -> Fact:
    """A question whose subject is not marked: all of its prompt counts as subject."""
    prompt, answer = prompt.rstrip(), answer.strip()
    completion = put_space(prompt, answer)
    return Fact(
        subject=prompt,
        object=answer,
        prompt=prompt,
        completion=completion,
        subject_span=(0, len(prompt)),
        object_span=(len(completion) - len(answer), len(completion)),
        fact_id=fact_id,
    )
