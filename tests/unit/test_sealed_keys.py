"""Keys under a passphrase, and files that hold a secret: what opens them, and what is refused."""

from __future__ import annotations

import copy
import os
import pickle
import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from opendas.custody import passphrase as sealing
from opendas.custody.passphrase import Passphrase, read_passphrase_file
from opendas.custody.run_key import RunKey
from opendas.custody.secret_files import destroy_secret, private_folder, read_secret, write_secret
from opendas.errors import EnvironmentFailure, PrivacyError

SECRET = bytes(range(32))
TEXT = "seven dull geese cross"


@pytest.fixture(name="cheap", autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess costs little in these tests; one test has the true cost."""
    monkeypatch.setattr(sealing, "_COST", (1 << 14, 8, 1))


def sealed(folder: Path, text: str = TEXT) -> Path:
    path = folder / "persons.key"
    RunKey(SECRET).save(path, Passphrase(text))
    return path


def test_an_encrypted_key_opens_with_its_passphrase_only(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert RunKey.load(path, Passphrase(TEXT)) == RunKey(SECRET)
    for other in (TEXT + " ", TEXT.upper(), TEXT[:-1], "x" * 12):
        with pytest.raises(PrivacyError, match="does not open") as caught:
            RunKey.load(path, Passphrase(other))
        assert other not in str(caught.value)
    with pytest.raises(PrivacyError, match="is encrypted: give the passphrase"):
        RunKey.load(path)


def test_the_file_holds_neither_key_nor_passphrase(tmp_path: Path) -> None:
    data = sealed(tmp_path).read_bytes()
    assert SECRET.hex().encode() not in data
    assert TEXT.encode() not in data
    assert data.startswith(b"opendas-run-key 2\nreal\nscrypt 16384 8 1 ")


def test_the_file_is_scrypt_and_aes_gcm_as_documented(tmp_path: Path) -> None:
    """The twin of :mod:`opendas.custody.passphrase`, from the words of docs/proofs/keys.md."""
    lines = sealed(tmp_path).read_text().split("\n")
    assert lines[-1] == ""
    name, n, r, p, salt = lines[2].split()
    cipher, nonce = lines[3].split()
    assert (name, cipher) == ("scrypt", "aes-256-gcm")
    scrypt = Scrypt(salt=bytes.fromhex(salt), length=32, n=int(n), r=int(r), p=int(p))
    key = scrypt.derive(TEXT.encode())
    above = "\n".join(lines[:4]).encode()
    assert AESGCM(key).decrypt(bytes.fromhex(nonce), bytes.fromhex(lines[4]), above) == SECRET


def test_the_true_cost_of_a_guess_is_written_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    path = sealed(tmp_path)
    assert path.read_text().split("\n")[2].startswith("scrypt 131072 8 1 ")
    assert RunKey.load(path, Passphrase(TEXT)) == RunKey(SECRET)


def test_the_same_key_and_passphrase_give_another_file_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = (sealed(tmp_path / name).read_text().split("\n") for name in ("a", "b"))
    assert [one == two for one, two in zip(first, second, strict=True)] == [
        True,
        True,
        False,
        False,
        False,
        True,
    ]


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    good = path.read_bytes()
    for place in range(0, len(good), 3):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(PrivacyError, match=r"does not open|damaged"):
            RunKey.load(path, Passphrase(TEXT))


@pytest.mark.parametrize("cost", ["1073741824 8 1", "131072 4096 1", "131072 8 100", "2 8 1", "x 8 1", "8 1"])
def test_a_file_cannot_ask_for_any_cost(tmp_path: Path, cost: str) -> None:
    path = sealed(tmp_path)
    path.write_text(path.read_text().replace("16384 8 1", cost))
    with pytest.raises(PrivacyError, match="damaged"):
        RunKey.load(path, Passphrase(TEXT))


def test_a_seal_of_another_kind_or_another_secret_does_not_pass(tmp_path: Path) -> None:
    """The word `real` is authenticated: a seeded key cannot be passed off as a real one."""
    path = tmp_path / "key"
    RunKey.seeded(3).save(path, Passphrase(TEXT))
    assert RunKey.load(path, Passphrase(TEXT)) == RunKey.seeded(3)
    path.write_text(path.read_text().replace("\nseeded\n", "\nreal\n"))
    with pytest.raises(PrivacyError, match="does not open"):
        RunKey.load(path, Passphrase(TEXT))


def test_a_passphrase_for_a_key_in_clear_is_refused(tmp_path: Path) -> None:
    """Who gives one believes that the key is encrypted."""
    RunKey(SECRET).save(tmp_path / "key")
    with pytest.raises(PrivacyError, match="is not encrypted"):
        RunKey.load(tmp_path / "key", Passphrase(TEXT))


@pytest.mark.parametrize("text", ["", "a\nb", "a\tb", "a\x00b", "x" * 5000, "\udcff" * 20, None, b"bytes"])
def test_what_is_no_passphrase(text: object) -> None:
    with pytest.raises(PrivacyError, match="passphrase"):
        Passphrase(text)  # type: ignore[arg-type]


def test_a_short_passphrase_makes_no_key(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="shorter than 12"):
        RunKey(SECRET).save(tmp_path / "key", Passphrase("elevenchars"))
    assert list(tmp_path.iterdir()) == []


def test_the_same_letters_from_another_keyboard_open_it(tmp_path: Path) -> None:
    path = sealed(tmp_path, "cr\u00e8me br\u00fbl\u00e9e tonight")
    assert RunKey.load(path, Passphrase("cre\u0300me bru\u0302le\u0301e tonight")) == RunKey(SECRET)


def test_a_passphrase_is_not_shown_hashed_or_pickled() -> None:
    passphrase = Passphrase(TEXT)
    assert TEXT not in f"{passphrase!r} {passphrase}"
    assert passphrase == Passphrase(TEXT) != Passphrase(TEXT + "!")
    for act in (pickle.dumps, copy.copy, hash):
        with pytest.raises(TypeError):
            act(passphrase)  # type: ignore[operator]


def test_a_passphrase_comes_from_a_file_a_link_or_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "passphrase"
    for ending in ("", "\n", "\r\n"):
        path.write_bytes(f"{TEXT}{ending}".encode())
        path.chmod(0o600)
        assert read_passphrase_file(path) == Passphrase(TEXT)
    (tmp_path / "mounted").symlink_to(path)
    assert read_passphrase_file(tmp_path / "mounted") == Passphrase(TEXT)
    ending_in, start = os.pipe()
    os.write(start, f"{TEXT}\n".encode())
    os.close(start)
    assert read_passphrase_file(Path(f"/dev/fd/{ending_in}")) == Passphrase(TEXT)
    os.close(ending_in)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_passphrase_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "passphrase"
    path.write_text(TEXT)
    path.chmod(mode)
    with pytest.raises(PrivacyError, match=f"mode {mode:04o}") as caught:
        read_passphrase_file(path)
    assert TEXT not in str(caught.value)


def test_a_passphrase_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="Could not read the passphrase"):
        read_passphrase_file(tmp_path / "missing")
    path = tmp_path / "passphrase"
    for content in (b"", b"\n", b"two\nlines of it\n", b"\xff\xfe not text", b"x" * 10_000):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(PrivacyError, match="passphrase"):
            read_passphrase_file(path)


# Files that hold a secret.


def as_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is there belongs to someone else."""
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)


def test_a_key_under_a_link_is_refused(tmp_path: Path) -> None:
    write_secret(tmp_path / "elsewhere", "secret")
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PrivacyError, match="is a link"):
        read_secret(tmp_path / "key")
    with pytest.raises(PrivacyError, match="is a link, and nothing was destroyed"):
        destroy_secret(tmp_path / "key")
    assert (tmp_path / "elsewhere").read_text() == "secret"


def test_a_key_with_a_second_name_is_refused_and_destroyed_under_both(tmp_path: Path) -> None:
    write_secret(tmp_path / "key", "secret")
    os.link(tmp_path / "key", tmp_path / "copy")
    with pytest.raises(PrivacyError, match="2 names"):
        read_secret(tmp_path / "key")
    destroy_secret(tmp_path / "key")
    assert not (tmp_path / "key").exists()
    assert len((tmp_path / "copy").read_bytes()) == 6
    assert (tmp_path / "copy").read_bytes() != b"secret"


def test_a_key_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_secret(tmp_path / "key", "secret")
    as_other_user(monkeypatch)
    with pytest.raises(PrivacyError, match="belongs to another user"):
        read_secret(tmp_path / "key")


def test_a_pipe_in_the_place_of_a_key_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    told: list[str] = []

    def read() -> None:
        try:
            read_secret(tmp_path / "key")
        except EnvironmentFailure as error:
            told.append(str(error))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(20)
    assert "not a regular file" in told[0]


def test_a_private_folder_is_0700_from_its_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    real = os.mkdir

    def watched(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        real(path, mode, dir_fd=dir_fd)
        made.append(stat.S_IMODE(os.stat(path, dir_fd=dir_fd).st_mode))

    monkeypatch.setattr(os, "mkdir", watched)
    before = os.umask(0)
    try:
        private_folder(tmp_path / "keys")
    finally:
        os.umask(before)
    assert made == [0o700]


def test_a_folder_restored_with_wider_permissions_is_closed_again(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys").chmod(0o777)
    private_folder(tmp_path / "keys")
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


@pytest.mark.parametrize("what", ["link", "dangling", "file"])
def test_what_is_no_folder_of_ours_takes_no_key(tmp_path: Path, what: str) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    if what == "file":
        (tmp_path / "keys").write_text("")
    else:
        (tmp_path / "keys").symlink_to(tmp_path / ("elsewhere" if what == "link" else "nowhere"))
    with pytest.raises(PrivacyError, match="is a link, or no folder"):
        private_folder(tmp_path / "keys")
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o755


def test_a_folder_of_another_user_takes_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").mkdir(mode=0o700)
    as_other_user(monkeypatch)
    with pytest.raises(PrivacyError, match="belongs to another user"):
        private_folder(tmp_path / "keys")


def test_a_folder_that_cannot_be_made_is_an_environment_failure(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="Could not open"):
        private_folder(tmp_path / "missing" / "keys")
