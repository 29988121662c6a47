"""Laws of the one formula: each is an identity of the papers' equations, on random matrices."""

import pytest
import torch

import unmask
from unmask import UserError
from unmask.editing.update import find_free_space, solve_readers, weigh_by

D, F, E = 7, 12, 3


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


W, K, R = draw(D, F, seed=1), draw(F, E, seed=2), draw(D, E, seed=3)
FACTOR = draw(F, 3 * F, seed=4)
C = FACTOR @ FACTOR.T / (3 * F)


def update(ridge=0.0, keys=K, residuals=R, moments=C):
    return unmask.editing.solve_update(keys, residuals, moments, ridge)


def same(one, other):
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_without_a_ridge_every_value_is_hit():
    same((W + update()) @ K, W @ K + R)


def test_one_fact_is_written_as_completely_as_its_ridge_says():
    """(W + dW) k = W k + r q / (q + ridge), q = k^T C^-1 k (MEMIT for one fact)."""
    k, r = K[:, :1], R[:, :1]
    q = float(k.T @ torch.linalg.inv(C) @ k)
    for ridge in (0.0, 0.3, 20.0):
        same(update(ridge, k, r) @ k, r * q / (q + ridge))


def test_the_order_of_edits_made_on_top_of_each_other_matters():
    """Each edit hits its value in the weights it finds, and disturbs what an earlier one wrote."""
    weight = draw(D, F, seed=11)

    def write(order):
        found = weight
        for i in order:
            key = K[:, i : i + 1]
            found = found + update(0.0, key, R[:, i : i + 1] - found @ key)
        return found

    forth, back = write((0, 1)), write((1, 0))
    same(forth @ K[:, 1], R[:, 1])
    same(back @ K[:, 0], R[:, 0])
    assert float((forth - back).norm()) > 1e-3 < float((forth @ K[:, 0] - R[:, 0]).norm())


def test_least_harm_is_a_right_angle():
    """tr((dW + N) C (dW + N)^T) = tr(dW C dW^T) + tr(N C N^T) for every N that spares the keys."""
    other = draw(D, F, seed=5)
    spares = other - other @ K @ torch.linalg.inv(K.T @ K) @ K.T

    def harm(change):
        return torch.trace(change @ C @ change.T)

    same(harm(update() + spares), harm(update()) + harm(spares))
    k, r = K[:, :1], R[:, :1]
    same(harm(update(0.0, k, r)), (r.norm() ** 2 / (k.T @ torch.linalg.inv(C) @ k)).squeeze())


def test_silence_and_rank():
    weighed = weigh_by(C)(K)
    silent = draw(F, seed=6)
    silent = silent - weighed @ torch.linalg.lstsq(weighed, silent[:, None]).solution[:, 0]
    for ridge in (0.0, 4.0):
        assert float((update(ridge) @ silent).norm()) < 1e-10 < float((update(ridge) @ K).norm())
        assert int(torch.linalg.matrix_rank(update(ridge))) == E


def test_scale_order_and_emptiness():
    same(update(0.0, moments=9 * C), update(0.0))
    same(update(0.0, moments=None), update(0.0, moments=3 * torch.eye(F)))
    assert not update(5.0, moments=9 * C).allclose(update(5.0)), "a ridge has a scale"
    order = torch.tensor([2, 0, 1])
    same(update(1.0, K[:, order], R[:, order]), update(1.0))
    assert update(0.0, K, torch.zeros(D, E)).eq(0).all(), "an empty edit changes nothing"


def test_shares_are_what_the_update_reads():
    """dW k = R (A k): for one fact (u . k) / (u . k_bar), 1 at its own key."""
    state = draw(F, seed=7)
    for ridge in (0.0, 2.0):
        readers = solve_readers(K, weigh_by(C)(K), ridge)
        same(R @ (readers @ state), update(ridge) @ state)
    u = torch.linalg.inv(C) @ K[:, 0]
    one = solve_readers(K[:, :1], weigh_by(C)(K[:, :1]))
    same(one @ state, (u @ state / (u @ K[:, 0]))[None])
    same(solve_readers(K, weigh_by(C)(K)) @ K, torch.eye(E).double())


def test_the_null_space_spares_what_text_uses():
    """P is a projector, dW = dW P, and E||dW k||^2 <= cut ||dW||^2; earlier keys are columns."""
    space = find_free_space(C, share=0.2)
    eye = torch.eye(F).double()
    projector = space.project(eye)
    same(projector, projector.T)
    same(projector, projector @ projector)
    values = torch.linalg.eigvalsh(C)
    kept = values[: space.dimension]
    assert 0 < space.dimension < F and float(kept.sum()) <= 0.2 * float(values.sum())
    assert float(values[: space.dimension + 1].sum()) > 0.2 * float(values.sum())
    assert space.cut == pytest.approx(float(kept[-1]))
    earlier, ridge = draw(F, 2, seed=9), 0.7
    keys = torch.cat([K, earlier], dim=1)
    change = R @ solve_readers(keys, space.project(keys), ridge)[:E]
    published = torch.linalg.solve(
        projector @ (K @ K.T + earlier @ earlier.T) + ridge * eye, projector @ K @ R.T
    ).T
    same(change, published)
    same(change, change @ projector)
    assert (
        float(torch.trace(change @ C @ change.T)) <= space.cut * float(change.norm()) ** 2 + 1e-12
    )
    same(
        change @ torch.linalg.eigh(C)[1][:, space.dimension :],
        torch.zeros(D, F - space.dimension).double(),
    )
    absolute = find_free_space(C, cut=space.cut * (1 + 1e-9))
    assert absolute.dimension == space.dimension
    wider = find_free_space(C, share=1.0 + 1e-9)
    same(wider.project(eye), eye)


def test_an_update_is_the_same_in_any_float_format():
    single = unmask.editing.solve_update(K.float(), R.float(), C.float())
    assert single.dtype == torch.float64
    torch.testing.assert_close(single, update(), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_solved_is_a_sentence():
    twice = K[:, [0, 0]]
    with pytest.raises(UserError, match=r"2 keys are not independent.*ridge above 0"):
        update(0.0, twice, R[:, :2])
    assert update(0.1, twice, R[:, :2]).isfinite().all()
    with pytest.raises(UserError, match="not independent, or one is nothing"):
        update(0.0, K * torch.tensor([1.0, 0.0, 1.0]))
    few = FACTOR[:, : F - 2] @ FACTOR[:, : F - 2].T
    for singular in (few, torch.zeros(F, F)):
        with pytest.raises(UserError, match=r"has no inverse.*more tokens"):
            update(0.0, moments=singular)
    with pytest.raises(UserError, match="not finite"):
        update(0.0, moments=C * float("nan"))
    with pytest.raises(UserError, match="ridge is -1.*0 or more"):
        update(-1.0)
    with pytest.raises(UserError, match="no direction of keys is free"):
        find_free_space(C, share=1e-9)
