"""Where a domain comes from is said, stamped and checked, from run file to certificate."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.made_cef_files import write_cef

import opendas
from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.folders import sha256_file
from opendas.custody.ledger import Ledger
from opendas.errors import CheckFailed, ConfigError, PrivacyError
from opendas.report.certificate import issue, read_runs
from opendas.schema.provenance import Domain, Provenance
from opendas.verify.release import verify_release

LONE = "Morbus Wilson (J. Smith)"
WARDS = [(f"R{k // 6}", f"H{k // 2}", f"W{k:02d}") for k in range(12)]
NOTHING_EXACT = "No statistic of the confidential data is published exactly"


def patients(lone: bool = True) -> str:
    """One row a patient; one of them alone has an illness that nobody else has."""
    rows = [
        f"{region},{hospital},{ward},{('adult', 'child')[k % 3 == 0]},{('low', 'high')[k % 2]}"
        for k in range(30)
        for region, hospital, ward in WARDS[:-1]
    ]
    rows += [f"R0,H0,W00,adult,{LONE}"] if lone else []
    return "region,hospital,ward,age,severity\n" + "\n".join(rows) + "\n"


PRODUCT = """\
[product]
name = "patients"
protected_unit = "patient"
provenance = {labels}
[attributes]
age = ["adult", "child"]
severity = ["low", "high", "Morbus Wilson (J. Smith)"]
"""
RUN = """\
[run]
product = "product.toml"
[input]
reader = "records"
path = "patients.csv"
geocode = "ward"
{units}
[geography]
levels = [{{ name = "region", column = "region" }}, {{ name = "ward" }}]
frame = {frame}
{geography}
[budget]
rho = "1"
geolevels = {{ region = "1/2", ward = "1/2" }}
[budget.queries]
"*" = {{ total = "1/2", detailed = "1/2" }}
"""


def write(
    folder: Path,
    *,
    labels: str = '"code-book"',
    geography: str = 'provenance = "public"',
    frame: str = '"wards.csv"',
    units: str = "",
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "patients.csv").write_text(patients())
    lines = "\n".join(f"{ward},{region},{k % 3}" for k, (region, _, ward) in enumerate(WARDS))
    (folder / "wards.csv").write_text(f"ward,region,beds\n{lines}\n")
    (folder / "product.toml").write_text(PRODUCT.format(labels=labels))
    path = folder / "run.toml"
    path.write_text(RUN.format(geography=geography, frame=frame, units=units))
    return path


def released(path: Path, out: Path, seed: int | None = None) -> dict[str, Any]:
    opendas.release(opendas.load(path), out=out, seed=seed, workers=1)
    return json.loads((out / "release" / "certificate.json").read_text())["runs"][0]


def failed(out: Path, **allowed: bool) -> dict[str, str]:
    return {check.name: check.detail for check in verify_release(out, **allowed) if not check.ok}


def test_a_label_of_one_record_goes_out_with_a_stamp_and_fails_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newcomer's path: `init table`, `run`. The label stands in the release, and everything says so."""
    (tmp_path / "patients.csv").write_text(patients())
    assert guarded(cli, ["init", "table", str(tmp_path / "patients.csv"), "--to", str(tmp_path)]) == 0
    out = tmp_path / "out"
    run = released(tmp_path / "patients-run.toml", out)
    assert LONE in (out / "release" / "run" / "patients.toml").read_text()
    assert run["stamps"] == ["DOMAIN FROM RECORDS"]
    assert run["domain"]["labels"] == {"age": "from-records", "severity": "from-records"}
    assert (run["domain"]["levels"], run["domain"]["frame"]) == ("from-records", "from-records")
    assert NOTHING_EXACT not in run["guarantee"]
    assert "published exactly and not protected: labels of age, labels of severity" in run["guarantee"]
    capsys.readouterr()
    assert guarded(cli, ["verify", str(out)]) == 1
    said = capsys.readouterr().out
    assert "DOMAIN FROM RECORDS" in said
    assert "--allow-domain-from-records" in said
    assert guarded(cli, ["verify", str(out), "--allow-domain-from-records"]) == 0
    for page in ("report.html",):
        assert "DOMAIN FROM RECORDS" in (out / "release" / page).read_text()


def test_it_is_published_only_when_it_is_asked_for(tmp_path: Path) -> None:
    released(write(tmp_path, labels='"from-records"'), tmp_path / "out")
    address = (tmp_path / "published").as_uri()
    with pytest.raises(CheckFailed, match="stamps failed"):
        opendas.publish_to(tmp_path / "out", address)
    assert opendas.publish_to(tmp_path / "out", address, allow_domain_from_records=True).copied > 0


@pytest.mark.parametrize(
    ("parts", "listed"),
    [
        ({"labels": '{ age = "code-book", severity = "from-records" }'}, "labels of severity"),
        ({"geography": 'provenance = "from-records"'}, "the hierarchy of the levels, the list of leaves"),
        ({"geography": 'provenance = { levels = "public", frame = "from-records" }'}, "the list of leaves"),
        ({"frame": '"from-records"', "geography": ""}, "the hierarchy of the levels, the list of leaves"),
        (
            {"frame": '"from-records"', "geography": 'provenance = { levels = "public" }'},
            "the list of leaves",
        ),
        (
            {"units": 'units = { path = "wards.csv", geocode = "ward", provenance = "from-records" }'},
            None,  # the product has no bound by units, so that the file has no kind to read
        ),
    ],
)
def test_every_part_from_the_records_is_stamped_and_listed(
    tmp_path: Path, parts: dict[str, str], listed: str | None
) -> None:
    path = write(tmp_path, **parts)
    if listed is None:
        assert opendas.load(path).resolved.domain.from_records == ("unit counts of the leaves",)
        return
    run = released(path, tmp_path / "out")
    assert run["stamps"] == ["DOMAIN FROM RECORDS"]
    assert f"Read from the records, published exactly and not protected: {listed}." in run["guarantee"]
    assert list(failed(tmp_path / "out")) == ["stamps"]
    assert failed(tmp_path / "out", allow_domain_from_records=True) == {}


def test_a_declared_domain_is_not_stamped_and_stands_in_the_release(tmp_path: Path) -> None:
    run = released(write(tmp_path), tmp_path / "out")
    assert run["stamps"] == []
    assert NOTHING_EXACT in run["guarantee"]
    assert failed(tmp_path / "out") == {}
    stated = tomllib.loads((tmp_path / "out" / "release" / "run" / "patients.toml").read_text())
    labels = {"age": "code-book", "severity": "code-book"}
    assert stated["domain"] == {"labels": labels, "levels": "public", "frame": "public", "discoveries": []}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"geography": ""}, ["[geography] provenance: required", "levels", "frame"]),
        (
            {"geography": 'provenance = { levels = "public" }'},
            ["[geography] provenance: required", "the frame comes"],
        ),
        ({"geography": 'provenance = "publik"'}, ["run.toml, line 11", "did you mean public?"]),
        ({"geography": 'provenance = { leaves = "public" }'}, ["unknown key 'leaves'"]),
        (
            {"geography": 'provenance = "private"'},
            ["need the act that found them", "opendas init table --rho"],
        ),
        ({"frame": '"from-records"'}, ["is from-records, not public"]),
        (
            {"labels": '{ age = "public" }'},
            ["product.toml, line 4", "the attribute 'severity' is missing"],
        ),
        ({"labels": '{ age = "public", severity = "public", sex = "public" }'}, ["no attribute 'sex'"]),
        ({"labels": '"private"'}, ["product.toml, line 4", "needs the act that found the labels"]),
        (
            {"units": 'units = { path = "wards.csv", geocode = "ward" }'},
            ["[input] units: provenance: required"],
        ),
    ],
)
def test_what_is_missing_is_named_with_the_choices(
    tmp_path: Path, parts: dict[str, str], said: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        opendas.load(write(tmp_path, **parts))
    for words in said:
        assert words in str(refusal.value)
    if "required" in said[0]:
        for choice in ("code-book", "public", "private", "from-records"):
            assert f'"{choice}"' in str(refusal.value)


def test_a_product_file_without_provenance_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    product = tmp_path / "product.toml"
    product.write_text(product.read_text().replace('provenance = "code-book"\n', ""))
    with pytest.raises(ConfigError, match=r"product\.toml.*product\.provenance.*code-book.*from-records"):
        opendas.load(path)


def test_an_estimate_says_what_its_measurements_were_charged_with(tmp_path: Path) -> None:
    path, out = write(tmp_path, labels='"from-records"'), tmp_path / "out"
    opendas.measure(opendas.load(path), out=out, workers=1)
    product = tmp_path / "product.toml"
    product.write_text(product.read_text().replace("from-records", "code-book"))
    # Measured is measured: the certificate of the estimate says what the measurements were charged with.
    opendas.estimate(opendas.load(path), out=out, workers=1)
    assert read_runs(out / "release")[0].stamps == ("DOMAIN FROM RECORDS",)
    assert list(failed(out)) == ["stamps"]
    assert len(Ledger.read(out / "ledger.jsonl")) == 1


def test_a_run_is_not_resumed_with_another_provenance(tmp_path: Path) -> None:
    path, out = write(tmp_path, labels='"from-records"'), tmp_path / "out"
    released(path, out)
    product = tmp_path / "product.toml"
    product.write_text(product.read_text().replace("from-records", "code-book"))
    with pytest.raises(PrivacyError, match="provenance"):
        opendas.release(opendas.load(path), out=out, resume=True, workers=1)


def _unstamped(release: Path) -> None:
    """Take the stamp off a certificate, and issue it again."""
    facts = read_runs(release)[0]
    object.__setattr__(facts, "stamps", ())
    issue(release, (facts,), version="0.0.test")


def _declared_public(release: Path) -> None:
    facts = read_runs(release)[0]
    labels = dict.fromkeys(("age", "severity"), Provenance.CODE_BOOK)
    object.__setattr__(facts, "domain", Domain(labels, Provenance.PUBLIC, Provenance.PUBLIC))
    object.__setattr__(facts, "stamps", ())
    issue(release, (facts,), version="0.0.test")


def _unsaid(release: Path) -> None:
    facts = read_runs(release)[0]
    object.__setattr__(facts, "domain", None)
    issue(release, (facts,), version="0.0.test")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_unstamped, "without the stamp DOMAIN FROM RECORDS"),
        (_declared_public, "its provenance is not the certified one"),
        (_unsaid, "does not say where the domain comes from"),
    ],
)
def test_a_certificate_that_hides_it_fails(
    tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    released(write(tmp_path, labels='"from-records"'), tmp_path / "out")
    release = tmp_path / "out" / "release"
    before = sha256_file(release / "certificate.json")
    change(release)
    assert sha256_file(release / "certificate.json") != before
    assert words in failed(tmp_path / "out", allow_domain_from_records=True)["patients: domain"]


def findings(folder: Path) -> str:
    path = folder / "confidential" / "findings" / "patients.txt"
    return path.read_text() if path.is_file() else ""


def test_a_frame_made_of_the_records_and_declared_public_is_a_confidential_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cut -d, -f1,3 patients.csv | sort -u`, declared public: nothing in the release can show it."""
    path = write(tmp_path)
    seen = sorted({(line.split(",")[2], line.split(",")[0]) for line in patients().splitlines()[1:]})
    (tmp_path / "wards.csv").write_text("ward,region\n" + "\n".join(map(",".join, seen)) + "\n")
    assert guarded(cli, ["run", str(path), "--out", str(tmp_path / "out"), "--workers", "1"]) == 0
    assert "every leaf holds a record" in findings(tmp_path / "out")
    assert "1 finding about the input" in capsys.readouterr().err
    for file in (tmp_path / "out" / "release").rglob("*"):
        assert not file.is_file() or b"every leaf holds" not in file.read_bytes()


def test_a_frame_with_empty_leaves_or_from_the_records_is_no_finding(tmp_path: Path) -> None:
    released(write(tmp_path / "a"), tmp_path / "a" / "out")
    released(write(tmp_path / "b", frame='"from-records"', geography=""), tmp_path / "b" / "out")
    assert findings(tmp_path / "a" / "out") == findings(tmp_path / "b" / "out") == ""


def test_units_that_are_the_counts_of_the_records_are_a_finding(tmp_path: Path) -> None:
    path = write(tmp_path)
    counted = Counter(line.split(",")[2] for line in patients().splitlines()[1:])
    adults = Counter(
        line.split(",")[2] for line in patients().splitlines()[1:] if line.split(",")[3] == "adult"
    )
    product = tmp_path / "product.toml"
    bound = '[[bounds]]\nquery = "age"\ncell = "{}"\ncolumn = "{}"\n'
    product.write_text(product.read_text() + bound.format("adult", "a") + bound.format("child", "b"))
    lines = [f"{ward},{region},{adults[ward]},{counted[ward]}" for region, _, ward in WARDS]
    (tmp_path / "wards.csv").write_text("ward,region,a,b\n" + "\n".join(lines) + "\n")
    rules = [(finding.field, finding.rule) for finding in opendas.load(path).read().findings]
    assert [field for field, _ in rules] == ["b", "a"]
    assert "as many units as records," in rules[0][1]
    assert "as many units as records in" in rules[1][1]


def test_a_plan_says_beforehand_what_will_be_stamped(tmp_path: Path) -> None:
    told = opendas.plan(opendas.load(write(tmp_path / "a", labels='"from-records"')))
    assert told.stamps == ("DOMAIN FROM RECORDS",)
    assert any("published exactly: labels of age, labels of severity" in text for text in told.warnings)
    silent = opendas.plan(opendas.load(write(tmp_path / "b")))
    assert (silent.stamps, silent.warnings) == ((), ())


def test_a_census_says_that_its_unit_counts_are_from_its_records_and_needs_no_stamp(tmp_path: Path) -> None:
    """Production publishes them: run files of the census need nothing new, and the certificate is true."""
    path = write_cef(tmp_path / "cef", 60)[0]
    path.write_text(path.read_text().replace("[run]\n", '[run]\ndrop_invariants = ["total"]\n'))
    run = released(path, tmp_path / "out")
    assert (run["domain"]["units"], run["domain"]["frame"], run["stamps"]) == ("from-records", "public", [])
    assert "published exactly and not protected: unit counts of the leaves." in run["guarantee"]
    assert NOTHING_EXACT not in run["guarantee"]
    assert failed(tmp_path / "out") == {}
