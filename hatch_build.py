"""Archives hold only what git tracks: an untracked folder, which may hold data or keys, is left out."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TrackedOnly(BuildHookInterface):  # type: ignore[type-arg]
    """Leaves out what git does not track, and puts the pages that messages name into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Exclude untracked files; an unpacked sdist, which git does not know, is taken as it is."""
        if version == "editable":
            return
        root = Path(self.root)
        if (root / ".git").exists():
            untracked = self._git("ls-files", "-z", "--others", "--directory")
            self.build_config.target_config.setdefault("exclude", []).extend(f"/{path}" for path in untracked)
            pages = self._git("ls-files", "-z", "docs/*.md")
        else:
            pages = [path.relative_to(root).as_posix() for path in root.glob("docs/**/*.md")]
        if self.target_name == "wheel":
            build_data["force_include"].update({str(root / page): f"opendas/{page}" for page in pages})

    def _git(self, *arguments: str) -> list[str]:
        done = subprocess.run(["git", "-C", self.root, *arguments], capture_output=True, check=True)
        return [path for path in done.stdout.decode().split("\0") if path]
