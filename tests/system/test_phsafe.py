"""``opendas phsafe`` from end to end: modes, folders, refusals, resuming, and what a message may say."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from support.households import World, configuration, random_world, write_world

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.books import create_book
from opendas.custody.ledger import Ledger
from opendas.custody.ledger_lines import read_lines
from opendas.phsafe import run as phsafe_run
from opendas.phsafe.output import PART_FILE
from opendas.phsafe.tables import OUTPUTS
from opendas.privacy.relations import Neighbours

Capture = pytest.CaptureFixture[str]


class Case:
    """A folder with a configuration and data, and the command on them."""

    def __init__(
        self, folder: Path, world: World | None = None, document: dict[str, object] | None = None
    ) -> None:
        self.folder = folder
        self.data = write_world(folder / "data", world or random_world(3, 80))
        self.config = folder / "config.json"
        self.config.write_text(json.dumps(document or configuration(tau=3)))
        self.out = folder / "out"

    def __call__(self, *arguments: str, out: Path | None = None) -> int:
        words = [str(self.config), str(self.data)]
        if "validate" not in arguments:
            words.append(str(out or self.out))
        return guarded(cli, ["phsafe", *words, *arguments])

    def change(self, change: Callable[[dict[str, Any]], None]) -> None:
        document = json.loads(self.config.read_text())
        change(document)
        self.config.write_text(json.dumps(document))

    def certificate(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.out / "certificate.json").read_text())
        return read

    def tables(self, out: Path | None = None) -> dict[str, str]:
        return {name: ((out or self.out) / name / PART_FILE).read_text() for name in OUTPUTS}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_a_private_run_writes_the_published_folders(case: Case, capsys: Capture) -> None:
    assert case("--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["tables"] == [f"{name}/{PART_FILE}" for name in OUTPUTS]
    assert answer["stamps"] == []
    # 46 levels of 1/2 each; the published bounded loss is twice the unbounded one.
    assert answer["rho"] == {"unbounded": "23", "bounded": "46"}
    tables = case.tables()
    assert tables["PH3"].splitlines()[0] == (
        "REGION_ID|REGION_TYPE|ITERATION_CODE|PH3_DATA_CELL|COUNT|NOISE_DISTRIBUTION|VARIANCE"
    )
    assert (
        tables["PH2"].splitlines()[0]
        == "REGION_ID|REGION_TYPE|PH2_DATA_CELL|COUNT|NOISE_DISTRIBUTION|VARIANCE"
    )
    rows = {name: len(text.splitlines()) - 1 for name, text in tables.items()}
    assert rows == {
        "PH1_num": 60,
        "PH1_denom": 30,
        "PH2": 24,
        "PH3": 210,
        "PH4": 60,
        "PH5_num": 60,
        "PH5_denom": 30,
        "PH6": 48,
        "PH7": 90,
        "PH8_num": 60,
        "PH8_denom": 60,
    }
    # Delta = 2 * 3 + 2 = 8 and rho = 1/2: 64.
    assert {
        line.split("|")[-2:] == ["Discrete Gaussian", "64.0"] for line in tables["PH7"].splitlines()[1:]
    } == {True}
    assert {line.split("|")[-1] for line in tables["PH8_num"].splitlines()[1:]} == {"128.0", "64.0"}
    assert {path.name for path in case.out.iterdir() if not path.name.startswith(".")} == {
        *OUTPUTS,
        "certificate.json",
        "ledger.jsonl",
        "confidential",
    }


def test_the_grid_comes_from_the_configuration(tmp_path: Path) -> None:
    case = Case(tmp_path, document=configuration(states=("06", "44", "56")))
    assert case() == 0
    text = case.tables()["PH1_num"]
    assert "\n56|STATE|G|3|" in text
    assert len(text.splitlines()) == 81


def test_certificate_and_ledger_agree(case: Case) -> None:
    assert case() == 0
    certificate = case.certificate()
    (run,) = certificate["runs"]
    assert run["stamps"] == []
    assert len(run["noise"]) == 46
    first = run["noise"][0]
    assert (first["table"], first["level"], first["budget"]) == ("PH1_num", "usa_A-G", "1/2")
    assert (first["sensitivity_squared"], first["sigma2"], first["variance"], first["moe90"]) == (
        64,
        "64",
        64.0,
        13,
    )
    assert first["loss"]["paper"] == {"bounded": "1", "unbounded": "1/2"}
    # tau = 3: 2 * 9 / (2 * 64) and 8 * 9 / (2 * 64)
    assert first["loss"]["tight"] == {"bounded": "9/16", "unbounded": "9/64"}
    totals = {(row["sensitivity"], row["neighbours"]): row for row in certificate["totals"]}
    assert totals["paper", "unbounded"]["rho"] == "23"
    assert totals["paper", "unbounded"]["charged"]
    assert not totals["tight", "bounded"]["charged"]
    assert sum(Fraction(part) for part in totals["tight", "bounded"]["tables"].values()) == Fraction(
        totals["tight", "bounded"]["rho"]
    )
    (entry,) = Ledger.read(case.out / "ledger.jsonl")
    assert entry.loss_under(Neighbours.UNBOUNDED) == 23
    assert entry.loss_under(Neighbours.BOUNDED) == 46
    secrets = (entry.key_commitment, entry.input_tag, entry.run_id)
    text = (case.out / "certificate.json").read_text()
    assert not any(secret in text for secret in secrets)
    assert {file["path"] for file in certificate["files"]} == {f"{name}/{PART_FILE}" for name in OUTPUTS}


def test_tight_sensitivity_has_less_noise_for_the_same_budget(case: Case) -> None:
    assert case("--sensitivity", "tight") == 0
    certificate = case.certificate()
    assert certificate["runs"][0]["noise"][0]["sigma2"] == "18"
    charged = [row for row in certificate["totals"] if row["charged"]]
    assert {row["sensitivity"] for row in charged} == {"tight"}
    # One address costs the budget, two four times as much: each derived by itself.
    assert {row["neighbours"]: row["tables"]["PH3"] for row in charged} == {"unbounded": "3", "bounded": "12"}


def test_pure_privacy_has_geometric_noise(tmp_path: Path) -> None:
    case = Case(tmp_path, document=configuration(tau=3, definition="puredp"))
    assert case() == 0
    # Scale 8 / (1/2) = 16: variance 2 q / (1 - q)**2 with q = exp(-1/16).
    assert "|Two-Sided Geometric|511.8333" in case.tables()["PH7"]
    assert case.certificate()["runs"][0]["privacy_definition"] == "puredp"
    (entry,) = Ledger.read(case.out / "ledger.jsonl")
    assert entry.as_json()["epsilon"] == "23"


def test_a_seed_fixes_everything_and_stamps_it(case: Case, capsys: Capture) -> None:
    assert case("--seed", "5") == 0
    assert "NOT FOR RELEASE" in capsys.readouterr().err
    assert case("--seed", "5", out=case.folder / "again") == 0
    assert case("--seed", "6", out=case.folder / "other") == 0
    assert case.tables() == case.tables(case.folder / "again")
    assert case.tables() != case.tables(case.folder / "other")
    assert case.certificate()["stamps"] == ["NOT FOR RELEASE"]
    assert not any("NOT FOR" in text for text in case.tables().values())
    (entry,) = Ledger.read(case.out / "ledger.jsonl")
    assert entry.seeded
    assert entry.loss == "infinity"


def test_the_order_of_the_input_decides_nothing(tmp_path: Path) -> None:
    world = random_world(3, 80)
    first, second = Case(tmp_path / "a", world), Case(tmp_path / "b", tuple(r[::-1] for r in world))  # type: ignore[arg-type]
    assert first("--seed", "5") == second("--seed", "5") == 0
    assert first.tables() == second.tables()


def test_levels_and_tables_without_budget_are_not_produced(case: Case) -> None:
    def change(document: dict[str, Any]) -> None:
        document["privacy_budget"]["PH4"] = dict.fromkeys(document["privacy_budget"]["PH4"], 0)
        document["privacy_budget"]["PH7"]["usa_A-G"] = 0

    case.change(change)
    assert case() == 0
    assert not (case.out / "PH4").exists()
    assert not (case.out / "PH5_num").exists()
    assert "USA|A|" not in (case.out / "PH7" / PART_FILE).read_text()
    assert "USA|A|" not in (case.out / "PH8_num" / PART_FILE).read_text()


def test_puerto_rico_runs_alone(tmp_path: Path) -> None:
    document = configuration(states=("72",))
    for levels in document["privacy_budget"].values():  # type: ignore[attr-defined]
        levels.update({level: 0 for level in levels if level.startswith("usa")})
    case = Case(tmp_path, random_world(1, 40, ("72",)), document)
    assert case() == 0
    for text in case.tables().values():
        assert {line.split("|")[0] for line in text.splitlines()[1:]} == {"72"}


def test_non_private_output_is_for_its_owner(case: Case, capsys: Capture) -> None:
    assert case("--mode", "non-private") == 0
    assert "as confidential as the input" in capsys.readouterr().err
    assert stat.S_IMODE(case.out.stat().st_mode) == 0o700
    assert case.tables()["PH7"].splitlines()[0] == "REGION_ID|REGION_TYPE|ITERATION_CODE|PH7_DATA_CELL|COUNT"
    assert not (case.out / "ledger.jsonl").exists()
    assert case("--mode", "non-private") == 0  # nothing is spent by counting again


def test_private_and_non_private_output_never_meet(case: Case, capsys: Capture) -> None:
    other = case.folder / "exact"
    assert case() == 0
    assert case("--mode", "non-private", out=other) == 0
    before = case.tables()
    assert case("--mode", "non-private") == 2
    assert case(out=other) == 2
    assert "needs a folder of its own" in capsys.readouterr().err
    assert case.tables() == before


@pytest.mark.parametrize("mode", ["private", "non-private"])
def test_a_folder_with_other_things_is_left_alone(mode: str, case: Case) -> None:
    case.out.mkdir()
    (case.out / "mine.txt").write_text("x")
    assert case("--mode", mode) == 2
    assert [path.name for path in case.out.iterdir()] == ["mine.txt"]


def test_a_second_run_in_the_same_folder_needs_resume(case: Case) -> None:
    assert case() == 0
    before = case.tables()
    assert case() == 2
    assert case("--resume") == 0
    assert case.tables() == before
    assert len(Ledger.read(case.out / "ledger.jsonl")) == 1


@pytest.mark.parametrize("what", ["plan", "input", "seed"])
def test_a_run_resumes_only_unchanged(what: str, case: Case, capsys: Capture) -> None:
    assert case("--keep-key") == 0
    if what == "plan":
        case.change(lambda document: document["tau"].update(PH3=4))
    elif what == "input":
        write_world(case.data, random_world(4, 80))
    words = ("--seed", "1") if what == "seed" else ()
    assert case("--resume", *words) == 4
    assert f"differ in {what}" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("where", ["measure", "write_tables", "issue_certificate"])
def test_an_interrupted_run_is_finished_with_the_same_noise(
    where: str, case: Case, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    words = ("--key-command", f"/bin/echo {'ab' * 32}")
    assert case(*words, out=case.folder / "undisturbed") == 0
    with monkeypatch.context() as patch:

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(phsafe_run, where, interrupt)
        assert case(*words) == 130
    assert not any(".partial" in path.name for path in case.out.rglob("*"))
    assert case(*words) == 2
    assert case("--resume", *words) == 0
    assert case.tables() == case.tables(case.folder / "undisturbed")
    assert len(Ledger.read(case.out / "ledger.jsonl")) == 1


def test_an_interruption_before_the_ledger_leaves_nothing(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(phsafe_run, "sort_inputs", interrupt)
    assert case() == 130
    assert not case.out.exists()


def test_a_lost_key_ends_an_unfinished_run(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(phsafe_run, "write_tables", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert case() == 130
    (case.out / "confidential" / "keys" / "phsafe.key").unlink()
    assert case("--resume") == 4


def test_a_shared_ledger_and_a_key_command(case: Case) -> None:
    ledger = case.folder / "book"
    create_book(ledger, "address", rho=1_000_000)
    assert case("--ledger", str(ledger), "--key-command", f"/bin/echo {'cd' * 32}") == 0
    assert not list((case.out / "confidential" / "keys").iterdir())
    assert case("--ledger", str(ledger), out=case.folder / "second") == 0
    assert sum(line.entry is not None for line in read_lines(ledger.read_bytes(), "book")[0]) == 2
    # The same key again is refused.
    words = ("--ledger", str(ledger), "--key-command", f"/bin/echo {'cd' * 32}")
    assert case(*words, out=case.folder / "third") == 4


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--mode", "wrong"), 2),
        (("--mode", "non-private", "--seed", "1"), 2),
        (("--mode", "non-private", "--resume"), 2),
        (("--truncation", "random"), 2),
        (("--sensitivity", "best"), 2),
        (("--seed", "1", "--key-command", "x"), 2),
    ],
)
def test_wrong_usage(words: tuple[str, ...], code: int, case: Case) -> None:
    assert case(*words) == code
    assert not case.out.exists()


def test_out_is_needed_except_to_validate(case: Case) -> None:
    assert guarded(cli, ["phsafe", str(case.config), str(case.data)]) == 2
    arguments = ["phsafe", str(case.config), str(case.data), str(case.out), "--mode", "validate"]
    assert guarded(cli, arguments) == 2
    assert case("--mode", "validate") == 0
    assert not case.out.exists()


def occupied(world: World) -> dict[str, str]:
    return next(
        unit
        for unit in world[1]
        if unit["HHT"] != "0" and any(person["MAFID"] == unit["MAFID"] for person in world[0])
    )


@pytest.mark.parametrize("mode", ["private", "validate"])
def test_a_counted_person_without_a_cell_is_refused_before_anything_is_drawn(
    mode: str, tmp_path: Path, capsys: Capture
) -> None:
    world = random_world(3, 80)
    occupied(world)["TEN"] = "0"
    case = Case(tmp_path, world)
    assert case("--mode", mode) == 3
    text = capsys.readouterr().err
    assert "PH7" in text
    assert "TEN" in text
    assert "line" in text
    assert occupied(world)["MAFID"] not in text
    assert not case.out.exists()


def test_it_is_no_error_where_the_table_has_no_budget_or_the_mode_is_not_private(
    tmp_path: Path, capsys: Capture
) -> None:
    world = random_world(3, 80)
    occupied(world)["TEN"] = "0"
    case = Case(tmp_path, world, configuration(without=("PH7", "PH8_denom")))
    assert case() == 0
    assert Case(tmp_path / "b", world)("--mode", "non-private") == 0
    assert "warning: a private run refuses this input" in capsys.readouterr().err


@pytest.mark.parametrize("file", [1, 2], ids=["units", "geo"])
def test_repeated_household_keys_are_rejected_inside_the_filter_only(file: int, tmp_path: Path) -> None:
    world = random_world(3, 80, ("06", "72"))
    state = {place["MAFID"]: place["TABBLKST"] for place in world[2]}
    outside = next(row for row in world[file] if state[row["MAFID"]] == "72")
    world[file].append(dict(outside))
    document = configuration(states=("06",))
    assert Case(tmp_path / "a", world, document)() == 0
    inside = next(row for row in world[file] if state[row["MAFID"]] == "06")
    world[file].append(dict(inside))
    assert Case(tmp_path / "b", world, document)() == 3


def test_several_things_wrong_come_together(tmp_path: Path, capsys: Capture) -> None:
    world = random_world(3, 80)
    world[0].append(dict(world[0][0], MAFID="899999999"))
    # A person whose place is in the filter but whose unit is missing.
    world[2].append(dict(world[2][0], MAFID="899999999"))
    occupied(world)["TEN"] = "0"
    case = Case(tmp_path, world)
    assert case() == 3
    text = capsys.readouterr().err
    assert "persons.csv, line" in text
    assert "geo.csv, line" in text
    assert "899999999" not in text


def test_a_missing_configuration_or_data_folder(case: Case, capsys: Capture) -> None:
    assert guarded(cli, ["phsafe", str(case.folder / "no.json"), str(case.data), str(case.out)]) == 2
    assert guarded(cli, ["phsafe", str(case.config), str(case.folder / "no"), str(case.out)]) == 3
    assert "persons.csv: is missing" in capsys.readouterr().err
    assert not case.out.exists()


def test_a_budget_too_small_for_exact_noise_is_refused_before_reading(case: Case) -> None:
    case.change(lambda document: document["privacy_budget"]["PH3"].update({"usa_*": 1e-12}))
    assert case() == 4
    assert not case.out.exists()


def test_status_and_forget_key_know_the_folder(case: Case, capsys: Capture) -> None:
    assert case("--keep-key") == 0
    assert guarded(cli, ["status", str(case.out), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    assert (row["product"], row["phase"], row["rho"], row["key"]) == ("phsafe", "finished", "23", True)
    assert guarded(cli, ["forget-key", str(case.out)]) == 0
    assert not list((case.out / "confidential" / "keys").iterdir())
    assert case("--resume") == 0  # a finished run needs no key
    case.change(lambda document: document["tau"].update(PH3=4))
    assert case("--resume") == 4
