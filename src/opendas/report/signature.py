"""The signature of a certificate, in a file of its own beside it.

What is signed is a text of a few lines: the public key, and the digests of certificate, report and PDF as
``sha256sum`` prints them. The certificate holds the digest of every other file, so that the signature covers
the whole release, and other programs can check it (docs/certificate.md).
"""

from __future__ import annotations

from pathlib import Path

from opendas.custody.signing_key import PublicKey, SigningKey
from opendas.errors import CheckFailed, ConfigError, FormatError
from opendas.files.atomic import sha256_file, write_atomic
from opendas.report.certificate import CERTIFICATE, ISSUED_FILES, SIGNATURE

_FORMAT = "opendas signature 1"
_LONGEST = 4096


def _statement(folder: Path, key: PublicKey) -> bytes:
    """Return what is signed of the certificate and the pages in a folder."""
    issued = sorted(name for name in ISSUED_FILES if (folder / name).is_file())
    lines = [_FORMAT, f"key {key.raw.hex()}", *(f"{sha256_file(folder / name)}  {name}" for name in issued)]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def sign_release(folder: Path, key: SigningKey) -> Path:
    """Sign what a folder holds now.

    Parameters
    ----------
    folder : Path
        With a certificate: ``release/``, or the output of ``opendas phsafe``.
    key : SigningKey

    Returns
    -------
    Path
        ``certificate.sig``: the format, the public key and the signature, a line each. The same key and the
        same release give the same bytes.

    Raises
    ------
    ConfigError
        If there is no certificate.
    """
    if not (folder / CERTIFICATE).is_file():
        raise ConfigError(f"{folder} holds no {CERTIFICATE}: there is nothing to sign.")
    signature = key.sign(_statement(folder, key.public))
    lines = [_FORMAT, f"key {key.public.raw.hex()}", f"signature {signature.hex()}"]
    write_atomic(folder / SIGNATURE, "".join(f"{line}\n" for line in lines).encode("ascii"))
    return folder / SIGNATURE


def _read(path: Path) -> tuple[PublicKey, bytes]:
    """Return key and signature of a file in the one form that :func:`sign_release` writes."""
    try:
        with open(path, "rb") as file:
            text = file.read(_LONGEST).decode("ascii")
        form, key, signature, end = text.split("\n")
        public, signed = (
            bytes.fromhex(line.removeprefix(f"{name} "))
            for name, line in (("key", key), ("signature", signature))
        )
    except (OSError, ValueError) as error:
        raise FormatError(f"{path.name} is no signature of this program.") from error
    again = f"{_FORMAT}\nkey {public.hex()}\nsignature {signed.hex()}\n"
    if text != again or form != _FORMAT or end or len(public) != 32:
        raise FormatError(f"{path.name} is no signature of this program.")
    return PublicKey(public), signed


def check_signature(folder: Path, expected: PublicKey | None = None) -> str:
    """Check the signature in a folder.

    Parameters
    ----------
    folder : Path
    expected : PublicKey, optional
        Whose it must be; without it, none is accepted too, and said.

    Returns
    -------
    str
        What was found.

    Raises
    ------
    CheckFailed
        If it is not of this release, not of the expected key, or missing where one is expected.
    FormatError
        If it has another form.
    """
    path = folder / SIGNATURE
    if not path.exists() and not path.is_symlink():
        if expected is not None:
            raise CheckFailed("unsigned: nobody vouches for this release.")
        return "unsigned: nobody vouches for this release"
    key, signature = _read(path)
    if expected is not None and key != expected:
        raise CheckFailed(f"signed with another key: {key.fingerprint}, not {expected.fingerprint}.")
    if not key.verifies(signature, _statement(folder, key)):
        raise CheckFailed("the signature is not of this certificate and its pages.")
    whose = (
        "the key that was given" if expected is not None else "a key that nobody said to trust (--signed-by)"
    )
    return f"good, by {whose}: {key.fingerprint}"
