"""Commands of custody: the account of a data set, and keys that an office keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from opendas.cli.options import FILE_OR_STDIN, PATH, json_option, open_signing_key, out_argument
from opendas.cli.output import emit_json, message, text_table

passphrase_file_option = click.option(
    "--passphrase-file",
    metavar="FILE",
    type=FILE_OR_STDIN,
    help="Passphrase of the key, one line, mode 0600; - is stdin.",
)


@click.group("keys")
def keys_command() -> None:
    """Keys that an office keeps: new and show for its signing key, split and join for the key of a run.

    A signing key hides nothing: it says who issued a release. The key of a run protects the
    records; several people can each keep a share of it. For keys in an output folder see opendas
    forget-key.

    Example: opendas keys new office.key
    """


@keys_command.command("new")
@click.argument("path", metavar="PATH", type=PATH)
@passphrase_file_option
@click.option("--ask-passphrase", is_flag=True, help="Ask on the terminal for a passphrase.")
@json_option
def new_command(path: Path, passphrase_file: Path | None, ask_passphrase: bool, as_json: bool) -> None:
    """Make a signing key: PATH, mode 0600, and PATH.pub for anyone who verifies.

    Example: opendas keys new office.key --ask-passphrase
    """
    from opendas.cli.options import new_passphrase
    from opendas.custody.folders import write_atomic
    from opendas.custody.signing_key import PUBLIC_SUFFIX, SigningKey

    public = path.with_name(path.name + PUBLIC_SUFFIX)
    if public.exists():
        raise click.UsageError(f"{public} is there already; choose another PATH.")
    key = SigningKey.generate()
    key.save(path, new_passphrase(passphrase_file, ask_passphrase, path.name))
    write_atomic(public, key.public.to_pem().encode())
    _show(public, key.public.fingerprint, key.public.to_pem(), as_json)
    message(f"{path} is the private key: anyone who has it can sign in your name. Publish {public}.")


@keys_command.command("show")
@click.argument("path", metavar="PATH", type=PATH)
@json_option
def show_command(path: Path, as_json: bool) -> None:
    """Show the public key in PATH (or beside it, in PATH.pub) and its fingerprint.

    Example: opendas keys show office.key
    """
    from opendas.custody.signing_key import PUBLIC_SUFFIX, PublicKey

    beside = path.with_name(path.name + PUBLIC_SUFFIX)
    public = beside if path.suffix != PUBLIC_SUFFIX and beside.exists() else path
    key = PublicKey.load(public)
    _show(public, key.fingerprint, key.to_pem(), as_json)


@keys_command.command("split")
@click.option("--shares", required=True, metavar="N", type=int, help="How many shares, at most 255.")
@click.option("--threshold", required=True, metavar="K", type=int, help="How many of them give the key.")
@click.option("--to", "folder", required=True, metavar="DIR", type=PATH, help="New folder for the shares.")
@json_option
def split_command(shares: int, threshold: int, folder: Path, as_json: bool) -> None:
    """Make a run key in N shares, any K of which reconstruct it.

    The key itself is written nowhere. Writes DIR/1.share and so on, mode 0600: one for each officer. K
    shares together reveal the key, so keep DIR in memory (as under /dev/shm), hand the shares out, and remove
    DIR. Fewer than K reveal nothing about it. Make another set for each run.

    Example: opendas keys split --shares 5 --threshold 3 --to /dev/shm/shares
    """
    from opendas.custody.run_key import RunKey, save_shares, split_key

    key = RunKey.generate()
    paths = save_shares(split_key(key, shares, threshold), folder)
    if as_json:
        emit_json({"shares": paths, "threshold": threshold, "key_commitment": key.commitment()})
    else:
        click.echo("\n".join(map(str, paths)))
    message(
        f"Any {threshold} of these {shares} files together give the key. Give each file to a different "
        "person, and then delete the files here."
    )


@keys_command.command("join")
@click.argument("paths", metavar="SHARE...", type=PATH, nargs=-1, required=True)
def join_command(paths: tuple[Path, ...]) -> None:
    """Print the key of a run from its shares, for --key-command.

    The command line of run, measure or phsafe then names files and no secret. Prints 64 hexadecimal digits,
    or nothing.

    Example: opendas run run.toml --out out --key-command "opendas keys join a.share b.share c.share"
    """
    from opendas.custody.run_key import KeyShare, join_shares

    click.echo(join_shares([KeyShare.load(path) for path in paths]).hex())


def _show(path: Path, fingerprint: str, pem: str, as_json: bool) -> None:
    if as_json:
        emit_json({"public_key": path, "fingerprint": fingerprint, "pem": pem})
    else:
        click.echo(f"{pem}fingerprint {fingerprint}")


@click.command("sign")
@out_argument
@click.option("--key", required=True, metavar="KEY", type=PATH, help="Private key that signs.")
@passphrase_file_option
@json_option
def sign_command(out: Path, key: Path, passphrase_file: Path | None, as_json: bool) -> None:
    """Sign the certificate in OUT, as the option --sign does when a command issues it.

    Writes certificate.sig beside it; anyone with the public key checks it with verify --signed-by. A
    certificate that is issued again, as by tabulate, has to be signed again.

    Example: opendas sign out --key office.key
    """
    written = open_signing_key(key, passphrase_file)(out)
    if as_json:
        emit_json({"signature": written})
    else:
        click.echo(str(written))


class _Ledger(click.Group):
    """A group whose first argument is a book, unless it is a subcommand."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["show", *args]
        return super().resolve_command(ctx, args)


@click.group("ledger", cls=_Ledger)
def ledger_command() -> None:
    """Create or show the account of a data set: opendas ledger BOOK [--json].

    A book holds every act on the data: measurements, readings without noise, keys destroyed, publications.
    Given to a run by --ledger BOOK, or found by a run on the same input, it refuses an act that would
    exceed its limit, before anything is drawn.

    Example: opendas ledger create patients.book --limit-rho 3 --unit patient

    Example: opendas ledger patients.book
    """


@ledger_command.command("create")
@click.argument("book", metavar="BOOK", type=PATH)
@click.option("--limit-rho", "rho", metavar="R", help="Limit, as the rho of zCDP.")
@click.option("--limit-epsilon", "epsilon", metavar="E", help="Limit, as an epsilon; with --delta.")
@click.option("--delta", metavar="D", help="Where the epsilon of the limit is meant.")
@click.option(
    "--unit", metavar="NAME", required=True, help="What is protected: person, housing-unit, patient, ..."
)
@click.option(
    "--neighbours",
    type=click.Choice(["bounded", "unbounded"]),
    default="bounded",
    show_default=True,
    help="The limit is about one unit replaced, or one added or removed.",
)
@json_option
def create_command(book: Path, as_json: bool, **options: Any) -> None:
    """Create the account of a data set: a new file BOOK, and BOOK.key beside it.

    The key tags the inputs, so that a run on the same data finds the book by itself (OPENDAS_BOOKS names the
    folder where it looks). Keep both like the input.

    Example: opendas ledger create patients.book --limit-epsilon 10 --delta 1e-10 --unit patient
    """
    import opendas

    rho, epsilon, delta = (options[name] for name in ("rho", "epsilon", "delta"))
    if (rho is None) == (epsilon is None) or (epsilon is None) != (delta is None):
        raise click.UsageError("give --limit-rho R, or --limit-epsilon E with --delta D.")
    answer = opendas.create_ledger(book, **options)
    if as_json:
        emit_json(answer)
    else:
        click.echo(f"{book}: {_limit(answer)}")
        click.echo(f"give it to the first run: opendas run RUN.toml --ledger {book}")


@ledger_command.command("add")
@click.argument("book", metavar="BOOK", type=PATH)
@click.option("--rho", metavar="R", required=True, help="What it cost one protected unit of the book.")
@click.option("--note", metavar="TEXT", required=True, help="What was released, where and when.")
def add_command(book: Path, rho: str, note: str) -> None:
    """Enter a loss that was spent elsewhere: by another program, or before BOOK was made.

    Example: opendas ledger add patients.book --rho 1/2 --note "annual report 2029"
    """
    import opendas

    answer = opendas.add_to_ledger(book, rho, note)
    click.echo(f"spent: rho {answer['spent']['rho']}; left: rho {answer['left']['rho']}")


@ledger_command.command("show")
@click.argument("book", metavar="BOOK", type=PATH)
@json_option
def show_book_command(book: Path, as_json: bool) -> None:
    """Show what a data set has spent, for each change, and every act on it.

    Example: opendas ledger show patients.book
    """
    import opendas

    answer = opendas.ledger(book)
    if as_json:
        emit_json(answer)
        return
    click.echo(_limit(answer))
    click.echo(f"spent: rho {answer['spent']['rho']}; left: rho {answer['left']['rho']}")
    click.echo()
    columns = ["change", "neighbours", "rho", "acts", "uncovered"]
    click.echo(text_table(answer["totals"], columns))
    click.echo()
    acts = [{"n": number, **act} for number, act in enumerate(answer["acts"], start=1)]
    click.echo(text_table(acts, ["n", "act", "product", "unit", "rho", "run"]))
    if any(total["uncovered"] for total in answer["totals"]):
        message("uncovered: acts on the same units whose loss under that relation was not derived.")


def _limit(answer: Mapping[str, Any]) -> str:
    limit = answer["limit"]
    declared = f" (epsilon {limit['epsilon']} at delta {limit['delta']})" if "epsilon" in limit else ""
    return f"limit: rho {limit['rho']}{declared} for {answer['change']}, {answer['neighbours']} neighbours"
