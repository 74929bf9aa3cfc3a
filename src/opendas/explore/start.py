"""What the explorer begins with: the file that was named, or nothing."""

from __future__ import annotations

from pathlib import Path

from opendas.explore.household_page import HouseholdState
from opendas.explore.saving import opened
from opendas.explore.session import Session
from opendas.explore.stand_ins import stand_in
from opendas.explore.states import BudgetState
from opendas.explore.subjects import RunSubject
from opendas.runs.config.load import read_text
from opendas.runs.run import load

__all__ = ["make_session"]


def make_session(file: Path | None = None, save_to: Path | None = None) -> Session:
    """Understand the file that was named.

    Parameters
    ----------
    file : Path, optional
        A run file, a PHSafe configuration, or a kept state.
    save_to : Path, optional
        Where the page may write a plan.

    Raises
    ------
    ConfigError, DataError
        If it cannot be used.
    """
    if file is None:
        return Session(save_to=save_to)
    text = read_text(file, "run file")
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        state = opened(text.lstrip("\ufeff"), stand_in("us-persons"))
        (HouseholdState if state.get("page") == "phsafe" else BudgetState).of_document(state)
        return Session(save_to=save_to, state=state)
    subject = RunSubject(load(file))
    subject.geounits  # noqa: B018  # the frame is read before the page opens
    return Session(subject, save_to)
