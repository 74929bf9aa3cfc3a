"""A release at an address: whole, the same, and never over something else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from opendas.errors import ConfigError, EnvironmentFailure
from opendas.files.storage.remote import RemoteFolder
from opendas.runs.publish import Published, publish_release


class Failing(RemoteFolder):
    """A folder at an address whose file system may fail or lie."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.as_uri())
        self.steps = 0
        self.last = 1 << 30
        self.damaged = ""

    def step(self) -> None:
        self.steps += 1
        if self.steps > self.last:
            raise EnvironmentFailure("the power is off")

    def put(self, path: Path, name: str) -> None:
        data = path.read_bytes()
        if self.steps >= self.last:
            data = data[: len(data) // 2]  # torn
        other = path.parent / "other"
        other.write_bytes(data + (b"x" if path.name == self.damaged else b""))
        super().put(other, name)
        other.unlink()
        self.step()

    def rename(self, old: str, new: str) -> None:
        self.step()
        super().rename(old, new)


FILES = ("certificate.json", "certificate.pdf", "mdf/persons/01.parquet", "report.html", "run/p.toml")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / "release" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"this is {name}")
    return tmp_path / "release"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "there" / "2030"


@pytest.fixture
def there(folder: Path) -> Failing:
    return Failing(folder)


def same(release: Path, folder: Path, there: Failing) -> bool:
    return {name: (release / name).read_bytes() for name in FILES} == {
        name: (folder / name).read_bytes() for name in there.names()
    }


def test_a_release_is_there_whole_and_once(release: Path, folder: Path, there: Failing) -> None:
    assert publish_release(release, there) == Published(folder.as_uri(), 5, 5, signed=False)
    assert same(release, folder, there)
    assert publish_release(release, RemoteFolder(folder.as_uri() + "/")) == Published(
        folder.as_uri(), 5, 0, signed=False
    )


def test_after_any_step_it_can_be_finished_and_has_no_certificate_before(
    release: Path, folder: Path, there: Failing
) -> None:
    for last in range(10):
        there.steps, there.last = 0, last
        with pytest.raises(EnvironmentFailure):
            publish_release(release, there)
        assert "certificate.json" not in there.names()
        there.last = 1 << 30
        publish_release(release, there)
        assert same(release, folder, there)
        shutil.rmtree(folder)


def test_temporary_files_of_files_that_are_there_are_removed(
    release: Path, folder: Path, there: Failing
) -> None:
    publish_release(release, there)
    (folder / "mdf/persons/_01.parquet.partial").write_text("torn")
    publish_release(release, there)
    assert same(release, folder, there)


@pytest.mark.parametrize("name", ["certificate.json", "mdf/persons/01.parquet", "mdf/persons/02.parquet"])
def test_nothing_is_written_where_something_else_is(
    release: Path, folder: Path, there: Failing, name: str
) -> None:
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("something else")
    with pytest.raises(ConfigError, match="choose an empty folder"):
        publish_release(release, there)
    assert there.names().keys() == {name}


def test_a_file_system_that_gives_back_other_bytes_is_found_out(release: Path, there: Failing) -> None:
    there.damaged = "01.parquet"
    with pytest.raises(EnvironmentFailure, match="other bytes"):
        publish_release(release, there)
    assert not {"certificate.json", "mdf/persons/01.parquet"} & there.names().keys()


def test_what_is_not_of_the_release_folder_stays_here(release: Path, there: Failing) -> None:
    shutil.copytree(release, release.parent / "confidential")
    publish_release(release, there)
    assert there.names().keys() == set(FILES)


def test_a_file_in_the_place_of_the_folder_is_refused(release: Path, folder: Path, there: Failing) -> None:
    folder.parent.mkdir()
    folder.write_text("")
    with pytest.raises(ConfigError, match="is a file, not a folder"):
        publish_release(release, there)


def test_a_file_system_that_arrow_does_not_have_is_an_environment_failure() -> None:
    with pytest.raises(EnvironmentFailure, match=r"nonsense://h/x cannot be used \(ArrowInvalid\)"):
        RemoteFolder("nonsense://h/x")
