"""A run read back from its release, apart from what is done with it: no run file, no input, no key."""

from __future__ import annotations

from opendas.errors import FormatError
from opendas.files.release_folder import ReleasedProduct
from opendas.runs.config.released import read_released, released_toml
from opendas.runs.run import Run


def released_run(released: ReleasedProduct) -> Run:
    """Return the run that a release describes, on its frame and spine."""
    path = released.release / "run" / f"{released.name}.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"run/{path.name} is missing or no text. Restore it from the release.") from error
    run = Run(path, read_released(text, released.product))
    if released_toml(run.resolved, run.budget) != text:
        raise FormatError(f"run/{path.name} was changed: it is not the text of the plan that it describes.")
    return run.on_frame(released.frame, released.spine)
