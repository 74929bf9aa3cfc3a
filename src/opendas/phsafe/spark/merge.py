"""The findings of many partitions as one list: the first lines of each rule, and the number of the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from opendas.errors import Finding
from opendas.phsafe.inputs.findings import MOST_LINES

__all__ = ["merge_findings"]

# How opendas.phsafe.inputs.findings and opendas.phsafe.counting end a rule.
_FURTHER = re.compile(r" \((\d+) further lines\)\Z")
_OF_UNIT = re.compile(r" \(its unit: [^)]*\)\Z")

_Key = tuple[str, str | None, str]


def merge_findings(parts: Iterable[Sequence[Finding]], sources: Sequence[Sequence[str]]) -> list[Finding]:
    """Merge findings whose lines are in one part each.

    Parameters
    ----------
    parts : iterable of sequence of Finding
        Of each partition, as :func:`opendas.phsafe.inputs.findings.list_lines` bounds them.
    sources : sequence of sequence of str
        File names of each of the three files, in order; several where it is a folder of parts.

    Returns
    -------
    list of Finding
        By file, then by field and rule as they first came, then by line.
    """
    place = {
        name: (which, number) for which, names in enumerate(sources) for number, name in enumerate(names)
    }
    titles = [names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" for names in sources]
    for which, title in enumerate(titles):
        place.setdefault(title, (which, -1))
    listed: dict[tuple[int, str | None, str], list[Finding]] = {}
    further: dict[tuple[int, str | None, str], int] = {}
    for part in parts:
        for finding in part:
            which = place[finding.file][0]
            more = _FURTHER.search(finding.rule)
            rule = _FURTHER.sub("", _OF_UNIT.sub("", finding.rule))
            key = which, finding.field, rule
            listed.setdefault(key, [])
            further.setdefault(key, 0)
            if more is not None and finding.line is None:
                further[key] += int(more[1])
            else:
                listed[key].append(finding)
    merged = []
    for key in sorted(listed, key=lambda key: key[0]):
        lines = sorted(listed[key], key=lambda finding: (place[finding.file][1], finding.line or 0))
        merged += lines[:MOST_LINES]
        rest = further[key] + max(0, len(lines) - MOST_LINES)
        if rest:
            merged.append(Finding(titles[key[0]], None, key[1], f"{key[2]} ({rest} further lines)"))
    return merged
