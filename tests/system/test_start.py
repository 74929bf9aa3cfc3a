"""What commands and workers load before they begin: no more than they need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opendas.demo import write_demo
from opendas.engines.local import loads_at_once
from opendas.engines.outputs import UsedFile
from opendas.files.mdf.writing import PartFile

OTHERS = {
    *("clarabel", "dp_accounting", "highspy", "jinja2", "loky", "matplotlib", "numba", "polars", "pyarrow"),
    *("pyarrow.dataset", "pydantic", "pyspark", "reportlab", "scipy", "scipy.fft", "scipy.optimize"),
    *("scipy.sparse", "scipy.special", "scipy.stats"),
}
"""Modules of others that take a while to load. Arrow imports pandas by itself where it is installed."""

OWN = {
    *(
        "opendas.tuning.advice",
        "opendas.tables.cells",
        "opendas.verify.release",
        "opendas.metrics",
        "opendas.phsafe",
    ),
    *("opendas.runs.plan", "opendas.tuning", "opendas.runs.status"),
}
"""Modules of our own that some commands only need."""

COMMAND = """
import json, sys
from opendas.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code
finally:
    print(json.dumps(sorted(sys.modules)))
"""

BEFORE_THE_CERTIFICATE = """
import json, sys
import opendas.report.certificate as certificate
from opendas.cli.main import main
def told(release):
    print(json.dumps(sorted(sys.modules)), flush=True)
    sys.exit()
certificate.released_files = told
main()
"""


def loaded(code: str, *arguments: str | Path) -> set[str]:
    """Run a command as a process of its own; return what it has loaded, of what is looked for here."""
    run = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return (OTHERS | OWN) & set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    write_demo(folder)
    return folder


@pytest.fixture(scope="module")
def out(demo: Path) -> Path:
    out = demo / "out"
    subprocess.run(
        [sys.executable, "-m", "opendas", "run", str(demo / "persons.toml"), "--out", str(out)],
        capture_output=True,
        check=True,
    )
    return out


RUNNING = {"loky", "numba", "pyarrow", "pydantic", "scipy", "scipy.sparse"}


def test_a_run_loads_what_it_needs_until_the_certificate(demo: Path) -> None:
    arguments = ("run", demo / "persons.toml", "--out", demo / "cut", "--workers", "1")
    pages = {"jinja2", "reportlab"}  # loaded beside the estimate
    assert loaded(BEFORE_THE_CERTIFICATE, *arguments) <= RUNNING | pages


def test_plan_loads_no_more_than_a_run(demo: Path) -> None:
    tried = {"opendas.metrics"}  # errors of the trial on synthetic counts
    assert loaded(COMMAND, "plan", demo / "persons.toml") <= {*RUNNING, *tried, "opendas.runs.plan"}


def test_verify_loads_what_makes_plan_and_pages_again_and_no_engine(out: Path) -> None:
    expected = {"opendas.tables.cells", "opendas.verify.release", "opendas.phsafe"}
    pages = {"jinja2", "reportlab"}
    assert loaded(COMMAND, "verify", out) <= (RUNNING - {"loky"}) | pages | expected


def test_status_loads_no_tables(out: Path) -> None:
    assert loaded(COMMAND, "status", out) <= {
        "opendas.runs.status",
        "scipy",
    }  # of scipy, its version only


IN_A_WORKER = """
import json, sys
from opendas.engines.local import WorkerPool
def modules(_):
    return sorted(sys.modules)
pool = WorkerPool(2, sys.argv[1:])
try:
    ((_, names),) = pool.spread(modules, [0])
finally:
    pool.close()
print(json.dumps(names))
"""


def test_a_worker_loads_what_it_needs() -> None:
    later = [UsedFile.__module__, PartFile.__module__]
    run = [sys.executable, "-c", IN_A_WORKER, *later]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    names = set(json.loads(done.stdout))
    assert (OTHERS | OWN) & names <= {"loky", "numba", "pyarrow", "scipy", "scipy.sparse"}
    assert set(later) <= names


def test_workers_leave_a_core_to_who_started_them() -> None:
    assert [loads_at_once(cores) for cores in (1, 2, 8)] == [1, 1, 7]


AFTER_PRACTICE = """
import gc, json, sys
from numba.core.dispatcher import Dispatcher
from opendas.engines.warm_up import warm_up
def loaded():
    found = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {(each.py_func.__module__, each.py_func.__name__) for each in found if each.signatures}
warm_up()
before = loaded()
import opendas
opendas.release(opendas.load(sys.argv[1]), out=sys.argv[2], workers=1)
print(json.dumps([len(before), sorted(loaded() - before)]))
"""


def test_who_has_practised_has_loaded_the_compiled_code_of_a_run(demo: Path) -> None:
    arguments = [sys.executable, "-c", AFTER_PRACTICE, str(demo / "persons.toml"), str(demo / "practised")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    before, later = json.loads(done.stdout.splitlines()[-1])
    assert before > 20
    assert later == []
