"""An estimator of another package: found by its entry point, in the certificate, behind the same walls."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.mini import write_mini
from support.plugins import install, install_estimator, see
from system.test_release_wall import check_same_bytes_by_workers, check_same_release

import opendas as od
from opendas.cli.main import cli
from opendas.custody.stamps import UNPROVEN_PART
from opendas.errors import ConfigError, EstimationError
from opendas.parts import ESTIMATORS, GROUPS, MECHANISMS
from opendas.runs.context.run import load
from opendas.runs.options import RunOptions
from opendas.runs.release import release
from opendas.sampling.mechanisms import OWN_MECHANISMS
from opendas.topdown.estimators import OURS, find_estimator
from opendas.topdown.model import OWN_ESTIMATORS

PLAIN = 'estimator = "plain"'
ARGUMENT = "Doe (2030), https://example.org/post-processing.pdf"


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = install_estimator(tmp_path / "site")
    see(monkeypatch, folder)
    return folder


def certified(out: Path) -> dict:
    return json.loads((out / "release" / "certificate.json").read_text())["runs"][0]


def failed(release: od.Release, **options) -> dict[str, str]:
    return {check.name: check.detail for check in release.verify(**options) if not check.ok}


@pytest.mark.usefixtures("plain")
def test_it_is_named_in_the_certificate_stamped_and_derived_again(tmp_path: Path) -> None:
    made = od.release(od.load(write_mini(tmp_path, run=PLAIN)), tmp_path / "out", measurements="full")
    run = certified(tmp_path / "out")
    assert run["estimator"] == "plain"
    part = {"kind": ESTIMATORS, "name": "plain", "package": "dummy-estimator", "version": "1.2", "proof": ""}
    assert run["parts"] == [part]
    assert UNPROVEN_PART in run["stamps"]
    assert failed(made, rederive=True) == {}
    page = (tmp_path / "out" / "release" / "report.html").read_text()
    assert "plain of the package dummy-estimator 1.2" in page
    assert UNPROVEN_PART in page
    answer = CliRunner().invoke(cli, ["list", "--json"], obj={})
    assert json.loads(answer.stdout)["estimators"]["plain"] == "of another package"


def test_with_an_argument_there_is_no_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, install_estimator(tmp_path / "site", proof=ARGUMENT))
    made = od.release(od.load(write_mini(tmp_path, run=PLAIN)), tmp_path / "out")
    run = certified(tmp_path / "out")
    assert run["parts"][0]["proof"] == ARGUMENT
    assert UNPROVEN_PART not in run["stamps"]
    assert failed(made) == {}


def test_a_blank_argument_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, install_estimator(tmp_path / "site", proof="  "))
    od.release(od.load(write_mini(tmp_path, run=PLAIN)), tmp_path / "out")
    assert UNPROVEN_PART in certified(tmp_path / "out")["stamps"]


def test_a_failure_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = install_estimator(tmp_path / "site")
    module = folder / "dummy_estimator.py"
    module.write_text(module.read_text().replace("for query in data.answers:", "for query in data.nothing:"))
    see(monkeypatch, folder)
    said = "estimator plain of the package dummy-estimator failed with AttributeError for family"
    with pytest.raises(EstimationError, match=said):
        od.release(od.load(write_mini(tmp_path, run=PLAIN)), tmp_path / "out", workers=1)


def test_a_part_that_cannot_be_loaded_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = install_estimator(tmp_path / "site")
    (folder / "dummy_estimator.py").write_text("raise SystemExit\n")
    see(monkeypatch, folder)
    run = od.load(write_mini(tmp_path / "data", run=PLAIN))
    for path in (tmp_path / "data").glob("*.parquet"):
        path.unlink()  # refused before the input is read
    with pytest.raises(ConfigError, match="cannot be loaded: SystemExit"):
        od.release(run, tmp_path / "out")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_without_the_package_the_release_verifies_and_is_not_derived_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        see(patch, install_estimator(tmp_path / "site"))
        made = od.release(od.load(write_mini(tmp_path, run=PLAIN)), tmp_path / "out", measurements="full")
    assert failed(made) == {}
    (said,) = failed(made, rederive=True).values()
    assert "cannot be re-derived: there is no estimator 'plain'" in said
    see(monkeypatch, install_estimator(tmp_path / "other", version="2.0"))
    (said,) = failed(made, rederive=True).values()
    assert "dummy-estimator 1.2" in said
    assert "dummy-estimator 2.0" in said


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("lie", ["no parts", "no stamp", "no package"])
def test_a_certificate_that_hides_the_part_fails(tmp_path: Path, lie: str) -> None:
    made = od.release(od.load(write_mini(tmp_path, run=PLAIN)), tmp_path / "out", measurements="full")
    path = tmp_path / "out" / "release" / "certificate.json"
    text = path.read_text()
    document = json.loads(text)
    run = document["runs"][0]
    if lie == "no parts":
        del run["parts"]
    elif lie == "no stamp":
        run["stamps"].remove(UNPROVEN_PART)
    else:
        run["parts"][0]["package"] = ""
    path.write_text(json.dumps(document, indent=1, sort_keys=True))
    assert any(
        "the estimators of other packages that the certificate names" in said or UNPROVEN_PART in said
        for said in failed(made).values()
    )


@pytest.mark.usefixtures("plain")
def test_two_inputs_with_the_same_noisy_answers_give_the_same_release(tmp_path: Path) -> None:
    check_same_release(tmp_path, PLAIN)


@pytest.mark.usefixtures("plain")
def test_worker_processes_give_the_same_bytes(tmp_path: Path) -> None:
    path = write_mini(tmp_path, run=PLAIN)
    check_same_bytes_by_workers(path)


def test_what_is_no_estimator_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {"bad_parts": "class NoFit:\n    name = 'nofit'\nBroken = 1 / 0 if False else None\n"}
    points = {ESTIMATORS: {"nofit": "bad_parts:NoFit", "gone": "bad_parts:Gone", "absent": "no_module:Part"}}
    see(monkeypatch, install(tmp_path / "site", "bad-parts", "0", modules, points))
    for name, said in (
        ("nofit", "not an estimator"),
        ("gone", "cannot be loaded"),
        ("absent", "cannot be loaded"),
    ):
        with pytest.raises(ConfigError, match=said):
            find_estimator(name)
    with pytest.raises(ConfigError, match=r"line 3, field run.estimator: .*did you mean nofit\?"):
        load(write_mini(tmp_path / "a", run='estimator = "nofitt"'))
    other = install(tmp_path / "second", "worse-parts", "0", {}, {ESTIMATORS: {"nofit": "elsewhere:Part"}})
    see(monkeypatch, other)
    with pytest.raises(ConfigError, match=r"two packages offer 'nofit'.*bad-parts and worse-parts"):
        find_estimator("nofit")


def test_nobody_takes_the_place_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {ESTIMATORS: {"topdown": "dummy_estimator:Plain"}}
    see(
        monkeypatch, install(tmp_path / "site", "thief", "1", {"dummy_estimator": "raise SystemExit"}, points)
    )
    assert find_estimator("topdown").origin is None
    answer = CliRunner().invoke(cli, ["list", "--json"], obj={})
    assert json.loads(answer.stdout)["estimators"]["topdown"].startswith("the TopDown Algorithm")
    out = tmp_path / "out"
    release(load(write_mini(tmp_path)), out, RunOptions(seed=1))
    assert "parts" not in certified(out)


def test_our_own_parts_are_declared_as_those_of_others_are() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    if not project.is_file():
        pytest.skip("pyproject.toml is not beside the tests")
    points = tomllib.loads(project.read_text())["project"]["entry-points"]
    assert set(points) <= set(GROUPS)
    assert set(points[ESTIMATORS]) == set(OURS) == set(OWN_ESTIMATORS)
    assert set(points[MECHANISMS]) == set(OWN_MECHANISMS)
    for group, ours in ((ESTIMATORS, OURS), (MECHANISMS, OWN_MECHANISMS)):
        for name, where in points[group].items():
            module, _, kind = where.partition(":")
            assert (type(ours[name]).__module__, type(ours[name]).__name__) == (module, kind)
