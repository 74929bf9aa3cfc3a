"""``opendas account``: what a rho, or the plan of a run, means as (epsilon, delta) and for an attacker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opendas.cli.options import json_option
from opendas.cli.output import emit_json, text_table

if TYPE_CHECKING:
    from opendas.measurement.account import PlanAccount
    from opendas.privacy.zcdp import Account

__all__ = ["command"]

_PATH: click.Path = click.Path(path_type=Path)


@click.command("account")
@click.argument("run_file", metavar="[RUN.toml]", type=_PATH, required=False)
@click.option("--rho", default=None, help='Exact number, for instance "293764/114921" or 1.095.')
@click.option(
    "--delta",
    default=None,
    help="Exact number. Default: that of the run file's budget, and 1e-10 with --rho.",
)
@click.option("--exact", is_flag=True, help="Also from the noise itself, not from rho alone; some seconds.")
@click.option("--curve", metavar="DELTAS", default=None, help='Epsilon at several deltas: "1e-5,1e-8,1e-10".')
@click.option(
    "--target-epsilon", metavar="E", default=None, help="How much less noise would still give this epsilon."
)
@click.option("--html", "html", type=_PATH, default=None, help="Write the account as a page with pictures.")
@json_option
def command(
    run_file: Path | None,
    rho: str | None,
    delta: str | None,
    exact: bool,
    curve: str | None,
    target_epsilon: str | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Say what a rho, or the plan of a run, means as (epsilon, delta) and for an attacker.

    From rho alone by both named formulas; with --exact from the composed noise of the plan, which is never
    worse. Give RUN.toml or --rho. Draws nothing, spends nothing, reads no confidential record.

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
    account = opendas.account(opendas.load(Path(str(run_file))), delta)
    answer = _plan_answer(account, exact or html is not None, deltas, target_epsilon, as_json)
    if html is not None:
        from opendas.report.account_page import write_account_page

        write_account_page(html, account, answer)


def _deltas(text: str) -> list[str]:
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise click.UsageError('--curve names no delta; write for instance --curve "1e-5,1e-10".')
    return found


def _rho_answer(account: Account, deltas: Sequence[str] | None, as_json: bool) -> None:
    from opendas.budget.allocation import LARGEST_LOSS
    from opendas.errors import BudgetError
    from opendas.privacy.zcdp import epsilon_curve

    if account.rho > LARGEST_LOSS:
        raise BudgetError(f"rho is above {LARGEST_LOSS:.0e}. A loss of a few dozen protects nobody already.")
    epsilon = {name: account.epsilon(name) for name in ("cks", "bun-steinke")}
    points = () if deltas is None else epsilon_curve(account.rho, deltas)
    rows = [{"delta": float(p.delta), "cks": p.cks, "bun-steinke": p.bun_steinke} for p in points]
    if as_json:
        answer: dict[str, Any] = {"rho": account.rho, "delta": float(account.delta), "epsilon": epsilon}
        emit_json(answer if deltas is None else {**answer, "curve": rows})
        return
    click.echo(f"rho {account.rho} at delta {float(account.delta):.3g}")
    _echo_epsilons(epsilon)
    _echo_curve(rows)


def _plan_answer(
    account: PlanAccount, exact: bool, deltas: Sequence[str] | None, target: str | None, as_json: bool
) -> dict[str, Any]:
    curve = () if deltas is None else account.curve(deltas, exact=exact)
    answer = account.as_json(exact=exact)
    answer["attacker"] = account.attacker_json(exact=exact)
    if deltas is not None:
        answer["curve"] = curve
    if target is not None:
        answer["target"] = account.spare_json(target)
    if as_json:
        emit_json(answer)
        return answer
    name = "epsilon" if account.pure else "rho"
    click.echo(f"{answer['product']}: {name} {account.loss}, {answer['neighbours']} neighbours")
    click.echo(f"at delta {answer['delta']:.3g}:")
    _echo_epsilons(answer["epsilon"])
    if exact:
        found = answer["exact"]
        click.echo(f"  the exact one lies between {found['lower']:.4f} and {found['upper']:.4f}; the upper")
        click.echo(f"  end is valid. Proof: {found['proof']}")
    _echo_parts("one record changes in one attribute only", "attribute", name, answer["attributes"])
    _echo_parts("one record moves within one geounit", "within one", name, answer["within"])
    _echo_attacker(answer["attacker"], answer["neighbours"])
    _echo_curve(curve)
    if target is not None:
        _echo_spare(answer["target"], target, answer["delta"])
    return answer


def _echo_epsilons(epsilon: Mapping[str, float]) -> None:
    words = {
        "exact": "exact, from the noise of the plan",
        "exact-invariants": "exact, between inputs that agree on the invariants",
    }
    for name, value in epsilon.items():
        click.echo(f"  epsilon {value:.4f}  ({words.get(name, name)})")


def _echo_parts(title: str, head: str, loss: str, parts: Mapping[str, Mapping[str, Any]]) -> None:
    if not parts:
        return
    rows = []
    for name, part in parts.items():
        exact = part.get("rho", part.get("pure_epsilon", ""))
        epsilons = {f"epsilon ({key})": f"{value:.2f}" for key, value in part["epsilon"].items()}
        rows.append({head: name, loss: _short(exact), **epsilons})
    click.echo()
    click.echo(f"when {title}:")
    click.echo(text_table(rows))


def _short(exact: str) -> str:
    from fractions import Fraction

    return exact if len(exact) <= 16 else f"{float(Fraction(exact)):.4g}"


def _echo_attacker(found: Mapping[str, Any], neighbours: str) -> None:
    asked = "a record is the true one" if neighbours == "bounded" else "one record is there"
    click.echo()
    click.echo(f"someone who knows every other record asks whether {asked}. Who says yes wrongly")
    for row in found["power"]:
        name, bound = next((key[3:], value) for key, value in row.items() if key.startswith("by_"))
        said = f"{bound * 100:.1f} %"
        if "exact" in row:
            said = f"{row['exact'] * 100:.1f} % by the noise ({said} by {name} alone)"
        click.echo(f"  1 time in {round(1 / row['wrongly']):,} says yes rightly at most {said}")
    if "guess" in found:
        between = "two records" if neighbours == "bounded" else "there and not there"
        click.echo(f"  a guess between {between} is right at most {found['guess'] * 100:.1f} % of the time")
        for row in found["belief"]:
            before, after = row["before"] * 100, row["after"] * 100
            click.echo(
                f"  a true claim believed {before:g} %: believed at most {after:.1f} % after, on average"
            )


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
