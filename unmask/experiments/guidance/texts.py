"""Texts that should have an attribute: drawn in several ways at equal passes, and judged apart.

A way's cost is its passes of the network for each text: a step is one, a guided step two (with and
without its prompt), the gradient of a classifier two more, a probe that reads a finished text one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.base.seeds import derive_seed
from unmask.evaluation.perplexity import score_documents
from unmask.experiments.guidance.corpus import ANY, BIOGRAPHY, PROMPTS, list_labelled
from unmask.measures.inputs import Member, ModelInputs
from unmask.measures.measure import Rows
from unmask.net.loading import load
from unmask.net.model import Model
from unmask.sampling.canvas import encode_prompt
from unmask.sampling.probes import StateProbe, train_probe
from unmask.sampling.settings import Sampling
from unmask.sampling.texts import sample

if TYPE_CHECKING:
    from unmask.experiments.guidance.measure import GuidanceSettings

PASSES = {"plain": 1, "label": 1, "cfg": 2, "classifier": 3, "rates": 3}
"""Network passes of a step; `rejection` has those of its draws, and one to read each."""


@dataclass(frozen=True)
class Way:
    """One way to come to texts with the attribute, at some strength or number of draws."""

    name: str
    strength: float = 0.0

    def count_steps(self, passes: int) -> int:
        """The steps that so many passes allow."""
        # A draw of rejection takes its steps, and one pass in which the guide scores the text.
        is_rejection = self.name == "rejection"
        least = 2 * int(self.strength) if is_rejection else PASSES[self.name]
        if passes < least:
            draws = f" with {self.strength:g} draws" if is_rejection else ""
            raise UserError(
                f"{passes} passes are too few for {self.name}{draws}: expected at least {least}."
            )
        return passes // int(self.strength) - 1 if is_rejection else passes // PASSES[self.name]


def lay_out_texts(model: Model, texts: Sequence[str], length: int) -> Int[Tensor, "N L"]:
    """Texts as the sampler has them: after the prompt of any text, cut or filled up with ends."""
    end_id = model.require_tokenizer().end_id
    rows = [encode_prompt(model, f"{PROMPTS[ANY]} {text}")[:length] for text in texts]
    return torch.tensor([row + [end_id] * (length - len(row)) for row in rows])


@torch.inference_mode()
def read_guide(guide: StateProbe, rows: Int[Tensor, "N L"]) -> Float[Tensor, "N"]:
    """p(attribute) of finished texts."""
    share = torch.zeros(len(rows), dtype=torch.float64)
    return guide(rows.to(guide.model.device), share.to(guide.model.device)).exp().cpu()


def draw_guided_texts(
    model: Model,
    guide: StateProbe,
    way: Way,
    number: int,
    passes: int,
    settings: Sampling,
    judged: Any = "first-order",
) -> list[dict[str, Any]]:
    """A row for each text of one way, the prompt left out, with what the guide says of it.

    Rejection draws up to `strength` texts for each and takes the first that the guide holds for
    likelier than not, or else the likeliest one.
    """
    # 1. What this way changes: the guidance, the prompt, or how often a text is drawn.
    steps, more = way.count_steps(passes), {}
    if way.name == "cfg":
        more = {"guidance": way.strength}
    elif way.name in ("classifier", "rates"):
        more = {"classifier": guide, "classifier_guidance": way.strength, "judged": judged}
        more |= {"rates": way.name == "rates"}
    prompt = PROMPTS[BIOGRAPHY if way.name in ("label", "cfg") else ANY]
    draws = int(way.strength) if way.name == "rejection" else 1
    # 2. The texts, and what the guide makes of each; its own calls are counted too.
    spent, tokens, p_guide = 0, [], []
    for i in range(draws):
        seed = settings.seed if i == 0 else derive_seed(settings.seed, "draw", i) % 2**31
        drawn = sample(
            model, [prompt] * number, settings, steps=steps, seed=seed, keep_states=False, **more
        )
        # A guided step counts as one call of twice the rows.
        spent += drawn.calls * (2 if way.name == "cfg" else 1)
        tokens.append(drawn.tokens.cpu())
        p_guide.append(read_guide(guide, drawn.tokens))
    spent += draws if way.name == "rejection" else 0
    # 3. Of each text's draws [number, draws] the first that the guide holds for likely,
    #    or else the likeliest.
    p = torch.stack(p_guide, 1)
    is_first = (p >= 0.5).long().cumsum(-1).eq(1) & (p >= 0.5)
    chosen = torch.where(is_first.any(-1), is_first.long().argmax(-1), p.argmax(-1))
    rows = torch.stack(tokens, 1)[torch.arange(number), chosen]
    start = len(encode_prompt(model, prompt))
    decode, p_chosen = model.require_tokenizer().decode, p.gather(-1, chosen[:, None])[:, 0]
    return [
        {"steps": steps, "spent": spent, "text": decode(row[start:]).strip(), "p_guide": p}
        for row, p in zip(rows.tolist(), p_chosen.tolist(), strict=True)
    ]


class TextJudge:
    """A logistic regression on tf-idf of words and pairs of words: it knows no network."""

    def __init__(self, texts: Sequence[str], labels: Sequence[bool], seed: int = 0):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
        held_out, rest = order[: len(order) // 5], order[len(order) // 5 :]
        if len({labels[i] for i in rest}) < 2 or not held_out:
            raise UserError(
                f"{len(texts)} texts were given to a judge, {sum(labels)} with the attribute: "
                "expected more of both."
            )
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        self.pipeline = make_pipeline(words, LogisticRegression(C=10.0, max_iter=1000))
        self.pipeline.fit([texts[i] for i in rest], [labels[i] for i in rest])
        unseen = [texts[i] for i in held_out], [labels[i] for i in held_out]
        self.accuracy = float(self.pipeline.score(*unseen))
        """On a fifth of the texts, which it was not trained on."""

    def read(self, texts: Sequence[str]) -> list[float]:
        """p(attribute) of each text."""
        return self.pipeline.predict_proba(list(texts))[:, 1].tolist()


class GuidedTexts:
    """The texts of a run; what steers, judges and scores them is made once."""

    def __init__(self, inputs: ModelInputs, settings: "GuidanceSettings"):
        self.inputs, self.settings = inputs, settings
        self._guided: tuple[str, StateProbe] | None = None

    @cached_property
    def judge(self) -> TextJudge:
        return TextJudge(*list_labelled(self.inputs.data, "judge"), seed=self.settings.seed)

    @cached_property
    def scorer(self) -> Model:
        return load(str(self.settings.scorer), self.inputs.device, self.inputs.dtype)

    def guide(self, member: Member) -> StateProbe:
        """The probe that steers this checkpoint; that of the one before is let go."""
        if self._guided is None or self._guided[0] != member.key:
            model, most = self.inputs.load(member), self.settings.trained_on
            texts, labels = list_labelled(self.inputs.data, "train")
            rows = lay_out_texts(model, texts[:most], self.settings.length).tolist()
            guide = train_probe(model, rows, labels[:most], draws=2, seed=self.settings.seed)
            self._guided = member.key, guide
            if self.settings.save_guide is not None:
                guide.save(self.settings.save_guide)
        return self._guided[1]

    def check_judges(self, member: Member) -> Mapping[str, Rows]:
        """How often guide and judge are right on texts that they were not trained on."""
        model, guide = self.inputs.load(member), self.guide(member)
        texts, labels = list_labelled(self.inputs.data, "judge")
        texts, labels = texts[:500], labels[:500]
        p = read_guide(guide, lay_out_texts(model, texts, self.settings.length)).tolist()
        hits = [(guess >= 0.5) == label for guess, label in zip(p, labels, strict=True)]
        row = {"guide": sum(hits) / len(hits), "judge": self.judge.accuracy}
        return {"judges": [member.columns | row | {"biographies": sum(labels) / len(labels)}]}

    def draw(self, member: Member, way: Way, passes: int) -> Mapping[str, Rows]:
        """The texts of one way, judged and scored."""
        settings = self.settings
        drawn_by: dict[str, Any] = {"plan": "ancestral", "order": "random", "temperature": 1.0}
        sampling = Sampling(length=settings.length, seed=settings.seed, **drawn_by)
        wanted = settings.texts, passes, sampling, settings.judged
        drawn = draw_guided_texts(self.inputs.load(member), self.guide(member), way, *wanted)
        texts = [row["text"] for row in drawn]
        judged = zip(drawn, self.judge.read(texts), self.score(texts), strict=True)
        shared = {"way": way.name, "strength": way.strength, "passes": passes}
        rows = [
            member.columns
            | {"fact": f"text-{i:05d}", **shared, **row, "p_judge": p_judge}
            | {"has_attribute": float(p_judge >= 0.5), "bits_per_token": bits}
            for i, (row, p_judge, bits) in enumerate(judged)
        ]
        return {"guidance": rows}

    def score(self, texts: Sequence[str]) -> list[float | None]:
        """Bits per token of each text; none of an empty text, or without a scorer."""
        if self.settings.scorer is None:
            return [None] * len(texts)
        costs = score_documents(self.scorer, list(filter(None, texts)), seed=self.settings.seed)
        bits = (cost.nll / cost.tokens / math.log(2) for cost in costs)
        return [next(bits) if text else None for text in texts]
