"""Synthetic census records in the record classes of the Census Bureau's own reader.

    python experiments/cef_records.py --checkout CHECKOUT [--blocks 400]

`CHECKOUT` is a checkout of ``uscensusbureau/DAS_2020_Redistricting_Production_Code``; of it, the file
``programs/reader/cef_2020/cef_validator_classes.py`` alone is loaded. A state is made and written as
``tests/support/made_cef_files.py`` does for our reader ``cef``, and every line goes through the method with
which that program validates it. No confidential record is anywhere.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections import Counter
from pathlib import Path

from experiment import HERE, arguments, deliver, markdown

sys.path.insert(0, str(HERE.parent / "tests"))
CLASSES = "programs/reader/cef_2020/cef_validator_classes.py"
STATE = "44"
"""The classes know the numbers of states; the synthetic state's own, 99, is none."""


def main() -> None:
    """Run the experiment."""
    from support.made_cef_files import write_cef

    parser = arguments(__doc__, seeds=1)
    parser.add_argument("--checkout", type=Path, required=True, help="of the Bureau's program")
    parser.add_argument("--blocks", type=int, default=400, help="size of the synthetic state")
    given = parser.parse_args()
    path = next(given.checkout.rglob(CLASSES))
    spec = importlib.util.spec_from_file_location("cef_validator_classes", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: no Python file")
    classes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(classes)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        write_cef(Path(place), given.blocks, code=STATE)
        for name, kind in (("UNIT", classes.CEF20_UNIT), ("PER", classes.CEF20_PER)):
            lines = Path(place, f"CEF20_{name}_{STATE}.txt").read_text().splitlines()
            records = [kind(line) for line in lines]
            refused = [record.validate_reason() for record in records if not record.validate()]
            reasons = Counter(reason.split(" ")[0] for reason in refused).most_common(3)
            rows.append(
                (kind.name(), len(records), len(refused), ", ".join(name for name, _ in reasons) or "none")
            )
    header = ("Class", "Records", "Refused", "Fields at fault")
    deliver("cef_records", markdown(header, rows), {"rows": [list(row) for row in rows]}, given.to)


if __name__ == "__main__":
    main()
