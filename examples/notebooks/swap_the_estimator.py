# %% [markdown]
# # Swap the estimator
#
# An estimator turns noisy answers into counts. This page writes one in ten lines, and compares it with the
# two that OpenDAS has, on the same noisy answers. The data are synthetic.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import opendas as od

rng = np.random.default_rng(3)
leaves = [f"R{r}T{t}B{b}" for r in range(3) for t in range(4) for b in range(6)]
ages = ["child", "adult", "old"]
groups = ["a", "b", "c", "d"]
size = rng.lognormal(3, 1, len(leaves))
rows = [
    (leaf, age, group, int(rng.poisson(scale * share * weight)))
    for leaf, scale in zip(leaves, size, strict=True)
    for age, share in zip(ages, (0.2, 0.6, 0.2), strict=True)
    for group, weight in zip(groups, (0.7, 0.2, 0.08, 0.02), strict=True)
]
counts = pd.DataFrame(rows, columns=["leaf", "age", "group", "count"])
run = od.define(
    """
    [run]
    product = "people"
    [input]
    reader = "histogram"
    geocode = "leaf"
    [geography]
    levels = [
        { name = "land", prefix = 0 }, { name = "region", prefix = 2 }, { name = "town", prefix = 4 },
        { name = "block" },
    ]
    provenance = "public"
    [budget]
    rho = "1"
    geolevels = { land = "1/4", region = "1/4", town = "1/4", block = "1/4" }
    [budget.queries]
    "*" = { total = "1/4", age = "1/4", detailed = "1/2" }
    """,
    input=counts,
    frame=pd.DataFrame({"leaf": leaves}),
    product={
        "product": {
            "name": "people",
            "protected_unit": "person",
            "provenance": "code-book",
        },
        "attributes": {"age": ages, "group": groups},
        "queries": {"groups": ["age", "group"]},
    },
)
run

# %% [markdown]
# `fit` is called for one family at a time: a parent whose counts are fixed, and its children. This
# estimator takes the answers of the detailed query group as they are. Negative and inconsistent numbers are
# allowed: OpenDAS takes the nearest numbers that satisfy all constraints, and rounds them.


# %%
class AsMeasured:
    name = "as measured"

    def fit(self, data):
        (detailed,) = [
            query for query in data.answers if query.name == "detailed"
        ]
        return detailed.values[:, detailed.compact]


errors = od.experiment(
    run,
    rhos=["1/4", "1/2", 1, 2],
    seeds=10,
    estimators=["topdown", "informed", AsMeasured()],
    source="synthetic, made on this page",
    workers=1,
)
errors.head(4)

# %% [markdown]
# Every seed gives all three the same random numbers. Mean absolute error of a block, by query group:

# %%
blocks = errors[
    errors.geolevel.eq("block") & errors.metric.eq("mean_abs_error")
]
blocks.pivot_table(
    index="query", columns=["estimator", "rho"], values="value"
).round(2)

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharex=True)
for axis, query in zip(axes, ("total", "detailed"), strict=True):
    curves = od.curves(blocks[blocks["query"] == query])
    for name, curve in curves.groupby("estimator"):
        axis.errorbar(
            curve["loss"],
            curve["mean"],
            2 * curve["standard_error"],
            marker="o",
            capsize=3,
            label=name,
        )
    axis.set(
        xscale="log",
        xlabel="rho",
        ylabel="mean absolute error of a block, people",
        title=query,
    )
    axis.set_xticks([0.25, 0.5, 1, 2], ["1/4", "1/2", "1", "2"])
    axis.minorticks_off()
axes[0].legend()
figure.tight_layout()

# %% [markdown]
# Differences on the same seed are measured more precisely than each error. How much more does the simple
# estimator err than TopDown, at rho 1, in people a block?

# %%
paired = blocks[blocks.rho.eq(1) & blocks["query"].eq("detailed")].pivot(
    index="seed", columns="estimator", values="value"
)
difference = paired["as measured"] - paired["topdown"]
print(f"{difference.mean():.2f}, standard error {difference.sem():.2f}")
