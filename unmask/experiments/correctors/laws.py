"""Laws of texts that can be written down, models that predict by them, and correctors there.

A `SmallLanguage` is a random law over all texts of a few tokens, a `MarkovChain` one over texts of
any length, whose conditionals come by message passing (the toy of Zhao et al. 2024, arXiv
2407.21243: a token is followed by itself or by the next one, any other pair is a slip). An
`ExactModel` predicts by such a law in the place of a network, so that whatever a sampler's texts
lack is the sampler's doing. `find_kernel` writes a corrector down as a matrix over all states of a
small language, so that its bias is known without drawing anything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations, product
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.base.errors import UserError
from unmask.net.model import Blueprint, Model
from unmask.net.paradigm import get_paradigm
from unmask.net.presets import preset
from unmask.net.transformer import Transformer
from unmask.sampling.correctors import Accepted, Corrector, LeastTrusted, UniformChoice, find_margin

Chances = dict[tuple[int, ...], float]
"""Chances of the positions that are drawn anew, in the order in which they are refilled."""


class TextLaw(Protocol):
    """A law of texts of one length; the mask is the token after the last one."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def length(self) -> int: ...

    def find_marginals(self, xt: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        """p(token at each masked position | the written ones)."""
        ...


@dataclass(frozen=True)
class SmallLanguage:
    """A random law over all texts of `length` tokens out of `num_tokens`."""

    num_tokens: int = 3
    length: int = 4
    seed: int = 0
    texts: Int[Tensor, "T L"] = field(init=False, repr=False)
    law: Float[Tensor, "T"] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        texts = torch.tensor(list(product(range(self.num_tokens), repeat=self.length)))
        draws = torch.rand(len(texts), generator=generator, dtype=torch.float64).square()
        object.__setattr__(self, "texts", texts)
        object.__setattr__(self, "law", draws / draws.sum())

    def find_marginals(self, xt: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        # Few states are different: each is looked up once.
        states, inverse = xt.unique(dim=0, return_inverse=True)
        fits = (states[:, None] == self.num_tokens) | (states[:, None] == self.texts)
        weights = fits.all(-1).double() * self.law  # [S, T]
        one_hot = torch.nn.functional.one_hot(self.texts, self.num_tokens).double()
        marginals = torch.einsum("st,tlv->slv", weights, one_hot)
        return (marginals / weights.sum(-1)[:, None, None])[inverse]

    def number(self, texts: Int[Tensor, "B L"]) -> Int[Tensor, "B"]:
        """The place of each text in `texts`."""
        return texts @ self.num_tokens ** torch.arange(self.length - 1, -1, -1)

    def draw(self, rows: int, seed: int) -> Int[Tensor, "B L"]:
        """Texts of the law itself."""
        generator = torch.Generator().manual_seed(seed)
        return self.texts[torch.multinomial(self.law, rows, True, generator=generator)]

    def find_joint(self, state: Int[Tensor, "L"], positions: Sequence[int]) -> Float[Tensor, "..."]:
        """p(tokens at some masked positions | the written ones), a dimension for each position."""
        fits = (state == self.num_tokens) | (state == self.texts)
        weights = (fits.all(-1).double() * self.law).view((self.num_tokens,) * self.length)
        others = [d for d in range(self.length) if d not in positions]
        joint = weights.sum(others) if others else weights
        return joint / joint.sum()

    def find_distance(self, texts: Int[Tensor, "B L"]) -> float:
        """Total variation between the law and the shares of texts that were drawn."""
        shares = torch.bincount(self.number(texts), minlength=len(self.law)) / len(texts)
        return float((shares - self.law).abs().sum() / 2)


@dataclass(frozen=True)
class MarkovChain:
    """Texts whose tokens stay or go on to the next one; the first is any with the same chance."""

    num_tokens: int = 8
    length: int = 16
    stay: float = 0.6
    slip: float = 1e-3
    moves: Float[Tensor, "V V"] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        others = torch.full((self.num_tokens,) * 2, self.slip / (self.num_tokens - 2)).double()
        tokens = torch.arange(self.num_tokens)
        others[tokens, tokens] = (1 - self.slip) * self.stay
        others[tokens, (tokens + 1) % self.num_tokens] = (1 - self.slip) * (1 - self.stay)
        object.__setattr__(self, "moves", others)

    def find_marginals(self, xt: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        """Messages from both ends, which meet at every position."""
        count = self.num_tokens
        seen = torch.nn.functional.one_hot(xt.clamp(max=count - 1), count).double()
        seen = torch.where((xt == count)[..., None], 1.0, seen)  # [B, L, V]
        # From the left and from the right at once [2, B, V]; short texts need no normalising.
        both, moves = torch.stack((seen, seen.flip(1))), torch.stack((self.moves, self.moves.T))
        messages = [torch.ones(2, len(xt), count, dtype=torch.float64)]
        for i in range(self.length - 1):
            messages.append((messages[-1] * both[:, :, i]) @ moves)
        left, right = torch.stack(messages, 2)  # [B, L, V] each
        weights = left * right.flip(1)
        return weights / weights.sum(-1, keepdim=True)

    def draw(self, rows: int, seed: int) -> Int[Tensor, "B L"]:
        """Texts of the law itself."""
        generator = torch.Generator().manual_seed(seed)
        columns = [torch.randint(self.num_tokens, (rows,), generator=generator)]
        for _ in range(self.length - 1):
            chances = self.moves[columns[-1]]
            columns.append(torch.multinomial(chances, 1, generator=generator)[:, 0])
        return torch.stack(columns, 1)

    def find_distance(self, texts: Int[Tensor, "B L"]) -> float:
        """Total variation between the law of neighbouring pairs and their shares in the texts."""
        pairs = (texts[:, :-1] * self.num_tokens + texts[:, 1:]).flatten()
        shares = torch.bincount(pairs, minlength=self.num_tokens**2) / len(pairs)
        law = (self.moves / self.num_tokens).flatten()
        return float((shares - law).abs().sum() / 2)

    def count_slips(self, texts: Int[Tensor, "B L"]) -> float:
        """The share of neighbouring pairs that are slips."""
        return float(((texts[:, 1:] - texts[:, :-1]) % self.num_tokens > 1).double().mean())


@dataclass(frozen=True, repr=False, kw_only=True)
class ExactModel(Model):
    """A model that predicts by a law; its network is never run."""

    law: TextLaw

    @classmethod
    def make(cls, law: TextLaw, kind: str = "masked") -> "ExactModel":
        """The model of a law, masked, hybrid or uniform; the last has no mask."""
        count, has_mask = law.num_tokens, get_paradigm(kind).has_mask
        config = preset("tiny", vocab_size=count + has_mask, num_logits=count, context=law.length)
        plan = Blueprint(config, kind, count if has_mask else None)
        return cls(name="exact", net=Transformer(config, seed=0).eval(), blueprint=plan, law=law)

    def logits(self, tokens, real=None, at=None, *_, **__) -> Float[Tensor, "*n V"]:
        logp = self.law.find_marginals(tokens).log()
        if at is None or at.dtype == torch.bool:
            return logp if at is None else logp[at]
        return logp.take_along_dim(at.expand(len(logp), -1)[..., None], 1)


def list_states(law: SmallLanguage) -> Int[Tensor, "S L"]:
    """All texts of a small language with any of their tokens masked."""
    return torch.tensor(list(product(range(law.num_tokens + 1), repeat=law.length)))


def find_kernel(law: SmallLanguage, corrector: Corrector) -> Float[Tensor, "S S"]:
    """The chance of each state to become another in one call of the corrector, by enumeration."""
    grid, columns = list_states(law), []
    for d in range(law.length):
        hidden = grid.index_fill(1, torch.tensor([d]), law.num_tokens)
        columns.append(law.find_marginals(hidden)[:, d])
    conditionals = torch.stack(columns, 1)  # p(token at each position | all others) [S, L, V]
    states = [tuple(state) for state in grid.tolist()]
    number = {state: i for i, state in enumerate(states)}
    table, margins = conditionals.tolist(), _find_margins(law, conditionals)
    choices = [_find_choices(corrector, own) for own in margins]
    kernel = torch.zeros(len(states), len(states), dtype=torch.float64)
    for i, state in enumerate(states):
        for order, chance in choices[i].items():
            # 1. The positions are hidden, and refilled one after the other.
            hidden = [law.num_tokens if d in order else token for d, token in enumerate(state)]
            texts = [(tuple(hidden), 1.0)]
            for d in order:
                texts = [
                    ((*text[:d], token, *text[d + 1 :]), p * p_token)
                    for text, p in texts
                    for token, p_token in enumerate(table[number[text]][d])
                ]
            # 2. The new text is kept, or else the old one stays.
            for text, p in texts:
                j, kept = number[text], 1.0
                if isinstance(corrector, Accepted) and chance:
                    kept = min(1.0, choices[j].get(order, 0.0) / chance)
                kernel[i, j] += chance * p * kept
                kernel[i, i] += chance * p * (1 - kept)
    return kernel


def _find_margins(law: SmallLanguage, conditionals: Tensor) -> list[dict[int, float]]:
    """The margin of every written position, for each state."""
    states = list_states(law)
    tokens = states.clamp(max=law.num_tokens - 1).flatten()
    margins = find_margin(conditionals.log().flatten(0, 1), tokens).view(states.shape).tolist()
    return [
        {d: margins[i][d] for d, token in enumerate(state) if token < law.num_tokens}
        for i, state in enumerate(states.tolist())
    ]


def _find_choices(corrector: Corrector, margins: dict[int, float]) -> Chances:
    """Which written positions the corrector draws anew, in which order, with what chance."""
    written = list(margins)
    if isinstance(corrector, UniformChoice):
        some = combinations(written, min(corrector.k, len(written)))
        orders = [order for each in some for order in permutations(each)]
        return {order: 1 / len(orders) for order in orders}
    if not isinstance(corrector, LeastTrusted | Accepted):
        raise UserError("a corrector of one's own has no matrix: expected one of the named ones.")
    k = min(corrector.k if isinstance(corrector, LeastTrusted) else 1, len(written))
    if corrector.temperature == 0:
        return {tuple(sorted(written, key=lambda d: (margins[d], d))[:k]): 1.0}
    weights = {d: math.exp(-margin / corrector.temperature) for d, margin in margins.items()}
    chances = {}
    for order in permutations(written, k):
        # Gumbel noise draws without replacement, each in proportion to what is left.
        chance, left = 1.0, sum(weights.values())
        for d in order:
            chance, left = chance * weights[d] / left, left - weights[d]
        chances[order] = chance
    return chances


def find_bias(
    law: SmallLanguage, kernel: Float[Tensor, "S S"], masked: float = 0.0, times: int = 1
) -> float:
    """Total variation between the law and what so many corrections make of it.

    `masked` is the share of tokens that are masked, each by itself, before the correction.
    """
    states = list_states(law)
    fits = (states[:, None] == law.num_tokens) | (states[:, None] == law.texts)  # [S, T, L]
    hidden = states == law.num_tokens
    p = torch.where(hidden, masked, 1 - masked).double().prod(-1)
    start = p * (fits.all(-1).double() @ law.law)
    end = start
    for _ in range(times):
        end = end @ kernel
    return float((end - start).abs().sum() / 2)
