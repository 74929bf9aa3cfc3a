"""Commands on a budget: ``account`` and ``allocate``. Nothing is drawn or spent."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opendas.cli.options import PATH, json_option, ledger_option, read_records_option
from opendas.cli.output import echo_protection, echo_table, emit_json, message, text_table

if TYPE_CHECKING:
    from opendas.measurement.account import PlanAccount
    from opendas.privacy.zcdp import Account


@click.command("account")
@click.argument("run_file", metavar="[RUN.toml]", type=PATH, required=False)
@click.option("--rho", help='Exact number, for instance "293764/114921" or 1.095.')
@click.option("--delta", help="Exact number. Default: that of the run file's budget, and 1e-10 with --rho.")
@click.option(
    "--exact",
    is_flag=True,
    help="Also from the noise itself, not from rho alone; some seconds. Needs opendas[account].",
)
@click.option("--curve", metavar="DELTAS", help='Epsilon at several deltas: "1e-5,1e-8,1e-10".')
@click.option("--target-epsilon", metavar="E", help="How much less noise would still give this epsilon.")
@click.option("--html", "html", type=PATH, help="Write the account as a page with pictures.")
@read_records_option
@json_option
def account_command(
    run_file: Path | None,
    rho: str | None,
    delta: str | None,
    exact: bool,
    curve: str | None,
    target_epsilon: str | None,
    html: Path | None,
    read_records: bool,
    as_json: bool,
) -> None:
    """Express a rho, or the plan of a run, as (epsilon, delta) and as an attacker's power.

    From rho alone by both named formulas; with --exact from the composed noise of the plan, which is never
    worse. Give RUN.toml or --rho. Draws nothing, spends nothing, and opens no confidential record; where the
    frame comes from the records, --read-records opens them.

    Example: opendas account --rho 293764/114921 --delta 1e-10

    Example: opendas account run.toml --exact
    """
    import opendas

    if (run_file is None) == (rho is None):
        raise click.UsageError("give either RUN.toml or --rho, and not both.")
    deltas = None if curve is None else _deltas(curve)
    if rho is not None:
        for given, option in ((exact, "--exact"), (target_epsilon, "--target-epsilon"), (html, "--html")):
            if given:
                raise click.UsageError(
                    f"{option} needs RUN.toml: rho alone does not say which noise is drawn."
                )
        _rho_answer(opendas.account(rho=rho, delta=delta or "1e-10"), deltas, as_json)
        return
    run = opendas.load(Path(str(run_file)), read_records=read_records)
    account = opendas.account(run, delta)
    answer = _plan_answer(account, exact or html is not None, deltas, target_epsilon)
    shown = [(account, answer)]
    if run.companion is not None:
        second = opendas.account(run.companion, delta)
        answer["companion"] = _plan_answer(second, exact, deltas, target_epsilon)
        answer["together"] = _sum(account, second)
        shown.insert(0, (second, answer["companion"]))
    if as_json:
        emit_json(answer)
    else:
        for number, (each, said) in enumerate(shown):
            click.echo("\n" * bool(number), nl=False)
            _show_account(each, said, exact or html is not None, target_epsilon)
        if len(shown) > 1:
            _show_sum(answer, run.product.protected_unit)
    if html is not None:
        from opendas.report.html import write_account_page

        write_account_page(html, account, answer)


def _deltas(text: str) -> list[str]:
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise click.UsageError('--curve names no delta; write for instance --curve "1e-5,1e-10".')
    return found


def _rho_answer(account: Account, deltas: Sequence[str] | None, as_json: bool) -> None:
    from opendas.errors import BudgetError
    from opendas.privacy.attacker import bounds_by_rho
    from opendas.privacy.relations import LARGEST_LOSS
    from opendas.privacy.zcdp import epsilon_curve

    if account.rho > LARGEST_LOSS:
        raise BudgetError(f"rho is above {LARGEST_LOSS:.0e}. A loss of a few dozen protects nobody already.")
    epsilon = {name: account.epsilon(name) for name in ("cks", "bun-steinke")}
    points = () if deltas is None else epsilon_curve(account.rho, deltas)
    rows = [{"delta": float(p.delta), "cks": p.cks, "bun-steinke": p.bun_steinke} for p in points]
    attacker = bounds_by_rho(account.rho)
    if as_json:
        answer: dict[str, Any] = {"rho": account.rho, "delta": float(account.delta), "epsilon": epsilon}
        answer["attacker"] = attacker
        emit_json(answer if deltas is None else {**answer, "curve": rows})
        return
    click.echo(f"rho {account.rho} at delta {float(account.delta):.3g}")
    _echo_epsilons(epsilon)
    click.echo("an attacker who tests which of two neighbouring data sets is the true one:")
    for row in attacker["power"]:
        rate, bound, usual = f"{round(1 / row['wrongly']):,}", row["by_rho"] * 100, row["gaussian"] * 100
        click.echo(f"  false-positive rate of 1 in {rate} has power at most {bound:.1f} %")
        click.echo(f"    and about {usual:.1f} % against many counts with discrete Gaussian noise")
    for row in attacker["odds"]:
        factor, after = f"{row['factor']:g}", row["one_percent_becomes"] * 100
        chance = f"{row['chance']:.3g}"
        click.echo(
            f"  the odds of the true one grow more than {factor}-fold with probability at most {chance}"
        )
        click.echo(f"    and {factor}-fold takes a belief of 1 % to {after:.1f} %")
    _echo_curve(rows)


def _sum(account: PlanAccount, companion: PlanAccount) -> dict[str, Any]:
    """Return what one change of a unit costs in both of its histograms."""
    import opendas

    total = account.loss + companion.loss
    if account.pure:
        return {"pure_epsilon": total}
    both = opendas.account(rho=total, delta=account.delta)
    return {"rho": total, "epsilon": {name: both.epsilon(name) for name in ("cks", "bun-steinke")}}


def _show_sum(answer: Mapping[str, Any], unit: str) -> None:
    together, names = answer["together"], (answer["companion"]["product"], answer["product"])
    loss = f"rho {together['rho']}" if "rho" in together else f"epsilon {together['pure_epsilon']}"
    click.echo()
    click.echo(f"{' and '.join(names)} together: {loss} for one {unit}")
    _echo_epsilons(together.get("epsilon", {}))


def _plan_answer(
    account: PlanAccount, exact: bool, deltas: Sequence[str] | None, target: str | None
) -> dict[str, Any]:
    answer = account.as_json(exact=exact)
    answer["attacker"] = account.attacker_json(exact=exact)
    if deltas is not None:
        answer["curve"] = account.curve(deltas, exact=exact)
    if target is not None:
        answer["target"] = account.spare_json(target)
    return answer


def _show_account(account: PlanAccount, answer: Mapping[str, Any], exact: bool, target: str | None) -> None:
    name = "epsilon" if account.pure else "rho"
    click.echo(f"{answer['product']}: {name} {account.loss}, {answer['neighbours']} neighbours")
    bound = answer["contribution"]
    if bound is not None:
        unit = account.plan.product.protected_unit
        click.echo(f"for all records of one {unit}, of which at most {bound['at_most']} are counted")
    click.echo(f"at delta {answer['delta']:.3g}:")
    _echo_epsilons(answer["epsilon"])
    if exact:
        found = answer["exact"]
        click.echo(f"  the exact one lies between {found['lower']:.4f} and {found['upper']:.4f}; the upper")
        click.echo(f"  end is valid. Proof: {found['proof']}")
    _echo_parts(_who_changes_together(answer["contribution"]), "number", name, answer["several"])
    _echo_parts("one record changes in one attribute only", "attribute", name, answer["attributes"])
    _echo_parts("one record moves within one geounit of the spine", "within one", name, answer["within"])
    _echo_official(name, answer["within_official"])
    click.echo()
    echo_protection(answer["protection"])
    _echo_attacker(answer["attacker"], answer["neighbours"], account.protection.alternatives)
    _echo_curve(answer.get("curve", ()))
    if target is not None:
        _echo_spare(answer["target"], target, answer["delta"])


def _who_changes_together(contribution: Mapping[str, Any] | None) -> str:
    if contribution is None:
        return "several records change together, such as those of a household"
    return "several units change together"


def _echo_epsilons(epsilon: Mapping[str, float]) -> None:
    words = {
        "exact": "exact, from the noise of the plan",
        "exact-invariants": "exact, between inputs that agree on all that is published exactly",
    }
    for name, value in epsilon.items():
        click.echo(f"  epsilon {value:.4f}  ({words.get(name, name)})")


def _echo_parts(title: str, head: str, loss: str, parts: Mapping[str, Mapping[str, Any]]) -> None:
    rows = []
    for name, part in parts.items():
        exact = part.get("rho", part.get("pure_epsilon", ""))
        epsilons = {f"epsilon ({key})": f"{value:.2f}" for key, value in part["epsilon"].items()}
        rows.append({head: name, loss: _short_number(exact), **epsilons})
    echo_table(f"when {title}:", rows)


def _echo_official(loss: str, areas: Mapping[str, Mapping[str, Any]] | None) -> None:
    if areas is None:
        click.echo()
        click.echo(
            "losses within official areas need the frame, which comes from the records: --read-records opens "
            "them."
        )
        return
    rows = []
    for kind, row in areas.items():
        told: dict[str, Any] = {"within one": kind, "areas": row["areas"]}
        for head, part in (("", row["largest"]), ("half: ", row["median"])):
            told[head + loss] = _short_number(part.get("rho", part.get("pure_epsilon", "")))
            shown = [key for key in ("cks", "exact") if key in part["epsilon"]]
            told |= {head + key: f"{part['epsilon'][key]:.2f}" for key in shown}
        rows.append({**told, "above spine": row["above_spine"]})
    echo_table("when one record moves within one official area; at most in all, and in half of them:", rows)
    if rows:
        click.echo("above spine: areas that lose more than one geounit of the spine at this geolevel")


def _short_number(exact: str) -> str:
    from fractions import Fraction

    return exact if len(exact) <= 16 else f"{float(Fraction(exact)):.4g}"


def _echo_attacker(found: Mapping[str, Any], neighbours: str, alternatives: str) -> None:
    asked = "one record is in the data"
    if neighbours == "bounded":
        asked = "a record is the true one or another that the exact facts allow"
    text = f"an attacker who knows every other record tests whether {asked}. {alternatives} A test with a"
    click.echo()
    click.echo(textwrap.fill(text, 100))
    for row in found["power"]:
        name, bound = next((key[3:], value) for key, value in row.items() if key.startswith("by_"))
        said = f"{bound * 100:.1f} %"
        if "exact" in row:
            said = f"{row['exact'] * 100:.1f} % by the noise ({said} by {name} alone)"
        click.echo(f"  false-positive rate of 1 in {round(1 / row['wrongly']):,} has power at most {said}")
    if "guess" in found:
        between = "two records" if neighbours == "bounded" else "present and absent"
        click.echo(f"  a guess between {between} is right at most {found['guess'] * 100:.1f} % of the time")
        for row in found["belief"]:
            before, after = row["before"] * 100, row["after"] * 100
            click.echo(f"  belief in the truth of {before:g} % becomes at most {after:.1f} %, on average")


def _echo_curve(rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        click.echo()
        click.echo(
            text_table([{k: v if k == "delta" else f"{v:.4f}" for k, v in row.items()} for row in rows])
        )


def _echo_spare(found: Mapping[str, Any], target: str, delta: float) -> None:
    from fractions import Fraction

    factor = float(Fraction(found["budget_factor"]))
    name, saved = next((key, value) for key, value in found.items() if key.endswith("_saved"))
    what = name.removesuffix("_saved")
    click.echo()
    click.echo(f"epsilon {target} at delta {delta:.3g}, by the exact account:")
    if factor >= 1.0:
        click.echo(f"  met with the budget multiplied by {factor:.6g}: every {what} {saved * 100:.1f} % less")
    else:
        click.echo(
            f"  not met: the budget would have to be multiplied by {factor:.6g}, and every {what} would be"
        )
        click.echo(f"  {1.0 / factor:.4g} times as large")


_MECHANISMS = "laplace|gaussian|discrete-laplace|discrete-gaussian"


@click.command("allocate")
@click.argument("source_file", metavar="INPUT.json|RUN.toml", type=PATH)
@click.option("--mechanism", metavar=_MECHANISMS, help="Noise; a run file brings its own mechanism.")
@click.option("--total", metavar="B", help="Total epsilon or rho, an exact number.")
@click.option("--mse", metavar="T", help="Least total whose weighted squared error is T.")
@click.option(
    "--weights",
    metavar="W,...",
    help='One per level, or by name: "block=2,total=1/2". By default 1 each; not normalised.',
)
@click.option(
    "--neighbours",
    metavar="unbounded|bounded",
    help="A record is added or removed (default), or replaced. A run file brings its own.",
)
@click.option("--prior", metavar="INPUT.json", type=PATH, help="RUN.toml: public counts.")
@click.option("--stand-in", metavar="RUN.toml", type=PATH, help="RUN.toml: a run on public data.")
@click.option("--source", metavar="TEXT", help="Where the counts come from; is published.")
@click.option(
    "--after-least-squares",
    is_flag=True,
    help="RUN.toml: count errors after least squares over the whole tree, not those of each measurement.",
)
@click.option("--to", metavar="FILE", type=PATH, help="RUN.toml: write it with this [budget].")
@ledger_option
@read_records_option
@json_option
def allocate_command(source_file: Path, as_json: bool, **options: Any) -> None:
    """Find the allocation of a budget with the least squared error.

    INPUT.json holds the counts of each level, or only how many nodes it has. RUN.toml is allocated over
    geolevels and query groups, from the public numbers of geounits and cells; the answer is a [budget].
    An allocation is published: never compute it from the counts that it is to protect.

    Example: opendas allocate INPUT.json --mechanism laplace --total 2

    Example: opendas allocate run.toml --weights block=2 --to allocated.toml
    """
    total, mse = options["total"], options["mse"]
    if (total is not None) and (mse is not None):
        raise click.UsageError("give --total or --mse, not both.")
    if source_file.suffix == ".toml":
        _refuse(source_file, options, ("mechanism", "neighbours"))
        if options["after_least_squares"]:
            alone = ("mse", "prior", "stand_in", "source")
            _refuse(source_file, options, alone, "--after-least-squares, which uses no counts")
        _allocate_run(source_file, as_json, options)
        return
    _refuse(source_file, options, ("prior", "stand_in", "to", "after_least_squares", "ledger"))
    if options["mechanism"] is None:
        raise click.UsageError(f"--mechanism is missing: {_MECHANISMS}.")
    if total is None and mse is None:
        raise click.UsageError("give --total, or --mse.")
    _allocate_levels(source_file, as_json, options)


def _refuse(source_file: Path, options: Mapping[str, Any], names: Sequence[str], kind: str = "") -> None:
    kind = kind or ("a run file" if source_file.suffix == ".toml" else "counts of levels")
    for name in names:
        if options[name] not in (None, False):
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} does not go with {kind} ({source_file.name}).")


def _allocate_levels(source_file: Path, as_json: bool, options: Mapping[str, Any]) -> None:
    import opendas
    from opendas.allocation.level_counts import read_level_counts

    counts = read_level_counts(source_file)
    names = [level.name for level in counts.levels]
    found = opendas.allocate(
        counts.levels,
        options["mechanism"],
        total=options["total"],
        mse=options["mse"],
        weights=_level_weights(options["weights"], names),
        neighbours=options["neighbours"] or "unbounded",
    )
    source = options["source"] or counts.source
    if source is None and counts.known:
        message(
            f"warning: nothing says where the counts in {source_file.name} come from (--source). If they are "
            "the counts to be released, the allocation must not be used: it would give some of them away."
        )
    answer = {**found.to_dict(), "source": source or ("not stated" if counts.known else "numbers of nodes")}
    if as_json:
        emit_json(answer)
        return
    loss = found.kind.loss_name
    click.echo(f"total {loss} {float(found.total):.6g}, {found.kind}, {found.neighbours} neighbours")
    click.echo(f"objective {found.objective:.6g}; an even split has {found.uniform_objective:.6g}")
    click.echo()
    columns = ["level", loss, "share", "bias2", "variance", "mse", "mse_even"]
    whole = sum(found.budgets)
    rows = []
    for level, even, budget in zip(found.levels, found.uniform, found.budgets, strict=True):
        row = level.to_dict() | {"level": level.name, loss: budget, "share": budget / whole}
        rows.append(row | {"mse_even": even.mse})
    click.echo(text_table(rows, columns))
    click.echo()
    click.echo("exact: " + ", ".join(answer["exact"]))
    for level in found.levels:
        if level.unbounded:
            click.echo(f"{level.name} gets nothing: its error is unbounded.")
    if any(not level.known for level in found.levels):
        click.echo("errors are those before clamping where only numbers of nodes are known.")


def _allocate_run(source_file: Path, as_json: bool, options: Mapping[str, Any]) -> None:
    import opendas
    from opendas.allocation.level_counts import read_level_counts

    to, weights, prior, stand_in = (options[name] for name in ("to", "weights", "prior", "stand_in"))
    if to is not None and to.resolve().parent != source_file.resolve().parent:
        raise click.UsageError(
            f"--to: paths in {source_file.name} are relative to its folder; write the new one beside it."
        )
    if to is not None and to.exists() and to.resolve() != source_file.resolve():
        raise click.UsageError(f"{to} exists already; name another file with --to.")
    found = opendas.allocate_run(
        opendas.load(source_file, read_records=options["read_records"]),
        total=options["total"],
        mse=options["mse"],
        weights=_named_weights(weights) if weights is not None else None,
        prior=None if prior is None else read_level_counts(prior),
        stand_in=None if stand_in is None else opendas.load(stand_in, read_records=True),
        source=options["source"],
        ledger=options["ledger"],
        after_least_squares=options["after_least_squares"],
    )
    if to is not None:
        found.write(source_file, to)
    answer: dict[str, Any] = found.to_dict()
    if as_json:
        emit_json(answer)
        return
    message(
        text_table(answer["levels"], ["geolevel", "query", "counts", "weight", "share", "variance", "mse"])
    )
    message(f"objective {answer['objective']:.6g}; even shares have {answer['uniform']['objective']:.6g}")
    if any("before_clamping" in row for row in answer["levels"]):
        message("errors are those before clamping where only numbers of nodes are known.")
    for row in answer["levels"]:
        if row["unbounded"]:
            message(f"{row['geolevel']}/{row['query']} gets nothing: its error is unbounded.")
    click.echo(answer["toml"], nl=False)


def _level_weights(text: str | None, names: list[str]) -> list[float] | None:
    """Return one weight a level, given in order or by name."""
    from opendas.errors import BudgetError

    if text is None:
        return None
    if "=" not in text:
        return [_weight(part) for part in text.split(",")]
    given = _named_weights(text)
    for name in given:
        if name not in names:
            raise BudgetError(f"--weights: there is no level {name!r}; levels are {', '.join(names)}.")
    return [given.get(name, 1.0) for name in names]


def _named_weights(text: str) -> dict[str, float]:
    from opendas.errors import BudgetError

    given: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        if not equals or not name.strip():
            raise BudgetError(
                f'--weights: {part.strip()!r} is not a weight; write NAME=NUMBER, for instance "block=2".'
            )
        if name.strip() in given:
            raise BudgetError(f"--weights: {name.strip()!r} appears twice.")
        given[name.strip()] = _weight(value)
    return given


def _weight(text: str) -> float:
    """Return an exact number as a float; only budgets need be exact."""
    from opendas.privacy.exact import parse_fraction

    value = parse_fraction(text, "--weights")
    return float(value) if abs(value) < 10**300 else float("inf")
