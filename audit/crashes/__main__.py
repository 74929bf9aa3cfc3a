"""``python -m audit.crashes``: many trials, a table of deaths, and what to do to see a failure again."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from audit.crashes.mutants import MUTANTS
from audit.crashes.subjects import SUBJECTS, write_inputs
from audit.crashes.trials import Laboratory, Trial
from audit.crashes.ways import WAYS
from opendas.version import __version__


def _markdown(trials: Sequence[Trial], blocks: int, command: str) -> str:
    deaths = [death for trial in trials for death in trial.deaths]
    ways = list(dict.fromkeys([way.name for way in WAYS] + [death.way for death in deaths]))
    bad = [trial for trial in trials if trial.problems]
    by_way = Counter(death.way for death in deaths)
    runs = Counter(trial.way for trial in trials)
    same = Counter(trial.way for trial in trials if not trial.problems)
    stages = Counter(death.stage for death in deaths)
    lines = [
        f"# Crashes of opendas {__version__}",
        "",
        f"`{command}`: {len(trials)} runs on a made state of {blocks:,} blocks, {len(deaths)} deaths; "
        f"{len(trials) - len(bad)} came to the bytes of an undisturbed run, each act once in the ledger.",
        "",
        "| way to die | deaths | runs | same bytes |",
        "|---|---:|---:|---:|",
        *(f"| {way} | {by_way[way]} | {runs[way]} | {same[way]} |" for way in ways if runs[way]),
        "",
        "| stage of the death | deaths |",
        "|---|---:|",
        *(f"| {name} | {count} |" for name, count in stages.most_common()),
        "",
        "| subject | runs | same bytes |",
        "|---|---:|---:|",
        *(
            f"| {subject.name} | {len(own)} | {sum(not trial.problems for trial in own)} |"
            for subject in SUBJECTS
            if (own := [trial for trial in trials if trial.subject == subject.name])
        ),
    ]
    if bad:
        lines += ["", "## Failures", ""]
    for trial in bad:
        lines.append(f"- `--only {trial.number} --seed {trial.seed}`: {trial.subject}; {trial.way}")
        lines += [f"    - {death.stage} (step {death.step}, status {death.code})" for death in trial.deaths]
        lines += [f"    - **{problem}**" for problem in list(dict.fromkeys(trial.problems))[:8]]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the harness; 1 where a run did not come out right."""
    parser = argparse.ArgumentParser(prog="python -m audit.crashes", description=__doc__)
    parser.add_argument("--times", type=int, default=30, help="runs that are disturbed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("crash-results"))
    parser.add_argument("--blocks", type=int, default=3000, help="size of the made state")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--forks", action="store_true", help="fork lives off a loaded process: faster")
    parser.add_argument("--only", type=int, action="append", help="do this trial only; may be repeated")
    parser.add_argument("--way", action="append", help="only ways to die whose name holds this")
    parser.add_argument("--subject", action="append", help="only subjects whose name holds this")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), default="", help="break the program first")
    parser.add_argument("--scratch", type=Path, help="where the runs live; kept where given")
    given = parser.parse_args(arguments)
    ways = [way for way in WAYS if not given.way or any(text in way.name for text in given.way)]
    subjects = [s for s in SUBJECTS if not given.subject or any(text in s.name for text in given.subject)]
    scratch = given.scratch or Path(tempfile.mkdtemp(prefix="crashes-"))
    inputs = scratch / "inputs"
    shutil.rmtree(inputs, ignore_errors=True)
    write_inputs(inputs, given.blocks, subjects)
    numbers = given.only if given.only else range(given.times)
    trials: list[Trial] = []
    given.out.mkdir(parents=True, exist_ok=True)
    command = "python -m audit.crashes " + " ".join(sys.argv[1:] if arguments is None else arguments)
    with (
        Laboratory(
            scratch, inputs, mutant=given.mutant, subjects=subjects, ways=ways, forks=given.forks
        ) as laboratory,
        ThreadPoolExecutor(given.jobs) as pool,
    ):
        for trial in pool.map(lambda number: laboratory.trial(number, given.seed), numbers):
            trials.append(trial)
            deaths = "; ".join(f"{death.stage} ({death.code})" for death in trial.deaths)
            sys.stderr.write(f"{trial.number}: {trial.way}: {trial.subject}: {deaths or 'no death'}: ")
            sys.stderr.write("same bytes\n" if not trial.problems else f"FAILED {trial.problems[:3]}\n")
            document = {"version": __version__, "command": command, "trials": [asdict(t) for t in trials]}
            (given.out / "crashes.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
            text = _markdown(trials, given.blocks, command)
            (given.out / "crashes.md").write_text(text, encoding="utf-8")
    if given.scratch is None and not any(trial.problems for trial in trials):
        shutil.rmtree(scratch, ignore_errors=True)
    return int(any(trial.problems for trial in trials))


if __name__ == "__main__":
    sys.exit(main())
