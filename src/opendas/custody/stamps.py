"""Words that readers, runs, certificates and checks must agree on."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path

CHOSEN_WITH_TRUTH = "CHOSEN WITH THE TRUTH"
"""Stamp of a release that may have been chosen, or planned, with the confidential data in sight."""

NOT_FOR_RELEASE = "NOT FOR RELEASE"
"""Stamp of a run whose noise came from a seed, or whose budget is infinite."""

DEMONSTRATION_FRAME = "DEMONSTRATION FRAME"
"""Stamp of a run whose frame, or its group quarters, was derived from confidential counts."""

DOMAIN_FROM_RECORDS = "DOMAIN FROM RECORDS"
"""Stamp of a run whose labels, levels, frame or units are declared to be read from the records."""

UNPROVEN_PART = "PART WITHOUT PROOF"
"""Stamp of a run with a part of another package that names no argument for the guarantee."""

STAMPS = (NOT_FOR_RELEASE, CHOSEN_WITH_TRUTH, DEMONSTRATION_FRAME, DOMAIN_FROM_RECORDS, UNPROVEN_PART)

POPULATED_LEAVES = "populated leaves"
"""Listed as an invariant where the frame was taken from the records."""

_ACCEPTED_WITH = {NOT_FOR_RELEASE: "--allow-seeded", DOMAIN_FROM_RECORDS: "--allow-domain-from-records"}


def verify_command(folder: Path | str, stamps: Collection[str]) -> str:
    """Return the command that verifies a release, with the options without which its stamps fail it.

    Examples
    --------
    >>> verify_command("out", [NOT_FOR_RELEASE])
    'opendas verify out --allow-seeded'
    """
    options = [f" {option}" for stamp, option in _ACCEPTED_WITH.items() if stamp in stamps]
    return f"opendas verify {folder}{''.join(options)}"


class KeyCustody(StrEnum):
    """Where the key of a run was when its release was complete."""

    DESTROYED = "destroyed"
    KEPT = "kept"
    SEALED = "kept under a passphrase"
    ELSEWHERE = "kept elsewhere"
    SEED = "made from a seed"
    NONE = "none: published measurements"
