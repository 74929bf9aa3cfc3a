"""Sign a certificate, and check its signature, in a separate file.

The signed text is a few lines: the public key, and the digests of certificate, report and PDF as
``sha256sum`` prints them. The certificate holds the digest of every other file, so the signature covers the
whole release. Other programs can check it (docs/certificate.md).
"""

from __future__ import annotations

from pathlib import Path

from opendas.custody.folders import sha256_file, write_atomic
from opendas.custody.signing_key import PublicKey, SigningKey
from opendas.errors import CheckFailed, ConfigError, FormatError
from opendas.report.certificate import CERTIFICATE, ISSUED_FILES, SIGNATURE

_FORMAT = "opendas signature 1"
_LONGEST = 4096


def _statement(folder: Path, key: PublicKey) -> bytes:
    """Return the signed text for the certificate and pages of a folder."""
    issued = sorted(name for name in ISSUED_FILES if (folder / name).is_file())
    lines = [_FORMAT, f"key {key.raw.hex()}", *(f"{sha256_file(folder / name)}  {name}" for name in issued)]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def sign_release(folder: Path, key: SigningKey) -> Path:
    """Sign the certificate and pages of a folder.

    - `folder`: a folder with a certificate: ``release/``, or the output of ``opendas phsafe``.
    - Returns: ``certificate.sig``: format, public key and signature, one line each. The same key and the same
      release give the same bytes.
    """
    if not (folder / CERTIFICATE).is_file():
        raise ConfigError(f"{folder} has no {CERTIFICATE}: there is nothing to sign.")
    signature = key.sign(_statement(folder, key.public))
    lines = [_FORMAT, f"key {key.public.raw.hex()}", f"signature {signature.hex()}"]
    write_atomic(folder / SIGNATURE, "".join(f"{line}\n" for line in lines).encode("ascii"))
    return folder / SIGNATURE


def _read(path: Path) -> tuple[PublicKey, bytes]:
    """Return public key and signature of a file that :func:`sign_release` wrote."""
    try:
        with open(path, "rb") as file:
            text = file.read(_LONGEST).decode("ascii")
        form, key, signature, end = text.split("\n")
        public, signed = (
            bytes.fromhex(line.removeprefix(f"{name} "))
            for name, line in (("key", key), ("signature", signature))
        )
    except OSError as error:
        raise FormatError(f"{path.name} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise FormatError(f"{path.name} is not a signature of OpenDAS.") from error
    again = f"{_FORMAT}\nkey {public.hex()}\nsignature {signed.hex()}\n"
    if text != again or form != _FORMAT or end or len(public) != 32:
        raise FormatError(f"{path.name} is not a signature of OpenDAS.")
    return PublicKey(public), signed


def check_signature(folder: Path, expected: PublicKey | None = None) -> str:
    """Check the signature in a folder.

    `expected`: the signer's key. Without it, an unsigned release passes, and the result says so.

    Raises `CheckFailed` if the signature is of another release or key, or missing although a key is expected;
    `FormatError` if the signature file has another form.
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
    whose = "the key that was given" if expected is not None else "a key that --signed-by did not name"
    return f"good, by {whose}: {key.fingerprint}"
