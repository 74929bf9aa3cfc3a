"""A posterior that starts from a public table: named in the certificate, drawn again, and what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.mini import prior_table, write_earlier, write_mini

import opendas
from opendas.errors import ConfigError, FormatError, GeographyError, PrivacyError, SchemaError
from opendas.files.release_folder import ReleasedProduct
from opendas.runs.context.run import Run, load
from opendas.runs.finished_release import Release
from opendas.runs.options import RunOptions
from opendas.runs.release import measure
from opendas.runs.simulated.replicates import Base, _original
from opendas.runs.simulated.simulation import Simulation
from opendas.runs.simulated.trial import Trial

POSTERIOR = 'estimator = "posterior"'


def run_with(folder: Path, more: str, run: str = POSTERIOR) -> Run:
    return load(write_mini(folder, run=run, more=more))


def test_the_release_names_its_table_and_is_drawn_again_from_it(tmp_path: Path) -> None:
    table = write_earlier(tmp_path / "earlier.csv")
    found = {}
    for name, more in (("without", ""), ("with", prior_table("../earlier.csv"))):
        run = run_with(tmp_path / name, more)
        found[name] = opendas.release(run, tmp_path / name / "out", seed=3, measurements="full")
    assert found["with"].estimate("mini").unlike(found["without"].estimate("mini")).size
    (about,) = found["with"].certificate["runs"]
    digest = hashlib.sha256(table.read_bytes()).hexdigest()
    (line,) = [line for line in about["declared"] if line.startswith("prior")]
    assert f"kind * minor of each block in the census before, sha256 {digest}" in line
    assert not [line for line in found["without"].certificate["runs"][0]["declared"] if "prior" in line]
    table.unlink()  # the release has what it needs
    checks = found["with"].verify(rederive=True, allow_seeded=True)
    assert not [check for check in checks if not check.ok]


def test_the_release_holds_the_table_leaf_by_leaf(tmp_path: Path) -> None:
    write_earlier(tmp_path / "earlier.csv")
    run = run_with(tmp_path / "run", prior_table("../earlier.csv"))
    measure(run, tmp_path / "out", RunOptions(seed=3))
    held = pq.read_table(tmp_path / "out/release/measurements/mini/prior.parquet").to_pylist()
    rows = [line.split(",") for line in (tmp_path / "earlier.csv").read_text().split()[1:]]
    query = run.product.workload.group("kind * minor")
    labels = [query.row_label(row) for row in range(query.size)]
    for leaf in held:
        exact = np.zeros(query.size, int)
        for code, kind, age, people in rows:
            if code == leaf["geocode"]:
                exact[labels.index(f"{kind} * {age}")] += int(people)
        assert dict(zip(leaf["row"], leaf["count"], strict=True)) == {
            row: n for row, n in enumerate(exact) if n
        }
    assert not held[0]["row"], "a leaf that the table does not have counts nobody"


def test_a_changed_table_is_found_by_verification(tmp_path: Path) -> None:
    write_earlier(tmp_path / "earlier.csv")
    out = tmp_path / "out"
    opendas.release(run_with(tmp_path / "run", prior_table("../earlier.csv")), out, seed=3)
    path = out / "release/measurements/mini/prior.parquet"
    table = pq.read_table(path)
    pq.write_table(
        table.set_column(2, "count", [[[n + 1 for n in one] for one in table["count"].to_pylist()]]), path
    )
    wrong = {check.name for check in Release(out).verify(allow_seeded=True) if not check.ok}
    assert "digests" in wrong, wrong


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        ("990000,home,minor,3", GeographyError, "expected a leaf of this run's frame"),
        ("000001,hut,minor,3", SchemaError, "expected a label of kind: home, school, prison"),
        ("000001,home,minor,-3", FormatError, "expected a whole number"),
    ],
)
def test_rows_that_cannot_be_read_are_named(
    tmp_path: Path, line: str, error: type[Exception], words: str
) -> None:
    table = write_earlier(tmp_path / "earlier.csv")
    last = len(table.read_text().splitlines()) + 1
    table.write_text(table.read_text() + line + "\n")
    run = run_with(tmp_path / "run", prior_table("../earlier.csv"))
    with pytest.raises(error, match=words) as found:
        measure(run, tmp_path / "out", RunOptions(seed=3))
    assert f"earlier.csv, line {last}" in str(found.value)
    assert not (tmp_path / "out" / "release").exists()


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    write_earlier(tmp_path / "earlier.csv")
    with pytest.raises(ConfigError, match="estimator informed uses no prior table"):
        run_with(tmp_path / "a", prior_table("../earlier.csv"), 'estimator = "informed"')
    with pytest.raises(ConfigError, match="no such file"):
        run_with(tmp_path / "b", prior_table("none.csv"))
    with pytest.raises(PrivacyError, match="is an input of this run, which OpenDAS treats as confidential"):
        run_with(tmp_path / "c", prior_table("../c/counts.csv"))
    with pytest.raises(ConfigError, match="neither attribute nor recode"):
        run_with(tmp_path / "d", prior_table("../earlier.csv").replace("minor", "tenure"))


def test_replicates_start_from_the_table_of_their_release(tmp_path: Path) -> None:
    """The same run again is a run with the same prior table, and the file of replicates can be made again."""
    write_earlier(tmp_path / "earlier.csv")
    run = run_with(tmp_path / "run", prior_table("../earlier.csv"))
    release = opendas.release(run, tmp_path / "out", seed=3, measurements="full")
    base = Base(release.folder, "mini")
    starts = _original(base).simulation.constraints.levels[-1].prior
    held = ReleasedProduct(release.folder, "mini").constraint_table.levels[-1].prior
    assert starts is not None
    assert held is not None
    assert starts.counts.tolist() == held.counts.tolist()
    (path,) = opendas.replicates(release, runs=2, workers=1).values()
    assert path.is_file()
    with pytest.raises(ConfigError, match=r"leave \[prior\] out"):
        Simulation.of(run, release.estimate("mini"))
    assert Trial.of(run) is not None


@pytest.mark.parametrize("path", ["records", "records/*.csv"])
def test_a_file_among_those_of_the_input_is_no_prior_table(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    written = write_mini(tmp_path, run=POSTERIOR, more=prior_table("records/counts.csv"))
    (tmp_path / "counts.csv").rename(folder / "counts.csv")
    written.write_text(written.read_text().replace('path = "counts.csv"', f'path = "{path}"'))
    with pytest.raises(PrivacyError, match="is an input of this run, which OpenDAS treats as confidential"):
        load(written)
