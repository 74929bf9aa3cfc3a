"""A mechanism of another package: named, stamped, walled off, and what it states is what is said of it."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.mini import write_mini
from support.plugins import install_mechanism, see
from system.test_parts import certified, failed
from system.test_release_wall import check_same_bytes_by_workers, check_same_release

import opendas as od
from opendas.cli.main import cli
from opendas.custody.stamps import UNPROVEN_PART
from opendas.errors import ConfigError, PrivacyError
from opendas.explore.session import make_session
from opendas.parts import MECHANISMS
from opendas.runs.context.run import load
from opendas.sampling.mechanisms import StatedNoise

BINOMIAL = 'mechanism = "binomial"'
WORD = "zcdp:binomial (dummy-mechanism 3.0)"
ARGUMENT = "Doe (2030), theorem 7"


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


@pytest.fixture
def binomial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = install_mechanism(tmp_path / "site")
    see(monkeypatch, folder)
    return folder


@pytest.mark.usefixtures("binomial")
@pytest.mark.parametrize("estimator", ["topdown", "informed"])
def test_it_is_named_in_the_certificate_stamped_and_derived_again(tmp_path: Path, estimator: str) -> None:
    text = f'{BINOMIAL}\nestimator = "{estimator}"'
    made = od.release(od.load(write_mini(tmp_path, run=text)), tmp_path / "out", measurements="full")
    run = certified(tmp_path / "out")
    assert run["mechanism"] == WORD
    assert run["parts"] == [
        {"kind": MECHANISMS, "name": "binomial", "package": "dummy-mechanism", "version": "3.0", "proof": ""}
    ]
    assert UNPROVEN_PART in run["stamps"]
    for row in run["rows"]:
        times = row["moe90"] // 32
        assert row["variance"] == 16 * times**2
        assert times == 1 + int((row["sigma2"] / 16) ** 0.5)
    assert failed(made, rederive=True) == {}
    page = (tmp_path / "out" / "release" / "report.html").read_text()
    assert "binomial of the package dummy-mechanism 3.0" in page
    answer = CliRunner().invoke(cli, ["list", "--json"], obj={})
    assert json.loads(answer.stdout)["mechanisms"]["binomial"] == "of another package"


@pytest.mark.usefixtures("binomial")
def test_its_noise_is_what_the_release_holds(tmp_path: Path) -> None:
    run = od.load(write_mini(tmp_path, run=BINOMIAL))
    made = od.release(run, tmp_path / "out", measurements="full", seed=3)
    times = {row["geolevel"]: row["moe90"] // 32 for row in certified(tmp_path / "out")["rows"]}
    truth = run.read().histogram
    noisy = made.measurements("block", "detailed").to_arrow()
    again = od.release(run, tmp_path / "again", measurements="full", seed=3)
    assert again.measurements("block", "detailed").to_arrow().equals(noisy)
    other = od.release(run, tmp_path / "other", measurements="full", seed=4)
    assert not other.measurements("block", "detailed").to_arrow().equals(noisy)
    assert truth.rows > 3
    assert times["block"] >= 1


def test_with_an_argument_there_is_no_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, install_mechanism(tmp_path / "site", proof=ARGUMENT))
    made = od.release(od.load(write_mini(tmp_path, run=BINOMIAL)), tmp_path / "out")
    run = certified(tmp_path / "out")
    assert run["parts"][0]["proof"] == ARGUMENT
    assert UNPROVEN_PART not in run["stamps"]
    assert failed(made) == {}


@pytest.mark.usefixtures("binomial")
def test_measuring_alone_is_stamped_too(tmp_path: Path) -> None:
    od.measure(od.load(write_mini(tmp_path, run=BINOMIAL)), tmp_path / "out")
    run = certified(tmp_path / "out")
    assert run["mechanism"] == WORD
    assert run["parts"][0]["name"] == "binomial"
    assert UNPROVEN_PART in run["stamps"]


@pytest.mark.usefixtures("binomial")
def test_another_version_is_named_whatever_is_asked_of_it() -> None:
    noise = StatedNoise(Fraction(1), WORD.replace("3.0", "9.9"))
    for ask in (
        lambda: noise.variance,
        lambda: noise.margin(Fraction(9, 10)),
        noise.check,
        lambda: noise.answers(np.zeros(1, dtype=np.int64), None),
    ):
        with pytest.raises(ConfigError, match="Install the version of the plan"):
            ask()


@pytest.mark.usefixtures("binomial")
@pytest.mark.parametrize("lie", ["no parts", "no stamp", "no package", "another mechanism"])
def test_a_certificate_that_hides_the_part_fails(tmp_path: Path, lie: str) -> None:
    made = od.release(od.load(write_mini(tmp_path, run=BINOMIAL)), tmp_path / "out", measurements="full")
    path = tmp_path / "out" / "release" / "certificate.json"
    document = json.loads(path.read_text())
    run = document["runs"][0]
    if lie == "no parts":
        del run["parts"]
    elif lie == "no stamp":
        run["stamps"].remove(UNPROVEN_PART)
    elif lie == "no package":
        run["parts"][0]["package"] = ""
    else:
        run["mechanism"] = "discrete-gaussian"
    path.write_text(json.dumps(document, indent=1, sort_keys=True))
    said = " ".join(failed(made).values())
    words = {"no stamp": UNPROVEN_PART, "another mechanism": "variance or margin"}
    assert words.get(lie, "mechanisms or workloads of other packages that the certificate names") in said


@pytest.mark.usefixtures("binomial")
def test_two_inputs_with_the_same_noisy_answers_give_the_same_release(tmp_path: Path) -> None:
    check_same_release(tmp_path, BINOMIAL)


@pytest.mark.usefixtures("binomial")
def test_worker_processes_give_the_same_bytes(tmp_path: Path) -> None:
    path = write_mini(tmp_path, run=f'{BINOMIAL}\nestimator = "informed"')
    check_same_bytes_by_workers(path)


def test_another_version_is_another_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for version in ("3.0", "3.1"):
        with monkeypatch.context() as patch:
            see(patch, install_mechanism(tmp_path / version, version=version))
            digests.append(od.load(write_mini(tmp_path / "data", run=BINOMIAL)).plan.digest())
            if version == "3.0":
                made = od.release(od.load(tmp_path / "data" / "run.toml"), tmp_path / "out")
    assert digests[0] != digests[1]
    see(monkeypatch, install_mechanism(tmp_path / "later", version="3.1"))
    assert any("dummy-mechanism 3.0" in said and "3.1" in said for said in failed(made).values())


def test_what_spends_too_much_is_refused_before_a_key_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spends in ("Fraction(3, 2)", "0.5", "0"):
        with monkeypatch.context() as patch:
            see(patch, install_mechanism(tmp_path / spends.replace("/", ""), spends=spends))
            run = od.load(write_mini(tmp_path / "data", run=BINOMIAL))
            with pytest.raises(PrivacyError, match="not above what it is granted"):
                od.release(run, tmp_path / "out")
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").rglob("*.key"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("16.0 *", "0.0 *", "states a variance of 0.0"),
        ("16.0 *", "math.nan *", "states a variance of nan"),
        ("16.0 *", "1 / 0 *", "variance failed with ZeroDivisionError"),
        ("32 * self.times(rho)", "-3", "states a margin of -3"),
        ("rho * 1", "rho.loss", "spends failed with AttributeError"),
    ],
)
def test_what_is_stated_wrongly_is_refused_before_there_is_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str
) -> None:
    folder = install_mechanism(tmp_path / "site")
    module = folder / "dummy_mechanism.py"
    module.write_text(module.read_text().replace(old, new, 1))
    see(monkeypatch, folder)
    with pytest.raises(PrivacyError, match=said):
        od.release(od.load(write_mini(tmp_path / "data", run=BINOMIAL)), tmp_path / "out", workers=1)
    assert not [*(tmp_path / "out").rglob("*.key"), *(tmp_path / "out").rglob("ledger.jsonl")]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise ValueError(f'secret {exact.tolist()}')", "failed with ValueError"),
        ("exact[0] = 0", "failed with ValueError"),
        ("return exact[:-1]", "answers with int64 of shape"),
        ("return exact.astype(float)", "answers with float64"),
        ("words(np.array([2**48]))", "failed with PrivacyError"),
    ],
)
def test_a_faulty_mechanism_stops_the_run_and_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    see(monkeypatch, install_mechanism(tmp_path / "site", fault=fault))
    with pytest.raises(PrivacyError, match=said) as caught:
        od.release(od.load(write_mini(tmp_path / "data", run=BINOMIAL)), tmp_path / "out", workers=1)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "out" / "release" / "certificate.json").exists()


@pytest.mark.usefixtures("binomial")
def test_what_needs_a_law_is_refused(tmp_path: Path) -> None:
    run = od.load(write_mini(tmp_path, run=BINOMIAL))
    made = od.release(run, tmp_path / "out", measurements="full")
    with pytest.raises(ConfigError, match="no law of its noise"):
        made.intervals("total", geolevel="town")
    with pytest.raises(ConfigError, match="comes from another package"):
        make_session(tmp_path / "run.toml")
    account = od.account(run)
    assert account.epsilon() == od.account(rho=run.budget.total).epsilon("cks")
    with pytest.raises(PrivacyError, match="no law of its noise"):
        account.epsilon("exact")


def test_what_is_no_mechanism_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"field run.mechanism: .*discrete-gaussian, discrete-laplace"):
        load(write_mini(tmp_path / "a", run=BINOMIAL))
    folder = install_mechanism(tmp_path / "site")
    module = folder / "dummy_mechanism.py"
    good = module.read_text()
    for old, new, said in (
        ('"zcdp"', '"pure-dp"', "not a zCDP mechanism"),
        ("def margin", "def width", "is not a mechanism"),
    ):
        module.write_text(good.replace(old, new))
        with monkeypatch.context() as patch:
            see(patch, folder)
            with pytest.raises(ConfigError, match=said):
                load(write_mini(tmp_path / "b", run=BINOMIAL))
