"""Input at addresses, without Spark: how it is named, found, copied and refused."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.mini import write_mini

from opendas.api import publish_to
from opendas.engines.spark.in_memory import file_in_memory
from opendas.engines.spark.remote_input import copy_data, copy_public, list_data
from opendas.errors import ConfigError
from opendas.readers.base import ReaderSpec
from opendas.readers.columns.csv_parquet import shown_name
from opendas.readers.paths import expand_paths
from opendas.readers.remote import RemoteAddress, RemoteInput, holds_password
from opendas.runs.config.released import toml_document
from opendas.runs.run import define, load

AT = "far://host/data"


class Elsewhere:
    """A folder of this machine as a file system elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.size: Callable[[Path], int] = lambda path: path.stat().st_size

    def path(self, address: str) -> Path:
        return self.folder / address.removeprefix(AT).lstrip("/")

    def matches(self, address: str) -> list[tuple[str, int | None]]:
        every = [self.folder, *self.folder.rglob("*")]
        named = {
            f"{AT}/{path.relative_to(self.folder).as_posix()}".removesuffix("/."): path for path in every
        }
        return [
            (name, None if path.is_dir() else self.size(path))
            for name, path in named.items()
            if fnmatch(name, address) and name.count("/") == address.count("/")
        ]

    def names(self, folder: str) -> dict[str, int]:
        top = self.path(folder)
        return {f.relative_to(top).as_posix(): self.size(f) for f in top.rglob("*") if f.is_file()}

    def copy_here(self, address: str, path: Path) -> None:
        shutil.copyfile(self.path(address), path)


@pytest.fixture
def there(tmp_path: Path) -> Elsewhere:
    for name in ("s=1/b.csv", "s=1/a.csv", "s=0/a.csv", "s=0/_log/a.csv", "s=0/.a.csv", "s=0/a.doc", "f.csv"):
        path = tmp_path / "there" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return Elsewhere(tmp_path / "there")


def spec(folder: Path, *paths: str) -> ReaderSpec:
    given = load(write_mini(folder)).resolved.reader
    remote = RemoteInput(tuple(map(RemoteAddress, paths)), RemoteAddress(f"{AT}/f.csv"))
    return ReaderSpec("records", (), given.product, remote=remote)


@pytest.mark.parametrize(
    ("text", "address"),
    [("hdfs://h/x", True), ("s3a://b", True), ("C://x", False), ("a/b", False), ("", False)],
)
def test_an_address_has_a_scheme(text: str, address: bool) -> None:
    assert (RemoteAddress.of(text) is not None) == address


@pytest.mark.parametrize(
    ("text", "password"),
    [
        ("ftp://u:secret@h/x", True),
        ("ftp://u:sec@ret@h:21/x", True),
        ("ftp://u:sec/ret@h/x", True),
        ("s3a://ID:secret@bucket", True),
        ("ftp://:secret@[::1]:21/x", True),
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


def test_a_release_is_not_published_with_a_password(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ADDRESS: an address with a password") as told:
        publish_to(tmp_path, "ftp://u:marked@h/x")
    assert "marked" not in str(told.value)


def test_data_at_an_address_are_found_as_here(tmp_path: Path, there: Elsewhere) -> None:
    found, addresses = list_data(there, spec(tmp_path, AT))  # type: ignore[arg-type]
    here = expand_paths(there.folder, Path())
    assert [there.path(address) for address in addresses] == list(here)
    assert list(map(shown_name, found.paths)) == list(map(shown_name, here))
    assert not found.remote
    _, some = list_data(there, spec(tmp_path, f"{AT}/s=1/*.csv"))  # type: ignore[arg-type]
    assert some == (f"{AT}/s=1/a.csv", f"{AT}/s=1/b.csv")


def test_copies_are_named_as_what_they_are_copies_of(tmp_path: Path, there: Elsewhere) -> None:
    found, addresses = list_data(there, spec(tmp_path, AT))  # type: ignore[arg-type]
    copied = copy_data(there, found, addresses, tmp_path / "cache")  # type: ignore[arg-type]
    assert list(map(shown_name, copied.paths)) == list(map(shown_name, found.paths))
    texts = [path.read_text() for path in copied.paths if isinstance(path, Path)]
    assert texts == [there.path(address).read_text() for address in addresses]


def test_public_files_are_copied(tmp_path: Path, there: Elsewhere) -> None:
    copied = copy_public(there, spec(tmp_path, AT), tmp_path / "cache")  # type: ignore[arg-type]
    assert isinstance(copied.frame, Path)
    assert copied.frame.read_text() == "f.csv"
    assert copied.remote == RemoteInput((RemoteAddress(AT),))


def test_what_cannot_be_handed_over_is_refused(tmp_path: Path, there: Elsewhere) -> None:
    with pytest.raises(ConfigError, match="nothing found at"):
        list_data(there, spec(tmp_path, f"{AT}/none"))  # type: ignore[arg-type]
    there.size = lambda path: 1 << 31
    with pytest.raises(ConfigError, match=r"has 2,048 MiB.*Write the data set in many files"):
        list_data(there, spec(tmp_path, AT))  # type: ignore[arg-type]
    there.size = lambda path: 1
    (there.folder / "a[1].csv").write_text("")
    with pytest.raises(ConfigError, match="pattern"):
        list_data(there, spec(tmp_path, AT))  # type: ignore[arg-type]


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
    with pytest.raises(ConfigError, match="others are paths of this machine"):
        load(path)


def test_other_files_are_no_addresses() -> None:
    with pytest.raises(ConfigError, match=r"\[geography\] block_assignment: .* must be on this machine"):
        expand_paths(f"{AT}/x", Path(), "[geography] block_assignment")


def test_a_file_in_memory_has_its_name_and_leaves_nothing() -> None:
    data = bytes(range(256)) * 5000
    with file_in_memory("s=1/c=2/a.csv", memoryview(data)) as path:
        assert shown_name(path) == "s=1/c=2/a.csv"
        assert path.read_bytes() == data
        assert path.stat().st_size == len(data)
        assert path.is_symlink()
    assert not path.parents[2].exists()
