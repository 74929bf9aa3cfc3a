"""A secret under a passphrase: scrypt makes a key of the passphrase, AES-256-GCM encrypts with it.

A passphrase is guessed, a key is not; so each guess is made costly. As set below, one takes a third of
a second and 128 MiB. What was written and the file it stands in are authenticated together: a changed byte
reads like a wrong passphrase. Argument: docs/proofs/keys.md.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import constant_time
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from opendas.custody.secret_files import read_given
from opendas.errors import PrivacyError

LEAST_CHARACTERS: Final = 12
"""Of a passphrase for a new key."""

_MOST_BYTES: Final = 4096
_COST: Final = (1 << 17, 8, 1)
"""scrypt's n, r and p: 128 n r bytes of memory are filled p times."""

_COSTS: Final = frozenset((1 << power, 8, 1) for power in range(14, 21))
"""What a file may ask for: no changed file makes this machine fill its memory."""

_SALT: Final = 16
_NONCE: Final = 12
_KEY: Final = 32


class Passphrase:
    """What a key file is encrypted under; shown nowhere, and not pickled.

    `text`: one line of text. Taken in Unicode's normal form C, so that it is the same from every keyboard.
    """

    __slots__ = ("_bytes",)

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise PrivacyError("A passphrase is text.")
        try:
            self._bytes = unicodedata.normalize("NFC", text).encode()
        except UnicodeEncodeError:
            raise PrivacyError(
                "A passphrase must be text in UTF-8. The passphrase that was given is not."
            ) from None
        if not text or len(self._bytes) > _MOST_BYTES or any(map(_is_control, text)):
            raise PrivacyError(
                f"A passphrase must be one line of text, not empty, without control characters, and at most "
                f"{_MOST_BYTES} bytes long. The passphrase that was given is not."
            )

    def check_new(self) -> None:
        """Refuse a passphrase that is too short for a new key."""
        if len(self._bytes.decode()) < LEAST_CHARACTERS:
            raise PrivacyError(
                f"The passphrase is shorter than {LEAST_CHARACTERS} characters. It protects the key for as "
                "long as the release exists: choose a longer one, for instance six words chosen with dice."
            )

    def stretched(self, salt: bytes, cost: tuple[int, int, int]) -> bytes:
        """Return the 32-byte key of this passphrase by scrypt [RFC 7914]."""
        n, r, p = cost
        return Scrypt(salt=salt, length=_KEY, n=n, r=r, p=p).derive(self._bytes)

    def __repr__(self) -> str:
        return "Passphrase(<hidden>)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Passphrase):
            return NotImplemented
        return constant_time.bytes_eq(self._bytes, other._bytes)

    __hash__ = None  # type: ignore[assignment]  # a hash of it would be a digest without a salt

    def __reduce__(self) -> NoReturn:
        raise TypeError("A passphrase is not pickled.")


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc"


def read_passphrase_file(path: Path) -> Passphrase:
    """Read a passphrase from a file of one line, or from standard input where the path is ``-``.

    `path`: a regular file must be its owner's alone, like a key; a pipe (``-``, ``/dev/fd/3``) is what it is.

    Raises `PrivacyError` if there is none, others can read it, or it is not one line of text;
    `EnvironmentFailure` if it cannot be read.
    """
    try:
        text = read_given(path, _MOST_BYTES + 2).decode()
    except UnicodeDecodeError:
        raise PrivacyError("The passphrase file is not text in UTF-8.") from None
    return Passphrase(text.removesuffix("\n").removesuffix("\r"))


def seal(secret: bytes, passphrase: Passphrase, label: Sequence[str]) -> list[str]:
    """Encrypt a secret.

    - `label`: lines in clear that stand before the result and are authenticated with it.
    - Returns: three lines: ``scrypt n r p SALT``, ``aes-256-gcm NONCE``, and ciphertext with tag, in
      hexadecimal. Salt and nonce are fresh, so that no key and nonce meet twice.
    """
    salt, nonce = os.urandom(_SALT), os.urandom(_NONCE)
    n, r, p = _COST
    lines = [f"scrypt {n} {r} {p} {salt.hex()}", f"aes-256-gcm {nonce.hex()}"]
    cipher = AESGCM(passphrase.stretched(salt, _COST))
    return [*lines, cipher.encrypt(nonce, secret, _associated([*label, *lines])).hex()]


def open_sealed(lines: Sequence[str], passphrase: Passphrase, label: Sequence[str]) -> bytes | None:
    """Decrypt what :func:`seal` returned.

    Returns None where the passphrase is another one, or a byte of lines or label was changed.
    """
    first, second, sealed = lines
    name, *numbers, salt = first.split(" ")
    cost = tuple(map(int, numbers))
    other, nonce = second.split(" ")
    if (name, other) != ("scrypt", "aes-256-gcm") or len(cost) != 3 or cost not in _COSTS:
        raise ValueError("not a sealed secret of this format")
    parts = [bytes.fromhex(part) for part in (salt, nonce, sealed)]
    if [len(part) for part in parts[:2]] != [_SALT, _NONCE]:
        raise ValueError("not a sealed secret of this format")
    cipher = AESGCM(passphrase.stretched(parts[0], cost))
    try:
        return cipher.decrypt(parts[1], parts[2], _associated([*label, first, second]))
    except InvalidTag:
        return None


def _associated(lines: Sequence[str]) -> bytes:
    return "\n".join(lines).encode()
