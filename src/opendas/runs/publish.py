"""A finished release at an address: whole or visibly not, and never over something else.

Files go up one after the other under a temporary name, are read back, and get their name if their digest is
right. The certificate comes last: where it stands, the release is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from opendas.custody.folders import PARTIAL_SUFFIX, sha256_file
from opendas.custody.stamps import CHOSEN_WITH_TRUTH
from opendas.errors import CheckFailed, ConfigError, EnvironmentFailure
from opendas.files.storage.remote import PASSWORD_RULE, RemoteAddress, RemoteFolder, holds_password
from opendas.report.certificate import CERTIFICATE, ISSUED_FILES, SIGNATURE, released_files
from opendas.runs.context.account import check_choice, note_publication
from opendas.runs.context.facts import refresh_certificate
from opendas.runs.context.workspace import refuse_clear_keys
from opendas.runs.finished_release import Release


@dataclass(frozen=True, slots=True)
class Published:
    """What was done."""

    address: str
    files: int  # of the release, all of them there with the right digest
    copied: int  # those that were not there before
    signed: bool  # whether someone vouches for the certificate
    rederived: bool = False  # whether it was estimated again from its measurements before


def publish_to(
    out: str | Path,
    address: str,
    *,
    allow_seeded: bool = False,
    allow_domain_from_records: bool = False,
    allow_key: bool = False,
    chosen_with_truth: bool = False,
    rederive: bool = True,
    workers: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Published:
    """Verify a release and copy it to an address of a file system that Arrow supports.

    Parameters
    ----------
    out : path
        Output folder, of which only ``release/`` is copied.
    address : str
        A folder such as ``s3://bucket/path``, empty or with part of the same release.
    allow_seeded : bool
        Also publish a release whose noise came from a seed.
    allow_domain_from_records : bool
        Also publish a release with labels, levels, leaves or units read from the records.
    allow_key : bool
        Also publish if the folder holds an unencrypted key.
    chosen_with_truth : bool
        Also publish a release that may have been chosen with the confidential data in sight; stamps its
        certificate.
    rederive : bool
        First estimate again from the measurements, which detects true records in place of released ones.
    workers : int, optional
        Processes for that estimate.
    progress : callable(stage, done, total), optional

    Raises
    ------
    PrivacyError
        If the output folder holds an unencrypted run key.
    CheckFailed
        If the release does not pass.
    PrivacyError
        If it may have been chosen with the data in sight, and `chosen_with_truth` is not set.
    ConfigError
        If the address has other content or contains a password.
    EnvironmentFailure
        If the file system cannot be reached or written.
    """
    if holds_password(address):
        raise ConfigError(f"ADDRESS: {PASSWORD_RULE}.")
    if RemoteAddress.of(address) is None:
        raise ConfigError(f"{address}: expected an address with a scheme, such as s3://bucket/path.")
    folder, release = RemoteFolder(address), Release(out)
    if not allow_key:
        refuse_clear_keys(release.path)
    checks = release.verify(
        allow_seeded=allow_seeded,
        allow_domain_from_records=allow_domain_from_records,
        rederive=rederive,
        workers=workers,
        progress=progress,
    )
    failed = [check.name for check in checks if not check.ok]
    if failed:
        raise CheckFailed(
            f"{out} is not published: {', '.join(failed)} failed. Run opendas verify"
            f"{' --rederive' * rederive} for the details."
        )
    stamp_or_refuse_choice(release.path, release.folder, stated=chosen_with_truth)
    done = publish_release(release.folder, folder, lambda: note_publication(release.path, folder.address))
    return replace(done, rederived=rederive)


def stamp_or_refuse_choice(out: Path, release: Path, *, stated: bool) -> None:
    """Refuse a release that may have been chosen with the data in sight, and renew its certificate.

    - `release`: the folder ``release/`` of `out`; `out` itself where there is nothing else: its account is
      elsewhere.
    - `stated`: anyone who publishes states the choice; the certificate is then stamped.

    Raises `PrivacyError` if nobody states it; `ConfigError` if the certificate was signed, and says something
    else now.
    """
    if out == release:
        return
    chosen, signed = check_choice(out, allowed=stated), (release / SIGNATURE).exists()
    if refresh_certificate(out, release, CHOSEN_WITH_TRUTH if chosen else None) and signed:
        raise ConfigError(
            f"the certificate of {out} was issued again, because it has to say more than the one that was "
            "signed. Nothing was published; sign it again with opendas sign, and publish."
        )


def publish_release(
    release: Path, folder: RemoteFolder, enter: Callable[[], None] | None = None
) -> Published:
    """Copy a release, verified before, to a folder at an address; what is there already is compared.

    - `folder`: it is made; empty, or with a part of the same release.
    - `enter`: enters the publication into the account, before the first file goes.

    Raises `ConfigError` if something else is there; nothing is written then; `EnvironmentFailure` if the file
    system refuses, or gives back other bytes than it was given.
    """
    wanted = _digests(release)
    missing = _missing(folder, wanted)
    if enter is not None:
        enter()
    for name in missing:
        partial = _partial(name)
        folder.put(release / name, partial)
        if folder.sha256(partial) != wanted[name]:
            unfinished = f"{CERTIFICATE} is not there, so that nobody takes the rest for a release. "
            raise EnvironmentFailure(
                f"{folder.address}/{name}: the file system gave back other bytes than it was given. "
                f"{unfinished if CERTIFICATE in missing else ''}Try again."
            )
        folder.rename(partial, name)
    for name in folder.names().keys() - wanted.keys():
        folder.remove(name)  # temporary ones: nothing else was there
    return Published(folder.address, len(wanted), len(missing), SIGNATURE in wanted)


def _digests(release: Path) -> dict[str, str]:
    """Return the digest of every file by its name, the certificate last."""
    found = {file.path: file.sha256 for file in released_files(release)}
    for name in (SIGNATURE, *reversed(ISSUED_FILES)):
        if (release / name).is_file():
            found[name] = sha256_file(release / name)
    return found


def _missing(folder: RemoteFolder, wanted: dict[str, str]) -> list[str]:
    """Return which files are not there yet; what is there must be ours."""
    there = folder.names()
    strangers = there.keys() - wanted.keys() - {_partial(name) for name in wanted}
    if strangers:
        raise ConfigError(
            f"{folder.address} holds {min(strangers)!r}, which is not of this release; choose an empty "
            "folder."
        )
    for name in there.keys() & wanted.keys():
        if folder.sha256(name) != wanted[name]:
            raise ConfigError(
                f"{folder.address} holds another {name!r} than this release; choose an empty folder."
            )
    return [name for name in wanted if name not in there]


def _partial(name: str) -> str:
    """Return a name that readers of data sets pass over."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/_{last}{PARTIAL_SUFFIX}".lstrip("/")
