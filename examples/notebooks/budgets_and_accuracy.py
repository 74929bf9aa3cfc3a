# %% [markdown]
# # Budgets and accuracy
#
# How much accuracy does a privacy loss buy, and which questions should it be spent on? This page simulates
# four losses and three ways to share each out. Nothing is released, and the data are synthetic.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import opendas as od

rng = np.random.default_rng(5)
sites = [f"D{d}S{s:02d}" for d in range(4) for s in range(15)]
ages = [str(age) for age in range(16)]
size = rng.lognormal(4, 0.8, len(sites))
shape = np.exp(-0.5 * ((np.arange(16) - 7) / 4) ** 2)
rows = [
    (site, age, int(rng.poisson(scale * weight)))
    for site, scale in zip(sites, size, strict=True)
    for age, weight in zip(ages, shape / shape.sum(), strict=True)
]
run = od.define(
    """
    [run]
    product = "ages"
    [input]
    reader = "histogram"
    geocode = "site"
    [geography]
    levels = [{ name = "country", prefix = 0 }, { name = "district", prefix = 2 }, { name = "site" }]
    provenance = "public"
    [budget]
    rho = "1"
    geolevels = { country = "1/3", district = "1/3", site = "1/3" }
    [budget.queries]
    "*" = { detailed = "1" }
    """,
    input=pd.DataFrame(rows, columns=["site", "age", "count"]),
    frame=pd.DataFrame({"site": sites}),
    product={
        "product": {
            "name": "ages",
            "protected_unit": "person",
            "provenance": "code-book",
        },
        "attributes": {"age": ages},
        "workloads": {"younger_than": {"attribute": "age", "kind": "prefixes"}},
    },
)

# %% [markdown]
# `younger_than` is a workload: all prefixes of the ages, fifteen query groups under one name. The first
# plan measures cells only, the second adds totals, the third adds the prefixes.

# %%
plans = {
    "cells": None,
    "cells and totals": {"queries": {"*": {"total": "1/3", "detailed": "2/3"}}},
    "cells and prefixes": {
        "queries": {"*": {"younger_than": "1/2", "detailed": "1/2"}}
    },
}
errors = od.experiment(
    run,
    rhos=["1/10", "1/3", 1, 3],
    seeds=8,
    plans=plans,
    source="synthetic, made on this page",
    workers=1,
)
errors.drop(columns="confidential").head(3)

# %%
names = {
    "total": "people in all",
    "younger_than 8": "people younger than 8",
    "detailed": "all ages, summed",
}
sites_only = od.curves(
    errors[errors.geolevel.eq("site") & errors.metric.eq("mean_abs_error")]
)
figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), sharex=True)
for axis, (query, title) in zip(axes, names.items(), strict=True):
    for plan, part in sites_only[sites_only["query"] == query].groupby("plan"):
        axis.plot(part["loss"], part["mean"], marker="o", label=plan)
    axis.set(xscale="log", yscale="log", xlabel="rho", title=title)
axes[0].set_ylabel("mean absolute error of a site, people")
axes[0].legend(fontsize=8)
figure.tight_layout()

# %% [markdown]
# A loss in words: what rho means as epsilon and delta, and what an attacker with a false-positive rate of 5
# % can detect at most.

# %%
accounts = {
    rho: od.account(rho=rho, delta="1e-10") for rho in ("1/10", "1/3", "1", "3")
}
pd.DataFrame(
    {
        "rho": list(accounts),
        "epsilon": [each.epsilon("cks") for each in accounts.values()],
    }
).round(2)

# %% [markdown]
# The noise itself has an exact law. Its probabilities and draws need no floating-point numbers.

# %%
law = od.discrete_gaussian("7/3")
k = np.arange(-6, 7)
draws = od.sample_discrete_gaussian("7/3", 20_000, np.random.default_rng(1))
figure, axis = plt.subplots(figsize=(5, 2.8))
axis.bar(k, law.pmf(k), color="lightgray", label="exact law")
axis.plot(k, [(draws == each).mean() for each in k], "k.", label="20,000 draws")
axis.set(xlabel="noise, people", ylabel="probability")
axis.legend()
figure.tight_layout()
