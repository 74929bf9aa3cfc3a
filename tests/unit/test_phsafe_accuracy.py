"""The accuracy report: against a join of the written tables, formulas in numbers, and what it says where."""

from __future__ import annotations

import csv
import json
import math
import stat
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path

import pytest
from support.households import World, configuration, random_world, write_world

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.run_key import RunKey
from opendas.errors import ConfigError
from opendas.phsafe.accuracy import accuracy_report, published_moe, run_accuracy, write_report
from opendas.phsafe.config import Mode, Plan, parse_config
from opendas.phsafe.counting import count_tables
from opendas.phsafe.inputs.linking import Linked, link, sort_inputs
from opendas.phsafe.inputs.read_csv import read_csv
from opendas.phsafe.measure import measure
from opendas.phsafe.output import PART_FILE, OutputTable, exact_tables
from opendas.phsafe.run import HouseholdOptions
from opendas.phsafe.tables.sensitivity import Answers, LevelNoise, Sensitivity, noise_for, spent
from opendas.privacy.relations import Mechanism

STATES = ["06", "44"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def world() -> World:
    return random_world(8, 70)


@pytest.fixture(scope="module")
def linked(world: World, tmp_path_factory: pytest.TempPathFactory) -> Linked:
    folder = write_world(tmp_path_factory.mktemp("data"), world)
    return link(sort_inputs(read_csv(folder, STATES)), STATES)


def plan_of(**options: object) -> Plan:
    return Plan(parse_config(json.dumps(configuration(**options)), Mode.PRIVATE))  # type: ignore[arg-type]


def written(table: OutputTable) -> dict[tuple[str, ...], int]:
    rows = csv.DictReader(table.text(STATES).splitlines(), delimiter="|")
    cell = f"{table.name.upper()}_DATA_CELL"
    return {
        (row["REGION_ID"], row["REGION_TYPE"], row.get("ITERATION_CODE", "*"), row[cell]): int(row["COUNT"])
        for row in rows
    }


def percentile(values: list[int]) -> float:
    """Interpolate linearly between the order statistics."""
    ordered = sorted(values)
    at = Fraction(9, 10) * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (at - low) * (ordered[high] - ordered[low]))


@pytest.mark.parametrize("definition", ["zcdp", "puredp"])
def test_errors_are_those_of_the_written_tables(definition: str, linked: Linked) -> None:
    plan = plan_of(tau=3, definition=definition, without=("PH2",))
    rows = accuracy_report(plan, linked, trials=3, seed=40)
    truth = {table.name: written(table) for table in exact_tables(plan.config, linked)}
    errors: dict[tuple[str, str, str, int], list[int]] = defaultdict(list)
    for trial in range(3):
        noisy = measure(
            plan, lambda plan, keys: count_tables(plan, linked, keys), RunKey.seeded(40 + trial), "00" * 32
        )
        for table in noisy:
            for (region, kind, group, cell), count in written(table).items():
                error = abs(count - truth[table.name].get((region, kind, group, cell), 0))
                errors[table.name, kind, group, int(cell)].append(error)
    found = {(row.table, row.region_type, row.iteration, row.cell): row for row in rows}
    assert found.keys() == errors.keys()
    for key, values in errors.items():
        assert found[key].count == len(values)
        assert found[key].experimental_moe == pytest.approx(percentile(values))


def test_truncation_bias_is_the_persons_beyond_tau(world: World, linked: Linked) -> None:
    plan = plan_of(tau=2, budget=float("inf"))
    rows = accuracy_report(plan, linked, trials=2, seed=0)
    sizes = Counter(person["MAFID"] for person in world[0] if person["RTYPE"] == "3")
    place = {row["MAFID"]: row for row in world[2]}
    beyond: Counter[tuple[str, str]] = Counter()
    for unit in world[1]:
        if place[unit["MAFID"]]["RTYPE"] == "2" and unit["TEN"] != "0":
            cell = {"1": "2", "2": "3", "3": "4", "4": "4"}[unit["TEN"]]
            beyond["USA", cell] += max(0, sizes[unit["MAFID"]] - 2)
    for row in rows:
        assert (row.noise_moe, row.expected_moe, row.exact_moe) == (0, 0, 0)
        assert row.truncation_bias <= 0
        if (row.table, row.region_type, row.iteration) == ("PH7", "USA", "*"):
            assert row.truncation_bias == -beyond["USA", str(row.cell)]
            assert row.experimental_moe == beyond["USA", str(row.cell)]
        if row.table.endswith("denom"):
            assert (row.truncation_bias, row.experimental_moe) == (0, 0)
    assert sum(beyond.values()) > 20


def test_a_tau_above_every_household_leaves_no_bias(linked: Linked) -> None:
    rows = accuracy_report(plan_of(tau=50), linked, trials=1, seed=0)
    assert all(row.truncation_bias == 0 for row in rows)
    alike = [row for row in rows if row.table not in ("PH1_num", "PH8_num")]
    assert all(row.experimental_moe == row.noise_moe for row in alike)


def test_another_definition_of_the_truth_is_error_and_no_bias(tmp_path: Path) -> None:
    world = random_world(8, 70)
    unit = next(u for u in world[1] if u["RTYPE"] == "2" and u["HHT"] != "0")
    unit["HHT"] = "0"  # PH1_num counts its persons, the exact table of the non-private mode does not
    lived_in = link(sort_inputs(read_csv(write_world(tmp_path, world), STATES)), STATES)
    rows = accuracy_report(plan_of(tau=50, budget=float("inf")), lived_in, trials=1, seed=0)
    people = sum(person["MAFID"] == unit["MAFID"] for person in world[0])
    found = [row for row in rows if (row.table, row.region_type, row.iteration) == ("PH1_num", "USA", "*")]
    assert sum(row.experimental_moe for row in found) == people > 0
    assert all((row.truncation_bias, row.noise_moe) == (0, 0) for row in found)


def test_the_same_seed_gives_the_same_report_and_trials_add_up(linked: Linked) -> None:
    plan = plan_of(tau=3)
    one, again, other = (accuracy_report(plan, linked, trials=2, seed=seed) for seed in (5, 5, 6))
    assert one == again
    assert one != other
    assert {row.count for row in one if row.region_type == "STATE"} == {2 * len(STATES)}


@pytest.mark.parametrize(
    ("tau", "budget", "expected"),
    # Rows of the published table of budgets: 1.64 (2 tau + 2) / sqrt(2 rho).
    [(10, "0.002619", 498.5), (10, "0.141622", 67.8), (6, "0.662976", 19.9), (None, "0.00117", 67.8)],
)
def test_the_published_margin_of_gaussian_noise(tau: int | None, budget: str, expected: float) -> None:
    assert published(tau, budget, Mechanism.DISCRETE_GAUSSIAN) == expected


@pytest.mark.parametrize("budget", ["0.001", "0.05", "0.5", "2"])
def test_the_published_margin_of_two_sided_geometric_noise(budget: str) -> None:
    b = 12 / float(budget)
    naive = round(b * math.log(20 / (1 + math.exp(1 / b))), 1)
    assert published(5, budget, Mechanism.DISCRETE_LAPLACE) == naive


def published(tau: int | None, budget: str, mechanism: Mechanism) -> float:
    answers = Answers(tau or 1, 3, is_joined=tau is not None)
    law = noise_for(answers, Fraction(budget), mechanism, Sensitivity.PAPER)
    noise = LevelNoise("PH3", "usa_*", answers, Fraction(budget), law, spent(answers, law))
    definition = "zcdp" if mechanism is Mechanism.DISCRETE_GAUSSIAN else "puredp"
    return published_moe(noise, plan_of(definition=definition))


def test_sums_of_two_cells_have_wider_margins(linked: Linked) -> None:
    rows = accuracy_report(plan_of(tau=3), linked, trials=1, seed=0)
    found = {(row.table, row.cell): row for row in rows if (row.region_type, row.iteration) == ("USA", "*")}
    one, two = found["PH8_num", 3], found["PH8_num", 2]
    assert (one.expected_moe, one.exact_moe) == (found["PH7", 4].expected_moe, found["PH7", 4].exact_moe)
    assert two.expected_moe == round(math.sqrt(2) * one.expected_moe, 1)
    assert 1.35 < two.exact_moe / one.exact_moe < 1.48
    assert found["PH5_num", 2].exact_moe == found["PH4", 2].exact_moe


def test_ninety_in_a_hundred_errors_are_within_the_exact_margin(linked: Linked) -> None:
    # 46 levels, about 700 cells in two states and the nation, 12 trials: the pooled share is 0.90 or a bit
    # more, for the margin is the smallest integer that reaches it.
    plan = plan_of(tau=50, without=("PH4", "PH7"))
    rows = accuracy_report(plan, linked, trials=12, seed=1)
    ratios = [row.noise_moe / row.exact_moe for row in rows if row.count >= 24 and row.exact_moe > 20]
    assert len(ratios) > 80
    assert 0.90 < sum(ratios) / len(ratios) < 1.05


def test_the_report_has_the_published_columns_first(linked: Linked, tmp_path: Path) -> None:
    rows = accuracy_report(plan_of(tau=3), linked, trials=1, seed=0)
    path = write_report(tmp_path / "report", rows)
    assert path.name == PART_FILE
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    header, *lines = path.read_text().splitlines()
    assert header.startswith(
        "TABLE|REGION_TYPE|ITERATION_CODE|DATA_CELL|EXPERIMENTAL_MOE|COUNT|EXPECTED_MOE|"
    )
    assert len(lines) == len(rows)
    write_report(tmp_path / "report", rows[:3])
    assert len(path.read_text().splitlines()) == 4
    (tmp_path / "report" / "other").write_text("")
    with pytest.raises(ConfigError, match="holds other files"):
        write_report(tmp_path / "report", rows)


def test_the_command(world: World, tmp_path: Path, capsys: Capture) -> None:
    data = write_world(tmp_path / "data", world)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(configuration(tau=3)))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    words = ["phsafe-accuracy", str(config), str(data), "--trials", "2"]
    assert guarded(cli, [*words, "--json"]) == 0
    shown = capsys.readouterr()
    assert "CONFIDENTIAL" in shown.err
    answer = json.loads(shown.out)
    assert (answer["confidential"], answer["trials"]) == (True, 2)
    expected = run_accuracy(config, data, 2, HouseholdOptions())
    assert answer["rows"] == [row.to_dict() for row in expected]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert guarded(cli, [*words, "--out", str(tmp_path / "report"), "--sensitivity", "tight"]) == 0
    assert "PH8_num" in capsys.readouterr().out
    assert guarded(cli, [*words[:-2], "--trials", "0"]) == 2


def test_bad_input_is_refused_as_by_a_private_run(tmp_path: Path, capsys: Capture) -> None:
    world = random_world(8, 70)
    world[0][0]["QAGE"] = "116"
    data = write_world(tmp_path / "data", world)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(configuration()))
    words = ["phsafe-accuracy", str(config), str(data), "--out", str(tmp_path / "report")]
    assert guarded(cli, words) == 3
    assert "persons.csv, line 2, field QAGE" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()
