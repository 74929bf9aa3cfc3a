"""Input at addresses: how it is named, found, copied and refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from support.each import each
from support.mini import write_mini

from opendas.api import publish_to
from opendas.engines.spark.reading import copy_data, copy_public, find_data
from opendas.errors import ConfigError
from opendas.files.storage.remote import RemoteAddress, RemoteFile, RemoteInput, holds_password
from opendas.readers.columns.csv_parquet import shown_name
from opendas.readers.input.paths import expand_paths
from opendas.readers.input.spec import ReaderSpec
from opendas.runs.config.released import move_paths, toml_document
from opendas.runs.context.run import define, load

AT = "far://host/data"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    for name in ("s=1/b.csv", "s=1/a.csv", "s=0/a.csv", "s=0/_log/a.csv", "s=0/.a.csv", "s=0/a.doc", "f.csv"):
        path = tmp_path / "there" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "there"


def spec(folder: Path, *paths: str) -> ReaderSpec:
    given = load(write_mini(folder)).resolved.reader
    at = (folder / "there").as_uri()
    remote = RemoteInput(
        tuple(RemoteAddress(f"{at}/{path}".rstrip("/")) for path in paths), RemoteAddress(f"{at}/f.csv")
    )
    return ReaderSpec("records", (), given.product, remote=remote)


@pytest.mark.parametrize(
    ("text", "address"),
    [("hdfs://h/x", True), ("s3a://b", True), ("C://x", False), ("a/b", False), ("", False)],
)
def test_an_address_has_a_scheme(text: str, address: bool) -> None:
    assert (RemoteAddress.of(text) is not None) == address


@each(
    ("text", "password"),
    [
        ("ftp://u:secret@h/x", True),
        ("ftp://u:sec@ret@h:21/x", True),
        ("ftp://u:sec/ret@h/x", True),
        ("s3a://ID:secret@bucket", True),
        ("ftp://:secret@[::1]:21/x", True),
        ("abfss://c@a.host/x?tenant_id=t&client_id=c&client_secret=s", True),
        ("abfss://c@a.host/x?sv=2024&Sig=s", True),
        ("s3://b/x?secret%5Fkey=s", True),
        ("s3://b/x?endpoint_override=h%3A9000&scheme=http&region=r", False),
        ("abfss://c@a.host/x?credential_kind=environment", False),
        ("s3://b/token&secret/sig.csv", False),
        ("ftp://u@h/x", False),
        ("abfss://container@account.host/x", False),
        ("hdfs://h:8020/a@b:c", False),
        ("ftp://[::1]:21/x", False),
        ("file:///C:/x@y", False),
        ("viewfs://cluster", False),
        ("a:b@c", False),
    ],
)
def test_a_password_is_seen(text: str, password: bool) -> None:
    assert holds_password(text) == password


@pytest.mark.parametrize(
    ("section", "key"),
    [("input", "path"), ("geography", "frame"), ("geography", "block_assignment"), ("run", "product")],
)
def test_a_password_in_a_run_file_is_refused_and_not_told(tmp_path: Path, section: str, key: str) -> None:
    path = write_mini(tmp_path)
    document = tomllib.loads(path.read_text())
    for value in ("ftp://u:marked@h/x", ["ftp://h/x", "ftp://u:marked@h/x"]):
        document[section][key] = value
        path.write_text(toml_document(document))
        for made in (lambda: load(path), lambda: define(document, folder=tmp_path)):
            with pytest.raises(ConfigError, match=rf"{key}.*an address with a password") as told:
                made()
            assert "marked" not in str(told.value)


def test_a_plan_that_is_written_elsewhere_keeps_addresses_and_finds_its_files(tmp_path: Path) -> None:
    document = {
        "run": {"product": "p.toml"},
        "input": {"path": [f"{AT}/a.csv", "b.csv"], "units": {"path": f"{AT}/u.csv"}},
        "geography": {"frame": f"{AT}/f.csv"},
        "tie": {"release": "out"},
    }
    move_paths(document, tmp_path / "one", tmp_path / "two")
    assert document == {
        "run": {"product": "../one/p.toml"},
        "input": {"path": [f"{AT}/a.csv", "../one/b.csv"], "units": {"path": f"{AT}/u.csv"}},
        "geography": {"frame": f"{AT}/f.csv"},
        "tie": {"release": "../one/out"},
    }


def test_a_release_is_not_published_with_a_password(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ADDRESS: an address with a password") as told:
        publish_to(tmp_path, "ftp://u:marked@h/x")
    assert "marked" not in str(told.value)


def test_data_at_an_address_are_found_as_here(tmp_path: Path, there: Path) -> None:
    found, files = find_data(spec(tmp_path, ""))
    here = expand_paths(there, Path())
    assert [file.address for file in files] == [f"file://{path}" for path in here]
    assert list(map(shown_name, found.paths)) == list(map(shown_name, here))
    assert [file.size for file in files] == [path.stat().st_size for path in here]
    assert not found.remote


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("s=1/*.csv", ["s=1/a.csv", "s=1/b.csv"]),
        ("s=*/a.csv", ["s=0/a.csv", "s=1/a.csv"]),
        ("s=[1-9]", ["s=1/a.csv", "s=1/b.csv"]),
        ("s=0", ["s=0/a.csv"]),
        ("s=0/a.doc", ["s=0/a.doc"]),
        ("a[1].csv", ["a[1].csv"]),
        ("s%3D0", ["s=0/a.csv"]),
    ],
)
def test_patterns_folders_and_files(tmp_path: Path, there: Path, wanted: str, names: list[str]) -> None:
    (there / "a[1].csv").write_text("")
    _, files = find_data(spec(tmp_path, wanted))
    assert [file.address for file in files] == [f"{there.as_uri()}/{name}" for name in names]


def test_copies_are_named_as_what_they_are_copies_of(tmp_path: Path, there: Path) -> None:
    found, files = find_data(spec(tmp_path, ""))
    copied = copy_data(found, files, tmp_path / "cache")
    assert list(map(shown_name, copied.paths)) == list(map(shown_name, found.paths))
    texts = [path.read_text() for path in copied.paths if isinstance(path, Path)]
    assert texts == [path.read_text() for path in expand_paths(there, Path())]


def test_public_files_are_copied(tmp_path: Path, there: Path) -> None:
    given = spec(tmp_path, "")
    copied = copy_public(given, tmp_path / "cache")
    assert isinstance(copied.frame, Path)
    assert copied.frame.read_text() == "f.csv"
    assert copied.remote == RemoteInput(given.remote.paths)


def test_nothing_at_an_address_is_refused(tmp_path: Path, there: Path) -> None:
    for wanted in ("none", "none/*.csv", "s=0/_log/*.txt"):
        with pytest.raises(ConfigError, match="nothing found at"):
            find_data(spec(tmp_path, wanted))


def test_run_files_keep_addresses_and_nobody_else_reads_them(tmp_path: Path) -> None:
    path = write_mini(tmp_path)
    lines = path.read_text().splitlines()
    (old,) = (line for line in lines if line.startswith("path"))
    path.write_text(path.read_text().replace(old, f'path = "{AT}/x"'))
    run = load(path)
    assert run.resolved.reader.remote.paths == (f"{AT}/x",)
    with pytest.raises(ConfigError, match="--engine spark"):
        run.read()
    path.write_text(path.read_text().replace(f'"{AT}/x"', f'["{AT}/x", "y.csv"]'))
    with pytest.raises(ConfigError, match="others are not"):
        load(path)


def test_other_files_are_no_addresses() -> None:
    with pytest.raises(ConfigError, match=r"\[geography\] block_assignment: .* must be on this machine"):
        expand_paths(f"{AT}/x", Path(), "[geography] block_assignment")


def test_a_file_in_memory_has_its_name_and_leaves_nothing(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "b.csv").write_bytes(data)
    with RemoteFile(tmp_path.as_uri(), "b.csv", len(data)).in_memory("s=1/c=2/a.csv") as path:
        assert shown_name(path) == "s=1/c=2/a.csv"
        assert path.read_bytes() == data
        assert path.stat().st_size == len(data)
        assert path.is_symlink()
    assert not path.parents[2].exists()
