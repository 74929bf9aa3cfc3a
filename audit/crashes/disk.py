"""What a disk may hold after a power cut.

The model, which errs on the side of losing more than disks and file systems in use do:

- The content of a file is durable as it was when ``fsync`` was last called on it. Of what was written
  since, each sector of 512 bytes may have reached the disk or not, in any order; the length may be the old
  one, the new one or any in between; a sector that did not reach the disk is as it was, and zero where the
  file was shorter. A file that was never flushed is durable as an empty one.
- The entries of a folder are durable as they were when ``fsync`` was last called on the folder. Of every
  name that was created, removed, renamed or replaced since, the old entry or the new one may stand, each
  name by itself: a rename may leave both names, or neither. Flushing a file does not make its name durable.
  A new folder is empty until it is flushed, and absent until its parent is.
- What was durable stays. Modes are durable with their file or folder. Replacing a name shows the old file
  or the new one, never none: every journalling file system promises that of ``rename``.

How much is lost is drawn: ``loss`` is the chance of each undecided thing to be as it was.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["SECTOR", "Image", "baseline", "durable", "outcome", "power_cut", "scan", "torn"]

SECTOR = 512

Entry = tuple[int, bool]
"""Inode, and whether it is a folder's."""


@dataclass(slots=True)
class Image:
    """Files and folders by inode.

    Parameters
    ----------
    root : int
        Inode of the topmost folder.
    folders : dict
        Inode -> name -> entry.
    files : dict
        Inode -> content.
    modes : dict
        Inode -> permission bits.
    """

    root: int
    folders: dict[int, dict[str, Entry]] = field(default_factory=dict)
    files: dict[int, bytes] = field(default_factory=dict)
    modes: dict[int, int] = field(default_factory=dict)


def scan(root: Path) -> Image:
    """Read everything below a folder."""
    image = Image(root.stat().st_ino)
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        entries: dict[str, Entry] = {}
        for entry in os.scandir(folder):
            is_folder = entry.is_dir(follow_symlinks=False)
            entries[entry.name] = (entry.inode(), is_folder)
            image.modes[entry.inode()] = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
            if is_folder:
                waiting.append(Path(entry.path))
            else:
                image.files[entry.inode()] = Path(entry.path).read_bytes()
        image.folders[folder.stat().st_ino] = entries
    return image


def baseline(root: Path, journal: Path) -> Image:
    """Return the disk before a life, all of it durable, and make the journal's folder."""
    (journal / "contents").mkdir(parents=True)
    return scan(root)


def durable(before: Image, journal: Path) -> tuple[Image, dict[int, int]]:
    """Return what of the disk is durable after a life: the baseline, and what the journal says since.

    A file system gives the number of a file that is gone to a new one. Here a new file or folder gets an
    identity of its own, a negative number; what was there before keeps its inode's.

    Returns
    -------
    image : Image
        By identity.
    identities : dict
        Inode -> identity, at the end.
    """
    image = Image(before.root, dict(before.folders), dict(before.files), dict(before.modes))
    identities: dict[int, int] = {}
    said = []
    for path in sorted(journal.glob("*.jsonl")):
        said += [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    for number, line in enumerate(sorted(said, key=lambda line: line["time"]), start=1):
        kind, inode = line["kind"], line.get("inode", 0)
        if kind in ("new file", "new folder"):
            identities[inode] = -number
        identity = identities.get(inode, inode)
        if kind == "new folder":
            image.folders[identity] = {}
        elif kind == "folder":
            image.folders[identity] = {
                name: (identities.get(found, found), is_folder)
                for name, (found, is_folder) in line["entries"].items()
            }
        elif kind == "file":
            image.files[identity] = Path(line["content"]).read_bytes()
            image.modes[identity] = line["mode"]
    return image, identities


def _renamed(image: Image, identities: dict[int, int]) -> Image:
    """Return an image by identity."""

    def of(inode: int) -> int:
        return identities.get(inode, inode)

    return Image(
        of(image.root),
        {
            of(inode): {name: (of(found), is_folder) for name, (found, is_folder) in entries.items()}
            for inode, entries in image.folders.items()
        },
        {of(inode): content for inode, content in image.files.items()},
        {of(inode): mode for inode, mode in image.modes.items()},
    )


def torn(old: bytes, new: bytes, rng: random.Random, loss: float) -> bytes:
    """Return what a disk may hold of a file that was `old` when flushed and `new` when the power went."""
    if old == new or rng.random() < loss:
        return old
    low, high = sorted((len(old), len(new)))
    size = rng.choice((len(old), len(new), rng.randint(low, high)))
    here = old.ljust(size, b"\0")[:size]
    there = new.ljust(size, b"\0")[:size]
    return b"".join(
        (here if rng.random() < loss else there)[start : start + SECTOR] for start in range(0, size, SECTOR)
    )


def power_cut(root: Path, before: Image, journal: Path, rng: random.Random, loss: float) -> None:
    """Replace what is below `root` by what a power cut may leave of it; see :func:`outcome`."""
    target = root.with_name(f"{root.name}.after")
    outcome(root, before, journal, rng, loss, target)
    shutil.rmtree(root)
    target.rename(root)


def outcome(root: Path, before: Image, journal: Path, rng: random.Random, loss: float, target: Path) -> None:
    """Write what a power cut may leave of a disk.

    Parameters
    ----------
    root : Path
        The disk; all processes that wrote on it are dead.
    before : Image
        From :func:`baseline`.
    journal : Path
    rng : random.Random
    loss : float
        1: all that is not durable is lost; 0: nothing is.
    target : Path
        New folder, the disk afterwards.
    """
    safe, identities = durable(before, journal)
    live = _renamed(scan(root), identities)

    def keep(inode: int, folder: Path) -> None:
        folder.mkdir()
        old, new = safe.folders.get(inode, {}), live.folders.get(inode)
        for name in sorted(old.keys() | (new or {}).keys()):
            then, now = old.get(name), (old if new is None else new).get(name)
            chosen = then if then == now or rng.random() < loss else now
            if chosen is None:
                continue
            found, is_folder = chosen
            if is_folder:
                keep(found, folder / name)
            else:
                flushed, last = safe.files.get(found, b""), live.files.get(found)
                content = flushed if last is None else torn(flushed, last, rng, loss)
                (folder / name).write_bytes(content)
            (folder / name).chmod(live.modes.get(found, safe.modes.get(found, 0o600)))

    keep(live.root, target)
