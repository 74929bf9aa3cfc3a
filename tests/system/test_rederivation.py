"""A release is estimated again from its own measurements, made again where it can be, and signed.

The attacker of these tests has the package, all the time and no key: after each change the certificate lists
the files as they are, the pages are made again, and a stranger signs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.attacker import certificate_of, put, reissue, rewrite, store
from support.mini import mini_frame, mini_histogram, mini_product, write_mini

import opendas
from opendas.custody.folders import sha256_file
from opendas.custody.signing_key import PublicKey, SigningKey
from opendas.errors import CheckFailed
from opendas.files.mdf.writing import MdfFiles
from opendas.files.storage.parquet import METADATA_KEY
from opendas.report.certificate import issue, read_runs
from opendas.report.signature import check_signature, sign_release
from opendas.runs.context.run import load
from opendas.runs.finished_release import Release
from opendas.runs.verification.certificate import TAKEN, facts_again
from opendas.schema.histogram import Histogram
from opendas.verify.check import Check
from opendas.version import __version__


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def released(folder: Path, run: str = "", **options: Any) -> Path:
    """Run the miniature census and return a copy of its release, with nothing beside it."""
    opendas.release(load(write_mini(folder, run=run)), folder / "out", **options)
    shutil.copytree(folder / "out" / "release", folder / "copy")
    shutil.rmtree(folder / "out")
    return folder / "copy"


def failed(release: Path, **options: Any) -> dict[str, Check]:
    return {check.name: check for check in Release(release).verify(**options) if not check.ok}


BLOCKS = 'estimator = "block-by-block"\ndrop_invariants = ["total"]'


@pytest.mark.parametrize("measurements", ["used", "full"])
@pytest.mark.parametrize(
    "run", ["", BLOCKS, "failsafe = true", 'estimator = "informed"', 'estimator = "posterior"']
)
def test_a_copy_of_the_release_is_enough(tmp_path: Path, run: str, measurements: str) -> None:
    wrong = failed(released(tmp_path, run, measurements=measurements), rederive=True)
    if ("informed" in run or "posterior" in run) and measurements == "used":
        assert list(wrong) == ["mini: estimated again"]
        assert "opendas measure" in wrong["mini: estimated again"].detail
    else:
        assert wrong == {}


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(tmp_path: Path, workers: int) -> None:
    assert failed(released(tmp_path), rederive=True, workers=workers) == {}


def test_measurements_alone_are_verified_too(tmp_path: Path) -> None:
    opendas.measure(load(write_mini(tmp_path)), tmp_path / "out")
    assert failed(tmp_path / "out", rederive=True) == {}


def test_replicates_are_drawn_again(tmp_path: Path) -> None:
    release = opendas.release(load(write_mini(tmp_path)), tmp_path / "out", seed=1)
    opendas.replicates(release, runs=2)
    assert failed(tmp_path / "out", rederive=True, allow_seeded=True) == {}
    path = tmp_path / "out" / "release" / "replicates" / "mini.parquet"
    rewrite(path, lambda table: put(table, "difference", [1, *table.column("difference").to_pylist()[1:]]))
    reissue(path.parents[1])
    wrong = failed(tmp_path / "out", rederive=True, allow_seeded=True)
    assert list(wrong) == ["mini: replicates drawn again"]


def test_every_fact_is_computed_counted_elsewhere_or_declared(tmp_path: Path) -> None:
    """What the certificate says is not what `verify` says: a fact that nobody computes shows here."""
    copy = released(tmp_path)
    (facts,) = read_runs(copy)
    other = replace(
        facts,
        **{name: () if name in ("failsafe", "parts") else 0 for name in TAKEN if name != "moved"},
        protected_unit="cow",
        estimator="guess",
        declared=(),
        geounits={},
        rows=(),
        within={},
        plan_digest="",
    )
    again = facts_again(other, Release(copy)._files["mini"])
    assert replace(again, **{name: getattr(facts, name) for name in TAKEN}).to_dict() == facts.to_dict()


# The attacker's tools.


def entry(*keys: Any, value: Any) -> Callable[[Path], None]:
    """Return what changes an entry of the certificate's run (or, after ``None``, of the certificate)."""

    def change(release: Path) -> None:
        certificate = certificate_of(release)
        place: Any = certificate if keys[0] is None else certificate["runs"][0]
        *inner, last = keys[1:] if keys[0] is None else keys
        for key in inner:
            place = place[key]
        assert place[last] != value
        place[last] = value
        reissue(release, certificate)

    return change


def column(file: str, name: str, change: Callable[[list[Any]], list[Any]]) -> Callable[[Path], None]:
    """Return what changes a column of a file."""

    def edit(release: Path) -> None:
        rewrite(release / file, lambda table: put(table, name, change(table.column(name).to_pylist())))
        reissue(release)

    return edit


def first_of(step: int) -> Callable[[list[Any]], list[Any]]:
    """Return what adds to the first number of the first list, or to the first number."""

    def change(values: list[Any]) -> list[Any]:
        first = values[0]
        return [[first[0] + step, *first[1:]] if isinstance(first, list) else first + step, *values[1:]]

    return change


def write_microdata(release: Path, counts: Histogram) -> None:
    folder = release / "mdf" / "mini"
    for part in MdfFiles(folder, mini_product(), mini_frame(), counts.take, "parquet"):
        part.write()


def true_microdata(release: Path) -> None:
    """The attack of the review: true records, and a certificate issued again by the package itself."""
    frame = mini_frame()
    for part in MdfFiles(
        release / "mdf" / "mini", mini_product(), frame, mini_histogram(frame).take, "parquet"
    ):
        part.write()
    facts = [replace(run, records=mini_histogram(frame).total()) for run in read_runs(release)]
    shutil.rmtree(release / "tables")
    issue(release, facts, version=__version__, commit=certificate_of(release)["commit"])


def swapped_records(release: Path) -> None:
    """Two leaves of a town exchange their records of one kind; no total changes."""
    counts = Release(release).estimate()
    dense = np.stack([counts.dense(row) for row in range(counts.rows)])
    town = mini_frame().codes("town")
    kinds = [
        (leaf, cell)
        for leaf, cell in np.argwhere(dense[1:] != dense[:-1]).tolist()
        if town[leaf] == town[leaf + 1]
    ]
    leaf, cell = kinds[0]
    dense[[leaf, leaf + 1], cell] = dense[[leaf + 1, leaf], cell]
    rows, cells = np.nonzero(dense)
    write_microdata(release, Histogram.from_entries(rows, cells, dense[rows, cells], shape=dense.shape))
    shutil.rmtree(release / "tables")
    reissue(release)


def other_type(release: Path) -> None:
    def narrow(table: pa.Table) -> pa.Table:
        at = table.column_names.index("variance")
        return table.set_column(at, "variance", table.column("variance").cast(pa.float32(), safe=False))

    rewrite(release / "measurements" / "mini" / "town.parquet", narrow)
    reissue(release)


def geolevel_more(release: Path) -> None:
    def more(table: pa.Table) -> pa.Table:
        return pa.concat_tables([table, put(table.slice(0, 1), "geolevel", ["the true records"])])

    rewrite(release / "measurements" / "mini" / "spine.parquet", more)
    reissue(release)


def hidden_metadata(release: Path) -> None:
    (path, *_) = sorted((release / "mdf" / "mini").iterdir())
    store(path, pq.ParquetFile(path).read(), {b"note": b"the true records"})
    reissue(release)


def more_metadata(release: Path) -> None:
    path = release / "measurements" / "mini" / "spine.parquet"
    said = json.loads(pq.read_schema(path).metadata[METADATA_KEY])
    said["note"] = "the true records"
    store(path, pq.ParquetFile(path).read(), {METADATA_KEY: json.dumps(said).encode()})
    reissue(release)


def extra_file(release: Path) -> None:
    (release / "mdf" / "mini" / "truth.csv").write_text("geocode,count\n000000,7\n")
    reissue(release)


def text(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(release: Path) -> None:
        path = release / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
        reissue(release)

    return change


def empty_pdf(release: Path) -> None:
    (release / "certificate.pdf").write_bytes(b"")


def other_pdf(release: Path) -> None:
    (release / "certificate.pdf").write_bytes((release / "certificate.pdf").read_bytes() + b"%")


def other_rho(release: Path) -> None:
    page = (release / "report.html").read_text()
    assert "rho = 2" in page
    (release / "report.html").write_text(page.replace("rho = 2", "rho = 1"))


def script(release: Path) -> None:
    page = (release / "report.html").read_text()
    (release / "report.html").write_text(page.replace("</body>", "<script>fetch('//x')</script></body>"))


def other_estimator(release: Path) -> None:
    path = release / "run" / "mini.toml"
    path.write_text(path.read_text().replace('estimator = "topdown"', 'estimator = "informed"'))
    entry("estimator", value="informed")(release)


def exchanged_parents(values: list[Any]) -> list[Any]:
    """The first leaf of each of two towns goes to the other."""
    return [{"0000": "0001", "0001": "0000"}.get(value, value) for value in values]


def word_more(release: Path) -> None:
    reissue(release, {**certificate_of(release), "note": "checked by an expert"})


def nothing(release: Path) -> None:
    """Only the signature is a stranger's."""


def unlisted(release: Path) -> None:
    (release / "tables" / "more.txt").write_text("more")


_AGAIN = "certificate made again"

CHECKED: dict[str, tuple[str, Callable[[Path], None]]] = {
    "true microdata": ("mini: estimated again", true_microdata),
    "records that two leaves exchanged": ("mini: estimated again", swapped_records),
    "a noisy answer": (
        "mini: estimated again",
        column("measurements/mini/town.parquet", "values", first_of(1000)),
    ),
    "a variance": ("mini: measurements", column("measurements/mini/town.parquet", "variance", first_of(1))),
    "the geolevel that a row names": (
        "mini: measurements",
        column("measurements/mini/town.parquet", "geolevel", lambda names: [*names[:-1], "block"]),
    ),
    "the query group that a row names": (
        "mini: measurements",
        column("measurements/mini/town.parquet", "query", lambda names: [*names[:-1], names[0]]),
    ),
    "an invariant": (
        "mini: declared constraints",
        column("measurements/mini/constraints.parquet", "lower", first_of(1)),
    ),
    "a geocode that goes on": (
        "columns",
        column("measurements/mini/spine.parquet", "geocode", lambda codes: [f"{codes[0]}x", *codes[1:]]),
    ),
    "a geolevel more on the spine": ("columns", geolevel_more),
    "parents on the spine": (
        "mini: spine made again",
        column("measurements/mini/spine.parquet", "parent", exchanged_parents),
    ),
    "a unit count": (
        "mini: declared constraints",
        column("geography/mini.parquet", "units:homes", first_of(1)),
    ),
    "a table": ("tables", column("tables/age_town.parquet", "child", first_of(1))),
    "a type": ("columns", other_type),
    "records in metadata": ("columns", hidden_metadata),
    "a note in metadata": ("columns", more_metadata),
    "a file more": ("columns", extra_file),
    "a file that is not listed": ("files", unlisted),
    "an empty PDF": ("pages", empty_pdf),
    "a script": ("pages", script),
    "the run file": (_AGAIN, text("run/mini.toml", "[run]", "# Approved.\n[run]")),
    "the unit in the run file": (
        _AGAIN,
        text("run/mini.toml", 'protected_unit = "record"', 'protected_unit = "x"'),
    ),
    "the estimator": ("mini: estimated again", other_estimator),
    "rho": (_AGAIN, entry("rho", value="1")),
    "epsilon": (_AGAIN, entry("epsilon", "cks", value=0.5)),
    "delta": (_AGAIN, entry("delta", value=1e-30)),
    "the guarantee": (_AGAIN, entry("guarantee", value="Everything is protected.")),
    "invariants": (_AGAIN, entry("invariants", value=[])),
    "what is declared": (_AGAIN, entry("declared", value=[])),
    "dropped invariants": (_AGAIN, entry("dropped_invariants", value=["total@town"])),
    "the name of the estimator": (_AGAIN, entry("estimator", value="block-by-block")),
    "families": ("mini: estimated again", entry("families", value=7)),
    "fallbacks": ("mini: estimated again", entry("fallbacks", value=7)),
    "the loss of an attribute": (_AGAIN, entry("attributes", "age", "rho", value="1/100")),
    "a loss within": (_AGAIN, entry("within", "town", "epsilon", "cks", value=0.1)),
    "a number of geounits": (_AGAIN, entry("geounits", "town", value=5)),
    "query groups": (_AGAIN, entry("query_groups", value=["detailed", "kind * minor", "total"])),
    "a share": (_AGAIN, entry("budget", "geolevels", "town", value="1/5")),
    "a noise row": (_AGAIN, entry("rows", 0, "moe90", value=1)),
    "the description of the spine": (_AGAIN, entry("spine", "levels", 0, "geounits", value=3)),
    "a digest of the plan": (_AGAIN, entry("plan_digest", value="0" * 64)),
    "a protected unit": (_AGAIN, entry("protected_unit", value="household")),
    "guaranteed": (_AGAIN, entry("guaranteed", value=True)),
    "totals": (_AGAIN, entry(None, "totals", 0, "rho", value="1/2")),
    "the scope": (_AGAIN, entry(None, "scope", value="Everything.")),
    "a stamp on top": (_AGAIN, entry(None, "stamps", value=["APPROVED"])),
    "an entry more": (_AGAIN, word_more),
    "a date that is none": (_AGAIN, entry(None, "issued", value="2031-13-01")),
    "a commit that is none": (_AGAIN, entry(None, "commit", value="checked by an expert")),
    "a run in no account": ("account", entry(None, "account", "places", value={})),
    "a PDF of another": ("pages", other_pdf),
    "rho in the report": ("pages", other_rho),
    "a book where there is none": ("account", entry(None, "account", "unit", value="person")),
    "acts that are no number": ("account", entry(None, "account", "readings", value=-1)),
}
"""What fails whoever signs, and the check that says so."""


def unstamped(release: Path) -> None:
    """A seeded run without its stamp: the facts then say that the guarantee holds."""
    facts = [replace(run, stamps=()) for run in read_runs(release)]
    issue(release, facts, version=__version__, commit=certificate_of(release)["commit"])


SIGNED: dict[str, Callable[[Path], None]] = {
    "nothing but the signature": nothing,
    "the date": entry(None, "issued", value="2031-01-01"),
    "the commit": entry(None, "commit", value="0" * 40),
    "the version": entry(None, "version", value="9.9"),
    "stamps": unstamped,
}
"""What only the signature tells: see what `verify` lists as declared."""


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A release with a table, signed by an office; and the office's public key."""
    folder = tmp_path_factory.mktemp("office")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        release = opendas.release(load(write_mini(folder)), folder / "out", seed=3)
        opendas.tabulate(release, tables=["age"], geolevel="town")
    key = SigningKey.generate()
    key.save(folder / "office.key")
    (folder / "office.key.pub").write_text(key.public.to_pem())
    release.sign(folder / "office.key")
    return folder / "out" / "release", folder / "office.key.pub"


def attacked(folder: Path, office: tuple[Path, Path], change: Callable[[Path], None]) -> Path:
    """Return a copy that was changed, and signed by a stranger."""
    release, _ = office
    shutil.copytree(release, folder / "copy")
    change(folder / "copy")
    sign_release(folder / "copy", SigningKey.generate())
    return folder / "copy"


def test_the_office_passes(office: tuple[Path, Path]) -> None:
    release, key = office
    assert failed(release, rederive=True, signed_by=key, allow_seeded=True) == {}
    assert list(failed(release, rederive=True)) == ["stamps"]


@pytest.mark.parametrize("name", CHECKED)
def test_a_change_is_found_whoever_signs(tmp_path: Path, office: tuple[Path, Path], name: str) -> None:
    check, change = CHECKED[name]
    copy = attacked(tmp_path, office, change)
    wrong = failed(copy, rederive=True, allow_seeded=True)
    assert check in wrong
    assert "signature" not in wrong, "the stranger's signature is good in itself"
    with pytest.raises(CheckFailed, match="another key"):
        check_signature(copy, PublicKey.load(office[1]))


@pytest.mark.parametrize("name", SIGNED)
def test_what_is_declared_is_the_signers_word(tmp_path: Path, office: tuple[Path, Path], name: str) -> None:
    copy = attacked(tmp_path, office, SIGNED[name])
    assert failed(copy, rederive=True, allow_seeded=True) == {}
    wrong = failed(copy, signed_by=office[1], allow_seeded=True)
    assert list(wrong) == ["signature"]
    assert "another key" in wrong["signature"].detail


def test_true_microdata_are_not_what_the_measurements_give(tmp_path: Path, office: tuple[Path, Path]) -> None:
    """Every check but one passes, as all did before."""
    copy = attacked(tmp_path, office, true_microdata)
    (only,) = failed(copy, rederive=True, allow_seeded=True).values()
    assert only.name == "mini: estimated again"
    assert "of 24 leaves differ" in only.detail


def test_a_signature_is_of_this_release_and_always_the_same(
    tmp_path: Path, office: tuple[Path, Path]
) -> None:
    release, public = office
    key = public.with_suffix("")
    shutil.copytree(release, tmp_path / "copy")
    copy, signature = tmp_path / "copy", tmp_path / "copy" / "certificate.sig"
    before = signature.read_bytes()
    assert Release(copy).sign(key).read_bytes() == before
    (copy / "report.html").write_text("replaced")
    assert "not of this certificate" in failed(copy, allow_seeded=True)["signature"].detail
    shutil.copy(release / "report.html", copy / "report.html")
    for damaged in (before[:-2], before + b"note\n", before.upper(), b"", before.replace(b"key ", b"key  ")):
        signature.write_bytes(damaged)
        assert "not a signature" in failed(copy, allow_seeded=True)["signature"].detail
    signature.unlink()
    unsigned = {check.name: check for check in Release(copy).verify(allow_seeded=True)}
    assert (unsigned["signature"].ok, "unsigned" in unsigned["signature"].detail) == (True, True)
    assert "unsigned" in failed(copy, signed_by=public, allow_seeded=True)["signature"].detail


def test_a_certificate_issued_anew_is_unsigned(tmp_path: Path, office: tuple[Path, Path]) -> None:
    shutil.copytree(office[0], tmp_path / "out" / "release")
    opendas.tabulate(Release(tmp_path / "out"), tables=["kind"], geolevel="town")
    assert not (tmp_path / "out" / "release" / "certificate.sig").exists()


def test_other_programs_can_check_the_signature(office: tuple[Path, Path]) -> None:
    """The text that is signed, from the page docs/certificate.md."""
    release, public = office
    form, key, signature = (release / "certificate.sig").read_text().splitlines()
    digests = [f"{sha256_file(release / name)}  {name}" for name in _PAGES]
    message = "\n".join([form, key, *digests, ""]).encode()
    assert PublicKey.load(public).verifies(bytes.fromhex(signature.split()[1]), message)


_PAGES = ("certificate.json", "certificate.pdf", "report.html")


def test_publishing_derives_again_unless_told_not_to(tmp_path: Path, office: tuple[Path, Path]) -> None:
    release, key = office
    shutil.copytree(release, tmp_path / "out")
    address = (tmp_path / "there").as_uri()
    done = opendas.publish_to(tmp_path / "out", address, allow_seeded=True)
    assert (done.rederived, done.signed) == (True, True)
    assert failed(tmp_path / "there", rederive=True, signed_by=key, allow_seeded=True) == {}
    true_microdata(tmp_path / "out")
    elsewhere = (tmp_path / "elsewhere").as_uri()
    with pytest.raises(CheckFailed, match="estimated again"):
        opendas.publish_to(tmp_path / "out", elsewhere, allow_seeded=True)
    done = opendas.publish_to(tmp_path / "out", elsewhere, allow_seeded=True, rederive=False)
    assert (done.rederived, done.signed) == (False, False)
