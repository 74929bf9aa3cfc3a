"""A release at an address: whole, the same, and never over something else."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from opendas.errors import ConfigError, EnvironmentFailure
from opendas.runs.publish import Published, publish_release

AT = "there://host/release"


class Folder:
    """A folder of this machine as a file system elsewhere, which may fail or lie."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = 0
        self.last = 1 << 30
        self.damaged = ""

    def path(self, address: str) -> Path:
        assert address.startswith(AT)
        return self.folder / address.removeprefix(AT).lstrip("/")

    def step(self) -> None:
        self.steps += 1
        if self.steps > self.last:
            raise EnvironmentFailure("the power is off")

    def names(self, folder: str) -> dict[str, int]:
        top = self.path(folder)
        return {f.relative_to(top).as_posix(): f.stat().st_size for f in top.rglob("*") if f.is_file()}

    def copy_there(self, path: Path, address: str) -> None:
        goal = self.path(address)
        goal.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        if self.steps >= self.last:
            data = data[: len(data) // 2]  # torn
        goal.write_bytes(data + (b"x" if path.name == self.damaged else b""))
        self.step()

    def rename(self, old: str, new: str) -> None:
        self.step()
        self.path(old).rename(self.path(new))

    def remove(self, address: str) -> None:
        self.path(address).unlink()

    def sha256(self, address: str) -> str:
        return hashlib.sha256(self.path(address).read_bytes()).hexdigest()


FILES = ("certificate.json", "certificate.pdf", "mdf/persons/01.parquet", "report.html", "run/p.toml")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / "release" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"this is {name}")
    return tmp_path / "release"


@pytest.fixture
def there(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "there")


def same(release: Path, there: Folder) -> bool:
    return {name: (release / name).read_bytes() for name in FILES} == {
        name: (there.folder / name).read_bytes() for name in there.names(AT)
    }


def test_a_release_is_there_whole_and_once(release: Path, there: Folder) -> None:
    assert publish_release(there, release, AT + "/") == Published(AT, 5, 5)
    assert same(release, there)
    assert publish_release(there, release, AT) == Published(AT, 5, 0)


@pytest.mark.parametrize("last", range(10))
def test_after_any_step_it_can_be_finished_and_has_no_certificate_before(
    release: Path, there: Folder, last: int
) -> None:
    there.last = last
    with pytest.raises(EnvironmentFailure):
        publish_release(there, release, AT)
    assert "certificate.json" not in there.names(AT)
    there.last = 1 << 30
    publish_release(there, release, AT)
    assert same(release, there)


def test_temporary_files_of_files_that_are_there_are_removed(release: Path, there: Folder) -> None:
    publish_release(there, release, AT)
    (there.folder / "mdf/persons/_01.parquet.partial").write_text("torn")
    publish_release(there, release, AT)
    assert same(release, there)


@pytest.mark.parametrize("name", ["certificate.json", "mdf/persons/01.parquet", "mdf/persons/02.parquet"])
def test_nothing_is_written_where_something_else_is(release: Path, there: Folder, name: str) -> None:
    (there.folder / name).parent.mkdir(parents=True)
    (there.folder / name).write_text("something else")
    with pytest.raises(ConfigError, match="choose an empty folder"):
        publish_release(there, release, AT)
    assert there.names(AT).keys() == {name}


def test_a_file_system_that_gives_back_other_bytes_is_found_out(release: Path, there: Folder) -> None:
    there.damaged = "01.parquet"
    with pytest.raises(EnvironmentFailure, match="other bytes"):
        publish_release(there, release, AT)
    assert not {"certificate.json", "mdf/persons/01.parquet"} & there.names(AT).keys()


def test_what_is_not_of_the_release_folder_stays_here(release: Path, there: Folder) -> None:
    shutil.copytree(release, release.parent / "confidential")
    publish_release(there, release, AT)
    assert there.names(AT).keys() == set(FILES)
