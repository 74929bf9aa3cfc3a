# %% [markdown]
# # Release a table of your own
#
# A health office counts patients by age and diagnosis in the wards of its hospitals. It publishes the
# counts under differential privacy. All data on this page are synthetic.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import opendas as od

rng = np.random.default_rng(7)
wards = pd.DataFrame(
    {"ward": [f"H{h:02d}W{w}" for h in range(12) for w in range(8)]}
)
ages = ["0-17", "18-64", "65+"]
diagnoses = ["injury", "heart", "lung", "infection", "other"]
patients = pd.DataFrame(
    {
        "ward": rng.choice(wards["ward"], 6_000),
        "age": rng.choice(ages, 6_000, p=[0.2, 0.45, 0.35]),
        "diagnosis": rng.choice(
            diagnoses, 6_000, p=[0.25, 0.3, 0.15, 0.1, 0.2]
        ),
    }
)
patients.head(3)

# %% [markdown]
# The product says what a record is and which questions are asked. The run says where the records are, how
# wards form hospitals, and what privacy loss is spent. Fractions are text, so that they are exact.

# %%
product = {
    "product": {
        "name": "patients",
        "protected_unit": "patient",
        "provenance": "code-book",
    },
    "attributes": {"age": ages, "diagnosis": diagnoses},
    "queries": {"groups": ["age", "diagnosis"]},
}
run = od.define(
    """
    [run]
    product = "patients"
    [input]
    reader = "records"
    geocode = "ward"
    [geography]
    levels = [{ name = "office", prefix = 0 }, { name = "hospital", prefix = 3 }, { name = "ward" }]
    provenance = "public"
    [budget]
    rho = "1/2"
    geolevels = { office = "1/5", hospital = "2/5", ward = "2/5" }
    [budget.queries]
    "*" = { total = "1/4", age = "1/4", diagnosis = "1/4", detailed = "1/4" }
    """,
    input=patients,
    frame=wards,
    product=product,
)
run

# %% [markdown]
# What will be measured, and how precisely? Planning reads no record and spends nothing.

# %%
plan = od.plan(run).table()
plan[plan["geolevel"] == "ward"][
    ["geolevel", "query", "geounits", "variance", "moe90"]
]

# %% [markdown]
# The release itself. A seed makes this page repeatable, and stamps the release NOT FOR RELEASE: leave it
# out for real data.

# %%
release = od.release(run, out="out", seed=1, measurements="full")
release

# %% [markdown]
# Everyone can check the release from its own files, and estimate it again from its noisy answers.

# %%
checks = release.verify(allow_seeded=True, rederive=True)
print(sum(check.ok for check in checks), "of", len(checks), "checks passed")

# %% [markdown]
# The microdata have one row a patient. Tables of a hospital come with an interval for the true count.

# %%
release.mdf("patients")

# %%
intervals = release.intervals(
    "diagnosis", geolevel="hospital", level="0.90"
).to_pandas()
intervals.head(5)

# %% [markdown]
# The office, which has the records, can compare. The answer is confidential.

# %%
errors = pd.DataFrame(od.evaluate(release, truth=run, save=False).rows)
errors[["geolevel", "query", "geounits", "mean_abs_error"]]

# %% [markdown]
# Heart patients of each hospital: the released count, the interval, and the truth.

# %%
heart = intervals[intervals["cell"] == "heart"].set_index("geocode")
hospitals = patients["ward"].str[:3]
truth = patients[patients["diagnosis"] == "heart"].groupby(hospitals).size()
figure, axis = plt.subplots(figsize=(7, 3))
axis.vlines(
    heart.index, heart["lower"], heart["upper"], color="lightsteelblue", lw=6
)
axis.plot(heart.index, heart["count"], "o", color="steelblue", label="released")
axis.plot(truth.index, truth, "kx", label="truth")
axis.set(ylabel="heart patients")
axis.legend()
figure.tight_layout()
