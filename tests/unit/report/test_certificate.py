"""The certificate: exact totals, strict and stable JSON, digests, and the guarantee in words."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from fractions import Fraction
from pathlib import Path

import pytest

from opendas.custody.stamps import DEMONSTRATION_FRAME, NOT_FOR_RELEASE, POPULATED_LEAVES
from opendas.errors import CheckFailed, ConfigError, FormatError
from opendas.privacy.relations import Mechanism, Neighbours
from opendas.privacy.zcdp import epsilon_bun_steinke, epsilon_cks
from opendas.report.certificate import (
    build_certificate,
    certificate_bytes,
    issue,
    read_runs,
    released_files,
    totals,
)
from opendas.report.facts import RunFacts
from opendas.report.guarantee import guarantee_text
from opendas.schema.declarations import EarlierAct
from opendas.verify.budget import check_totals
from opendas.version import issue_date


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1617235200")
    folder = tmp_path / "release"
    (folder / "mdf" / "persons").mkdir(parents=True)
    (folder / "mdf" / "persons" / "44003.parquet").write_bytes(b"two")
    (folder / "mdf" / "persons" / "44001.parquet").write_bytes(b"one")
    (folder / "run").mkdir()
    (folder / "run" / "pl94-persons.toml").write_bytes(b"")
    return folder


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no strict JSON")


def test_verify_adds_every_census_product_by_its_own_table(persons: RunFacts, units: RunFacts) -> None:
    both = dataclasses.replace(units, product="dhc-units", protected_unit="housing unit or group quarters")
    runs = [persons, units, both]
    certificate = build_certificate(runs, [], version="1", commit="x", issued="2030-01-01")
    assert check_totals(certificate) == f"{len(certificate['totals'])} totals"
    found = {total["change"]: Fraction(total["rho"]) for total in certificate["totals"]}
    losses = [run.loss or Fraction(0) for run in runs]
    assert found["one person with the unit changes it induces"] == losses[0] + 2 * losses[1] + 4 * losses[2]
    certificate["totals"][-1]["rho"] = certificate["totals"][0]["rho"]
    with pytest.raises(CheckFailed, match="not the sum of the runs"):
        check_totals(certificate)


def test_totals_add_persons_once_and_units_twice(persons: RunFacts, units: RunFacts) -> None:
    found = {total["change"]: total for total in totals([persons, units])}
    rho_persons, rho_units = Fraction(293764, 114921), Fraction(11417641, 152349649)
    assert list(found) == [
        "one person record",
        "one housing unit record",
        "one person with the unit changes it induces",
    ]
    assert found["one person record"]["rho"] == str(rho_persons)
    assert found["one housing unit record"]["rho"] == str(rho_units)
    combined = found["one person with the unit changes it induces"]
    assert combined["rho"] == str(rho_persons + 2 * rho_units)
    assert combined["epsilon"] == {
        "cks": epsilon_cks(rho_persons + 2 * rho_units, "1e-10"),
        "bun-steinke": epsilon_bun_steinke(rho_persons + 2 * rho_units, "1e-10"),
    }
    assert round(found["one person record"]["epsilon"]["cks"], 2) == 17.14
    assert round(found["one housing unit record"]["epsilon"]["cks"], 2) == 2.47
    assert all(total["uncovered"] == 0 for total in found.values())


def test_losses_under_different_relations_are_never_added(persons: RunFacts, units: RunFacts) -> None:
    other = dataclasses.replace(units, neighbours="unbounded", invariants=())
    found = [(t["change"], t["neighbours"], t["rho"], t["uncovered"]) for t in totals([persons, other])]
    assert (
        "one person with the unit changes it induces",
        "bounded",
        str(persons.loss),
        1,
    ) in found
    assert ("one housing unit record", "unbounded", str(other.loss), 0) in found
    both = persons.loss + 2 * other.loss
    assert all(rho != str(both) for _, _, rho, _ in found)


def test_two_runs_on_the_same_records_add_up(persons: RunFacts) -> None:
    second = dataclasses.replace(persons, product="again")
    assert totals([persons, second])[0]["rho"] == str(2 * persons.loss)


def test_pure_loss_has_no_rho(pure: RunFacts) -> None:
    run = pure.to_dict()
    assert run["rho"] is None
    assert run["epsilon"] == {"pure": 0.5}
    assert run["pure_epsilon"] == "1/2"
    assert run["implied_rho"] == "1/8"
    assert totals([pure])[0]["pure_epsilon"] == "1/2"


def test_run_that_is_not_for_release_makes_totals_unbounded(persons: RunFacts) -> None:
    seeded = dataclasses.replace(persons, stamps=(NOT_FOR_RELEASE,))
    assert not seeded.guaranteed
    for total in totals([persons, seeded]):
        assert total["unbounded"]
        assert total["rho"] is None
        assert total["epsilon"] == {}
    assert guarantee_text(seeded).startswith(NOT_FOR_RELEASE)
    assert seeded.to_dict()["rho"] == str(persons.loss)


def test_a_run_without_a_loss_is_refused(persons: RunFacts) -> None:
    record = {**persons.to_dict(), "rho": None, "unbounded": True}
    with pytest.raises(FormatError, match="incomplete or was changed"):
        RunFacts.from_dict(record)


def test_json_is_strict_sorted_and_stable(persons: RunFacts, units: RunFacts, pure: RunFacts) -> None:
    runs = (persons, units, pure)
    made = build_certificate(runs, (), version="0.1.0", commit="unknown", issued="2021-04-01")
    data = certificate_bytes(made)
    read = json.loads(data, parse_constant=refuse)
    assert certificate_bytes(read) == data
    again = tuple(RunFacts.from_dict(record) for record in read["runs"])
    assert again == runs
    assert [list(run.geounits) for run in again] == [list(run.geounits) for run in runs]
    assert [run.query_groups for run in again] == [run.query_groups for run in runs]
    assert [list(run.attributes) for run in again] == [list(run.attributes) for run in runs]
    rebuilt = build_certificate(again, (), version="0.1.0", commit="unknown", issued="2021-04-01")
    assert certificate_bytes(rebuilt) == data


def test_the_source_of_shares_survives_and_older_certificates_have_none(persons: RunFacts) -> None:
    assert persons.to_dict()["budget"]["source"] is None  # type: ignore[index]
    told = dataclasses.replace(persons, source="numbers of blocks; no count was used")
    record = json.loads(json.dumps(told.to_dict()))
    assert RunFacts.from_dict(record) == told
    del record["budget"]["source"]
    assert RunFacts.from_dict(record) == persons


def test_losses_within_official_areas_are_exact_and_older_certificates_have_none(persons: RunFacts) -> None:
    record = json.loads(json.dumps(persons.to_dict()))
    assert record["official_kinds"] == ["county", "block_group", "place"]
    found = record["within_official"]["block_group"]
    assert (found["areas"], found["above_spine"]) == (815, 700)
    assert (found["largest"]["rho"], found["median"]["rho"]) == ("5/2", "3/4")
    assert found["median"]["epsilon"]["cks"] == pytest.approx(epsilon_cks(Fraction(3, 4), "1e-10"))
    del record["within_official"], record["official_kinds"]
    assert RunFacts.from_dict(record) == dataclasses.replace(persons, within_official=())


def test_delta_survives_exactly(persons: RunFacts) -> None:
    run = dataclasses.replace(persons, delta=Fraction(1, 3_000_000_001))
    assert RunFacts.from_dict(json.loads(json.dumps(run.to_dict()))) == run


def test_partial_losses_are_those_of_the_production_certificates(persons: RunFacts) -> None:
    run = persons.to_dict()
    # Puerto Rico's plan: per attribute, and within a geounit, by the optimised conversion.
    expected = {"hhgq": 8.69, "votingage": 9.49, "hispanic": 11.65, "cenrace": 11.69}
    found = {name: loss["epsilon"]["cks"] for name, loss in run["attributes"].items()}
    assert all(math.isclose(found[name], value, abs_tol=0.006) for name, value in expected.items())
    within = {name: loss["epsilon"]["cks"] for name, loss in run["within"].items()}
    expected = {"state": 15.41, "county": 13.51, "tract": 11.18, "block_group": 2.93}
    assert all(math.isclose(within[name], value, abs_tol=0.006) for name, value in expected.items())


def test_every_released_file_is_listed_with_its_digest(release: Path, persons: RunFacts) -> None:
    certificate = issue(release, [persons], version="0.1.0")
    listed = {entry["path"]: entry for entry in certificate["files"]}
    assert list(listed) == [
        "mdf/persons/44001.parquet",
        "mdf/persons/44003.parquet",
        "run/pl94-persons.toml",
    ]
    assert listed["mdf/persons/44001.parquet"] == {
        "path": "mdf/persons/44001.parquet",
        "bytes": 3,
        "sha256": hashlib.sha256(b"one").hexdigest(),
    }
    assert json.loads((release / "certificate.json").read_bytes()) == certificate
    assert certificate["issued"] == "2021-04-01"
    assert certificate["commit"] == "unknown"


def test_issued_again_it_lists_new_files_and_keeps_the_runs(
    release: Path, persons: RunFacts, units: RunFacts
) -> None:
    issue(release, [persons], version="0.1.0")
    issue(release, [units], version="0.1.0")
    assert read_runs(release) == (persons, units)
    (release / "tables").mkdir()
    (release / "tables" / "P1_block.parquet").write_bytes(b"three")
    certificate = issue(release, version="0.1.0")
    assert "tables/P1_block.parquet" in [entry["path"] for entry in certificate["files"]]
    assert len(certificate["runs"]) == 2
    before = (release / "certificate.json").read_bytes()
    issue(release, version="0.1.0")
    assert (release / "certificate.json").read_bytes() == before
    assert not list(release.rglob(".*"))


def test_issue_without_a_run_is_refused(release: Path) -> None:
    with pytest.raises(ConfigError, match="no run"):
        issue(release, version="0.1.0")


def test_damaged_certificate_is_refused(release: Path, persons: RunFacts) -> None:
    issue(release, [persons], version="0.1.0")
    path = release / "certificate.json"
    whole = path.read_text()
    for damaged in ("{", whole.replace("opendas certificate 2", "other"), whole.replace('"rows"', '"row"')):
        path.write_text(damaged)
        with pytest.raises(FormatError, match=r"certificate\.json"):
            read_runs(release)


def test_issued_files_do_not_list_themselves(release: Path, persons: RunFacts) -> None:
    issue(release, [persons], version="0.1.0")
    assert len(released_files(release)) == 3


def test_issue_date_is_fixed_by_source_date_epoch() -> None:
    assert issue_date({"SOURCE_DATE_EPOCH": "0"}) == "1970-01-01"
    assert len(issue_date({})) == 10
    with pytest.raises(ConfigError, match="SOURCE_DATE_EPOCH"):
        issue_date({"SOURCE_DATE_EPOCH": "yesterday"})


def test_guarantee_names_what_is_protected_and_what_is_not(persons: RunFacts, pure: RunFacts) -> None:
    text = guarantee_text(persons)
    assert text.startswith(DEMONSTRATION_FRAME)
    for part in (
        "replacing one person record",
        "rho = 293764/114921",
        "total@state",
        "computationally indistinguishable",
        "q^2 / 2^129",
        "the edited file",
        "output folder only",
        "17.14",
    ):
        assert part in text
    assert "adding or removing one housing unit record" in guarantee_text(pure)
    assert "holds no invariant" in guarantee_text(pure)
    assert "epsilon = 1/2" in guarantee_text(pure)


def test_only_a_run_with_invariants_speaks_of_listed_ones(persons: RunFacts, pure: RunFacts) -> None:
    shared = "pass validation, share the public frame"
    values = "and have exactly the listed invariant values. For any"
    assert f"{shared}, keep within its bounds {values}" in guarantee_text(persons)
    assert "from the measurements, the invariants and public information." in guarantee_text(persons)
    assert f"{shared} and keep within its bounds. For any" in guarantee_text(pure)
    assert "from the measurements and public information." in guarantee_text(pure)
    tied = "keep within its bounds and those of the release that this one is tied to"
    one = Fraction(1)
    earlier = EarlierAct("ab" * 32, "old", "person", Mechanism.DISCRETE_GAUSSIAN, Neighbours.BOUNDED, one)
    assert f"{shared}, {tied}, {values}" in guarantee_text(dataclasses.replace(persons, tied=(earlier,)))
    text = guarantee_text(dataclasses.replace(pure, tied=(earlier,)))
    assert f"{shared} and {tied}. For any" in text
    assert "from the measurements, the microdata of that release and public information." in text


def test_computational_term_bounds_the_number_of_draws(persons: RunFacts) -> None:
    assert persons.draws == sum(row.geounits * row.cells for row in persons.rows)
    power = int(guarantee_text(persons).split("the last term is below 2^")[1].split(".")[0])
    assert Fraction(persons.draws**2, 2**129) <= Fraction(1, 2**-power)
    assert Fraction(persons.draws**2, 2**129) > Fraction(1, 2 ** (-power + 1))


def test_frame_from_records_is_said(persons: RunFacts) -> None:
    run = dataclasses.replace(persons, invariants=(*persons.invariants, POPULATED_LEAVES))
    assert "whether a leaf is populated is published" in guarantee_text(run)
    assert "whether a leaf is populated is published" not in guarantee_text(persons)
