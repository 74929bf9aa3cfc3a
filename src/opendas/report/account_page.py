"""The account of a plan as one page, with pictures, without any request to elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opendas.files.atomic import write_atomic
from opendas.measurement.account import PlanAccount
from opendas.report.html import environment
from opendas.report.pictures import POWER_LEVELS, power_svg

__all__ = ["account_page", "write_account_page"]

_DELTAS = ("1e-3", "1e-5", "1e-6", "1e-8", "1e-10", "1e-12", "1e-15")


def account_page(account: PlanAccount, answer: Mapping[str, Any]) -> bytes:
    """Write the page.

    Parameters
    ----------
    account : PlanAccount
    answer : mapping
        ``account.as_json(exact=True)`` with ``attacker``, as the command answers it.

    Returns
    -------
    bytes
        UTF-8; the same for the same account.
    """
    name, attacker = "epsilon" if account.pure else "rho", account.attacker()
    series = {
        f"by {name} alone": [account.power_bound(level) for level in POWER_LEVELS],
        "by the noise": [attacker.power(level) for level in POWER_LEVELS],
    }
    page = (
        environment()
        .get_template("account.html.j2")
        .render(
            answer=answer,
            loss_name=name,
            loss=str(account.loss),
            curve=account.curve(_DELTAS, exact=True),
            formulas=[name for name in answer["epsilon"] if not name.startswith("exact")],
            power=power_svg(POWER_LEVELS, series),
        )
    )
    return page.encode()


def write_account_page(path: Path, account: PlanAccount, answer: Mapping[str, Any]) -> None:
    """Write the page to a file."""
    write_atomic(path, account_page(account, answer))
