"""Rounding one family: snapping, bounds, roots, refusals, ties."""

from __future__ import annotations

import numpy as np
import pytest

from opendas.arrays.kernels import mix
from opendas.errors import ConfigError, InfeasibleFamily
from opendas.solvers.rounding import network as rounding_network
from opendas.solvers.rounding import snapping
from opendas.solvers.rounding.rounding import UNBOUNDED, RoundingNames, round_family

ONE = snapping.ONE


def keys(count):
    return np.arange(count, dtype=np.uint64)


def total(n):
    return np.zeros(n, np.int32)


def detailed(n):
    return np.arange(n, dtype=np.int32)


def rounded(x, parent, passes=None, groups=None, lower=None, upper=None, mask=None, **options):
    x = np.asarray(x, dtype=float)
    n = x.shape[1]
    return round_family(
        x,
        None if parent is None else np.asarray(parent),
        np.ones(x.shape, bool) if mask is None else np.asarray(mask),
        passes or ((total(n),), (detailed(n),)),
        None if groups is None else np.asarray(groups, dtype=bool),
        None if lower is None else np.asarray(lower),
        None if upper is None else np.asarray(upper),
        options.pop("tie_keys", keys(len(x))),
        **options,
    )


def test_integers_stay():
    x = [[3, 0, 7], [1, 2, 0]]
    result = rounded(x, [4, 2, 7])
    assert result.values.tolist() == x
    assert result.objective == (0.0, 0.0)
    assert result.method == "flow"
    assert not result.values.flags.writeable


def test_nearly_integers_are_snapped_not_floored():
    """0.999...: without snapping, floor would hand a whole unit of mass to the rounder."""
    x = np.array([[4.9999999, 0.0000001, 3.0], [2.0000001, 5.9999999, 1.0]])
    result = rounded(x, [7, 6, 4])
    assert result.values.tolist() == [[5, 0, 3], [2, 6, 1]]
    assert result.objective == (0.0, 0.0)


def test_cells_of_0_999_are_fractions():
    result = rounded([[4.999, 0.001], [2.001, 5.999]], [7, 6])
    assert result.values.tolist() == [[5, 0], [2, 6]]
    assert result.objective[1] == pytest.approx(0.004, abs=4 / ONE)


def test_total_of_a_child_comes_before_its_cells():
    """Each of three cells rounds down, their total rounds up."""
    x = np.array([[0.4, 0.4, 0.4], [0.6, 0.6, 0.6]])
    result = rounded(x, [1, 1, 1])
    assert result.values.sum(axis=1).tolist() == [1, 2]
    one_pass = rounded(x, [1, 1, 1], passes=((detailed(3),),))
    assert one_pass.values.sum(axis=1).tolist() == [0, 3]


def test_earlier_answers_are_held():
    rng = np.random.default_rng(5)
    x = rng.random((6, 8)) * 3
    parent = np.rint(x.sum(axis=0)).astype(np.int64)
    x *= parent / x.sum(axis=0)
    halves = (np.arange(8) // 4).astype(np.int32)
    first = rounded(x, parent, ((total(8),),))
    second = rounded(x, parent, ((total(8),), (halves,)))
    third = rounded(x, parent, ((total(8),), (halves,), (detailed(8),)))
    np.testing.assert_array_equal(first.values.sum(axis=1), third.values.sum(axis=1))
    np.testing.assert_array_equal(second.values[:, :4].sum(axis=1), third.values[:, :4].sum(axis=1))
    assert third.objective[:2] == second.objective


def test_a_map_named_twice_counts_double():
    x = np.array([[0.3, 0.3], [0.7, 0.7]])
    for count in (1, 2, 3):
        result = rounded(x, [1, 1], ((total(2), *[detailed(2)] * count),))
        apart = x - result.values
        expected = np.abs(apart.sum(axis=1)).sum() + count * np.abs(apart).sum()
        assert result.objective[0] == pytest.approx(expected, abs=1e-5)


def test_weights_can_change_the_answer():
    """Totals near (1, 2) are worth 2 counts, and cost 0.4 in the cells, named once or six times."""
    x = np.array([[0.4, 0.4, 0.4], [0.6, 0.6, 0.6]])
    for count, totals in ((1, [1, 2]), (6, [0, 3])):
        result = rounded(x, [1, 1, 1], ((total(3), *[detailed(3)] * count),))
        assert result.values.sum(axis=1).tolist() == totals


def test_mask_is_respected():
    x = np.array([[0.5, 0.0], [0.5, 1.5], [0.0, 1.5]])
    mask = x > 0
    result = rounded(x, [1, 3], mask=mask)
    assert not result.values[~mask].any()
    assert result.values.sum(axis=0).tolist() == [1, 3]


def test_lower_bound_of_a_group_moves_a_person():
    """Cell by cell both children of the group would round to zero in the first."""
    x = np.array([[0.5, 0.5, 9.0], [1.5, 1.5, 4.0]])
    groups = [[True, True, False]]
    free = rounded(x, [2, 2, 13], ((detailed(3),),))
    bound = rounded(x, [2, 2, 13], ((detailed(3),),), groups, [[1], [3]], [[UNBOUNDED], [UNBOUNDED]])
    assert bound.values[:, :2].sum(axis=1).tolist() == [1, 3]
    assert free.objective[0] <= bound.objective[0] + 1e-12


def test_bounds_may_be_any_integer():
    x = np.array([[0.5, 0.5], [0.5, 0.5]])
    extreme = np.iinfo(np.int64)
    result = rounded(x, [1, 1], None, [[True, True]], [[extreme.min]] * 2, [[extreme.max]] * 2)
    np.testing.assert_array_equal(result.values, rounded(x, [1, 1]).values)


def test_a_root_keeps_its_fixed_total():
    x = np.array([[10.4, 3.3, 0.3, 0.0]])
    result = rounded(x, None, None, [[True] * 4], [[14]], [[14]])
    assert result.values.sum() == 14
    assert (np.abs(result.values - x) < 1).all()


def test_a_root_without_bounds_rounds_to_nearest():
    assert rounded([[0.6, 1.2, 2.0]], None, ((detailed(3),),)).values.tolist() == [[1, 1, 2]]


def test_infeasible_groups_are_named():
    x = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 2.0]])
    groups = [[True, False, False], [True, True, False], [False, False, True]]
    lower = [[0, 2, 0], [1, 0, 2]]
    upper = [[1, 2, 5], [1, 9, 5]]
    names = RoundingNames("44007", (("total",), ("detailed",)), ("nursing", "gq_total", "household"))
    with pytest.raises(InfeasibleFamily) as error:
        rounded(x, [1, 1, 2], None, groups, lower, upper, names=names)
    assert error.value.family == "44007"
    assert error.value.constraints == ("nursing", "gq_total")


def test_crossing_rows_are_refused_by_name():
    sexes, ages = np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 0, 1], np.int32)
    names = RoundingNames("44007", (("sex",), ("age",)))
    with pytest.raises(ConfigError, match=r"'sex', row \d and query 'age', row \d cross"):
        rounded(np.full((2, 4), 0.5), [1, 1, 1, 1], ((sexes,), (ages,)), names=names)


def test_a_held_row_counts_for_crossing():
    sexes, ages = np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 0, 1], np.int32)
    with pytest.raises(ConfigError, match="cross"):
        rounded(np.full((2, 4), 0.5), [1, 1, 1, 1], ((sexes,), (total(4),), (ages,)))


def test_crossing_rows_by_milp():
    sexes, ages = np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 0, 1], np.int32)
    x = np.array([[0.75, 0.5, 0.5, 1.25], [0.25, 1.5, 0.5, 0.75]])
    result = rounded(x, [1, 2, 1, 2], ((total(4),), (sexes, ages), (detailed(4),)), milp=True)
    assert result.method == "milp"
    assert result.values.sum(axis=0).tolist() == [1, 2, 1, 2]
    assert result.objective[:2] == (0.0, 2.0)  # every margin is a quarter away from an integer


def test_laminar_rows_never_need_the_milp():
    assert rounded([[0.5], [0.5]], [1], milp=True).method == "flow"


def test_milp_refuses_what_cannot_be():
    sexes, ages = np.array([0, 0, 1, 1], np.int32), np.array([0, 1, 0, 1], np.int32)
    with pytest.raises(InfeasibleFamily):
        rounded(
            np.full((2, 4), 0.5),
            [1, 1, 1, 1],
            ((sexes, ages),),
            [[True] * 4],
            [[4], [1]],
            [[9], [9]],
            milp=True,
        )


def test_permuting_children_and_cells_permutes_the_result():
    """Equal fractions everywhere: only the public keys decide, never the order of the arrays."""
    rng = np.random.default_rng(11)
    x = np.full((6, 9), 0.5)
    parent = np.full(9, 3)
    quarters = (np.arange(9) // 3).astype(np.int32)
    child_keys, cell_keys = (
        rng.integers(0, 2**62, 6).astype(np.uint64),
        rng.integers(0, 2**62, 9).astype(np.uint64),
    )
    passes = ((total(9),), (quarters, detailed(9)))
    plain = rounded(x, parent, passes, tie_keys=child_keys, cell_keys=cell_keys).values
    for _ in range(10):
        rows, columns = rng.permutation(6), rng.permutation(9)
        moved = rounded(
            x[np.ix_(rows, columns)],
            parent[columns],
            tuple(tuple(one[columns] for one in maps) for maps in passes),
            tie_keys=child_keys[rows],
            cell_keys=cell_keys[columns],
        ).values
        np.testing.assert_array_equal(moved, plain[np.ix_(rows, columns)])


def test_ties_fall_differently_under_other_keys():
    x = np.full((6, 9), 0.5)
    parent = np.full(9, 3)
    one = rounded(x, parent, tie_keys=keys(6)).values
    other = rounded(x, parent, tie_keys=keys(6) + np.uint64(100)).values
    assert (one != other).any()


def test_fractions_add_up_exactly_after_snapping():
    rng = np.random.default_rng(2)
    x = rng.random((7, 20)) * 5
    parent = np.rint(x.sum(axis=0)).astype(np.int64)
    x *= parent / x.sum(axis=0)
    status, base, part, need = snapping.snap(x, parent, True, np.ones(x.shape, bool), keys(7), keys(20))
    assert status == snapping.DONE
    np.testing.assert_array_equal(base.sum(axis=0) * ONE + part.sum(axis=0), parent * ONE)
    np.testing.assert_array_equal(part.sum(axis=0), need * ONE)
    assert np.abs(base + part / ONE - x).max() <= 1.5e-6


@pytest.mark.parametrize(
    ("x", "parent", "reason"),
    [
        ([[0.5], [0.6]], [1], "does not add up"),
        ([[np.nan], [1.0]], [1], "finite"),
        ([[-0.1], [1.1]], [1], "non-negative"),
        ([[2.0**40], [0.0]], [2**40], "below"),
    ],
)
def test_impossible_estimates_are_refused(x, parent, reason):
    with pytest.raises(ValueError, match=reason):
        rounded(x, parent)


def test_an_estimate_outside_its_mask_is_refused():
    with pytest.raises(ValueError, match="mask"):
        rounded([[0.5], [0.5]], [1], mask=[[True], [False]])


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="do not fit"):
        rounded([[0.5], [0.5]], [1, 2])


def test_costs_that_could_overflow_are_noticed():
    costs = np.zeros((3, 2), np.int64)
    costs[2, 1] = 2**40
    assert rounding_network._fits(costs, 0, 2, 2**21)
    assert not rounding_network._fits(costs, 0, 2, 2**22)
    assert rounding_network._fits(costs, 0, 1, 2**22)


def test_large_counts_keep_their_fractions():
    x = np.array([[2.0**33 + 0.25, 7.5], [2.0**33 + 0.75, 0.5]])
    result = rounded(x, x.sum(axis=0).astype(np.int64))
    assert result.values[:, 0].tolist() == [2**33, 2**33 + 1]


def test_mix_is_splitmix64():
    """The first outputs of splitmix64 from seed 1234567, as other implementations publish them."""
    state = np.uint64(1234567)
    step = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        outputs = [int(mix(state + np.uint64(k) * step)) for k in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]
