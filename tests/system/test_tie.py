"""A release tied to the one before: run, verified, estimated again, and what is refused."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.mini import mini_frame, mini_histogram, to_dense, write_mini

from opendas.cli.main import main
from opendas.files.release_folder import ReleaseFolder
from opendas.schema.dhc_persons import dhc_persons
from opendas.schema.pl94 import pl94_persons

FINE = """
[product]
name = "fine"
provenance = "code-book"
[attributes]
kind = ["home", "school", "prison"]
age = ["child", "adult", "old"]
sex = ["m", "f"]
[recodes.quarter]
attribute = "kind"
levels = { home = ["home"], school = ["school"], prison = ["prison"] }
[queries]
groups = ["kind", "age * sex", "kind * age"]
[[structural_zeros]]
kind = ["prison"]
age = ["child"]
[passes]
least_squares = { "*" = [["rest"]] }
[[passes.earlier]]
least_squares = { "*" = [["kind", "kind * age"]] }
rounder = { "*" = [["kind * age"]] }
[tie]
product = "mini"
query = "kind * age"
"""
RUN = """
[run]
product = "fine.toml"
[input]
reader = "histogram"
path = "fine.csv"
[geography]
levels = [
    { name = "region", prefix = 2 }, { name = "town", prefix = 4 }, { name = "block", prefix = 6 }
]
frame = "frame.csv"
provenance = "public"
[budget]
rho = "2"
geolevels = { region = "1/4", town = "1/4", block = "1/2" }
[budget.queries]
"*" = { "age * sex" = "1/4", "kind * age" = "1/4", detailed = "1/2" }
[tie]
release = "first"
"""


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
    frame = mini_frame()
    coarse = to_dense(mini_histogram(frame))
    write_mini(folder)
    rng = np.random.default_rng(5)
    male = rng.binomial(coarse, 0.5)
    lines = ["geocode,kind,age,sex,count"]
    kinds, ages = ("home", "school", "prison"), ("child", "adult", "old")
    for i, code in enumerate(frame.geocodes):
        for cell in np.flatnonzero(coarse[i]):
            kind, age = divmod(int(cell), 3)
            for sex, count in (("m", male[i, cell]), ("f", coarse[i, cell] - male[i, cell])):
                lines.append(f"{code.decode()},{kinds[kind]},{ages[age]},{sex},{count}")
    (folder / "fine.csv").write_text("\n".join(lines) + "\n")
    (folder / "fine.toml").write_text(FINE)
    (folder / "tied.toml").write_text(RUN)
    code, text = opendas("run", folder / "run.toml", "--out", folder / "first", "--seed", 1)
    assert code == 0, text
    code, text = opendas("run", folder / "tied.toml", "--out", folder / "second", "--seed", 2)
    assert code == 0, text
    return folder


def test_the_tied_release_agrees_in_every_leaf_and_passes_every_check(world: Path) -> None:
    first, second = ReleaseFolder(world / "first")["mini"], ReleaseFolder(world / "second")["fine"]
    group = second.product.workload.group("kind * age")
    assert np.array_equal(group.answers(to_dense(second.estimate)), to_dense(first.estimate))
    code, text = opendas("verify", world / "second", "--allow-seeded", "--rederive")
    assert code == 0, text
    assert "counts of kind * age, as in the release of mini" in text
    certificate = json.loads((world / "second/release/certificate.json").read_bytes())
    (run,) = certificate["runs"]
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
    code, text = opendas("verify", tmp_path / "second", "--allow-seeded")
    assert code == 1
    failed = [line for line in text.splitlines() if line.startswith("FAILED")]
    assert any("fine: tie: other counts than mini in" in line for line in failed), text


@pytest.mark.parametrize(
    ("change", "code", "expected"),
    [
        (('release = "first"', 'release = "nowhere"'), 2, "holds no release"),
        (('release = "first"', 'release = "second"'), 2, "this release holds fine"),
        (('product = "fine.toml"', 'product = "product.toml"'), 2, "does not say what of it agrees"),
        (("frame.csv", "other.csv"), 3, "is a release of another frame"),
        (("[input]", 'estimator = "informed"\n[input]'), 2, "estimator informed"),
    ],
)
def test_a_tie_that_cannot_be_is_refused(
    world: Path, tmp_path: Path, change: tuple[str, str], code: int, expected: str
) -> None:
    frame = (world / "frame.csv").read_text()
    (world / "other.csv").write_text(frame + "990101,1,0,0\n")
    text = (world / "tied.toml").read_text()
    assert change[0] in text
    path = world / f"refused-{tmp_path.name}.toml"
    path.write_text(text.replace(*change))
    found, said = opendas("run", path, "--out", tmp_path / "out", "--seed", 3)
    assert found == code, said
    assert expected in " ".join(said.split())


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


def test_cells_of_the_redistricting_product_are_rows_of_the_persons_product() -> None:
    persons, earlier = dhc_persons(), pl94_persons()
    assert persons.tie is not None
    assert persons.tie.product == earlier.name
    group = persons.workload.group(persons.tie.query)
    assert group.shape == tuple(len(attribute) for attribute in earlier.schema.attributes)
    assert group.labels[1:] == tuple(attribute.levels for attribute in earlier.schema.attributes)[1:]
    assert group.labels[0][1:] == earlier.schema.attributes[0].levels[1:]


def test_drawing_what_is_read_is_the_same_release_as_drawing_everything(world: Path, tmp_path: Path) -> None:
    """docs/proofs/noise.md, section 4, for stages and a tie: measured in full, then estimated."""
    run = world / "tied.toml"
    code, text = opendas("measure", run, "--out", tmp_path / "full", "--seed", 2)
    assert code == 0, text
    code, text = opendas("estimate", run, "--out", tmp_path / "full")
    assert code == 0, text
    lazy, full = (folder / "release/mdf/fine" for folder in (world / "second", tmp_path / "full"))
    names = sorted(path.name for path in lazy.iterdir())
    assert names == sorted(path.name for path in full.iterdir())
    assert [(lazy / name).read_bytes() for name in names] == [(full / name).read_bytes() for name in names]


def test_a_tied_run_is_not_repeated_alone(world: Path, tmp_path: Path) -> None:
    """Replicates of it would leave out the error of the release it is tied to."""
    copy = tmp_path / "second"
    shutil.copytree(world / "second", copy)
    code, text = opendas("replicates", copy, "--runs", 2)
    assert code == 2
    assert "fine is tied to a release of mini, whose own error would be missing" in text
    assert not (copy / "release/replicates").exists()
