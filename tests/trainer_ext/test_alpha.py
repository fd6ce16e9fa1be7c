"""alpha against float64 roots that scipy finds, loops and dense grids; its laws; its degenerate cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer_ext.alpha_oracle import EPS, MASKED, TOL, WHOLE, Reference, check, pair
from tests.trainer_ext.conftest import refusal
from trainer_ext.sampling import alpha as subject
from trainer_ext.sampling.alpha import solve
from trainer_ext.sampling.geometric import effective_sample_size, log_geometric_mean

BOTH = pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=["float32", "float64"])


@BOTH
@pytest.mark.parametrize("name", WHOLE + MASKED)
def test_alpha_is_the_root_that_scipy_finds(name, kind):
    determined = 0
    for size, rows in ((2, 40), (3, 40), (10, 40), (300, 20)):
        theta, target = pair(name, rows, size, kind, seed=size)
        determined += check(theta, target, solve(theta, target))
    if name in ("medium", "random", "apart", "heavy", "same top-k"):
        assert determined > 50  # the test says something


def test_a_step_that_is_short_because_its_terms_cancel_is_not_taken_for_the_last():
    """Found by a random start: 1 + c2 h near 0 made a step of 0.01 half an interval away from the root."""
    theta = torch.tensor([[-0.04462388530373573, -9.624740600585938, -3.1332316398620605]])
    target = torch.tensor([[-6.020648956298828, -1.573440670967102, -0.2354169636964798]])
    assert check(theta, target, solve(theta, target, initial=0.078652024269104)) == 1


@BOTH
@pytest.mark.parametrize("name", WHOLE + MASKED)
def test_every_start_leads_to_the_same_alpha(name, kind):
    rows, size = 24, 40
    theta, target = pair(name, rows, size, kind)
    cold = solve(theta, target)
    for start in (0.0, 1e-7, 0.2, 0.97, 1.0, torch.linspace(0, 1, rows)):
        warm = solve(theta, target, initial=start)
        check(theta, target, warm)
        for i in range(rows):
            row = Reference(theta[i].double().numpy(), target[i].double().numpy(), EPS[kind])
            a = float(cold.alpha[i])
            if row.level(a) < 2e-6 * row.variance(a):
                assert float(warm.alpha[i]) == pytest.approx(a, abs=2 * TOL[kind] + 2 * row.level(a) / row.variance(a))
        assert torch.equal(warm.degenerate, cold.degenerate)


def test_a_good_start_saves_passes():
    theta, target = pair("random", 64, 200, torch.float32)
    cold, far = solve(theta, target), solve(theta, target, initial=0.99)
    warm = solve(theta, target, initial=cold.alpha)
    assert (warm.passes == 1).all() and warm.passes.sum() < cold.passes.sum() < far.passes.sum()


@BOTH
@pytest.mark.parametrize("n", [5, 10, 20, 50])
def test_bisection_is_as_exact_as_its_halvings(n, kind):
    for name in ("near 0.1", "medium", "random", "apart", "heavy", "same top-k", "other top-k"):
        theta, target = pair(name, 20, 30, kind)
        found = solve(theta, target, solver="bisection", iterations=n)
        assert (found.passes == n).all()
        for i in range(len(theta)):
            row = Reference(theta[i].double().numpy(), target[i].double().numpy(), EPS[kind])
            expected, inside = row.root
            a = float(found.alpha[i])
            assert bool(found.degenerate[i]) == (row.masked and not inside)
            if not inside:
                assert not row.masked or a == expected
                continue
            assert abs(a - expected) <= 2.0 ** -(n + 1) + row.level(expected) / row.variance(expected) + EPS[kind]
            assert float(found.residual[i]) == pytest.approx(row.mean(a), abs=10 * row.level(a))


@pytest.mark.parametrize("method", ["kl_symmetry", "ess_balance", "entropy"])
def test_blocks_and_the_order_of_rows_change_nothing(method, monkeypatch):
    parts = [pair(name, 3, 50, torch.float32) for name in (*WHOLE[3:], *MASKED)]
    theta, target = (torch.cat([part[k] for part in parts]) for k in range(2))
    whole = solve(theta, target, method)
    order = torch.randperm(len(theta), generator=torch.Generator().manual_seed(1))
    for block in (1, 120, 333, 10**9):
        monkeypatch.setattr(subject, "BLOCK", block)
        found = solve(theta[order], target[order], method)
        assert torch.equal(found.degenerate, whole.degenerate[order])
        # torch adds up one row and many in different orders
        torch.testing.assert_close(found.alpha, whole.alpha[order], rtol=0, atol=1e-5)
        torch.testing.assert_close(found.log_q.exp(), whole.log_q[order].exp(), rtol=0, atol=2e-6)
        torch.testing.assert_close(found.residual, whole.residual[order], rtol=0, atol=2e-5)


@pytest.mark.parametrize("method", subject.METHODS)
def test_any_leading_shape_and_no_rows(method):
    theta, target = pair("medium", 6, 9, torch.float64)
    more = {"value": 0.3} if method == "fixed" else {}
    flat = solve(theta, target, method, log_p_ref=target.roll(1, 1), **more)
    for shape in ((2, 3), (6, 1), (1, 2, 3)):
        a, b = theta.reshape(*shape, 9), target.reshape(*shape, 9)
        found = solve(a, b, method, log_p_ref=b.roll(1, -1), **more)
        assert found.alpha.shape == shape and found.log_q.shape == (*shape, 9)
        torch.testing.assert_close(found.alpha.reshape(-1), flat.alpha)
    one = solve(theta[0], target[0], method, log_p_ref=target[0].roll(1), **more)
    assert one.alpha.shape == () and float(one.alpha) == pytest.approx(float(flat.alpha[0]), abs=1e-12)
    none = solve(theta[:0], target[:0], method, log_p_ref=target[:0], **more)
    assert none.alpha.shape == (0,) and none.log_q.shape == (0, 9) and none.passes.dtype == torch.int64


def test_what_was_found_stays_when_more_is_solved():
    theta, target = pair("medium", 4, 50, torch.float32)
    first = solve(theta, target)
    kept = first.log_q.clone()
    solve(target.roll(1, 1), theta)
    assert torch.equal(first.log_q, kept)
    assert not solve(theta.clone().requires_grad_(), target).log_q.requires_grad


# ---------------------------------------------------------------- laws

ROWS = st.tuples(
    st.sampled_from([*WHOLE[4:7], "peaked", "apart", "heavy", "same top-k"]),
    st.integers(2, 40),
    st.integers(0, 10**6),
).map(lambda drawn: pair(drawn[0], 5, drawn[1], torch.float64, drawn[2]))
MANY = settings(max_examples=20)


HOW = ({}, {"solver": "bisection", "iterations": 20}, {"method": "ess_balance"}, {"method": "entropy"})


@pytest.mark.parametrize("how", HOW, ids=str)
@MANY
@given(ROWS)
def test_swapping_the_policies_mirrors_alpha(how, rows):
    theta, target = rows
    one, other = solve(theta, target, **how), solve(target, theta, **how)
    torch.testing.assert_close(one.alpha, 1 - other.alpha, rtol=0, atol=1e-6 if "iterations" in how else 1e-9)
    torch.testing.assert_close(one.log_q.exp(), other.log_q.exp(), rtol=0, atol=1e-4 if "iterations" in how else 1e-7)


@MANY
@given(ROWS)
def test_both_divergences_are_the_chernoff_information(rows):
    theta, target = rows
    found = solve(theta, target)
    q, inside = found.log_q.exp(), found.log_q > -math.inf
    to_theta, to_target = ((q * torch.where(inside, found.log_q - x, 0.0)).sum(dim=1) for x in rows)
    _, log_z = log_geometric_mean(theta, target, found.alpha)
    torch.testing.assert_close(to_theta, to_target, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(to_theta, -log_z, rtol=1e-9, atol=1e-10)
    # the minimum of log Z
    for a in np.linspace(0.001, 0.999, 23):
        assert (log_geometric_mean(theta, target, float(a))[1] >= log_z - 1e-12).all()


@MANY
@given(ROWS)
def test_ess_balance_makes_the_smaller_size_as_large_as_it_can_be(rows):
    theta, target = rows
    found = solve(theta, target, "ess_balance")

    def sizes(log_q):
        return effective_sample_size(theta, log_q), effective_sample_size(target, log_q)

    of_theta, of_target = sizes(found.log_q)
    torch.testing.assert_close(of_theta, of_target, rtol=1e-8, atol=0)
    torch.testing.assert_close(found.residual, torch.zeros_like(found.residual), rtol=0, atol=1e-9)
    for a in np.linspace(0, 1, 41):
        least = torch.minimum(*sizes(log_geometric_mean(theta, target, float(a))[0]))
        assert (least <= of_theta * (1 + 1e-8)).all()


# ---------------------------------------------------------------- the other methods


def test_entropy_against_a_loop():
    theta, target = pair("other top-k", 10, 12, torch.float32)
    found = solve(theta, target, "entropy")
    for i in range(10):
        sizes = [-math.fsum(math.exp(v) * v for v in x[i].tolist() if v > -math.inf) for x in (theta, target)]
        assert float(found.alpha[i]) == pytest.approx(sizes[0] / sum(sizes), abs=1e-6)
    certain = torch.tensor([[0.0, -math.inf, -math.inf]])
    assert solve(certain, certain, "entropy").alpha == 0.5


@BOTH
def test_fixed_takes_its_value(kind):
    theta, target = pair("other top-k", 10, 12, kind)
    for value in (0.0, 0.3, 1.0):
        found = solve(theta, target, "fixed", value=value)
        torch.testing.assert_close(found.alpha, torch.full((10,), value, dtype=kind))
        torch.testing.assert_close(found.log_q, log_geometric_mean(theta, target, value)[0])
    # whole, tokens that the other excludes with them
    torch.testing.assert_close(solve(theta, target, "fixed", value=1.0).log_q, theta)
    torch.testing.assert_close(solve(theta, target, "fixed", value=0.0).log_q, target)


def signal_to_noise(theta, target, ref, a):
    """|Phi1| / sqrt(Phi2) of one row at one alpha, a loop over tokens."""
    theta, target, ref = theta.tolist(), target.tolist(), ref.tolist()
    common = [v for v in range(len(theta)) if theta[v] > -math.inf and target[v] > -math.inf]
    z = math.fsum(math.exp(a * theta[v] + (1 - a) * target[v]) for v in common)
    signal, first, second = 0.0, 0.0, 0.0
    for v in common:
        q = math.exp(a * theta[v] + (1 - a) * target[v]) / z
        p, t = math.exp(theta[v]), math.exp(target[v])
        wr = p / q * (target[v] - ref[v])
        signal, first, second = signal + (t - p) * wr, first + p * wr, second + p * wr * wr
    return abs(signal) / math.sqrt(second - first**2)


@pytest.mark.parametrize("name", ["near 0.1", "medium", "random", "same top-k", "other top-k"])
def test_snr_max_against_a_dense_grid(name):
    theta, target = pair(name, 8, 7, torch.float64)
    ref = pair("medium", 8, 7, torch.float64, seed=5)[0]
    found = solve(theta, target, "snr_max", log_p_ref=ref)
    single = solve(theta.float(), target.float(), "snr_max", log_p_ref=ref.float())
    for i in range(8):
        grid = [signal_to_noise(theta[i], target[i], ref[i], a) for a in np.linspace(0, 1, 401)]
        for solution, near in ((found, 1e-6), (single, 1e-4)):
            own = signal_to_noise(theta[i], target[i], ref[i], float(solution.alpha[i]))
            assert own >= max(grid) * (1 - near)


def test_snr_max_without_a_signal_is_the_middle():
    theta, target = pair("medium", 3, 7, torch.float64)
    for other in (theta, target):
        found = solve(theta, other, "snr_max", log_p_ref=target)
        assert (found.alpha == 0.5).all() and found.degenerate.all()


# ---------------------------------------------------------------- degenerate cases


@BOTH
@pytest.mark.parametrize("how", [{}, {"solver": "bisection"}, {"method": "ess_balance"}, {"initial": 0.9}], ids=str)
def test_equal_distributions_give_the_middle_and_the_policy(how, kind):
    theta, _ = pair("medium", 5, 30, kind)
    theta[3] = theta[3].masked_fill(torch.arange(30) > 4, -math.inf).log_softmax(0)
    theta[4] = torch.full((30,), -math.inf).scatter(0, torch.tensor(7), 0.0)
    found = solve(theta, theta.clone(), **how)
    assert (found.alpha == 0.5).all() and not found.degenerate.any() and (found.residual == 0).all()
    torch.testing.assert_close(found.log_q, theta, rtol=0, atol=20 * EPS[kind])


@pytest.mark.parametrize("method", subject.METHODS)
def test_disjoint_supports_give_the_plain_mixture(method):
    theta = torch.tensor([[0.25, 0.75, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]]).log()
    target = torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.2, 0.2, 0.2, 0.4]]).log()
    more = {"value": 0.3} if method == "fixed" else {}
    found = solve(theta, target, method, log_p_ref=torch.full_like(theta, 0.25).log(), **more)
    assert found.alpha[0] == 0.5 and found.degenerate.tolist() == [True, False] and found.residual[0] == 0
    torch.testing.assert_close(found.log_q[0].exp(), torch.tensor([0.125, 0.375, 0.25, 0.25]))
    bisected = solve(theta, target, solver="bisection")
    assert bisected.alpha[0] == 0.5 and bisected.degenerate.tolist() == [True, False]


@BOTH
@pytest.mark.parametrize("solver", subject.SOLVERS)
def test_without_a_symmetric_point_alpha_is_the_nearer_end(solver, kind):
    # the target allows one token: q is certain of it at every alpha, and KL(q||t) = 0 < KL(q||theta)
    theta = torch.tensor([[0.2, 0.8], [0.5, 0.5]], dtype=kind).log()
    target = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=kind).log()
    found, other = solve(theta, target, solver=solver), solve(target, theta, solver=solver)
    assert (found.alpha == 1).all() and (other.alpha == 0).all()
    assert found.degenerate.all() and other.degenerate.all()
    torch.testing.assert_close(found.log_q, target)
    torch.testing.assert_close(other.log_q, target)


@pytest.mark.parametrize("solver", subject.SOLVERS)
@pytest.mark.parametrize("root", [0.01, 0.99])
def test_a_root_close_to_an_end_is_one(solver, root):
    # two tokens in common, s = 1 and -1, and one of its own for each
    t = [0.2 * math.exp(-root), 0.2 * math.exp(root)]
    theta = [t[0] * math.e, t[1] / math.e]
    rows = [[*theta, 1 - sum(theta), 0.0], [*t, 0.0, 1 - sum(t)]]
    found = solve(*torch.tensor(rows, dtype=torch.float64).log(), solver=solver, iterations=5)
    assert not found.degenerate
    assert float(found.alpha) == pytest.approx(root, abs=2**-6 if solver == "bisection" else 1e-12)


def test_tokens_below_the_range_of_float32_decide_where_they_are_all_there_is():
    """s = 0 on the one likely token: the others, of probabilities far below 1e-38, have the root to themselves."""
    theta = torch.tensor([[0.0, -121.73, -165.63, -108.03, -255.48], [0.0, -35.82, -123.12, -140.18, -38.09]])
    target = torch.tensor([[0.0, -125.56, -35.92, -167.95, -148.39], [0.0, -81.52, -40.32, -143.76, -87.47]])
    found = solve(theta, target)
    for i in range(2):
        row = Reference(theta[i].double().numpy(), target[i].double().numpy(), EPS[torch.float32])
        assert float(found.alpha[i]) == pytest.approx(row.root[0], abs=1e-5)


@pytest.mark.parametrize("mask", [-1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("start", [None, 0.0, 1.0])
def test_a_large_negative_mask_is_as_good_as_infinity(mask, start):
    for name in ("other top-k", "one masked", "same top-k"):
        theta, target = pair(name, 30, 12, torch.float32)
        found = solve(theta, target)
        own = solve(theta.clamp_min(mask), target.clamp_min(mask), initial=start)
        torch.testing.assert_close(own.alpha, found.alpha, rtol=0, atol=3e-6)
        torch.testing.assert_close(own.log_q.exp(), found.log_q.exp(), rtol=0, atol=1e-4)
        assert torch.equal(own.degenerate, found.degenerate)


# ---------------------------------------------------------------- refusals


def broken(row, value):
    x = torch.zeros(4, 3)
    x[row] = value
    return x


ZEROS = torch.zeros(4, 3)


PAIRS = [
    (broken(2, math.nan), ZEROS), (ZEROS, broken(1, math.inf)), (ZEROS, broken(3, -math.inf)), (broken(1, -1e9), ZEROS),
    (ZEROS, torch.zeros(4, 2)), (ZEROS, ZEROS.double()), (ZEROS.half(), ZEROS.half()),
]  # fmt: skip
SETTINGS = [
    {"method": "kl"}, {"solver": "secant"}, {"solver": "bisection", "iterations": 0}, {"method": "fixed"},
    {"method": "fixed", "value": 1.5}, {"value": 0.5}, {"method": "snr_max"}, {"initial": math.nan},
    {"method": "snr_max", "log_p_ref": broken(2, -math.inf)}, {"initial": torch.zeros(3)},
]  # fmt: skip


@pytest.mark.parametrize(
    ("pair", "more"), [*((pair, {}) for pair in PAIRS), *(((ZEROS, ZEROS), more) for more in SETTINGS)]
)
def test_what_cannot_be_solved_is_named(pair, more, worded):
    worded(refusal(lambda: solve(*pair, **more)))


def test_a_row_is_named_by_its_place_in_the_whole_batch(monkeypatch):
    monkeypatch.setattr(subject, "BLOCK", 6)
    with pytest.raises(ValueError, match="row 3 "):
        solve(broken(3, math.nan), torch.zeros(4, 3))
