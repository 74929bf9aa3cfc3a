"""Runs that are killed, interrupted, starved or doubled: what is there is whole, and --resume finishes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mini import mini_frame, write_mini

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.version import commit

KEY = "ab" * 32
COMMAND = f"/bin/echo {KEY}"
WITH_KEY = ("--key-command", COMMAND)
# Without git on the PATH the certificate records no commit: one made while the tests run would change it.
FIXED = {"SOURCE_DATE_EPOCH": "1700000000", "PATH": "/nowhere"}

Capture = pytest.CaptureFixture[str]


def fix(patch: pytest.MonkeyPatch) -> None:
    """Fix what a certificate takes from outside: date and commit."""
    for name, value in FIXED.items():
        patch.setenv(name, value)
    commit.cache_clear()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an input and what its run gives, undisturbed, with the key KEY."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_mini(folder, frame=mini_frame(regions=3, towns=6, blocks=12))
    with pytest.MonkeyPatch.context() as patch:
        fix(patch)
        assert guarded(cli, ["run", str(folder / "run.toml"), "--out", str(folder / "out"), *WITH_KEY]) == 0
    return folder


@pytest.fixture(autouse=True)
def _fixed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fix(monkeypatch)
    yield
    commit.cache_clear()


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def start(*arguments: str, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "opendas", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **FIXED},
        start_new_session=True,
        **more,
    )


def wait_for(out: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    """Return when a file appears in `out`, or the process has ended."""
    while process.poll() is None and not any(out.glob(pattern)):
        time.sleep(0.0005)


def resume(run: Path, out: Path, *more: str) -> int:
    return guarded(cli, ["run", str(run), "--out", str(out), "--resume", *more])


STAGES = {
    "state": "state/mini/run.json",
    "first task": "state/mini/stage0-*.part",
    "later task": "state/mini/stage1-task0003.part",
    "measurements": "release/measurements/mini/town.parquet",
    "microdata": "release/mdf/mini/*.parquet",
    "certificate": "release/certificate.json",
}


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(name, marks=() if name in ("state", "later task", "certificate") else pytest.mark.slow)
        for name in STAGES
    ],
)
def test_a_killed_run_resumes_to_the_same_bytes(undisturbed: Path, tmp_path: Path, stage: str) -> None:
    run, out = undisturbed / "run.toml", tmp_path / "out"
    process = start("run", str(run), "--out", str(out), *WITH_KEY)
    wait_for(out, STAGES[stage], process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode in (0, -signal.SIGKILL)
    assert resume(run, out, *WITH_KEY) == 0
    assert tree(out / "release") == tree(undisturbed / "out/release")
    assert not list(out.rglob("*.partial"))
    assert not list(out.rglob("*.part"))
    acts = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    assert sum(act.get("kind") == "intent" for act in acts) == 1, acts


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_interrupt_leaves_130_and_a_run_that_resumes(
    undisturbed: Path, tmp_path: Path, workers: str
) -> None:
    run, out = undisturbed / "run.toml", tmp_path / "out"
    process = start("run", str(run), "--out", str(out), "--workers", workers, "--json", *WITH_KEY)
    wait_for(out, STAGES["state"], process)
    os.killpg(process.pid, signal.SIGINT)
    said, error = process.communicate(timeout=120)
    assert (process.returncode, said) == (130, ""), error
    assert "--resume" in error
    assert "Traceback" not in error
    assert resume(run, out, *WITH_KEY) == 0
    assert tree(out / "release") == tree(undisturbed / "out/release")


@pytest.mark.parametrize("delay", [0.0, 0.3, 0.6, 0.9, 1.2])
def test_workers_that_still_load_say_nothing_of_an_interrupt(delay: float) -> None:
    code = (
        "import time; from opendas.engines.local import WorkerPool; pool = WorkerPool(2); print(flush=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code + "; time.sleep(60)"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "\n"
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert error.count("Traceback") == 1, error  # that of the process itself
    assert "initializer" not in error


@pytest.mark.parametrize("limit", [pytest.param(0, marks=pytest.mark.slow), 3, 9])
def test_a_full_disk_is_told_and_resumes(undisturbed: Path, tmp_path: Path, limit: int) -> None:
    """RLIMIT_FSIZE (in blocks of 1,024 bytes) stands for the disk: what is longer cannot be written."""
    run, out = undisturbed / "run.toml", tmp_path / "out"
    command = f'ulimit -f {limit}; exec "$0" -m opendas run "$1" --out "$2" --json --key-command "{COMMAND}"'
    done = subprocess.run(
        ["/bin/bash", "-c", command, sys.executable, str(run), str(out)],
        capture_output=True,
        text=True,
        env={**os.environ, **FIXED},
        check=False,
    )
    assert (done.returncode, done.stdout) == (6, ""), done.stderr
    assert "internal error" not in done.stderr
    assert not (out / "release/certificate.json").exists()
    assert not list(out.rglob("*.partial"))
    assert resume(run, out, *WITH_KEY) == 0
    assert tree(out / "release") == tree(undisturbed / "out/release")


def test_two_processes_do_not_share_a_folder(undisturbed: Path, tmp_path: Path) -> None:
    run, out = undisturbed / "run.toml", tmp_path / "out"
    both = [start("run", str(run), "--out", str(out), "--seed", "1") for _ in range(2)]
    codes = sorted(process.wait(timeout=120) for process in both)
    said = [process.communicate() for process in both]
    # The second is refused while the first is at work (6), or finds its finished run (2).
    assert codes[0] == 0, said
    assert codes[1] in (2, 6), said
    assert guarded(cli, ["verify", str(out), "--allow-seeded"]) == 0


def test_workers_and_threads_change_no_byte(undisturbed: Path, tmp_path: Path) -> None:
    run = undisturbed / "run.toml"
    for threads, workers in (("1", "2"), ("2", "1")):
        out = tmp_path / f"{threads}-{workers}"
        environment = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), threads)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "opendas", "run", str(run), "--out", str(out)),
                *("--workers", workers, *WITH_KEY),
            ],
            capture_output=True,
            text=True,
            env={**os.environ, **FIXED, **environment},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert tree(out / "release") == tree(undisturbed / "out/release")
