from __future__ import annotations

import errno
import hashlib

import pytest

from opendas.custody.folders import atomic_file, remove_partials, sha256_file, write_atomic
from opendas.errors import EnvironmentFailure


def test_file_appears_with_its_content_and_nothing_else(tmp_path):
    path = tmp_path / "deep" / "a.bin"
    write_atomic(path, b"abc")
    assert [p.name for p in path.parent.iterdir()] == ["a.bin"]
    assert sha256_file(path) == hashlib.sha256(b"abc").hexdigest()


def test_error_inside_the_block_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.bin"
    write_atomic(path, b"old")

    def stopped():
        with atomic_file(path) as file:
            file.write(b"half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_full_disk_is_an_environment_failure_and_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("opendas.custody.folders.os.fsync", full)
    with pytest.raises(EnvironmentFailure, match="No space left") as caught:
        write_atomic(tmp_path / "a.bin", b"abc")
    assert caught.value.exit_code == 6
    assert str(tmp_path) not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_file_of_another_process_is_left_alone_until_partials_are_removed(tmp_path):
    (tmp_path / ".a.bin.partial").write_bytes(b"from a killed process")
    write_atomic(tmp_path / "a.bin", b"abc")
    assert (tmp_path / "a.bin").read_bytes() == b"abc"
    assert (tmp_path / ".a.bin.partial").read_bytes() == b"from a killed process"
    remove_partials(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]
