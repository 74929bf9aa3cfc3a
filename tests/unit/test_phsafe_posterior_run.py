"""`opendas phsafe-post`: folders in, files in the published layout out."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from support.phsafe_measurements import Truth, made_truth, measurements, write_measurements

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.errors import ConfigError, DataError, FormatError
from opendas.phsafe.posterior.files import COUNTS, Model
from opendas.phsafe.posterior.post_processing import (
    PostProcessing,
    check_averages,
    check_counts,
    post_process,
)
from opendas.phsafe.posterior.truncated import truncated_mean

COUNT_HEADER = (
    "GEOID REGION_TYPE ITERATION_CODE DATA_CELL COUNT_NOISY VARIANCE MOE_NOISY PRED PRED_LO PRED_HI"
)
SHARED_HEADER = (
    "GEOID REGION_TYPE ITERATION_CODE DATA_CELL COUNT_NOISY_NUM VARIANCE_NUM MOE_NOISY_NUM COUNT_NOISY_DENOM "
    "VARIANCE_DENOM MOE_NOISY_DENOM RATIO_NOISY RATIO_PRED PRED_NUM PRED_DENOM RATIO_PRED_LO RATIO_PRED_HI"
)
TENURE_HEADER = (
    "GEOID REGION_TYPE ITERATION_CODE DATA_CELL COUNT_NOISY_DENOM VARIANCE_DENOM MOE_NOISY_DENOM "
    "COUNT_NOISY_NUM VARIANCE_NUM MOE_NOISY_NUM RATIO_NOISY RATIO_PRED RATIO_PRED_LO RATIO_PRED_HI"
)
Rows = dict[tuple[str, str, int], Mapping[str, str]]


@pytest.fixture(scope="module")
def truth() -> Truth:
    return made_truth(np.random.default_rng(11), ["01", "44"], ["*", "A", "E", "H"])


@pytest.fixture(scope="module")
def noisy(truth: Truth) -> dict[str, dict[tuple[str, str, str], tuple[tuple[int, float], ...]]]:
    return measurements(truth, np.random.default_rng(12))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, noisy: dict) -> tuple[Path, PostProcessing]:
    folder = tmp_path_factory.mktemp("out")
    write_measurements(folder, noisy)
    return folder, post_process(folder)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, noisy: dict) -> Path:
    folder = tmp_path_factory.mktemp("published")
    write_measurements(folder, noisy)
    assert post_process(folder, model=Model.PUBLISHED).ok
    return folder


def read(out: Path, table: str, place: str = "state") -> tuple[list[str], Rows]:
    with open(out / table / "estimates" / f"{table}_{place}_trunc_normal.csv", newline="") as file:
        reader = csv.DictReader(file, delimiter="|")
        rows = {(row["GEOID"], row["ITERATION_CODE"], int(row["DATA_CELL"])): row for row in reader}
        return list(reader.fieldnames or ()), rows


def call(*arguments: str) -> tuple[int, Result]:
    runner, codes = CliRunner(), []

    import click

    @click.command(context_settings={"ignore_unknown_options": True})
    def wrapped() -> None:
        codes.append(guarded(cli, list(arguments)))

    result = runner.invoke(wrapped, [])
    return codes[0], result


def test_every_table_is_written_for_nation_and_states(out: tuple[Path, PostProcessing]) -> None:
    folder, result = out
    tables = [f"PH{n}" for n in range(1, 9)]
    expected = [
        f"{t}/estimates/{t}_{place}_trunc_normal.csv" for t in tables for place in ("state", "nation")
    ]
    assert sorted(result.files) == sorted(expected)
    assert result.ok
    assert result.notes == ()
    for table in tables:
        header, rows = read(folder, table)
        shape = {"PH1": SHARED_HEADER, "PH5": SHARED_HEADER, "PH8": TENURE_HEADER}.get(table, COUNT_HEADER)
        assert header == shape.split()
        cells = 3 if table in {"PH1", "PH5", "PH8"} else len(COUNTS[table].cells) + len(COUNTS[table].margins)
        assert len(rows) == cells * 2 * (1 if table in {"PH2", "PH6"} else 4)
    assert {key[0] for key in read(folder, "PH2", "nation")[1]} == {"01"}


def test_text_is_quoted_as_in_the_published_files(out: tuple[Path, PostProcessing]) -> None:
    lines = (out[0] / "PH7/estimates/PH7_state_trunc_normal.csv").read_text().splitlines()
    assert lines[0].startswith('"GEOID"|"REGION_TYPE"|')
    assert lines[1].startswith('"01"|"STATE"|"*"|1|')


def test_the_measurements_are_left_alone(tmp_path: Path, noisy: dict) -> None:
    write_measurements(tmp_path, noisy)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    post_process(tmp_path)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert before.items() <= after.items()
    assert {path.parent.name for path in after.keys() - before.keys()} == {"estimates"}
    again = post_process(tmp_path, workers=2)
    assert again.ok
    assert after == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_totals_are_sums_of_their_cells(out: tuple[Path, PostProcessing]) -> None:
    for name, table in COUNTS.items():
        _, rows = read(out[0], name)
        for (region, group, cell), row in rows.items():
            for column in ("PRED", "COUNT_NOISY", "VARIANCE"):
                parts = table.margins.get(cell, (cell,))
                total = sum(float(rows[region, group, part][column]) for part in parts)
                assert float(row[column]) == pytest.approx(total, rel=1e-12)
            assert int(row["PRED_LO"]) <= int(row["PRED_HI"])
            assert float(row["MOE_NOISY"]) == pytest.approx(1.6448536 * float(row["VARIANCE"]) ** 0.5)


@pytest.mark.parametrize("place", ["state", "nation"])
def test_families_and_their_members_share_one_posterior(out: tuple[Path, PostProcessing], place: str) -> None:
    _, averages = read(out[0], "PH5", place)
    _, counts = read(out[0], "PH4", place)
    for (region, group, cell), row in averages.items():
        mean, count = float(row["PRED_NUM"]), int(counts[region, group, cell]["PRED"])
        assert abs(mean - count) <= (0.5 if cell != 1 else 1.0) + 1e-9
        parts = [float(averages[region, group, part]["PRED_NUM"]) for part in (2, 3)]
        whole = averages[region, group, 1]
        assert float(whole["PRED_NUM"]) == pytest.approx(sum(parts), rel=1e-12)
        ratios = [float(averages[region, group, part]["RATIO_PRED"]) for part in (2, 3)]
        assert float(whole["RATIO_PRED"]) == pytest.approx(sum(ratios), rel=1e-8)


def test_owners_and_renters_share_one_posterior_with_their_average(
    out: tuple[Path, PostProcessing], published: Path
) -> None:
    _, averages = read(out[0], "PH8")
    _, alone = read(published, "PH8")
    differ = 0
    for region, group, cell in averages:
        if cell != 1:
            continue
        differ += averages[region, group, 1]["RATIO_PRED"] != alone[region, group, 1]["RATIO_PRED"]
    assert differ > 0


def test_checks_find_what_they_look_for() -> None:
    count = ["44", "STATE", "*", 2, 5, 9.0, 4.9, 5, 1, 9]
    assert all(check.ok for check in check_counts("f", [count]))
    assert [c.ok for c in check_counts("f", [[*count[:-3], -1, 1, 9]])] == [False, True]
    assert [c.ok for c in check_counts("f", [[*count[:-3], 5, 9, 1]])] == [True, False]
    average = ["44", "STATE", "*", 1, *[0.0] * 6, 2.0, 2.5, 2.0, 3.0]
    assert all(check.ok for check in check_averages("f", [average], 1, 10))
    assert [c.ok for c in check_averages("f", [[*average[:-3], 2.5, 0.5, 3.0]], 1, 10)] == [False, True]
    assert [c.ok for c in check_averages("f", [[*average[:-3], 3.5, 2.0, 3.0]], 1, 10)] == [True, False]


def test_the_published_model_is_the_continuous_one(published: Path) -> None:
    for name in ("PH2", "PH3", "PH4", "PH7"):
        _, rows = read(published, name)
        for (_, _, cell), row in rows.items():
            if cell in COUNTS[name].cells:
                mean = truncated_mean(float(row["COUNT_NOISY"]), float(row["VARIANCE"]))
                assert int(row["PRED"]) == round(float(mean))


def test_both_models_agree_on_large_groups(out: tuple[Path, PostProcessing], published: Path) -> None:
    for name, column in (("PH3", "PRED"), ("PH1", "RATIO_PRED"), ("PH8", "RATIO_PRED")):
        _, ours = read(out[0], name)
        _, theirs = read(published, name)
        for key, row in ours.items():
            noisy = float(row["COUNT_NOISY" if name == "PH3" else "COUNT_NOISY_DENOM"])
            if noisy > 50_000:
                assert float(row[column]) == pytest.approx(float(theirs[key][column]), rel=1e-4)


def test_puerto_rico_has_files_of_its_own(tmp_path: Path) -> None:
    made = made_truth(np.random.default_rng(1), ["72"], ["*"])
    tables = measurements(made, np.random.default_rng(2))
    only = {n: {k: v for k, v in rows.items() if k[0] == "STATE"} for n, rows in tables.items()}
    write_measurements(tmp_path, only)
    result = post_process(tmp_path)
    assert len(result.files) == 8
    assert "PH5/estimates/PH5_PR_state_trunc_normal.csv" in result.files


def test_tables_without_budget_are_left_out_with_a_note(tmp_path: Path, noisy: dict) -> None:
    few = {name: noisy[name] for name in ("PH3", "PH4", "PH5_num", "PH7", "PH1_num", "PH1_denom")}
    few["PH1_denom"] = {key: row for key, row in noisy["PH1_denom"].items() if key[2] != "A"}
    write_measurements(tmp_path, few)
    result = post_process(tmp_path)
    assert {name.split("/")[0] for name in result.files} == {"PH1", "PH3", "PH4", "PH7"}
    assert any("PH5_denom was not measured" in note for note in result.notes)
    assert any("have no PH1_denom" in note for note in result.notes)
    assert {key[1] for key in read(tmp_path, "PH1")[1]} == {"*", "E", "H"}


def test_counts_without_a_denominator_keep_their_place(tmp_path: Path, noisy: dict) -> None:
    some = dict(noisy)
    some["PH5_denom"] = {key: row for key, row in noisy["PH5_denom"].items() if key[2] != "*"}
    write_measurements(tmp_path, some)
    post_process(tmp_path)
    _, rows = read(tmp_path, "PH4")
    assert [key[1] for key in rows][:4] == ["*", "A", "E", "H"]
    assert len(rows) == 2 * 4 * 3


def test_exact_counts_of_an_infinite_budget_stay_exact(tmp_path: Path, truth: Truth) -> None:
    tables = measurements(truth, np.random.default_rng(1), dict.fromkeys(truth.tables, 0.0))
    write_measurements(tmp_path, tables)
    assert post_process(tmp_path).ok
    _, rows = read(tmp_path, "PH3")
    for row in rows.values():
        assert row["PRED"] == row["PRED_LO"] == row["PRED_HI"] == row["COUNT_NOISY"]
    _, rows = read(tmp_path, "PH8")
    for row in rows.values():
        assert row["RATIO_PRED"] == row["RATIO_NOISY"] == row["RATIO_PRED_LO"]


def test_an_exact_denominator_beside_noisy_numerators(tmp_path: Path, truth: Truth, noisy: dict) -> None:
    exact = measurements(truth, np.random.default_rng(1), dict.fromkeys(truth.tables, 0.0))
    write_measurements(tmp_path, {**noisy, "PH5_denom": exact["PH5_denom"]})
    assert post_process(tmp_path).ok
    _, rows = read(tmp_path, "PH5")
    for row in rows.values():
        assert float(row["PRED_DENOM"]) == pytest.approx(float(row["COUNT_NOISY_DENOM"]), abs=0.02)


def test_geometric_noise_is_named_as_an_approximation_in_averages(tmp_path: Path, noisy: dict) -> None:
    write_measurements(tmp_path, noisy, "Two-Sided Geometric")
    result = post_process(tmp_path)
    assert result.ok
    assert sum("geometric noise is taken as normal" in note for note in result.notes) == 6


def test_numerators_of_another_run_are_refused(tmp_path: Path, noisy: dict) -> None:
    key = next(iter(noisy["PH5_num"]))
    (a, v), rest = noisy["PH5_num"][key]
    write_measurements(tmp_path, {**noisy, "PH5_num": {**noisy["PH5_num"], key: ((a + 1, v), rest)}})
    with pytest.raises(DataError, match="PH5_num is not the same measurement as PH4"):
        post_process(tmp_path)
    assert not list(tmp_path.glob("*/estimates"))
    assert post_process(tmp_path, model=Model.PUBLISHED).ok


def test_exact_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "PH2").mkdir()
    (tmp_path / "PH2/part-00000-x.csv").write_text("REGION_ID|REGION_TYPE|PH2_DATA_CELL|COUNT\n1|USA|3|5\n")
    with pytest.raises(ConfigError, match="no VARIANCE column"):
        post_process(tmp_path)
    code, _ = call("phsafe-post", str(tmp_path))
    assert code == 2


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no PHSafe output"):
        post_process(tmp_path)
    with pytest.raises(ConfigError, match="above 2"):
        post_process(tmp_path, most=2.0)


HEAD = "REGION_ID|REGION_TYPE|ITERATION_CODE|PH7_DATA_CELL|COUNT|NOISE_DISTRIBUTION|VARIANCE"
GOOD = ["1|USA|*|2|5|Discrete Gaussian|9.0", "1|USA|*|3|5|Discrete Gaussian|9.0"]
LAST = "1|USA|*|4|5|Discrete Gaussian|9.0"


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("1|USA|*|5|5|Discrete Gaussian|9.0", "one of the measured cells 2, 3, 4"),
        ("1|USA|*|4|5.0|Discrete Gaussian|9.0", "a whole number"),
        ("1|USA|*|4|5|Normal|9.0", "Discrete Gaussian or Two-Sided Geometric"),
        ("1|USA|*|4|5|Discrete Gaussian|nan", "a number, 0 or more"),
        ("1|USA|*|4|5|Discrete Gaussian|x", "a number, 0 or more"),
        ("123|USA|*|4|5|Discrete Gaussian|9.0", "1 or two digits"),
        ("1|TRACT|*|4|5|Discrete Gaussian|9.0", "USA or STATE"),
        ("1|USA|*|3|5|Discrete Gaussian|9.0", "each cell of a region and group once"),
        ("1|USA|*|4|5", "7 fields"),
        ("1" * 200_000, "7 fields"),
        (f'"{LAST}', "1 or two digits"),
        ("44|STATE|*|4|5|Discrete Gaussian|9.0", "all measured cells"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, line: str, rule: str) -> None:
    (tmp_path / "PH7").mkdir()
    path = tmp_path / "PH7/part-00000-x.csv"
    path.write_text("\n".join([HEAD, *GOOD, LAST]) + "\n")
    assert post_process(tmp_path).ok
    path.write_text("\n".join([HEAD, *GOOD, line]) + "\n")
    with pytest.raises(FormatError, match=rule):
        post_process(tmp_path)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "PH7"
    folder.mkdir()
    with pytest.raises(FormatError, match=r"no \.csv file"):
        post_process(tmp_path)
    (folder / "a.csv").write_bytes(b"\xff\n")
    with pytest.raises(FormatError, match="ASCII"):
        post_process(tmp_path)
    (folder / "a.csv").write_text(HEAD.replace("VARIANCE", "VAR").replace("|COUNT", "|N") + "\n")
    with pytest.raises(FormatError, match="lacks COUNT, VARIANCE"):
        post_process(tmp_path)
    (folder / "a.csv").write_text("\n".join([HEAD, *GOOD]) + "\n")
    (folder / "b.csv").write_text("\n".join([HEAD, LAST]) + "\n")
    assert post_process(tmp_path).rows == 4
    (folder / "b.csv").write_text("REGION_ID\n")
    with pytest.raises(FormatError, match="different headers"):
        post_process(tmp_path)


def test_puerto_rico_beside_a_state_is_refused(tmp_path: Path) -> None:
    made = made_truth(np.random.default_rng(1), ["44", "72"], ["*"])
    write_measurements(tmp_path, measurements(made, np.random.default_rng(2)))
    with pytest.raises(DataError, match="run of its own"):
        post_process(tmp_path)


def test_the_command_answers_in_words_and_in_json(tmp_path: Path, noisy: dict) -> None:
    write_measurements(tmp_path, {"PH3": noisy["PH3"]})
    code, result = call("phsafe-post", str(tmp_path))
    assert code == 0
    assert f"{tmp_path}/PH3/estimates/PH3_state_trunc_normal.csv" in result.stdout
    code, result = call("phsafe-post", str(tmp_path), "--published", "--json")
    answer = json.loads(result.stdout)
    assert (code, answer["ok"], answer["model"], answer["rows"]) == (0, True, "published", 3 * 4 * 10)
    assert all(check["ok"] for check in answer["checks"])
