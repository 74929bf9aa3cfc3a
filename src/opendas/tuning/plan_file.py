"""The plan that tuning found, as a run file."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from opendas.readers.base import FRAME_FROM_RECORDS
from opendas.runs.config.model import BUILT_IN_PRODUCTS
from opendas.runs.config.released import toml_document
from opendas.tuning.tune import Tuning

__all__ = ["plan_toml"]


def plan_toml(tuning: Tuning, to: Path) -> str:
    """Write a tuned plan as a run file: that of the tuning, with another budget.

    Parameters
    ----------
    tuning : Tuning
        Of a run that was loaded from a file.
    to : Path
        Where the file will lie; its paths are relative to that.

    Returns
    -------
    str
        TOML. ``[input]`` is that of the stand-in data: to be replaced before the real run.
    """
    run = tuning.run
    document: dict[str, Any] = tomllib.loads(run.path.read_text(encoding="utf-8"))
    old, new = run.path.resolve().parent, to.resolve().parent

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(item) for item in value]
        place = Path(value).expanduser()
        return value if place.is_absolute() else os.path.relpath(old / place, new)

    product = document["run"]["product"]
    if product not in BUILT_IN_PRODUCTS:
        document["run"]["product"] = moved(product)
    for section, key in (("input", "path"), ("geography", "frame"), ("geography", "block_assignment")):
        value = document.get(section, {}).get(key)
        if value is not None and value != FRAME_FROM_RECORDS:
            document[section][key] = moved(value)
    units = document["input"].get("units")
    if isinstance(units, dict) and "path" in units:
        units["path"] = moved(units["path"])
    delta = document.get("budget", {}).get("delta")
    document["budget"] = {
        "source": tuning.settings.source,
        **({} if delta is None else {"delta": delta}),
        **tuning.budget,
    }
    if tuning.candidate.strategy.one_pass and run.resolved.estimator == "topdown":  # others have one pass
        passes = document.setdefault("passes", {})
        passes["least_squares"] = {"*": [["rest"]]}
    return "\n".join(_preamble(tuning)) + "\n" + toml_document(document)


def _preamble(tuning: Tuning) -> list[str]:
    words = [
        "# A plan found by opendas tune. [input] holds the stand-in data: put the real one there.",
        f"# Method {tuning.settings.method}, {len(tuning.path)} allocations judged; strategy: "
        f"{tuning.candidate.strategy.name}.",
    ]
    for found in tuning.confirmations:
        value = "no areas" if found.together is None else f"{found.together:.4g}"
        words.append(f"# {found.target}: {value} over {found.runs} independent runs.")
    return words
