"""What ``run``, ``measure`` and ``estimate`` answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opendas.cli.progress import duration
from opendas.runs.progress.clock import peak_rss_mb

__all__ = ["certificate_run", "findings_message", "next_steps", "run_answer"]


def certificate_run(out: Path, product: str) -> Mapping[str, Any]:
    """Return the entry of a product's run in the certificate of a release, empty where there is none.

    Raises
    ------
    FormatError
        If the certificate is damaged.
    """
    from opendas.runs.finished_release import Release

    if not (out / "release" / "certificate.json").is_file():
        return {}
    runs = Release(out).certificate["runs"]
    found: Mapping[str, Any] = next((run for run in reversed(runs) if run["product"] == product), {})
    return found


def run_answer(out: Path, product: str, seconds: float) -> dict[str, Any]:
    """Return the answer of a finished run; ``records`` is the number released."""
    entry = certificate_run(out, product)
    answer: dict[str, Any] = {"out": str(out), "product": product}
    for key in ("records", "rho", "epsilon", "families", "fallbacks", "stamps"):
        answer[key] = entry.get(key)
    answer["seconds"] = round(seconds, 3)
    answer["peak_rss_mb"] = round(peak_rss_mb(), 1)
    return answer


def findings_message(out: Path, product: str) -> str | None:
    """Say where the inconsistencies of the input are listed; None where there are none."""
    path = out / "confidential" / "findings" / f"{product}.txt"
    if not path.is_file():
        return None
    count = len(path.read_bytes().splitlines())
    return (
        f"warning: the input is inconsistent in {count:,} place{'s' if count > 1 else ''}, listed in {path} "
        "(confidential). --strict makes this an error."
    )


def next_steps(answer: Mapping[str, Any]) -> str:
    """Return the answer in words, with what to do next."""
    out = answer["out"]
    loss = f"rho {answer['rho']}" if answer["rho"] is not None else f"epsilon {answer['epsilon']}"
    stamps = f" [{', '.join(map(str, answer['stamps']))}]" if answer["stamps"] else ""
    records = f"{answer['records']:,}" if isinstance(answer["records"], int) else "an unknown number of"
    return "\n".join(
        [
            f"{answer['product']}: {records} records released under {loss}{stamps}",
            f"in {duration(answer['seconds'])}, with {answer['peak_rss_mb']:,.0f} MB at most in one process.",
            "",
            f"  report       {out}/release/report.html",
            f"  certificate  {out}/release/certificate.json",
            f"  check it     opendas verify {out}",
            f"  publish      {out}/release only; {out}/confidential holds the key",
        ]
    )
