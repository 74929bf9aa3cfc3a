"""Archives hold only what git tracks: an untracked folder, which may hold data or keys, is left out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def pattern(path: str) -> str:
    r"""Return the pattern that leaves out a path and nothing else: signs of patterns stand for themselves.

    >>> pattern("data/patients [1].csv")
    '/data/patients\\ \\[1\\].csv'
    """
    return "/" + re.sub(r"([\\\[\]*?! #])", r"\\\1", path)


class TrackedOnly(BuildHookInterface):  # type: ignore[type-arg]
    """Leaves out what git does not track, and puts the pages, with drawings, into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Exclude untracked files; an unpacked sdist, which git does not know, is taken as it is."""
        if version == "editable":
            return
        root = Path(self.root)
        if (root / ".git").exists():
            untracked = self._git("ls-files", "-z", "--others", "--directory")
            self.build_config.target_config.setdefault("exclude", []).extend(map(pattern, untracked))
            pages = self._git("ls-files", "-z", "docs/*.md", "docs/*.svg")
        else:
            paths = [*root.glob("docs/**/*.md"), *root.glob("docs/**/*.svg")]
            pages = [path.relative_to(root).as_posix() for path in paths]
        if self.target_name == "wheel":
            build_data["force_include"].update({str(root / page): f"opendas/{page}" for page in pages})

    def _git(self, *arguments: str) -> list[str]:
        done = subprocess.run(["git", "-C", self.root, *arguments], capture_output=True, check=True)
        return [path for path in done.stdout.decode().split("\0") if path]
