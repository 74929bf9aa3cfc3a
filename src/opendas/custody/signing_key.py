"""The key with which an office signs its certificates: Ed25519.

It has nothing to do with run keys: it hides nothing, it only says who issued a release. Anyone who has it can
sign in the office's name, so it is kept as run keys are. Signing draws nothing: one key and one text have one
signature [RFC 8032]. Argument: docs/proofs/rederivation.md.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from opendas.custody.passphrase import Passphrase, open_sealed, seal
from opendas.custody.secret_files import read_secret, write_secret
from opendas.errors import ConfigError, PrivacyError

PUBLIC_SUFFIX = ".pub"
"""Of the file of a public key, beside that of its private key."""

_HEADER = "opendas-signing-key 1"
_SEALED_HEADER = "opendas-signing-key 2"
_BYTES = 32
_LONGEST_PUBLIC = 4096


@dataclass(frozen=True, slots=True)
class PublicKey:
    """What signatures of an office are checked with; to be published where everybody trusts it."""

    raw: bytes  # 32 of them

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the key, in hexadecimal: what is compared over the telephone."""
        return hashlib.sha256(self.raw).hexdigest()

    def to_pem(self) -> str:
        """Return the key as other programs read it (SubjectPublicKeyInfo, PEM)."""
        encoded = self._key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return encoded.decode("ascii")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a public key from a PEM file.

        Raises `ConfigError` if there is none, or it is no Ed25519 key.
        """
        try:
            with open(path, "rb") as file:
                key = serialization.load_pem_public_key(file.read(_LONGEST_PUBLIC))
        except OSError as error:
            raise ConfigError(f"{path}: the public key cannot be read ({error.strerror}).") from None
        except ValueError:
            key = None
        if not isinstance(key, Ed25519PublicKey):
            raise ConfigError(
                f"{path}: there is no Ed25519 public key in PEM format in this file. opendas keys new writes "
                f"the public key beside the private key, with the ending {PUBLIC_SUFFIX}."
            )
        return cls(key.public_bytes_raw())

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Return whether a signature is this key's, of this message."""
        try:
            self._key().verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True

    def _key(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.raw)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class SigningKey:
    """A private key. Prefer :meth:`generate` and :meth:`load`."""

    _key: Ed25519PrivateKey = field(repr=False)

    def __repr__(self) -> str:
        return "SigningKey(<hidden>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A signing key is not pickled.")

    @classmethod
    def generate(cls) -> Self:
        """Return a fresh key from the operating system's generator."""
        return cls(Ed25519PrivateKey.generate())

    @property
    def public(self) -> PublicKey:
        """The public key."""
        return PublicKey(self._key.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes: always the same."""
        return self._key.sign(message)

    def save(self, path: Path, passphrase: Passphrase | None = None) -> None:
        """Write the key to a new file of mode 0600.

        `path`: must not exist; its folder must.

        Raises `PrivacyError` if the file exists, or the passphrase is too short; `EnvironmentFailure` if it
        cannot be written; nothing is left behind.
        """
        secret = self._key.private_bytes_raw()
        if passphrase is None:
            lines = [_HEADER, secret.hex()]
        else:
            passphrase.check_new()
            lines = [_SEALED_HEADER, *seal(secret, passphrase, [_SEALED_HEADER])]
        write_secret(path, "".join(f"{line}\n" for line in lines))

    @staticmethod
    def is_encrypted(path: Path) -> bool:
        """Whether a key was saved with a passphrase."""
        return path.is_file() and read_secret(path).startswith(f"{_SEALED_HEADER}\n")

    @classmethod
    def load(cls, path: Path, passphrase: Passphrase | None = None) -> Self:
        """Read a key that :meth:`save` wrote.

        Raises `PrivacyError` if there is no key, it is damaged, others may read it, or the passphrase is not
        its own; `EnvironmentFailure` if the file cannot be read.
        """
        if not path.is_file():
            raise PrivacyError(f"There is no signing key at {path}. opendas keys new creates one.")
        header, *lines = read_secret(path).split("\n")
        if (header, len(lines)) not in ((_HEADER, 2), (_SEALED_HEADER, 4)) or lines.pop():
            raise PrivacyError(
                f"{path} holds no signing key, or a damaged one. Its first line must be {_HEADER!r} or "
                f"{_SEALED_HEADER!r}."
            )
        if (header == _SEALED_HEADER) != (passphrase is not None):
            rule = "is encrypted: give its passphrase"
            if passphrase is not None:
                rule = "is not encrypted, but a passphrase was given. Leave out the passphrase"
            raise PrivacyError(f"The signing key at {path} {rule}.")
        try:
            secret = (
                bytes.fromhex(lines[0]) if passphrase is None else open_sealed(lines, passphrase, [header])
            )
        except ValueError:
            secret = b""
        if secret is None or len(secret) != _BYTES:
            or_other = "" if passphrase is None else ", or was saved with another passphrase"
            raise PrivacyError(f"The signing key at {path} does not open: it is damaged{or_other}.")
        return cls(Ed25519PrivateKey.from_private_bytes(secret))
