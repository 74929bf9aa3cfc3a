"""Signing keys: made, kept and shown; and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import stat
from pathlib import Path

import pytest

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.passphrase import Passphrase
from opendas.custody.signing_key import PublicKey, SigningKey
from opendas.errors import ConfigError, PrivacyError

Capture = pytest.CaptureFixture[str]
PHRASE = Passphrase("six words drawn by dice")


def test_a_key_is_made_shown_and_never_replaced(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "office.key"
    assert guarded(cli, ["keys", "new", str(path), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    public = PublicKey.load(tmp_path / "office.key.pub")
    assert SigningKey.load(path).public == public
    assert (made["fingerprint"], made["pem"]) == (public.fingerprint, public.to_pem())
    for shown in (path, tmp_path / "office.key.pub"):
        assert guarded(cli, ["keys", "show", str(shown)]) == 0
        assert public.fingerprint in capsys.readouterr().out
    assert guarded(cli, ["keys", "new", str(path)]) == 2
    (tmp_path / "office.key.pub").unlink()
    assert guarded(cli, ["keys", "new", str(path)]) == 4
    assert path.read_text().split("\n")[1] not in capsys.readouterr().err


def test_a_key_under_a_passphrase_opens_with_it_alone(tmp_path: Path) -> None:
    key = SigningKey.generate()
    key.save(tmp_path / "k", PHRASE)
    assert SigningKey.is_encrypted(tmp_path / "k")
    assert SigningKey.load(tmp_path / "k", PHRASE).sign(b"text") == key.sign(b"text")
    with pytest.raises(PrivacyError, match="is encrypted"):
        SigningKey.load(tmp_path / "k")
    with pytest.raises(PrivacyError, match="does not open"):
        SigningKey.load(tmp_path / "k", Passphrase("another passphrase"))
    with pytest.raises(PrivacyError, match="shorter"):
        key.save(tmp_path / "other", Passphrase("short"))
    assert not (tmp_path / "other").exists()


def test_damaged_foreign_and_open_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "k"
    with pytest.raises(PrivacyError, match="no signing key"):
        SigningKey.load(path)
    SigningKey.generate().save(path)
    with pytest.raises(PrivacyError, match="not encrypted"):
        SigningKey.load(path, PHRASE)
    good = path.read_text()
    for damaged in (good[:-1], good[:-3], "opendas-run-key 1\nreal\n00\n", "", good + "more\n"):
        path.write_text(damaged)
        with pytest.raises(PrivacyError):
            SigningKey.load(path)
    path.write_text(good)
    os.chmod(path, 0o640)
    with pytest.raises(PrivacyError, match="0640"):
        SigningKey.load(path)
    for text in ("", "no key", good):
        (tmp_path / "k.pub").write_text(text)
        with pytest.raises(ConfigError, match="no Ed25519"):
            PublicKey.load(tmp_path / "k.pub")
    with pytest.raises(ConfigError, match="cannot be read"):
        PublicKey.load(tmp_path / "absent")


def test_a_key_is_not_shown_or_pickled() -> None:
    key = SigningKey.generate()
    assert repr(key) == "SigningKey(<hidden>)"
    with pytest.raises(TypeError):
        pickle.dumps(key)


def test_signatures_are_of_one_key_and_one_message() -> None:
    key, other = SigningKey.generate(), SigningKey.generate()
    signature = key.sign(b"a release")
    assert key.sign(b"a release") == signature
    assert key.public.verifies(signature, b"a release")
    assert not key.public.verifies(signature, b"another")
    assert not other.public.verifies(signature, b"a release")
    assert not key.public.verifies(signature[:-1], b"a release")
