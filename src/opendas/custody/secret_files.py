"""Files that hold a secret: for their owner only, under one name, and destroyed rather than removed.

A file that others can read, that another user owns, or that has a second name is refused rather than
repaired: what it held may be known already, and only its owner can say whether it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
from pathlib import Path

from opendas.custody.folders import fsync_folder, open_folder, remove_file
from opendas.errors import EnvironmentFailure, PrivacyError

_LONGEST = 8192


def private_folder(folder: Path) -> None:
    """Make a folder of mode 0700, or take the one that is there if it is ours alone.

    `folder`: its parent must exist.
    """
    try:
        with open_folder(folder.parent) as above:
            # Narrow from the first moment, whatever the umask: no mode bit is ever added.
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder.name, 0o700, dir_fd=above.descriptor)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(folder.name, flags, dir_fd=above.descriptor)
            above.sync()
    except NotADirectoryError:
        raise PrivacyError(_not_a_plain_folder(folder)) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PrivacyError(_not_a_plain_folder(folder)) from None
        raise EnvironmentFailure(
            f"Could not open or create the folder {folder}: {error.strerror}. Check its permissions, and "
            "those of the folder around it."
        ) from None
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise PrivacyError(
                f"The folder {folder} belongs to another user, who could read what is written there. Nothing "
                "was written. Choose another folder, or run the command as the owner of this one."
            )
        if stat.S_IMODE(status.st_mode) != 0o700:
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def _not_a_plain_folder(folder: Path) -> str:
    return (
        f"{folder} is a link, or no folder, or a part of its path is none. Keys and counts could end up "
        "where others can read them, so nothing was written. Remove what is there, or choose another folder."
    )


def write_secret(path: Path, text: str) -> None:
    """Write a new file of mode 0600, and wait until it is on disk.

    Raises `PrivacyError` if something is there already, a link included; `EnvironmentFailure` if it cannot be
    written; nothing is left behind.
    """
    try:
        with open_folder(path.parent) as folder:
            descriptor = folder.new(path.name, 0o600)
    except FileExistsError:
        raise PrivacyError(
            f"{path} exists already. OpenDAS never overwrites such a file; choose another path."
        ) from None
    except OSError as error:
        raise _failure("write", path, error) from None
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fsync_folder(path.parent)
    except OSError as error:
        remove_file(path)
        raise _failure("write", path, error) from None


def read_secret(path: Path) -> str:
    """Return the text of a file that its owner alone can read; empty where it is no text.

    Raises `PrivacyError` if it is not there, or others may have read it: by its mode, its owner, or under
    another name; `EnvironmentFailure` if it cannot be read.
    """
    try:
        # O_NONBLOCK: a pipe in place of the file is refused below, and does not hang here.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open_folder(path.parent) as folder:
            descriptor = os.open(path.name, flags, dir_fd=folder.descriptor)
    except FileNotFoundError:
        raise PrivacyError(
            f"There is no key at {path}. Restore it from a copy if there is one. Without its key, a run "
            "cannot be resumed; a new run is charged in full."
        ) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PrivacyError(
                f"The key at {path} is a link, and OpenDAS follows no link to a key. Put the file itself "
                "there, in a folder that only its owner can read."
            ) from None
        raise _failure("read", path, error) from None
    try:
        with os.fdopen(descriptor, "rb") as file:
            _check_alone(path, os.fstat(file.fileno()))
            return file.read(_LONGEST).decode("ascii")
    except UnicodeDecodeError:
        return ""
    except OSError as error:
        raise _failure("read", path, error) from None


def _check_alone(path: Path, status: os.stat_result) -> None:
    """Refuse a file that someone else may know."""
    if not stat.S_ISREG(status.st_mode):
        raise EnvironmentFailure(f"Could not read the key file {path}: it is not a regular file.")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise PrivacyError(
            f"The key at {path} has mode {mode:04o}: others may have read it. Expected 0600. "
            "If you are sure that nobody did, run chmod 600 on it."
        )
    if status.st_uid != os.geteuid():
        raise PrivacyError(
            f"The key at {path} belongs to another user, who may have read it. If you are sure that it is "
            "yours, for instance restored from a backup, make yourself its owner with chown."
        )
    if status.st_nlink != 1:
        raise PrivacyError(
            f"The key at {path} has {status.st_nlink} names (hard links): others may read it under another "
            "name. Remove the other names."
        )


def read_given(path: Path, most: int) -> bytes:
    """Return what a file or pipe holds that its owner gives to a command; ``-`` is standard input.

    Links are followed, since secrets are often mounted under one; a regular file must be closed to others,
    and its owner's or the administrator's.

    `most`: bytes that are read.
    """
    try:
        descriptor = os.dup(0) if str(path) == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and str(path) != "-":
                mode = stat.S_IMODE(status.st_mode)
                if mode & 0o077 or status.st_uid not in (0, os.geteuid()):
                    found = f"has mode {mode:04o}" if mode & 0o077 else "belongs to another user"
                    raise PrivacyError(
                        f"The passphrase file {path} {found}: others may have read it. It must have mode "
                        "0600 and be yours or root's. Or give the passphrase through a pipe, with - as the "
                        "name."
                    )
            return file.read(most)
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "error")
        raise EnvironmentFailure(
            f"Could not read the passphrase from {path}: {error.strerror} ({code})."
        ) from None


def destroy_secret(path: Path) -> None:
    """Overwrite a file with random bytes, and remove it.

    Under other names of the same file nothing but random bytes remains.
    """
    try:
        with open_folder(path.parent) as folder:
            flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path.name, flags, dir_fd=folder.descriptor)
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.urandom(os.fstat(file.fileno()).st_size))
                file.flush()
                os.fsync(file.fileno())
            os.unlink(path.name, dir_fd=folder.descriptor)
            folder.sync()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PrivacyError(
                f"The key at {path} is a link, and nothing was destroyed: the file that it points to is "
                "elsewhere. If that file is a key, destroy it yourself. Then remove the link."
            ) from None
        raise EnvironmentFailure(f"could not destroy {path.name}: {error.strerror}.") from None


def _failure(act: str, target: Path, error: OSError) -> EnvironmentFailure:
    code = errno.errorcode.get(error.errno or 0, "error")
    return EnvironmentFailure(f"Could not {act} {target}: {error.strerror} ({code}).")


_NONE_AND_NO_PIPE = 1
"""Bytes. Less than any core file, and the one limit under which Linux hands none to a program either: with 0
it still would, where ``core_pattern`` names a program (core(5))."""


def forbid_core_files() -> None:
    """Let this process, and those it starts, leave no core file, whatever the shell allows.

    A process that crashes leaves none of its memory, which holds records and keys.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    wanted = _NONE_AND_NO_PIPE if hard == resource.RLIM_INFINITY or hard > 0 else 0
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (wanted, hard))
