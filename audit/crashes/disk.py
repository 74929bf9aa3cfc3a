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

__all__ = ["SECTOR", "Image", "baseline", "durable", "power_cut", "scan", "torn"]

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
    """Return the disk before a life, all of it durable, and make the journal's folder.

    The journal holds a link to every file, so that no new file gets an old one's inode.
    """
    for name in ("inodes", "contents"):
        (journal / name).mkdir(parents=True)
    for path in root.rglob("*"):
        if path.is_file():
            os.link(path, journal / "inodes" / str(path.stat().st_ino))
    return scan(root)


def durable(before: Image, journal: Path) -> Image:
    """Return what of the disk is durable after a life: the baseline, and what the journal says since."""
    image = Image(before.root, dict(before.folders), dict(before.files), dict(before.modes))
    said = []
    for path in sorted(journal.glob("*.jsonl")):
        said += [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    for line in sorted(said, key=lambda line: line["time"]):
        if line["kind"] == "made":
            image.folders[line["inode"]] = {}
        elif line["kind"] == "folder":
            image.folders[line["inode"]] = {name: (i, d) for name, (i, d) in line["entries"].items()}
        elif line["kind"] == "file":
            image.files[line["inode"]] = Path(line["content"]).read_bytes()
            image.modes[line["inode"]] = line["mode"]
    return image


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
    """Replace what is below `root` by what a power cut may leave of it.

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
    """
    safe, live = durable(before, journal), scan(root)
    target = root.with_name(f"{root.name}.after")

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
    shutil.rmtree(root)
    target.rename(root)
