"""A packager: archives from a clone with files that nobody meant to ship, and what the wheel holds.

The first argument is the repository, or an unpacked sdist of it.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from steps import opendas, step

source, clone = sys.argv[1], Path("clone")
step("a clone", lambda: subprocess.run(["git", "clone", "-q", source, str(clone)], check=True))
for left in (
    "t3/confidential/keys/run.key",
    "src/opendas/mine/run.key",
    "src/opendas/patients [1].csv",
    "src/opendas/*.csv",
    "docs/private.md",
    "patients.csv",
):
    (clone / left).parent.mkdir(parents=True, exist_ok=True)
    (clone / left).write_text("SECRET")
build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", str(clone)]
step("sdist, and wheel from it", lambda: subprocess.run(build, check=True, stdout=subprocess.DEVNULL))
direct = [*build[:-3], "--wheel", "--outdir", "direct", str(clone)]
step("wheel from the clone", lambda: subprocess.run(direct, check=True, stdout=subprocess.DEVNULL))

listed = subprocess.run(["git", "-C", str(clone), "ls-files"], check=True, capture_output=True, text=True)
tracked = set(listed.stdout.split("\n")) - {""}
(sdist,), (wheel,), (other,) = (
    Path(d).glob(f"*.{e}") for d, e in (("dist", "tar.gz"), ("dist", "whl"), ("direct", "whl"))
)
with tarfile.open(sdist) as archive:
    shipped = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
assert shipped - tracked == {"PKG-INFO"}, sorted(shipped - tracked)
with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()
    held = {name for name in names if ".dist-info/" not in name}
    pages = {name.removeprefix("opendas/") for name in held if name.startswith("opendas/docs/")}
    linked = {
        posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        for page in pages
        if page.endswith(".md")
        for target in re.findall(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)", archive.read(f"opendas/{page}").decode())
    }
    named = set()
    for name in held:
        if name.endswith((".py", ".j2")):
            named |= set(re.findall(r"docs/[a-z0-9/_-]+\.md", archive.read(name).decode()))
assert {f"src/{name}" for name in held if "/docs/" not in name} <= tracked
assert pages <= tracked
assert named <= pages, sorted(named - pages)
absent = {path for path in linked - pages if not re.fullmatch(r"docs/notebooks/\w+\.(ipynb|png)", path)}
assert any(path.endswith(".svg") for path in linked), "pages show drawings"
assert not absent, sorted(absent)  # the notebooks are in the repository only: each page holds its cells
assert names == zipfile.ZipFile(other).namelist(), "the wheel of the clone is that of the sdist"
print(f"{len(shipped)} files in the sdist, {len(held)} in the wheel, {len(named)} pages that it names")

completion = {"_OPENDAS_COMPLETE": "bash_source"}
script = subprocess.run(
    [Path(sys.executable).with_name("opendas")], env=completion, capture_output=True, text=True
)
assert "complete -o nosort" in script.stdout
assert "documentation" in opendas("doctor")
