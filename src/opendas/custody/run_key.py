"""The run key and everything derived from it.

A run key is 32 bytes. Anyone who has it and the measurements has the truth, so it is written once, readable
by its owner only, never shown, and never used directly: every use derives its own key with HKDF-SHA256 from a
purpose and length-encoded fields. It can be split into shares for several people, of which any k give it and
fewer say nothing about it. Argument: docs/proofs/keys.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from opendas.custody.passphrase import Passphrase, open_sealed, seal
from opendas.custody.secret_files import destroy_secret, private_folder, read_secret, write_secret
from opendas.errors import ConfigError, PrivacyError

KEY_BYTES = 32
_FORMAT = b"opendas run key, format 1"
_FILE_HEADER = "opendas-run-key 1"
_SEALED_HEADER = "opendas-run-key 2"
_KINDS = {False: "real", True: "seeded"}

_SHARE_HEADER = "opendas-key-share 1"
_SHARE = re.compile(
    rf"{_SHARE_HEADER}\nkey ([0-9a-f]{{64}})\nthreshold ([0-9]{{1,3}}) of ([0-9]{{1,3}})\n"
    r"share ([0-9]{1,3})\n([0-9a-f]{65})\n[0-9a-f]{64}\n"
)
_MOST_SHARES = 255
_PRIME = 2**256 + 297
"""The least prime above every key: shares are computed in the field of this many elements."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RunKey:
    """The secret of one run.

    - `secret`, bytes, 32 of them: from the operating system or a key store. Prefer :meth:`generate`,
      :meth:`seeded` and :meth:`load`.
    - `is_seeded`: True for keys made from a number: for tests and research, not for release.
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

        - `seed`: any integer. Equal seeds give equal keys; none gives a key that :meth:`generate` can.
        - Returns: with ``is_seeded`` True. Everything drawn from it is not for release.
        """
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise PrivacyError(f"A seed is an integer, not a {type(seed).__name__}.")
        digest = hashlib.sha256(_encode(_FORMAT, b"seed", str(seed).encode()))
        return cls(digest.digest(), is_seeded=True)

    def derive(self, purpose: str, *fields: bytes) -> bytes:
        """Derive a 32-byte key for one purpose.

        HKDF-SHA256 [RFC 5869] with the format version as salt; the info holds whether the key is seeded, the
        purpose and the fields, each with its length, so no two lists of fields encode alike.

        - `purpose`: for instance ``"noise/persons"``.
        - `*fields`: what the derived key is bound to: plan digest, input tag.
        - Returns: 32 bytes.
        """
        return self._derive(b"purpose", purpose.encode(), *fields)

    def commitment(self) -> str:
        """Return 64 hexadecimal digits that identify the key without revealing it."""
        return hmac.new(self._derive(b"commitment"), _FORMAT, hashlib.sha256).hexdigest()

    def tag(self, data: bytes | Iterable[bytes]) -> str:
        """Return the keyed digest of confidential data: HMAC-SHA256 under its own derived key.

        - `data`: the canonical encoding of the data; pieces are taken as one string, however it is cut.
        - Returns: 64 hexadecimal digits. Without the key it confirms no guess about the data.
        """
        mac = hmac.new(self._derive(b"tag"), digestmod=hashlib.sha256)
        for piece in (data,) if isinstance(data, bytes | bytearray | memoryview) else data:
            mac.update(piece)
        return mac.hexdigest()

    def save(self, path: str | os.PathLike[str], passphrase: Passphrase | None = None) -> None:
        """Write the key to a new file of mode 0600, and wait until it is on disk.

        `path`: must not exist; its folder must.

        Raises `PrivacyError` if the file exists: a key is never overwritten. If the passphrase is too short;
        `EnvironmentFailure` if it cannot be written; nothing is left behind.
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

        - `path`: key file.
        - `passphrase`: for a key that was saved with one.

        Raises `PrivacyError` if there is no key, it is damaged, others may read it, or the passphrase is not
        the one that it was saved with; `EnvironmentFailure` if the file cannot be read.
        """
        target = Path(path)
        lines = read_secret(target).split("\n")
        kinds = {kind: seeded for seeded, kind in _KINDS.items()}
        length = {_FILE_HEADER: 4, _SEALED_HEADER: 6}.get(lines[0])
        if len(lines) != length or lines[1] not in kinds or lines[-1]:
            raise PrivacyError(
                f"The key file {target} is damaged or has another format. Its first line must be "
                f"{_FILE_HEADER!r} or {_SEALED_HEADER!r}, with the lines of that format below it."
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
                f"The passphrase does not open the key at {target}. Either the key was saved with another "
                "passphrase, or the file was changed. Nothing was drawn."
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
            f"The key at {target} is not encrypted, but a passphrase was given. Leave out the passphrase."
        )


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class KeyShare:
    """One of the shares that a key was split into. Prefer :func:`split_key` and :meth:`load`.

    - `commitment`: that of the key (:meth:`RunKey.commitment`); the same in all shares of it.
    - `threshold`: how many shares give the key.
    - `shares`: how many there are.
    - `index`: which one this is, from 1.
    - `value`: of the polynomial at `index`; secret.
    """

    commitment: str
    threshold: int
    shares: int
    index: int
    _value: int = field(repr=False)

    def __repr__(self) -> str:
        return f"KeyShare(<{self.index} of {self.shares}>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A share of a key is not pickled.")

    def save(self, path: Path) -> None:
        """Write the share to a new file of mode 0600. Raises what :meth:`RunKey.save` raises."""
        write_secret(path, self._text())

    @classmethod
    def load(cls, path: Path) -> KeyShare:
        """Read a share written by :meth:`save`.

        Raises `PrivacyError` if there is none, it is damaged, or others may read it; `EnvironmentFailure` if
        it cannot be read.
        """
        if not os.path.lexists(path):
            raise PrivacyError(f"There is no share of a key at {path}. Check the path.")
        text = read_secret(path)
        if found := _SHARE.fullmatch(text):
            commitment, *numbers, value = found.groups()
            threshold, shares, index = map(int, numbers)
            share = cls(commitment, threshold, shares, index, int(value, 16))
            if 2 <= threshold <= shares <= _MOST_SHARES and 1 <= index <= shares and share._text() == text:
                return share
        raise PrivacyError(
            f"{path} is not a share of a key, or it was changed: either it does not have the format "
            f"{_SHARE_HEADER!r}, or it does not match the digest in its last line. Use another share of the "
            "same key."
        )

    def _text(self) -> str:
        lines = [
            _SHARE_HEADER,
            f"key {self.commitment}",
            f"threshold {self.threshold} of {self.shares}",
            f"share {self.index}",
            f"{self._value:065x}",
        ]
        text = "".join(f"{line}\n" for line in lines)
        return f"{text}{hashlib.sha256(text.encode()).hexdigest()}\n"


def split_key(key: RunKey, shares: int, threshold: int) -> tuple[KeyShare, ...]:
    """Split a key into shares.

    - `key`: a real one: a seed is no secret.
    - `shares`: how many, at most 255.
    - `threshold`: how many of them give the key; at least 2, at most `shares`.

    Notes
    -----
    Shamir (1979), How to share a secret, section 2.
    """
    if not 2 <= threshold <= shares <= _MOST_SHARES:
        raise ConfigError(
            f"a key can be split into at most {_MOST_SHARES} shares, and the threshold must be at least 2 "
            f"and at most the number of shares. Found a threshold of {threshold} and {shares} shares."
        )
    if key.is_seeded:
        raise PrivacyError(
            "A key made from a seed is not split, because anyone who knows the seed has the key."
        )
    values = _shares_of(int.from_bytes(key._secret), shares, threshold, _PRIME)
    commitment = key.commitment()
    return tuple(
        KeyShare(commitment, threshold, shares, index, value) for index, value in enumerate(values, start=1)
    )


def join_shares(shares: Sequence[KeyShare]) -> bytes:
    """Return the secret of the key that shares are of.

    - `shares`: as many as the threshold says, or more; all of them are used.
    - Returns: 32 of them, for :class:`RunKey`.
    """
    if len({(share.commitment, share.threshold, share.shares) for share in shares}) != 1:
        raise PrivacyError(
            "The shares are not of one key, or not of one split of it. Give shares of one split: their "
            "second and third lines are equal."
        )
    first = shares[0]
    values = {share.index: share._value for share in shares}
    if len(values) != len(shares):
        raise PrivacyError(
            f"A share number is given twice. Give {first.threshold} shares with different numbers."
        )
    if len(values) < first.threshold:
        raise PrivacyError(f"{len(values)} of {first.shares} shares are given; {first.threshold} are needed.")
    number = _value_at_zero(values, _PRIME)
    secret = number.to_bytes(KEY_BYTES) if number < 256**KEY_BYTES else bytes(KEY_BYTES)
    if not hmac.compare_digest(RunKey(secret).commitment(), first.commitment):
        raise PrivacyError(
            "The shares do not give the key that they name. Either they come from different splits of this "
            "key, or at least one of them was changed. Use shares of one split, or replace one share at a "
            "time."
        )
    return secret


def save_shares(shares: Sequence[KeyShare], folder: Path) -> tuple[Path, ...]:
    """Write each share to a file of its own in a new folder of mode 0700; all of them, or none.

    - `folder`: must not exist; its parent must.
    - Returns: ``1.share`` and so on.

    Raises `PrivacyError` if the folder exists; `EnvironmentFailure` if it cannot be written; what was written
    is destroyed.
    """
    if os.path.lexists(folder):
        raise PrivacyError(f"{folder} exists already. Shares are written to a new folder; give another path.")
    private_folder(folder)
    paths = tuple(folder / f"{share.index}.share" for share in shares)
    with contextlib.ExitStack() as undo:
        undo.callback(folder.rmdir)
        for share, path in zip(shares, paths, strict=True):
            share.save(path)
            undo.callback(destroy_secret, path)
        undo.pop_all()
    return paths


def _shares_of(secret: int, shares: int, threshold: int, prime: int) -> list[int]:
    """Return the values at 1, 2, ... of a random polynomial of degree below `threshold`: `secret` at 0."""
    coefficients = [secret, *(_random_below(prime) for _ in range(threshold - 1))]
    return [
        sum(coefficient * at**power for power, coefficient in enumerate(coefficients)) % prime
        for at in range(1, shares + 1)
    ]


def _value_at_zero(values: Mapping[int, int], prime: int) -> int:
    """Return the value at 0 of the polynomial of least degree through these values: Lagrange's formula."""
    total = 0
    for at, value in values.items():
        for other in values.keys() - {at}:
            value = value * other * pow(other - at, -1, prime) % prime
        total += value
    return total % prime


def _random_below(bound: int) -> int:
    """Return a number from 0 to `bound` - 1, each equally likely: what is too large is drawn again."""
    while True:
        drawn = int.from_bytes(os.urandom((bound.bit_length() + 7) // 8)) >> (-bound.bit_length() % 8)
        if drawn < bound:
            return drawn
