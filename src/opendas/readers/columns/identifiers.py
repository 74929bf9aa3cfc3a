"""Columns that seem to say whose a record is: where several rows have one value, a row is not a person.

Names and numbers of values decide, never the values themselves.
"""

from __future__ import annotations

import re

_WHO = (
    "applicant|business|case|child|citizen|claimant|client|company|customer|employee|enterprise|establishment|"
    "family|firm|household|individual|insured|member|participant|patient|person|pupil|resident|respondent|"
    "staff|student|subject|subscriber|taxpayer|user|visitor|voter|worker"
)
_NUMBER = "code|id|identifier|key|nbr|no|nr|num|number|ref|serial"
_ALONE = (
    "dossier|guid|hh|hh[ _.-]?(id|no|nr|num|number)|hid|id|identifier|mafid|mrn|patid|perid|pid|pnum|"
    "serial([ _.-]?(no|nr|num|number))?|ssn|uid|upn|uuid"
)
_NAME = re.compile(rf"({_WHO})[ _.-](.*[ _.-])?({_NUMBER})|({_WHO})({_NUMBER})?|{_ALONE}", re.IGNORECASE)

_ROWS_EACH = 20
"""More rows than these a value on average, of few values, make a class rather than a person."""

_FEW = 40


def seems_identifier(name: str) -> bool:
    """Whether the name of a column says that its values identify persons or other units.

    Examples
    --------
    >>> [seems_identifier(name) for name in ("patient", "PersonID", "mafid", "ward_id", "age")]
    [True, True, True, False, False]
    """
    return _NAME.fullmatch(name.strip()) is not None


def several_rows(values: int, rows: int) -> bool:
    """Whether so many different values in so many rows are units of which some have several rows."""
    return values < rows and (values > _FEW or rows < _ROWS_EACH * values)
