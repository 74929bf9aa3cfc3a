"""An agency's statistician: a table of her own, from the first look at it to a certificate."""

from __future__ import annotations

import json
import random
from pathlib import Path

from steps import opendas

draw = random.Random(20)
lines = ["patient_id,hospital,ward,age,severity,weight"]
for number in range(6_000):
    hospital = draw.randrange(6)
    lines.append(
        f"{10_000 + number // 2},H{hospital},H{hospital}W{draw.randrange(8)},{draw.randrange(95)},"
        f"{draw.choice(('low', 'low', 'middle', 'high'))},{draw.uniform(0.5, 3):.2f}"
    )
Path("stays.csv").write_text("\n".join(lines) + "\n")
wards = [f"H{hospital},H{hospital}W{ward}" for hospital in range(6) for ward in range(8)]
Path("wards.csv").write_text("hospital,ward\n" + "\n".join(wards) + "\n")

opendas("init", "table", "stays.csv", "--unit", "stay")
run_file, product = Path("stays-run.toml"), Path("stays-product.toml")
text = run_file.read_text()
assert 'geocode = "ward"' in text
assert 'unit_id = "patient_id"' in text
assert "bins" in text
assert "weight: it seems to be a weight" in text
assert "confidential/" in Path(".gitignore").read_text()

# What CHECK asks for: public labels, a public list of wards, records of a patient.
frame = 'frame = "wards.csv"\nprovenance = "public"\n#'
run_file.write_text(text.replace('frame = "from-records"', frame).replace("at_most = 3", "at_most = 2"))
product.write_text(product.read_text().replace('"from-records"', '"code-book"'))
plan = opendas("plan", run_file, "--records", "6000")
assert len(plan.strip().split("\n")) <= 6, plan
opendas("ledger", "create", "stays.book", "--limit-rho", "2", "--unit", "patient")
opendas("run", run_file, "--out", "out", "--ledger", "stays.book")
opendas("verify", "out")
opendas(
    "tabulate", "out", "--tables", "severity", "--geolevel", "hospital", "--format", "csv", "--to", "tables"
)
certificate = json.loads(Path("out/release/certificate.json").read_text())
guarantee = certificate["runs"][0]["guarantee"]
for word in ("housing", "resident", "census", "block"):
    assert word not in guarantee, f"{word!r} in the certificate of a hospital"
