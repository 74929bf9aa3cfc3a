"""What one start of the explorer is about, and what can be opened in it."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from opendas.errors import ConfigError
from opendas.explore.budget import budget_fields
from opendas.explore.budget_page import BudgetPage, budget_state
from opendas.explore.household_page import HouseholdPage, household_state
from opendas.explore.households import config_fields
from opendas.explore.page import Page, State, read_link, state_document, write_link
from opendas.explore.run_file import own_mechanism, read_run_file
from opendas.explore.subjects import RunSubject, Subject
from opendas.explore.table_page import TablePage
from opendas.explore.two_histograms import TwoHistograms
from opendas.phsafe.config import Mode, parse_config
from opendas.readers.columns.csv_parquet import is_parquet
from opendas.runs.config.load import read_text
from opendas.runs.context.run import load
from opendas.runs.starting.table_files import TableFiles

_LINK = re.compile(r"[A-Za-z0-9_-]{16,}")
_LONGEST = 200_000


@dataclass
class Session:
    """What one start of the explorer is about."""

    run: Subject | None = None  # the subject of a run file
    save_to: Path | None = None  # where the page may write a plan; named on the command line
    state: State | None = None  # a kept state to begin with
    table: TablePage | None = None  # a table of the user's own, and the files that the page may write for it
    # Who has it may write to `save_to`, and see `table` and write its files; it is in the address that the
    # program prints, and nowhere else.
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    def __post_init__(self) -> None:
        self.budgets = BudgetPage(self.run)
        self.pages: tuple[Page[Any], ...] = (self.budgets, HouseholdPage())

    def address(self, state: State) -> str:
        """Return the address of a state."""
        return f"/{state.page}?s={write_link(state.to_document())}"

    def open_text(self, text: str) -> State:
        """Understand what someone pasted: a link, a kept state, a run file, or a configuration of PHSafe."""
        plain = text.strip()
        if not plain:
            raise ConfigError("Paste a link, a kept state or a run file first.")
        if len(plain) > _LONGEST:
            raise ConfigError("That is too long to be a plan.")
        if plain.startswith("{"):
            try:
                document = json.loads(plain)
            except (ValueError, RecursionError):
                raise ConfigError(
                    "This begins with { and is not JSON: copy the kept state or config.json again, all of it."
                ) from None
            if isinstance(document, dict) and "privacy_budget" in document:
                return household_state(config_fields(parse_config(plain, Mode.PRIVATE)))
            return self._checked(state_document(document))
        if "\n" not in plain and ("?" in plain or _LINK.fullmatch(plain)):
            packed = parse_qs(urlsplit(plain).query).get("s", [""])[0] if "?" in plain else plain
            return self._checked(read_link(packed))
        subject = self.budgets.first
        return budget_state(subject, budget_fields(read_run_file(plain, subject), subject))

    def _checked(self, document: Mapping[str, Any]) -> State:
        page = next((page for page in self.pages if page.key == document.get("page")), self.budgets)
        return page.from_document(document)


def make_session(
    file: Path | None = None, save_to: Path | None = None, *, read_records: bool = False
) -> Session:
    """Understand the file that was named.

    - `file`: a run file, a PHSafe configuration, a kept state, or a CSV or Parquet table.
    - `save_to`: file for a plan; for a table, the folder of its files, the working folder if not given.
    - `read_records`: open the confidential records where the frame comes from them: the page then shows how
      many leaves are populated.

    Raises `ConfigError, DataError, PrivacyError` if it cannot be used.
    """
    if file is None:
        return Session(save_to=save_to)
    if is_parquet(file) or file.suffix.lower() == ".csv":
        return Session(table=TablePage(TableFiles(file, save_to or Path())))
    text = read_text(file, "run file").lstrip("\ufeff")
    if text.lstrip().startswith("{"):
        return Session(save_to=save_to, state=Session().open_text(text))
    run = load(file, read_records=read_records)
    own_mechanism(run.resolved.mechanism.value)
    return Session(RunSubject(run) if run.companion is None else TwoHistograms(run, run.companion), save_to)
