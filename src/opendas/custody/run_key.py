"""The run key and everything derived from it.

A run key is 32 bytes. Whoever has it and the measurements has the truth, so it is written once, readable by
its owner only, never shown, and never used directly: every use derives its own key with HKDF-SHA256 from a
purpose and length-encoded fields. Argument: docs/proofs/keys.md.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from opendas.custody.passphrase import Passphrase, open_sealed, seal
from opendas.custody.secret_files import read_secret, write_secret
from opendas.errors import PrivacyError

__all__ = ["KEY_BYTES", "RunKey"]

KEY_BYTES = 32
_FORMAT = b"opendas run key, format 1"
_FILE_HEADER = "opendas-run-key 1"
_SEALED_HEADER = "opendas-run-key 2"
_KINDS = {False: "real", True: "seeded"}


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RunKey:
    """The secret of one run.

    Parameters
    ----------
    secret : bytes, 32 of them
        From the operating system or a key store. Prefer :meth:`generate`, :meth:`seeded` and :meth:`load`.
    is_seeded : bool
        True for keys made from a number: for tests and research, not for release.

    Raises
    ------
    PrivacyError
        If the secret is not 32 bytes.
    """

    _secret: bytes = field(repr=False)
    is_seeded: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self._secret, bytes) or len(self._secret) != KEY_BYTES:
            raise PrivacyError(f"A run key is {KEY_BYTES} bytes; what was given is not. Nothing was drawn.")

    def __repr__(self) -> str:
        return f"RunKey(<{_KINDS[self.is_seeded]}>)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunKey):
            return NotImplemented
        return self.is_seeded == other.is_seeded and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(self.commitment())

    def __reduce__(self) -> NoReturn:
        raise TypeError("A run key is not pickled. Derive the noise key and pass its bytes to the workers.")

    @classmethod
    def generate(cls) -> RunKey:
        """Return a fresh key from the operating system's generator."""
        return cls(os.urandom(KEY_BYTES))

    @classmethod
    def seeded(cls, seed: int) -> RunKey:
        """Return the key of a seed, for tests and research.

        Parameters
        ----------
        seed : int
            Any integer. Equal seeds give equal keys; none gives a key that :meth:`generate` can.

        Returns
        -------
        RunKey
            With ``is_seeded`` True. Everything drawn from it is not for release.
        """
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise PrivacyError(f"A seed is an integer, not a {type(seed).__name__}.")
        digest = hashlib.sha256(_encode(_FORMAT, b"seed", str(seed).encode()))
        return cls(digest.digest(), is_seeded=True)

    def derive(self, purpose: str, *fields: bytes) -> bytes:
        """Derive a 32-byte key for one purpose.

        HKDF-SHA256 [RFC 5869] with the format version as salt; the info holds whether the key is seeded, the
        purpose and the fields, each with its length, so no two lists of fields encode alike.

        Parameters
        ----------
        purpose : str
            For instance ``"noise/persons"``.
        *fields : bytes
            What the derived key is bound to: plan digest, input tag.

        Returns
        -------
        bytes
            32 bytes.
        """
        return self._derive(b"purpose", purpose.encode(), *fields)

    def commitment(self) -> str:
        """Return 64 hexadecimal digits that identify the key without revealing it."""
        return hmac.new(self._derive(b"commitment"), _FORMAT, hashlib.sha256).hexdigest()

    def tag(self, data: bytes | Iterable[bytes]) -> str:
        """Return the keyed digest of confidential data: HMAC-SHA256 under its own derived key.

        Parameters
        ----------
        data : bytes or iterable of bytes
            The canonical encoding of the data; pieces are taken as one string, however it is cut.

        Returns
        -------
        str
            64 hexadecimal digits. Without the key it confirms no guess about the data.
        """
        mac = hmac.new(self._derive(b"tag"), digestmod=hashlib.sha256)
        for piece in (data,) if isinstance(data, bytes | bytearray | memoryview) else data:
            mac.update(piece)
        return mac.hexdigest()

    def save(self, path: str | os.PathLike[str], passphrase: Passphrase | None = None) -> None:
        """Write the key to a new file of mode 0600, and wait until it is on disk.

        Parameters
        ----------
        path : path
            Must not exist; its folder must.
        passphrase : Passphrase, optional
            Encrypts the key in the file.

        Raises
        ------
        PrivacyError
            If the file exists: a key is never overwritten. If the passphrase is too short.
        EnvironmentFailure
            If it cannot be written; nothing is left behind.
        """
        kind = _KINDS[self.is_seeded]
        if passphrase is None:
            lines = [_FILE_HEADER, kind, self._secret.hex()]
        else:
            passphrase.check_new()
            label = [_SEALED_HEADER, kind]
            lines = [*label, *seal(self._secret, passphrase, label)]
        write_secret(Path(path), "".join(f"{line}\n" for line in lines))

    @staticmethod
    def is_encrypted(path: str | os.PathLike[str]) -> bool:
        """Whether a key was saved with a passphrase. Raises what :meth:`load` raises for its file."""
        return read_secret(Path(path)).startswith(f"{_SEALED_HEADER}\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str], passphrase: Passphrase | None = None) -> RunKey:
        """Read a key written by :meth:`save`.

        Parameters
        ----------
        path : path
            Key file.
        passphrase : Passphrase, optional
            For a key that was saved with one.

        Returns
        -------
        RunKey

        Raises
        ------
        PrivacyError
            If there is no key, it is damaged, others may read it, or the passphrase is not the one that it
            was saved with.
        EnvironmentFailure
            If the file cannot be read.
        """
        target = Path(path)
        lines = read_secret(target).split("\n")
        kinds = {kind: seeded for seeded, kind in _KINDS.items()}
        length = {_FILE_HEADER: 4, _SEALED_HEADER: 6}.get(lines[0])
        if len(lines) != length or lines[1] not in kinds or lines[-1]:
            raise PrivacyError(
                f"The key at {target} is damaged or of another format; expected {_FILE_HEADER} or "
                f"{_SEALED_HEADER.rsplit(' ', 1)[1]}."
            )
        _check_passphrase(target, lines[0], passphrase)
        try:
            secret = (
                bytes.fromhex(lines[2])
                if passphrase is None
                else open_sealed(lines[2:5], passphrase, lines[:2])
            )
        except ValueError:
            secret = b""
        if secret is None:
            raise PrivacyError(
                f"The passphrase does not open the key at {target}: it is another one than the key was saved "
                "with, or the file was changed. Nothing was drawn."
            )
        if len(secret) != KEY_BYTES:
            raise PrivacyError(f"The key at {target} is damaged: it does not hold {KEY_BYTES} bytes.")
        return cls(secret, is_seeded=kinds[lines[1]])

    def _derive(self, *parts: bytes) -> bytes:
        info = _encode(_KINDS[self.is_seeded].encode(), *parts)
        return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=_FORMAT, info=info).derive(self._secret)


def _encode(*parts: bytes) -> bytes:
    """Join byte strings so that different lists never give the same bytes: count, then length and content."""
    encoded = [len(parts).to_bytes(8, "big")]
    for part in parts:
        encoded += [len(part).to_bytes(8, "big"), bytes(part)]
    return b"".join(encoded)


def _check_passphrase(target: Path, header: str, passphrase: Passphrase | None) -> None:
    if header == _SEALED_HEADER and passphrase is None:
        raise PrivacyError(
            f"The key at {target} is encrypted: give the passphrase that it was saved with "
            "(--key-passphrase-file or --ask-passphrase)."
        )
    if header == _FILE_HEADER and passphrase is not None:
        raise PrivacyError(
            f"The key at {target} is not encrypted, though a passphrase was given: its run was started "
            "without one. Leave out the passphrase."
        )
