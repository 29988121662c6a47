"""The update of a down projection that gives keys new values and disturbs other keys least.

One formula serves ROME's successors. With keys K [F, E], residuals R [D, E] (what the output at
each key is to gain), the second moment of keys C [F, F] and a ridge,

    dW = R A,    A = (ridge I + K^T C^-1 K)^-1 K^T C^-1    [E, F]

- ridge 0, one fact: r-ROME (Gupta et al. 2024, arXiv 2403.07175); several: exact EMMET
  (2403.14236);
- ridge > 0: MEMIT on one layer (Meng et al. 2022, 2210.07229, equation 14), since
  K^T (ridge C + K K^T)^-1 = A; EMMET's weight m and ridge e are MEMIT with ridge m e;
- a projector P in the place of C^-1: AlphaEdit (Fang et al. 2024, 2410.02355), whose keys of
  earlier edits are further columns of K with residuals of 0.

A is what the edit reads with: a state with key k gets R (A k), so A k, one number per fact, is the
share of each fact's residual that acts there. ROME as published (2202.05262) divides by another key
than it weighs with, and is here for comparison alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.base.errors import UserError

Weigh = Callable[[Tensor], Tensor]
"""Keys [F, E], each multiplied by C^-1 or by a projector."""
_SINGULAR = 1e-13
"""Below this share of the largest, an eigenvalue is rounding in float64."""


def solve_update(
    keys: Float[Tensor, "F E"],
    residuals: Float[Tensor, "D E"],
    moments: Float[Tensor, "F F"] | None = None,
    ridge: float = 0.0,
) -> Float[Tensor, "D F"]:
    """The update dW with which W + dW maps each key to its old value plus its residual.

    Among all that do, it changes the outputs at other keys least, on average over C (ridge 0); a
    ridge trades hitting the values for disturbing less.

    Args:
        keys: One column per fact.
        residuals: What the output is to gain at each key.
        moments: The second moment of keys C; None is the identity.
        ridge: At least 0; with 0 the keys must be independent.

    Returns:
        dW in float64, of rank E at most.

    >>> keys, residuals = torch.eye(4)[:, :2], torch.ones(3, 2)
    >>> update = unmask.editing.solve_update(keys, residuals)
    >>> (update @ keys.double()).equal(residuals.double())
    True
    """
    keys, residuals = keys.double(), residuals.double()
    return residuals @ solve_readers(keys, weigh_by(moments)(keys), ridge)


def solve_readers(
    keys: Float[Tensor, "F E"], weighed: Float[Tensor, "F E"], ridge: float = 0.0
) -> Float[Tensor, "E F"]:
    """A = (ridge I + K^T M K)^-1 K^T M for weighed keys M K; A k are the shares that act at k."""
    if not ridge >= 0:
        raise UserError(f"the ridge is {ridge}: expected 0 or more.")
    keys, weighed = keys.double(), weighed.double()
    gram = keys.T @ weighed
    gram = (gram + gram.T) / 2
    # Independence has no scale: keys are compared at unit length. A key of no length is none.
    size = gram.diagonal().clamp(min=0).sqrt()
    scaled = gram / (size[:, None] * size)
    if ridge == 0 and not bool((size > 0).all() and torch.linalg.eigvalsh(scaled)[0] > _SINGULAR):
        raise UserError(
            f"the {keys.shape[1]} keys are not independent, or one is nothing where the update may "
            "write, so no update gives each its own value: leave out facts with the same subject "
            "and prompt, or give a ridge above 0."
        )
    return torch.linalg.solve(gram + ridge * torch.eye(len(gram)).to(gram), weighed.T)


def solve_rome(
    key: Float[Tensor, "F"], divisor: Float[Tensor, "F"], moments: Float[Tensor, "F F"] | None
) -> Float[Tensor, "1 F"]:
    """ROME as published: weighed with the mean `key`, divided by another, the bare prompt's."""
    weighed = weigh_by(moments)(key.double()[:, None])[:, 0]
    return (weighed / (weighed @ divisor.double()))[None]


def weigh_by(moments: Float[Tensor, "F F"] | None) -> Weigh:
    """C^-1, factored once; a matrix that has no inverse is refused."""
    if moments is None:
        return torch.Tensor.double
    _require_finite(moments)
    factor, failed = torch.linalg.cholesky_ex(moments.double())
    # The condition number is at least the squared ratio of the factor's ends.
    least, most = (float(end) ** 2 for end in factor.diagonal().aminmax())
    if bool(failed) or not least > _SINGULAR * most:
        raise UserError(
            f"the moment matrix of {len(moments)} keys has no inverse: gather moments over more "
            "tokens, or shrink them towards the identity."
        )
    return lambda keys: torch.cholesky_solve(keys.double(), factor)


def _require_finite(moments: Float[Tensor, "F F"]) -> None:
    if not bool(moments.isfinite().all()):
        raise UserError("the moment matrix holds numbers that are not finite: gather it again.")


@dataclass(frozen=True)
class FreeSpace:
    """Directions in which keys of running text hardly ever point, and an update may write."""

    directions: Float[Tensor, "F N"]
    """Eigenvectors of the moments, orthonormal."""
    cut: float
    """No direction's eigenvalue is above it: E||dW k||^2 <= cut ||dW||^2 for updates within."""

    @property
    def dimension(self) -> int:
        return self.directions.shape[1]

    def project(self, keys: Float[Tensor, "F E"]) -> Float[Tensor, "F E"]:
        """P K, to be used in the place of C^-1 K."""
        return self.directions @ (self.directions.T @ keys.double())


def find_free_space(
    moments: Float[Tensor, "F F"], share: float | None = None, cut: float | None = None
) -> FreeSpace:
    """The directions of the smallest eigenvalues that hold at most `share` of their sum.

    AlphaEdit's `cut` is an absolute eigenvalue, which means nothing on another network's scale of
    keys; it is here for comparison.
    """
    assert (share is None) != (cut is None), "one of both"
    _require_finite(moments)
    values, vectors = torch.linalg.eigh(moments.double())
    values = values.clamp(min=0)
    if cut is None:
        count = int((values.cumsum(0) <= share * values.sum()).sum())
    else:
        count = int((values < cut).sum())
    if not count:
        raise UserError(
            f"no direction of keys is free: the smallest of {len(values)} eigenvalues, "
            f"{float(values[0]):.2g}, is above the threshold; give a larger one."
        )
    return FreeSpace(vectors[:, :count], float(values[count - 1]))
