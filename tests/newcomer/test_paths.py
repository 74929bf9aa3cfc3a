"""Four newcomers with the public wheel in a fresh environment, which they share; each says what it did.

A demographer, an agency's statistician, a researcher, a packager. The environment takes its packages from the
registry; where there is none, the paths are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, made from what git tracks."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("the wheel is made from a git checkout, and this is none")
    folder = tmp_path_factory.mktemp("newcomer")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    made = folder / "venv" / "bin" / "python"
    pip = [made, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    done = subprocess.run([*pip, "build", "hatchling"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no package registry: {done.stderr.strip().splitlines()[-1][:200]}")
    subprocess.run(["git", "clone", "-q", ROOT, folder / "clone"], check=True)
    built = [made, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, folder / "clone"]
    subprocess.run(built, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, f"{wheel}[frames]"], check=True)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("who", ["demographer", "agency", "researcher", "packager"])
def test_a_newcomer_gets_there(python: Path, tmp_path: Path, who: str) -> None:
    folder = python.parents[2]
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        "OPENDAS_BOOKS": str(tmp_path / "books"),
        "NUMBA_CACHE_DIR": str(folder / "compiled"),  # the first of them compiles
    }
    done = subprocess.run(
        [python, HERE / f"{who}.py", ROOT], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " s  " in done.stdout
