"""Run keys: files, derivation, separation of seeded from real, and nothing shown."""

from __future__ import annotations

import copy
import hashlib
import hmac
import os
import pickle
import stat
from pathlib import Path

import pytest

from opendas.custody.run_key import RunKey
from opendas.errors import EnvironmentFailure, PrivacyError

SECRET = bytes(range(32))
GOLDEN_REAL = "171fc66510cedb9f56d72d667c62995d4437459c0a4f44632696eb8118e62b4f"
GOLDEN_SEEDED = "60e04f3e3cd52c54ca5db8858da81d2069b7df17a66941a8de879b47c73f54e5"


def encode(*parts: bytes) -> bytes:
    return b"".join([len(parts).to_bytes(8, "big"), *(len(p).to_bytes(8, "big") + p for p in parts)])


def slow_derive(secret: bytes, *parts: bytes) -> bytes:
    """HKDF-SHA256 by RFC 5869, sections 2.2 and 2.3, for one block of output."""
    pseudo_random_key = hmac.digest(b"opendas run key, format 1", secret, "sha256")
    return hmac.digest(pseudo_random_key, encode(*parts) + b"\x01", "sha256")


def test_derivation_is_hkdf_with_length_encoded_fields() -> None:
    assert RunKey(SECRET).derive("noise/persons", b"digest", b"") == slow_derive(
        SECRET, b"real", b"purpose", b"noise/persons", b"digest", b""
    )
    seeded = RunKey(SECRET, is_seeded=True)
    assert seeded.derive("x") == slow_derive(SECRET, b"seeded", b"purpose", b"x")


def test_golden_derivation() -> None:
    """Fixed for ever: a change here changes every draw."""
    assert RunKey(SECRET).derive("noise", b"plan").hex() == GOLDEN_REAL
    assert RunKey.seeded(2020).derive("noise", b"plan").hex() == GOLDEN_SEEDED


def test_purpose_and_fields_and_their_borders_matter() -> None:
    key = RunKey(SECRET)
    derived = [
        key.derive("noise"),
        key.derive("noise", b""),
        key.derive("noise", b"", b""),
        key.derive("noise", b"ab", b"c"),
        key.derive("noise", b"a", b"bc"),
        key.derive("noise", b"abc"),
        key.derive("noise", b"c", b"ab"),
        key.derive("noisea", b"bc"),
        key.derive("units"),
        key.derive("commitment"),
        key.derive("tag"),
        bytes.fromhex(key.commitment()),
        SECRET,
    ]
    assert len(set(derived)) == len(derived)
    assert all(len(one) == 32 for one in derived)


def test_seeded_and_real_keys_never_derive_the_same() -> None:
    seeded = RunKey.seeded(7)
    # The strongest case: a real key that happens to hold the very bytes of the seeded one.
    twin = RunKey(seeded._secret)
    assert seeded.is_seeded
    assert not twin.is_seeded
    assert seeded != twin
    assert seeded.derive("noise", b"plan") != twin.derive("noise", b"plan")
    assert seeded.commitment() != twin.commitment()
    assert seeded.tag(b"data") != twin.tag(b"data")


def test_seeds_are_reproducible_and_distinct() -> None:
    assert RunKey.seeded(7) == RunKey.seeded(7)
    assert hash(RunKey.seeded(7)) == hash(RunKey.seeded(7))
    seeds = [0, 1, -1, 7, 2**64, 2**64 + 1, 10**40]
    assert len({RunKey.seeded(seed).commitment() for seed in seeds}) == len(seeds)
    for seed in ("7", 7.0, True, None):
        with pytest.raises(PrivacyError, match="seed is an integer"):
            RunKey.seeded(seed)  # type: ignore[arg-type]


def test_generated_keys_come_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RunKey.generate() != RunKey.generate()
    assert not RunKey.generate().is_seeded
    monkeypatch.setattr(os, "urandom", lambda n: bytes(range(n)))
    assert RunKey.generate() == RunKey(SECRET)


def test_tags_are_keyed_and_do_not_depend_on_how_data_is_cut() -> None:
    key = RunKey(SECRET)
    expected = hmac.new(slow_derive(SECRET, b"real", b"tag"), b"abcdef", hashlib.sha256).hexdigest()
    assert key.tag(b"abcdef") == expected
    assert key.tag([b"ab", b"", b"cdef"]) == expected
    assert key.tag(iter([b"abc", memoryview(b"def")])) == expected
    assert key.tag(b"abcdeg") != expected
    assert RunKey.seeded(1).tag(b"abcdef") != expected
    assert hashlib.sha256(b"abcdef").hexdigest() != expected


def test_a_key_is_not_shown_and_not_pickled() -> None:
    key = RunKey(SECRET)
    for text in (repr(key), str(key), f"{key}", key.commitment()):
        assert SECRET.hex() not in text
        assert repr(SECRET)[2:-1] not in text
    assert repr(RunKey.seeded(1)) == "RunKey(<seeded>)"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(key)
    with pytest.raises(TypeError, match="not pickled"):
        copy.copy(key)


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33), "0" * 32, None, bytearray(32)])
def test_a_run_key_is_32_bytes(secret: object) -> None:
    with pytest.raises(PrivacyError, match="32 bytes"):
        RunKey(secret)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [RunKey(SECRET), RunKey.seeded(5)], ids=repr)
def test_a_saved_key_loads_with_its_kind(tmp_path: Path, key: RunKey) -> None:
    path = tmp_path / "persons.key"
    previous = os.umask(0)
    try:
        key.save(path)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert RunKey.load(path) == key
    assert RunKey.load(str(path)).is_seeded == key.is_seeded


def test_file_and_folder_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    RunKey(SECRET).save(tmp_path / "key")
    assert synced == [False, True]


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    RunKey(SECRET).save(path)
    with pytest.raises(PrivacyError, match="already"):
        RunKey.generate().save(path)
    assert RunKey.load(path) == RunKey(SECRET)
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PrivacyError, match="already"):
        RunKey(SECRET).save(dangling)
    assert not (tmp_path / "elsewhere").exists()


def test_a_key_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentFailure, match="Could not write"):
        RunKey(SECRET).save(tmp_path / "missing" / "key")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFailure, match="No space left"):
        RunKey(SECRET).save(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    RunKey(SECRET).save(path)
    path.chmod(mode)
    with pytest.raises(PrivacyError, match=f"mode {mode:04o}"):
        RunKey.load(path)


def test_missing_and_damaged_keys_are_refused_without_showing_them(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(PrivacyError, match="no key at"):
        RunKey.load(path)
    with pytest.raises(EnvironmentFailure, match="Could not read"):
        RunKey.load(tmp_path)
    RunKey(SECRET).save(path)
    good = path.read_bytes()
    damaged = [
        b"",
        good[:-1],
        good[:-2],
        good + b"\n",
        good.replace(b"real", b"fake"),
        good.replace(b"key 1", b"key 2"),
        good.replace(b"0001", b"00zz"),
        good.replace(b"0001", b"00"),
        good.replace(b"0001", b"00\xff1"),
        os.urandom(10_000),
    ]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(PrivacyError, match="damaged") as caught:
            RunKey.load(path)
        assert SECRET.hex()[:16] not in str(caught.value)
