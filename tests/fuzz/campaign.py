"""Fuzzes targets for a while and says what was found: ``python -m fuzz.campaign --to found.json``.

Run it in ``tests/``, with the extra ``fuzz`` installed. Each target has a process of its own, in which the
fuzzer (Atheris, which drives libFuzzer) mutates inputs and keeps those that reach lines of OpenDAS that no
other reached. ``--engine random`` needs no extra: inputs are then drawn blindly. A defect does not end a
campaign; the first input that showed it is in the results.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz.harness import Harness
    from fuzz.oracle import Outcome

MAX_LENGTH = 96
"""Bytes of an input: about as many choices as the most edits take."""

KEPT = 12
"""Inputs of a target that are kept in the corpus at most."""

HANG = 60
"""Seconds of wall time after which the fuzzer calls an input a hang."""


def fuzzable(package: Path) -> Iterator[tuple[str, bool]]:
    """Yield the modules of OpenDAS, and whether they may be instrumented: compiled functions may not."""
    for path in sorted(package.rglob("*.py")):
        name = ".".join(("opendas", *path.relative_to(package).with_suffix("").parts))
        yield name.removesuffix(".__init__"), "njit" not in path.read_text(encoding="utf-8")


class Record:
    """What a campaign saw of one target; written as it goes, since the fuzzer ends the process."""

    def __init__(self, name: str, to: Path) -> None:
        self.name = name
        self.to = to
        self.inputs = 0
        self.ends: Counter[str] = Counter()
        self.defects: dict[str, str] = {}
        self.times: Counter[str] = Counter()
        self.answers: dict[str, str] = {}
        self.started = time.monotonic()
        self.slowest = 0.0

    def see(self, data: bytes, outcome: Outcome | None, defect: str | None, seconds: float) -> None:
        self.inputs += 1
        self.slowest = max(self.slowest, seconds)
        if defect is not None:
            key = re.sub(r"0x[0-9a-f]+|/tmp/\S+/", "", defect)[:300]
            self.times[key] += 1
            if len(data) < len(bytes.fromhex(self.defects.setdefault(key, data.hex()))):
                self.defects[key] = data.hex()
        elif outcome is not None:
            self.ends[outcome.kind] += 1
            answer = f"{outcome.kind} {re.sub(r'[^a-z ]+', '', outcome.message.lower())[:120]}"
            if len(data) < len(bytes.fromhex(self.answers.setdefault(answer, data.hex()))):
                self.answers[answer] = data.hex()
        if self.inputs % 50 == 0:
            self.save()

    def save(self) -> None:
        document = {
            "target": self.name,
            "inputs": self.inputs,
            "ends": dict(self.ends.most_common()),
            "defects": [{"what": k, "times": self.times[k], "input": v} for k, v in self.defects.items()],
            "answers": self.answers,
            "seconds": round(time.monotonic() - self.started, 1),
            "slowest": round(self.slowest, 2),
        }
        partial = self.to.with_suffix(".partial")
        partial.write_text(json.dumps(document))
        partial.replace(self.to)


def one_input(harness: Harness, record: Record) -> Callable[[bytes], None]:
    """Return the function that the fuzzer calls."""
    from fuzz.oracle import Defect

    def inner(data: bytes) -> None:
        started = time.process_time()
        outcome, defect = None, None
        try:
            outcome = harness.run(bytes(data))
        except Defect as error:
            defect = str(error)
        record.see(bytes(data), outcome, defect, time.process_time() - started)

    return inner


def instrument() -> None:
    """Import OpenDAS so that the fuzzer sees which lines an input reaches."""
    import atheris

    package = Path(importlib.util.find_spec("opendas").origin).parent  # type: ignore[union-attr, arg-type]
    modules = list(fuzzable(package))
    with atheris.instrument_imports(
        include=[module for module, plain in modules if plain],
        exclude=[module for module, plain in modules if not plain],
        enable_loader_override=False,
    ):
        import fuzz.targets  # noqa: F401


def fuzz_one(name: str, engine: str, runs: int, seconds: int, to: Path) -> None:
    """Fuzz one target in this process; with Atheris this does not return."""
    from fuzz.corpus import corpus
    from fuzz.harness import Harness
    from fuzz.oracle import MEMORY_LIMIT, SECONDS
    from fuzz.targets import TARGETS

    target = TARGETS[name]
    runs = max(1, int(runs * target.share))
    with Harness(target) as first:
        first.run(b"")  # compiles what is compiled when first called
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    record = Record(name, to)
    call = one_input(Harness(target, SECONDS), record)
    if engine == "random":
        source = random.Random(name)
        for _ in range(runs):
            call(source.randbytes(source.randrange(2, MAX_LENGTH // 2)))
            if time.monotonic() - record.started > seconds:
                break
        record.save()
        return
    import atheris

    folder = Path(tempfile.mkdtemp(prefix=f"corpus-{name}-"))
    for number, data in enumerate((*corpus(name), *random_starts(name))):
        (folder / str(number)).write_bytes(data)
    options = [f"-runs={runs}", f"-max_total_time={seconds}", f"-max_len={MAX_LENGTH}", f"-timeout={HANG}"]
    options += ["-rss_limit_mb=0", "-len_control=0", f"-artifact_prefix={to.with_suffix('')}-"]
    atheris.Setup([sys.argv[0], *options, str(folder)], call)
    atheris.Fuzz()


def random_starts(name: str) -> list[bytes]:
    source = random.Random(name)
    return [source.randbytes(length) for length in (4, 6, 8, 12, 16, 24) for _ in range(12)]


def run(name: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Fuzz one target in a process of its own and return what it found."""
    from fuzz.seeds import seed
    from fuzz.targets import TARGETS

    to, log = folder / f"{name}.json", folder / f"{name}.log"
    seed(TARGETS[name].example)  # made once for all targets that start from it
    child = os.fork()
    if child == 0:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        code = 70
        try:
            fuzz_one(name, arguments.engine, arguments.runs, arguments.seconds, to)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said = log.read_text(errors="replace")
    found: dict[str, Any] = json.loads(to.read_text()) if to.is_file() else {"target": name, "inputs": 0}
    coverage = re.findall(r"cov: (\d+) ft: (\d+)", said)
    found["branches"] = int(coverage[-1][0]) if coverage else None
    if code:
        broken = [path.read_bytes().hex() for path in folder.glob(f"{name}-*")]
        found.setdefault("defects", []).append(
            {"what": f"the process ended with {code}: {said[-600:]}", "input": broken}
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign; the exit code says whether anything was found."""
    parser = argparse.ArgumentParser(prog="fuzz.campaign", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("targets", nargs="*", help="by default all")
    parser.add_argument("--engine", choices=("atheris", "random"), default="atheris")
    parser.add_argument("--runs", type=int, default=2000, help="inputs of a target with a share of 1")
    parser.add_argument("--seconds", type=int, default=600, help="most wall time for a target")
    parser.add_argument("--to", type=Path, help="file for the results, as JSON")
    parser.add_argument(
        "--keep", action="store_true", help="add the shortest input of each answer to the corpus"
    )
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    os.environ["OMP_NUM_THREADS"] = "1"
    if chosen.engine == "atheris":
        instrument()
    from fuzz.corpus import keep
    from fuzz.targets import TARGETS

    results = []
    with tempfile.TemporaryDirectory(prefix="campaign-") as scratch:
        for name in chosen.targets or TARGETS:
            found = run(name, chosen, Path(scratch))
            if chosen.keep:
                shortest = sorted(map(bytes.fromhex, found.get("answers", {}).values()), key=len)
                shortest = shortest[: max(3, int(KEPT * TARGETS[name].share))]
                keep(name, [data for data in shortest if len(data) <= 24])
            found.pop("answers", None)
            results.append(found)
            ends = ", ".join(f"{count} {kind}" for kind, count in found.get("ends", {}).items())
            sys.stderr.write(f"{name}: {found['inputs']} inputs, {found['branches']} branches; {ends}\n")
            for defect in found.get("defects", ()):
                sys.stderr.write(f"  DEFECT {defect['what']}\n    {defect['input']}\n")
            if chosen.to:
                chosen.to.write_text(json.dumps(results, indent=1))
    return int(any(found.get("defects") for found in results))


if __name__ == "__main__":
    sys.exit(main())
