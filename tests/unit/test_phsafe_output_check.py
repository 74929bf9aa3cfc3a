"""Output validation: good output passes, and each kind of damage is found and named."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.data import shared_data
from support.households import configuration, random_world, write_world

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.folders import sha256_file
from opendas.custody.signing_key import SigningKey
from opendas.phsafe.config import Config, Mode, parse_config
from opendas.phsafe.output import PART_FILE
from opendas.phsafe.posterior.files import Model
from opendas.phsafe.posterior.post_processing import post_process
from opendas.phsafe.run import HouseholdOptions, run_exact, run_private
from opendas.phsafe.tables import OUTPUTS
from opendas.phsafe.tables.sensitivity import Answers, Sensitivity
from opendas.phsafe.verify import check_tables, expected_tables, expected_variance, verify_output
from opendas.privacy.relations import Mechanism
from opendas.report.signature import sign_release

Capture = pytest.CaptureFixture[str]


def make(folder: Path, document: dict[str, object], **options: Any) -> tuple[Path, Config]:
    data = write_world(folder / "data", random_world(3, 60))
    (folder / "config.json").write_text(json.dumps(document))
    run_private(folder / "config.json", data, folder / "out", HouseholdOptions(**options))
    return folder / "out", parse_config(json.dumps(document), Mode.PRIVATE)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Config]:
    return make(tmp_path_factory.mktemp("good"), configuration())


@pytest.fixture
def out(good: tuple[Path, Config], tmp_path: Path) -> Path:
    return Path(shutil.copytree(good[0], tmp_path / "out"))


def failed(checks: tuple[Any, ...]) -> dict[str, str]:
    return {check.name: check.detail for check in checks if not check.ok}


@pytest.mark.parametrize("bound", list(Sensitivity))
@pytest.mark.parametrize("definition", ["zcdp", "puredp"])
def test_good_output_passes(definition: str, bound: Sensitivity, tmp_path: Path) -> None:
    out, config = make(tmp_path, configuration(definition=definition, without=("PH7",)), sensitivity=bound)
    assert failed(verify_output(out)) == {}
    assert failed(check_tables(out, config, bound)) == {}
    other = next(one for one in Sensitivity if one is not bound)
    wrong = failed(check_tables(out, config, other))
    # The bounds agree on pure epsilon for a table of units with several cells only.
    assert "PH3" in wrong
    assert "expected VARIANCE" in wrong["PH3"]
    assert {check.name for check in check_tables(out, config, bound)}.isdisjoint({"PH7", "PH8_num"})


def test_without_noise_the_published_case_passes(tmp_path: Path) -> None:
    case = shared_data("phsafe_e2e") / "test2"
    run_private(case / "config.json", case, tmp_path / "out", HouseholdOptions())
    assert set(failed(verify_output(tmp_path / "out"))) == {"stamps"}
    assert failed(verify_output(tmp_path / "out", allow_seeded=True)) == {}


def test_the_published_programs_own_output_passes(tmp_path: Path) -> None:
    case = shared_data("phsafe_e2e") / "test2"
    config = parse_config((case / "config.json").read_text(), Mode.PRIVATE)
    for name in OUTPUTS:
        (tmp_path / name).mkdir()
        columns = next(t.columns for t in expected_tables(config, Sensitivity.PAPER) if t.name == name)
        # The case stores the columns in an order of its own.
        header, *lines = (case / "expected_outputs" / f"{name}.csv").read_text().splitlines()
        rows = [dict(zip(header.split("|"), line.split("|"), strict=True)) for line in lines]
        text = ["|".join(columns), *("|".join(row[column] for column in columns) for row in rows)]
        (tmp_path / name / "part-00000-published.csv").write_text("\n".join(text) + "\n")
    assert failed(check_tables(tmp_path, config, whole_grid=False)) == {}


@pytest.mark.parametrize("step", [0.001, 0.05, 0.5, 1.0, 5.0])
def test_the_variance_of_two_sided_geometric_noise_is_its_sum(step: float) -> None:
    answers = Answers(1, 3, is_joined=False)
    budget = Fraction(step) * answers.l1(Sensitivity.PAPER, _unbounded())
    found = expected_variance(answers, budget, Mechanism.DISCRETE_LAPLACE, Sensitivity.PAPER)
    weights = [math.exp(-step * k) for k in range(int(60 / step))]
    total = 2 * math.fsum(weights) - 1
    direct = 2 * math.fsum(k * k * weight for k, weight in enumerate(weights)) / total
    assert found == pytest.approx(direct, rel=1e-9)


def _unbounded() -> Any:
    from opendas.privacy.relations import Neighbours

    return Neighbours.UNBOUNDED


def test_the_published_variance_of_the_gaussian() -> None:
    # tau 10: (2 * 10 + 2)^2 / (2 * 0.002619), the first row of the published table of budgets.
    answers = Answers(10, 2)
    found = expected_variance(answers, Fraction("0.002619"), Mechanism.DISCRETE_GAUSSIAN, Sensitivity.PAPER)
    assert found == pytest.approx(92401.680, abs=5e-4)


def edit(path: Path, change: Callable[[list[str]], object]) -> None:
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("\n".join(lines) + "\n")


def replaced(field: int, value: str, line: int = 3) -> Callable[[list[str]], None]:
    def change(lines: list[str]) -> None:
        values = lines[line].split("|")
        values[field] = value
        lines[line] = "|".join(values)

    return change


DAMAGE: dict[str, tuple[Callable[[list[str]], object], str]] = {
    "variance": (replaced(6, "147.9"), "line 4: expected VARIANCE"),
    "no variance": (replaced(6, "x"), "line 4: expected VARIANCE"),
    "count": (replaced(4, "1.5"), "line 4: COUNT is not an integer"),
    "noise": (replaced(5, "Gaussian"), "line 4: expected NOISE_DISTRIBUTION Discrete Gaussian"),
    "type": (replaced(1, "STATE"), "line 4: expected REGION_TYPE USA"),
    "state": (replaced(0, "48", 150), "not in the grid"),
    "group": (replaced(2, "J"), "not in the grid"),
    "cell": (replaced(3, "3"), "not in the grid"),
    "fields": (lambda lines: lines.append("1|USA"), "expected 7 fields"),
    "twice": (lambda lines: lines.append(lines[3]), "the row appears twice"),
    "missing": (lambda lines: lines.pop(3), "rows missing: 1 (1 A 5)"),
    "order": (
        lambda lines: lines.__setitem__(
            0, lines[0].replace("COUNT|NOISE_DISTRIBUTION", "NOISE_DISTRIBUTION|COUNT")
        ),
        "expected the columns REGION_ID|REGION_TYPE|ITERATION_CODE|PH3_DATA_CELL|COUNT",
    ),
    "empty": (lambda lines: lines.clear(), "expected the columns"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_in_a_table_is_found(kind: str, good: tuple[Path, Config], out: Path) -> None:
    change, words = DAMAGE[kind]
    edit(out / "PH3" / PART_FILE, change)
    wrong = failed(check_tables(out, good[1]))
    assert set(wrong) == {"PH3"}
    assert words in wrong["PH3"]
    assert set(failed(verify_output(out))) == {"digests", "PH3"}


def test_a_small_error_of_variance_is_below_the_tolerance_and_a_larger_is_not(
    good: tuple[Path, Config], out: Path
) -> None:
    path = out / "PH3" / PART_FILE
    variance = float(path.read_text().splitlines()[3].split("|")[6])
    edit(path, replaced(6, repr(variance * (1 + 5e-7))))
    assert failed(check_tables(out, good[1])) == {}
    edit(path, replaced(6, repr(variance * (1 + 2e-6))))
    assert set(failed(check_tables(out, good[1]))) == {"PH3"}


def test_derived_tables_hold_the_same_noise(good: tuple[Path, Config], out: Path) -> None:
    for name in ("PH5_num", "PH8_num"):
        path = out / name / PART_FILE
        count = int(path.read_text().splitlines()[3].split("|")[4])
        edit(path, replaced(4, str(count + 1)))
    wrong = failed(check_tables(out, good[1]))
    assert set(wrong) == {"PH5_num from PH4", "PH8_num from PH7"}


def test_folders(good: tuple[Path, Config], out: Path) -> None:
    shutil.rmtree(out / "PH6")
    assert "missing folders: PH6" in failed(check_tables(out, good[1]))["folders"]
    config = parse_config(json.dumps(configuration(without=("PH2", "PH6"))), Mode.PRIVATE)
    assert "without a budget: PH2" in failed(check_tables(out, config))["folders"]
    (out / "PH3" / "part-00001-x.csv").write_text("")
    assert "expected one file" in failed(check_tables(out, good[1]))["PH3"]


CERTIFICATE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "budget": (lambda c: c["runs"][0]["noise"][0].update(budget="1/3"), "plan"),
    "tau": (lambda c: c["runs"][0]["noise"][0].update(tau=3), "plan"),
    "sigma2": (lambda c: c["runs"][0]["noise"][0].update(sigma2="1"), "plan"),
    "variance": (lambda c: c["runs"][0]["noise"][5].update(variance=1.5), "plan"),
    "margin": (lambda c: c["runs"][0]["noise"][5].update(moe90=1), "plan"),
    "level": (lambda c: c["runs"][0]["noise"][0].update(level="county_*"), "plan"),
    "state": (lambda c: c["runs"][0].update(state_filter=["06"]), "plan"),
    "losses": (lambda c: c["totals"][0].update(rho="1"), "plan"),
    "guarantee": (lambda c: c["runs"][0].update(guarantee="perfect"), "plan"),
    "bound": (lambda c: c["runs"][0].update(sensitivity="tight"), "plan"),
    "stamps": (lambda c: c.update(stamps=["NOT FOR RELEASE"]), "stamps"),
    "digest": (lambda c: c["files"][0].update(sha256="0" * 64), "digests"),
    "listing": (lambda c: c["files"].pop(), "files"),
    "format": (lambda c: c.update(format="other"), "certificate"),
    "runs": (lambda c: c.update(runs=[]), "certificate"),
}


@pytest.mark.parametrize("kind", CERTIFICATE)
def test_a_certificate_that_says_something_else_fails(kind: str, out: Path) -> None:
    change, check = CERTIFICATE[kind]
    path = out / "certificate.json"
    certificate = json.loads(path.read_text())
    change(certificate)
    path.write_text(json.dumps(certificate))
    assert check in failed(verify_output(out))


def test_other_files_and_links_fail_and_estimates_do_not(out: Path) -> None:
    (out / "PH1" / "estimates").mkdir(parents=True)
    (out / "PH1" / "estimates" / "PH1_nation_trunc_normal.csv").write_text("")
    assert failed(verify_output(out)) == {}
    (out / "PH1" / "estimates" / "persons.csv").write_text("")
    assert "persons.csv" in failed(verify_output(out))["files"]
    (out / "PH1" / "estimates" / "persons.csv").unlink()
    (out / "notes.txt").write_text("")
    assert "notes.txt" in failed(verify_output(out))["files"]
    (out / "notes.txt").unlink()
    (out / "more.csv").symlink_to(out / "PH3" / PART_FILE)
    assert "links" in failed(verify_output(out))["files"]
    (out / "more.csv").unlink()
    (out / "PH1" / "estimates" / "PH1_state_trunc_normal.csv").symlink_to(out / "PH3" / PART_FILE)
    assert "links" in failed(verify_output(out))["files"]


def relist(out: Path) -> None:
    """Make the certificate list the files as they are now, as someone would who tampers with care."""
    path = out / "certificate.json"
    certificate = json.loads(path.read_text())
    for entry in certificate["files"]:
        file = out / entry["path"]
        entry |= {"bytes": file.stat().st_size, "sha256": sha256_file(file)}
    path.write_text(json.dumps(certificate))


def test_a_noisy_count_that_somebody_else_made_up_fails_by_its_signature(out: Path) -> None:
    office, stranger = SigningKey.generate(), SigningKey.generate()
    first = sign_release(out, office).read_bytes()
    assert sign_release(out, office).read_bytes() == first
    assert failed(verify_output(out, signed_by=office.public)) == {}
    edit(out / "PH3" / PART_FILE, replaced(4, "7"))
    relist(out)
    assert "signature" in failed(verify_output(out, signed_by=office.public))
    sign_release(out, stranger)
    assert failed(verify_output(out)) == {}, "a count with noise can be anything"
    assert list(failed(verify_output(out, signed_by=office.public))) == ["signature"]


@pytest.mark.slow
@pytest.mark.parametrize("model", list(Model))
def test_estimates_are_made_again(out: Path, model: Model) -> None:
    names = post_process(out, model=model).files
    assert failed(verify_output(out, rederive=True)) == {}
    path = out / names[0]
    lines = path.read_text().split("\n")
    fields = lines[1].split("|")
    fields[-2] = str(float(fields[-2]) + 1)
    path.write_text("\n".join([lines[0], "|".join(fields), *lines[2:]]))
    assert failed(verify_output(out)) == {}
    assert list(failed(verify_output(out, rederive=True))) == ["estimates made again"]


def test_the_command_recognises_the_folder(out: Path, capsys: Capture) -> None:
    assert guarded(cli, ["verify", str(out), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert "PH8_num from PH7" in [check["name"] for check in answer["checks"]]
    edit(out / "PH2" / PART_FILE, lambda lines: lines.pop())
    assert guarded(cli, ["verify", str(out)]) == 1
    assert "FAILED  PH2: rows missing: 1" in capsys.readouterr().out
    (out / "certificate.json").write_text("{")
    assert guarded(cli, ["verify", str(out)]) == 1
    capsys.readouterr()


def test_a_seeded_run_is_barred_and_exact_counts_are_no_release(tmp_path: Path, capsys: Capture) -> None:
    out, _ = make(tmp_path, configuration(), seed=1)
    assert guarded(cli, ["verify", str(out)]) == 1
    assert guarded(cli, ["verify", str(out), "--allow-seeded"]) == 0
    run_exact(tmp_path / "config.json", tmp_path / "data", tmp_path / "exact", HouseholdOptions())
    assert guarded(cli, ["verify", str(tmp_path / "exact")]) == 2
    assert "exact counts" in capsys.readouterr().err


def test_output_of_the_published_program_by_the_command(out: Path, tmp_path: Path, capsys: Capture) -> None:
    """Table folders alone, as that program leaves them: no certificate, and no rows of empty states."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(configuration()))
    for path in [path for path in out.iterdir() if not path.name.startswith("PH")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert guarded(cli, ["verify", str(out), "--config", str(config)]) == 0
    said = capsys.readouterr().out
    assert "PH1_num" in said
    assert "0 failed" in said
    part = next(out.glob("PH3/*.csv"))
    lines = part.read_text().splitlines()
    fields = lines[0].split("|")
    first = lines[1].split("|")
    first[fields.index("VARIANCE")] = "1.5"
    part.write_text("\n".join([lines[0], "|".join(first), *lines[2:]]) + "\n")
    assert guarded(cli, ["verify", str(out), "--config", str(config), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in found["checks"] if not check["ok"]] == ["PH3"]
    assert guarded(cli, ["verify", str(out), "--config", str(config), "--rederive"]) == 2
    assert guarded(cli, ["verify", str(out)]) == 2
