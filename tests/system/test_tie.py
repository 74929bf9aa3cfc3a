"""A release tied to the one before: run, verified, estimated again, and what is refused."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.mini import to_dense
from support.tied_mini import FINE, RUN, write_tied

import opendas.runs.simulated.forecast as forecast
from opendas.cli.main import main
from opendas.constraints.table import ConstraintTable
from opendas.custody.stamps import DOMAIN_FROM_RECORDS
from opendas.engines.checkpoint import Checkpoints
from opendas.errors import CheckFailed
from opendas.files.release_folder import ReleasedProduct, ReleaseFolder
from opendas.files.replicate_files import ReplicateFile
from opendas.measurement.plan import MeasurementPlan
from opendas.measurement.protection import ProtectionMap
from opendas.report.certificate import certificate_bytes, totals
from opendas.report.facts import RunFacts
from opendas.runs.simulated.replicates import Base, starting_counts
from opendas.runs.verification.certificate import facts_again
from opendas.schema.dhc_persons import dhc_persons
from opendas.schema.pl94 import pl94_persons
from opendas.verify.budget import certified_plan


def opendas(*words: object) -> tuple[int, str]:
    """Run a command in this process; return its exit code and all that it printed."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed), pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0), printed.getvalue()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A first release of coarse counts, and a finer product of the same people tied to it."""
    folder = tmp_path_factory.mktemp("tie")
    write_tied(folder)
    code, text = opendas("run", folder / "run.toml", "--out", folder / "first")
    assert code == 0, text
    code, text = opendas("run", folder / "tied.toml", "--out", folder / "second")
    assert code == 0, text
    return folder


@pytest.fixture(scope="module")
def seeded(world: Path) -> Path:
    """The tied run under a seed, in one go."""
    code, text = opendas("run", world / "tied.toml", "--out", world / "seeded", "--seed", 2)
    assert code == 0, text
    return world / "seeded"


def certificate_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "release/certificate.json").read_bytes())
    return found


def test_the_tied_release_agrees_in_every_leaf_and_passes_every_check(world: Path) -> None:
    first, second = ReleaseFolder(world / "first")["mini"], ReleaseFolder(world / "second")["fine"]
    group = second.product.workload.group("kind * age")
    assert np.array_equal(group.answers(to_dense(second.estimate)), to_dense(first.estimate))
    code, text = opendas("verify", world / "second", "--rederive")
    assert code == 0, text
    assert "counts of kind * age, as in the release of mini" in text
    (run,) = certificate_of(world / "second")["runs"]
    (said,) = [line for line in run["declared"] if line.startswith("tie:")]
    assert second.product.tie is not None
    assert said.startswith(
        f"tie: kind * age as in the release of mini, microdata {second.product.tie.microdata};"
    )
    assert run["rho"] == "2"  # of this run alone, as the line says
    toml = (world / "second/release/run/fine.toml").read_text()
    assert f'microdata = "{second.product.tie.microdata}"' in toml
    assert str(world) not in toml


def test_sexes_are_those_of_the_measurement(world: Path) -> None:
    """The tie says nothing of sex: what the release says of it comes from its own noisy answers."""
    second = ReleaseFolder(world / "second")["fine"]
    untied = (world / "tied.toml").read_text().partition("[tie]")[0]
    (world / "untied.toml").write_text(untied)
    code, text = opendas("run", world / "untied.toml", "--out", world / "third", "--seed", 2)
    assert code == 0, text
    third = ReleaseFolder(world / "third")["fine"]
    assert third.product.tie is None
    assert not (third.measurements / "tie.parquet").exists()
    group = second.product.workload.group("kind * age")
    assert len(third.estimate.unlike(second.estimate))
    assert not np.array_equal(
        group.answers(to_dense(third.estimate)), group.answers(to_dense(second.estimate))
    )


def test_the_certificate_adds_what_both_releases_lose(world: Path) -> None:
    first, second = certificate_of(world / "first"), certificate_of(world / "second")
    (earlier,), (run,) = first["runs"], second["runs"]
    losses = [Fraction(earlier["rho"]), Fraction(run["rho"])]
    (total,) = second["totals"]
    assert (Fraction(total["rho"]), total["runs"], total["tied"]) == (sum(losses), 2, 1)
    assert total["epsilon"]["cks"] > run["epsilon"]["cks"] > 0
    text = " ".join(run["guarantee"].split())
    assert f"together they lose at most rho = {sum(losses)} " in text
    assert "post-processing of both measurements" in text
    assert "the microdata of that release and public information" in text
    assert "runs of this output folder, and the releases that they are tied to" in second["scope"]
    assert "tied" not in first["totals"][0]
    assert "tied" not in first["scope"]
    html = (world / "second/release/report.html").read_text()
    assert "2, 1 of them in an earlier release" in html
    assert "The released total is that of the earlier release of mini." in html


def test_two_products_of_one_folder_are_added_once(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "first", tmp_path / "both")
    path = world / f"both-{tmp_path.name}.toml"
    path.write_text((world / "tied.toml").read_text().replace('"first"', f'"{tmp_path / "both"}"'))
    code, text = opendas("run", path, "--out", tmp_path / "both")
    assert code == 0, text
    found = certificate_of(tmp_path / "both")
    (total,) = found["totals"]
    losses = [Fraction(run["rho"]) for run in found["runs"]]
    assert (Fraction(total["rho"]), total["runs"], len(losses)) == (sum(losses), 2, 2)
    assert "tied" not in total
    code, text = opendas("verify", tmp_path / "both")
    assert code == 0, text


@pytest.mark.parametrize("what", ["tied", "totals"])
def test_a_certificate_that_states_less_for_the_earlier_release_fails(
    world: Path, tmp_path: Path, what: str
) -> None:
    shutil.copytree(world / "second", tmp_path / "second")
    path = tmp_path / "second/release/certificate.json"
    found = json.loads(path.read_bytes())
    if what == "tied":
        found["runs"][0]["tied"][0]["rho"] = "1/1000"
        found["totals"] = totals([RunFacts.from_dict(found["runs"][0])])
    else:
        found["totals"][0] |= {"rho": found["runs"][0]["rho"], "runs": 1}
        del found["totals"][0]["tied"]
    path.write_bytes(certificate_bytes(found))
    code, text = opendas("verify", tmp_path / "second")
    assert code == 1
    failed = {
        line.split(":")[0].removeprefix("FAILED").strip() for line in text.splitlines() if "FAILED" in line
    }
    assert "certificate made again" in failed
    assert what != "totals" or "totals" in failed


def test_what_the_earlier_release_holds_is_known_of_the_tied_one(world: Path) -> None:
    """Bounds and zeros that come with a tie leave the same protected as when a product declares them."""
    second = ReleaseFolder(world / "second")["fine"]
    tied, frame, spine = second.product, second.frame, second.spine
    earlier = ReleaseFolder(world / "first")["mini"].product
    assert tied.tie is not None
    assert [bound.name for bound in tied.tie.bounds] == [f"{bound.name} (mini)" for bound in earlier.bounds]
    declared = replace(tied, tie=None, bounds=earlier.bounds)
    untied = replace(tied, tie=None)
    run = certificate_of(world / "second")["runs"][0]
    plan = certified_plan(run, second)
    held, twin, without = (
        ProtectionMap.of(MeasurementPlan(product, spine, plan.budget), frame)
        for product in (tied, declared, untied)
    )
    assert (held.sizes, held.alone, held.least) == (twin.sizes, twin.alone, twin.least)
    assert held.places < without.places
    leaves, cells = range(len(spine.leaf)), range(tied.schema.size)
    assert all(held.place(a, i) == twin.place(a, i) for a in leaves for i in cells)
    without_zeros = replace(untied, structural_zeros=())
    zeros = ProtectionMap.of(MeasurementPlan(replace(without_zeros, tie=tied.tie), spine, plan.budget), frame)
    assert zeros.places == held.places
    assert run["protection"]["places"] <= held.places  # the certificate knows the invariants' values, too


def test_linear_constraints_of_the_earlier_release_may_say_more(world: Path, tmp_path: Path) -> None:
    """They hold in the tied one, too: what follows is not looked for, and both certificates say so."""
    constraint = '[[constraints]]\nname = "few"\nquery = "kind"\ncoefficients = { home = -2, school = 1 }\n'
    (world / "bent.toml").write_text((world / "product.toml").read_text() + f"{constraint}at_most = 100000\n")
    first, path = (world / f"{name}-{tmp_path.name}.toml" for name in ("bent", "bent-tied"))
    first.write_text((world / "run.toml").read_text().replace("product.toml", "bent.toml"))
    path.write_text((world / "tied.toml").read_text().replace('"first"', f'"{tmp_path / "first"}"'))
    for each, out in ((first, "first"), (path, "second")):
        code, text = opendas("run", each, "--out", tmp_path / out)
        assert code == 0, text
        (run,) = certificate_of(tmp_path / out)["runs"]
        assert "These numbers are upper limits" in " ".join(run["guarantee"].split())
    code, text = opendas("verify", tmp_path / "second")
    assert code == 0, text
    assert "upper limits" not in " ".join(certificate_of(world / "second")["runs"][0]["guarantee"].split())


@pytest.mark.parametrize("file", ["measurements/fine/tie.parquet", "mdf/fine"])
def test_a_changed_tie_or_a_moved_record_is_found(world: Path, tmp_path: Path, file: str) -> None:
    shutil.copytree(world / "second", tmp_path / "second")
    path = tmp_path / "second/release" / file
    if path.is_dir():
        path = sorted(path.glob("*.parquet"))[0]
        table = pq.read_table(path)
        table = table.slice(1)
    else:
        table = pq.read_table(path)
        counts = table.column("count").to_pylist()
        counts[0] = [count + 1 for count in counts[0]]
        table = table.set_column(2, table.schema.field(2), [counts])
    pq.write_table(table, path)
    code, text = opendas("verify", tmp_path / "second")
    assert code == 1
    failed = [line for line in text.splitlines() if line.startswith("FAILED")]
    assert any("fine: tie: the counts differ from those of mini in" in line for line in failed), text


@pytest.mark.parametrize(
    ("change", "code", "expected"),
    [
        (('release = "first"', 'release = "nowhere"'), 2, "holds no release"),
        (('release = "first"', 'release = "second"'), 2, "this release holds fine"),
        (('product = "fine.toml"', 'product = "product.toml"'), 2, "does not say what must agree"),
        (("[input]", 'drop_invariants = ["total@region"]\n[input]'), 2, "publishes total@region exactly"),
        (("frame.csv", "units.csv"), 3, "is not that of this frame"),
        (("frame.csv", "other.csv"), 3, "is a release of another frame"),
        (("[input]", 'estimator = "informed"\n[input]'), 2, "estimator informed"),
    ],
)
def test_a_tie_that_cannot_be_is_refused(
    world: Path, tmp_path: Path, change: tuple[str, str], code: int, expected: str
) -> None:
    frame = (world / "frame.csv").read_text()
    (world / "other.csv").write_text(frame + "990101,1,0,0\n")
    head, first, *rest = frame.splitlines()
    code_, homes, *units = first.split(",")
    changed = ",".join([code_, str(int(homes) + 1), *units])
    (world / "units.csv").write_text("\n".join([head, changed, *rest]) + "\n")
    text = (world / "tied.toml").read_text()
    assert change[0] in text
    path = world / f"refused-{tmp_path.name}.toml"
    path.write_text(text.replace(*change))
    found, said = opendas("run", path, "--out", tmp_path / "out", "--seed", 3)
    assert found == code, said
    assert expected in " ".join(said.split())


def test_a_release_of_another_state_is_no_tie(world: Path, tmp_path: Path) -> None:
    text = (world / "tied.toml").read_text().replace('"first"', f'"{world / "first"}"')
    (tmp_path / "fine.toml").write_text(FINE)
    (tmp_path / "tied.toml").write_text(text)
    for name in ("frame.csv", "fine.csv"):
        head, *rows = (world / name).read_text().splitlines()
        (tmp_path / name).write_text("\n".join([head, *(f"9{row[1:]}" for row in rows)]) + "\n")
    found, said = opendas("run", tmp_path / "tied.toml", "--out", tmp_path / "out", "--seed", 3)
    assert found == 3, said
    assert "is a release of another frame" in " ".join(said.split())
    assert not (tmp_path / "out/release").exists()


def test_a_real_run_is_not_tied_to_a_seeded_release(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = opendas("run", world / "run.toml", "--out", tmp_path / "seeded", "--seed", 1)
    assert code == 0, text
    path = world / f"seeded-{tmp_path.name}.toml"
    path.write_text((world / "tied.toml").read_text().replace('"first"', f'"{tmp_path / "seeded"}"'))
    code, text = opendas("run", path, "--out", tmp_path / "real")
    assert code == 4
    assert "is stamped NOT FOR RELEASE" in " ".join(text.split())
    assert not (tmp_path / "real/release").exists()
    for run, seed in ((path, True), (world / "tied.toml", False)):
        code, text = opendas("plan", run)
        said = "a run with a secret key refuses the tie" in " ".join(text.split())
        assert (code, said) == (0, seed), text
    words = ("run", path, "--out", tmp_path / "test")
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", _stop)
        assert opendas(*words, "--seed", 2)[0] == 130
    code, text = opendas(*words, "--resume")
    assert (code, "the two differ in seed" in " ".join(text.split())) == (4, True), text
    code, text = opendas(*words, "--seed", 2, "--resume")
    assert code == 0, text
    (total,) = certificate_of(tmp_path / "test")["totals"]
    assert total["unbounded"]
    assert "which nothing bounds" in certificate_of(tmp_path / "test")["runs"][0]["guarantee"]
    code, text = opendas("verify", tmp_path / "test", "--allow-seeded")
    assert code == 0, text


def test_what_is_stamped_on_a_release_is_stamped_on_those_tied_to_it(world: Path, tmp_path: Path) -> None:
    """It agrees with labels, leaves and units that were read from the records, and says so."""
    from_records = (world / "run.toml").read_text()
    assert from_records.count('provenance = "public"') == 1
    first = world / f"first-{tmp_path.name}.toml"
    first.write_text(from_records.replace('provenance = "public"', 'provenance = "from-records"'))
    code, text = opendas("run", first, "--out", tmp_path / "first")
    assert code == 0, text
    assert certificate_of(tmp_path / "first")["stamps"] == [DOMAIN_FROM_RECORDS]
    path = world / f"stamped-{tmp_path.name}.toml"
    path.write_text((world / "tied.toml").read_text().replace('"first"', f'"{tmp_path / "first"}"'))
    code, text = opendas("run", path, "--out", tmp_path / "second")
    assert code == 0, text
    (run,) = certificate_of(tmp_path / "second")["runs"]
    assert run["stamps"] == [DOMAIN_FROM_RECORDS]
    code, text = opendas("verify", tmp_path / "second")
    assert code == 1
    assert f"fine is stamped {DOMAIN_FROM_RECORDS}" in " ".join(text.split())
    code, text = opendas("verify", tmp_path / "second", "--allow-domain-from-records")
    assert code == 0, text
    facts = replace(RunFacts.from_dict(run), stamps=())
    with pytest.raises(CheckFailed, match="the release that this one is tied to is stamped"):
        facts_again(facts, ReleaseFolder(tmp_path / "second")["fine"])


def test_a_tied_release_that_was_changed_is_refused(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "first", tmp_path / "first")
    path = sorted((tmp_path / "first/release/mdf/mini").glob("*.parquet"))[0]
    pq.write_table(pq.read_table(path).slice(1), path)
    (world / "changed.toml").write_text(
        (world / "tied.toml").read_text().replace('"first"', f'"{tmp_path / "first"}"')
    )
    code, text = opendas("run", world / "changed.toml", "--out", tmp_path / "out", "--seed", 3)
    assert code == 3
    assert "is missing or not as certified" in " ".join(text.split())


@pytest.mark.parametrize("many", [2016, 5])
def test_a_tied_run_has_a_forecast_of_its_time(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """Of synthetic counts and their own sums: neither records nor the earlier release's counts are read."""
    monkeypatch.setattr(forecast, "MANY_CELLS", many)
    tied: list[tuple[str, bool]] = []
    tied_to = ConstraintTable.tied_to

    def noting(self: ConstraintTable, name: str, query: Any, counts: Any, spine: Any) -> ConstraintTable:
        found = tied_to(self, name, query, counts, spine)
        tied.append((name, all(level.tied is not None for level in found.levels)))
        return found

    monkeypatch.setattr(ConstraintTable, "tied_to", noting)
    path = world / f"unread-{tmp_path.name}.toml"
    path.write_text((world / "tied.toml").read_text().replace("fine.csv", "gone.csv"))
    (world / "gone.csv").write_text("nobody reads this")
    code, text = opendas("plan", path, "--json")
    assert code == 0, text
    found = json.loads(text)["forecast"]
    assert set(found["steps"]) == {"region", "town", "block"}
    assert 0 < found["seconds"] == pytest.approx(sum(found["steps"].values()), abs=0.01)
    assert set(tied) == {("mini", True)}
    assert len(tied) >= (4 if many == 5 else 2)


def test_cells_of_the_redistricting_product_are_rows_of_the_persons_product() -> None:
    persons, earlier = dhc_persons(), pl94_persons()
    assert persons.tie is not None
    assert persons.tie.product == earlier.name
    group = persons.workload.group(persons.tie.query)
    assert group.shape == tuple(len(attribute) for attribute in earlier.schema.attributes)
    assert group.labels[1:] == tuple(attribute.levels for attribute in earlier.schema.attributes)[1:]
    assert group.labels[0][1:] == earlier.schema.attributes[0].levels[1:]


def test_drawing_what_is_read_is_the_same_release_as_drawing_everything(
    world: Path, seeded: Path, tmp_path: Path
) -> None:
    """docs/proofs/noise.md, section 4, for stages and a tie: measured in full, then estimated."""
    run = world / "tied.toml"
    code, text = opendas("measure", run, "--out", tmp_path / "full", "--seed", 2)
    assert code == 0, text
    code, text = opendas("estimate", run, "--out", tmp_path / "full")
    assert code == 0, text
    lazy, full = (folder / "release/mdf/fine" for folder in (seeded, tmp_path / "full"))
    names = sorted(path.name for path in lazy.iterdir())
    assert names == sorted(path.name for path in full.iterdir())
    assert [(lazy / name).read_bytes() for name in names] == [(full / name).read_bytes() for name in names]


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt


def test_workers_and_an_interruption_change_nothing(
    world: Path, seeded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after its first task and resumed with two workers: the microdata of the run in one go."""
    words = ("run", world / "tied.toml", "--out", tmp_path / "stopped", "--seed", 2)
    save = Checkpoints.save

    def save_and_stop(self: Checkpoints, *task: Any) -> None:
        save(self, *task)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_stop)
        assert opendas(*words, "--workers", 1)[0] == 130
    assert not (tmp_path / "stopped/release/certificate.json").exists()
    assert len(list((tmp_path / "stopped/state").rglob("*.part"))) == 1
    code, text = opendas(*words, "--workers", 2, "--resume")
    assert code == 0, text
    for folder in ("mdf", "measurements", "geography", "run"):
        assert contents(tmp_path / "stopped/release" / folder) == contents(seeded / "release" / folder)


def test_spark_makes_the_same_release(world: Path, seeded: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    words = ("run", world / "tied.toml", "--out", tmp_path / "out", "--seed", 2, "--engine", "spark")
    done = subprocess.run(
        [sys.executable, "-m", "opendas", *map(str, words), "--workers", "2"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for folder in ("mdf", "measurements", "geography", "run"):
        assert contents(tmp_path / "out/release" / folder) == contents(seeded / "release" / folder)


def contents(folder: Path) -> dict[str, bytes]:
    """Return what stands in the files of a folder, which has some."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found
    return found


def test_a_tied_run_is_not_repeated_alone(world: Path, seeded: Path, tmp_path: Path) -> None:
    """Replicates of it would leave out the error of the release it is tied to."""
    copy = tmp_path / "second"
    shutil.copytree(world / "second", copy)
    code, text = opendas("replicates", copy, "--runs", 2)
    assert code == 2
    assert (
        "fine is tied to a release of mini, and each of its replicates to a replicate of that release" in text
    )
    code, text = opendas("replicates", copy, "--runs", 2, "--tied", seeded)
    assert code == 2
    assert not (copy / "release/replicates").exists()
    code, text = opendas("replicates", world / "first", "--runs", 2, "--tied", world / "second")
    assert code == 2
    assert "mini is tied to no release" in text
    code, text = opendas("run", world / "run.toml", "--out", copy)
    assert code == 0, text
    words = ("replicates", copy, "--runs", 2, "--product", "fine", "--workers", 1)
    code, text = opendas(*words)
    assert code == 2
    assert f"that of {copy / 'release'} has other microdata" in " ".join(text.split())
    code, text = opendas(*words, "--tied", world / "first")
    assert code == 0, text


def test_nothing_is_drawn_where_one_of_several_products_cannot_be(world: Path, tmp_path: Path) -> None:
    """A file of the first product would stand in the release, and the certificate would not list it."""
    copy = tmp_path / "second"
    shutil.copytree(world / "second", copy)
    text = (world / "product.toml").read_text()
    (world / "alike.toml").write_text(text.replace('name = "mini"', 'name = "alike"'))
    path = world / "alike-run.toml"
    path.write_text((world / "run.toml").read_text().replace("product.toml", "alike.toml"))
    code, text = opendas("run", path, "--out", copy)
    assert code == 0, text
    code, text = opendas("replicates", copy, "--runs", 2)
    assert code == 2
    assert "fine is tied to a release of mini" in text
    assert not (copy / "release/replicates").exists()
    words = ("tabulate", copy, "--tables", "kind", "--geolevel", "town", "--to", copy / "release/mdf")
    code, text = opendas(*words)
    assert code == 2
    assert "a release holds what is certified" in text
    code, text = opendas("verify", copy)
    assert code == 0, text


@pytest.fixture(scope="module")
def typed(world: Path) -> Path:
    """A product that tells two kinds of school apart, of which the frame knows how many each block has."""
    text = FINE.replace('kind = ["home", "school", "prison"]', 'kind = ["home", "lower", "upper", "prison"]')
    text = text.replace('name = "fine"', 'name = "typed"').replace('"kind * age"', '"quarter * age"')
    text = text.replace('school = ["school"]', 'school = ["lower", "upper"]')
    text = text.replace('groups = ["kind", ', 'groups = ["kind", "kind * age", ')
    text = text.replace(
        'least_squares = { "*" = [["kind", "quarter * age"]] }', 'least_squares = { "*" = [["kind"]] }'
    )
    text = text.replace("[passes]", '[passes]\nrounder = { "*" = [["detailed"]] }', 1)
    text = text.partition("[[passes.earlier]]")[0] + "[tie]" + text.partition("[tie]")[2]
    (world / "typed.toml").write_text(text + 'units = { lower = "lowers", upper = "uppers" }\n')
    rng = np.random.default_rng(8)
    head, *lines = (world / "frame.csv").read_text().splitlines()
    place = head.split(",").index("schools")
    frame = [f"{head},lowers,uppers"]
    lowers = {}
    for line in lines:
        schools = int(line.split(",")[place])
        lower = int(rng.integers(0, schools + 1))
        lowers[line.split(",")[0]] = lower
        frame.append(f"{line},{lower},{schools - lower}")
    (world / "typed-frame.csv").write_text("\n".join(frame) + "\n")
    head, *lines = (world / "fine.csv").read_text().splitlines()
    renamed = [
        line.replace(",school,", ",lower," if lowers[line.split(",")[0]] else ",upper,") for line in lines
    ]
    (world / "typed.csv").write_text("\n".join([head, *renamed]) + "\n")
    run = RUN.replace('product = "fine.toml"', 'product = "typed.toml"').replace("fine.csv", "typed.csv")
    run = run.replace('frame = "frame.csv"', 'frame = "typed-frame.csv"').replace('"kind * age"', "kind")
    (world / "typed-run.toml").write_text(run)
    return world


def test_people_of_types_without_a_unit_get_another_type(typed: Path, tmp_path: Path) -> None:
    code, text = opendas("run", typed / "typed-run.toml", "--out", tmp_path / "out", "--seed", 5)
    assert code == 0, text
    found = ReleaseFolder(tmp_path / "out")["typed"]
    kinds = found.product.workload.group("kind").answers(to_dense(found.estimate))
    for column, name in ((1, "lowers"), (2, "uppers")):
        units = found.frame.units[name]
        assert (kinds[:, column] >= units).all()
        assert (kinds[units == 0, column] == 0).all()
    first = ReleaseFolder(typed / "first")["mini"]
    coarse = found.product.workload.group("quarter * age").answers(to_dense(found.estimate))
    assert np.array_equal(coarse, to_dense(first.estimate))
    (run,) = certificate_of(tmp_path / "out")["runs"]
    assert run["moved"] > 0
    assert "tie: lower by lowers of the frame: 1 to 99999 a unit" in run["declared"]
    assert "places of a type of unit that a leaf does not have" in " ".join(run["guarantee"].split())
    for moved in (None, run["moved"] + 1):
        path = tmp_path / "changed"
        shutil.copytree(tmp_path / "out", path, dirs_exist_ok=True)
        changed = certificate_of(path)
        changed["runs"][0]["moved"] = moved
        (path / "release/certificate.json").write_bytes(certificate_bytes(changed))
        code, text = opendas("verify", path, "--rederive", "--allow-seeded")
        assert code == 1
        said = f"{moved} records with another type of unit are certified"
        if moved is None:
            said = "does not say how many records got another type of unit"
        assert said in " ".join(text.split())
    code, text = opendas("verify", tmp_path / "out", "--rederive", "--allow-seeded")
    assert code == 0, text
    assert "2 types of unit as the frame has them" in text
    code, text = opendas("replicates", tmp_path / "out", "--tied", typed / "first", "--runs", 3)
    assert code == 0, text
    base = Base(tmp_path / "out/release", "typed", typed / "first/release")
    file = ReplicateFile(tmp_path / "out/release/replicates/typed.parquet")
    for number, start in enumerate(starting_counts(base, file), start=1):
        error = to_dense(file.differences(number, found.frame, start.size))
        for counts in (to_dense(start), to_dense(start) + error):
            kinds = found.product.workload.group("kind").answers(counts)
            assert ((kinds[:, 1] > 0) == (found.frame.units["lowers"] > 0)).all()


@pytest.mark.parametrize(
    ("change", "code", "expected"),
    [
        (("typed.toml", 'lower = "lowers", ', ""), 2, "'upper' has a column and 'lower' has none"),
        (("typed.toml", 'lower = "lowers"', 'low = "lowers"'), 2, "'kind' has no level 'low'"),
        (("typed-frame.csv", ",0,0\n", ",0,1\n"), 3, "units of the types lower, upper"),
    ],
)
def test_units_that_cannot_be_are_refused(
    typed: Path, tmp_path: Path, change: tuple[str, str, str], code: int, expected: str
) -> None:
    for path in typed.glob("*"):
        if path.is_file():
            shutil.copy(path, tmp_path)
    shutil.copytree(typed / "first", tmp_path / "first")
    name, old, new = change
    text = (tmp_path / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new))
    found, said = opendas("run", tmp_path / "typed-run.toml", "--out", tmp_path / "out", "--seed", 3)
    assert found == code, said
    assert expected in " ".join(said.split())
    assert not (tmp_path / "out/release").exists()
    found, said = opendas("plan", tmp_path / "typed-run.toml")
    assert (found, expected in " ".join(said.split())) == (code, True), said


def test_each_replicate_is_tied_to_one_of_the_earlier_release(world: Path, tmp_path: Path) -> None:
    """Starts and results agree with those of the earlier release's replicate of the same number and seed."""
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(world / "first", first)
    shutil.copytree(world / "second", second)
    runs = 20
    for words in ((first,), (second, "--tied", first)):
        code, text = opendas("replicates", *words, "--runs", runs, "--seed", 3, "--workers", 1)
        assert code == 0, text
    bases = [Base(first / "release", "mini"), Base(second / "release", "fine", first / "release")]
    files = [ReplicateFile(base.release / f"replicates/{base.product}.parquet") for base in bases]
    released = ReleasedProduct(second / "release", "fine")
    group, frame = released.product.workload.group("kind * age"), released.frame
    moved = 0
    for number, (coarse, fine) in enumerate(
        zip(*(starting_counts(*pair) for pair in zip(bases, files, strict=True)), strict=True), start=1
    ):
        assert np.array_equal(group.answers(to_dense(fine)), to_dense(coarse))
        assert (to_dense(fine) >= 0).all()
        changes = [
            to_dense(file.differences(number, frame, size))
            for file, size in zip(files, (coarse.size, fine.size), strict=True)
        ]
        assert np.array_equal(group.answers(changes[1]), changes[0])
        moved += int((group.answers(to_dense(fine)) != group.answers(to_dense(released.estimate))).sum())
    assert moved > 0
    code, text = opendas("margin", second, "--query", "kind * age", "--geolevel", "town", "--json")
    assert code == 0, text
    fine_margins = json.loads(text)["rows"]
    code, text = opendas("margin", first, "--query", "kind * age", "--geolevel", "town", "--json")
    assert code == 0, text
    assert [row["margin"] for row in fine_margins] == [row["margin"] for row in json.loads(text)["rows"]]
    assert any(row["margin"] > 0 for row in fine_margins)
    pooled = ("--query", "kind * age", "--geolevel", "block", "--pooled")
    margins = []
    for words in ((second, "--tied", first, *pooled), (first, *pooled), (first, *pooled[:-1])):
        code, text = opendas("margin", *words, "--json")
        assert code == 0, text
        margins.append([(row["count"], row["margin"]) for row in json.loads(text)["rows"]])
    assert margins[0] == margins[1] != margins[2]  # of a tied sum, as in the earlier release; some are wider
    for words, said in (
        ((second, *pooled), "Name that release with --tied EARLIER"),
        ((second, "--tied", second, *pooled), "this release holds fine"),
        ((second, "--tied", first, *pooled[:-1]), "--tied goes with --pooled"),
        ((first, "--tied", first, *pooled), "mini is tied to no release"),
    ):
        code, text = opendas("margin", *words)
        assert code == 2
        assert said in " ".join(text.split())
    code, text = opendas("verify", second, "--rederive", "--tied", first, "--workers", 1)
    assert code == 0, text
    assert f"{runs} replicates, drawn again" in text
    code, text = opendas("verify", second, "--rederive", "--workers", 1)
    assert code == 0, text
    assert "not drawn again: fine is tied to a release of mini" in text
