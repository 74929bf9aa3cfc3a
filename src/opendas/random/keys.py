"""The run key and everything derived from it.

A run key is 32 bytes. Whoever has it and the measurements has the truth, so it is written once, readable by
its owner only, never shown, and never used directly: every use derives its own key with HKDF-SHA256 from a
purpose and length-encoded fields. Argument: docs/proofs/keys.md.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from opendas.errors import EnvironmentFailure, PrivacyError

__all__ = ["KEY_BYTES", "RunKey"]

KEY_BYTES = 32
_FORMAT = b"opendas run key, format 1"
_FILE_HEADER = "opendas-run-key 1"
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file of mode 0600, and wait until it is on disk.

        Parameters
        ----------
        path : path
            Must not exist; its folder must.

        Raises
        ------
        PrivacyError
            If the file exists: a key is never overwritten.
        EnvironmentFailure
            If it cannot be written; nothing is left behind.
        """
        target = Path(path)
        text = f"{_FILE_HEADER}\n{_KINDS[self.is_seeded]}\n{self._secret.hex()}\n"
        try:
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise PrivacyError(f"There is a key at {target} already; a run never replaces one.") from None
        except OSError as error:
            raise _failure("write", target, error) from None
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            _sync_folder(target.parent)
        except OSError as error:
            target.unlink(missing_ok=True)
            raise _failure("write", target, error) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RunKey:
        """Read a key written by :meth:`save`.

        Parameters
        ----------
        path : path
            Key file.

        Returns
        -------
        RunKey

        Raises
        ------
        PrivacyError
            If there is no key, it is damaged, or others may read it.
        EnvironmentFailure
            If the file cannot be read.
        """
        target = Path(path)
        try:
            with target.open(encoding="ascii") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                lines = file.read(4096).split("\n")
        except FileNotFoundError:
            raise PrivacyError(
                f"There is no key at {target}. Without it the draws of this run cannot be repeated; "
                "start a new run, which is charged in full."
            ) from None
        except UnicodeDecodeError:
            lines, mode = [], 0
        except OSError as error:
            raise _failure("read", target, error) from None
        if mode & 0o077:
            raise PrivacyError(
                f"The key at {target} has mode {mode:04o}: others may have read it. Expected 0600. "
                "If you are sure that nobody did, run chmod 600 on it."
            )
        kinds = {kind: seeded for seeded, kind in _KINDS.items()}
        if len(lines) != 4 or lines[0] != _FILE_HEADER or lines[1] not in kinds or lines[3]:
            raise PrivacyError(
                f"The key at {target} is damaged or of another format; expected {_FILE_HEADER}."
            )
        try:
            secret = bytes.fromhex(lines[2])
        except ValueError:
            secret = b""
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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failure(act: str, target: Path, error: OSError) -> EnvironmentFailure:
    code = errno.errorcode.get(error.errno or 0, "error")
    return EnvironmentFailure(f"Could not {act} the key file {target}: {error.strerror} ({code}).")
