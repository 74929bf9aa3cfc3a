"""Commands about keys that an office keeps: ``keys`` and ``sign``."""

from __future__ import annotations

from pathlib import Path

import click

from opendas.cli.options import PATH, json_option, open_signing_key, out_argument
from opendas.cli.output import emit_json, message

__all__ = ["keys_command", "sign_command"]

passphrase_file_option = click.option(
    "--passphrase-file",
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True),
    default=None,
    help="Passphrase of the key, one line, mode 0600; - is stdin.",
)


@click.group("keys")
def keys_command() -> None:
    """Keys that an office keeps: new and show for its signing key, split and join for the key of a run.

    A signing key hides nothing: it says who issued a release. The key of a run hides the records; where
    several people are to keep it, each has a share of it. For keys in an output folder see opendas
    forget-key.

    Example: opendas keys new office.key
    """


@keys_command.command("new")
@click.argument("path", metavar="PATH", type=PATH)
@passphrase_file_option
@click.option("--ask-passphrase", is_flag=True, help="Ask on the terminal for a passphrase.")
@json_option
def new_command(path: Path, passphrase_file: Path | None, ask_passphrase: bool, as_json: bool) -> None:
    """Make a signing key: PATH, mode 0600, and PATH.pub for everybody who checks.

    Example: opendas keys new office.key --ask-passphrase
    """
    from opendas.cli.options import new_passphrase
    from opendas.custody.signing_key import PUBLIC_SUFFIX, SigningKey
    from opendas.files.atomic import write_atomic

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
    """Make a key for a run in N shares, of which any K give it.

    The key itself is written nowhere. Writes DIR/1.share and so on, mode 0600: one for each officer. Together
    they are the key, so let DIR be in memory (as under /dev/shm), hand them out, and remove DIR. Fewer than K
    say nothing about the key. Make another set for each run.

    Example: opendas keys split --shares 5 --threshold 3 --to /dev/shm/shares
    """
    from opendas.custody.run_key import RunKey, save_shares, split_key

    key = RunKey.generate()
    paths = save_shares(split_key(key, shares, threshold), folder)
    if as_json:
        emit_json({"shares": paths, "threshold": threshold, "key_commitment": key.commitment()})
    else:
        click.echo("\n".join(map(str, paths)))
    message(f"{threshold} of these files are the key. Give each to another person, and leave none here.")


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
    """Sign the certificate in OUT, as --sign of the commands that issue one does.

    Writes certificate.sig beside it; anyone with the public key checks it with verify --signed-by. A
    certificate that is issued again, as by tabulate, has to be signed again.

    Example: opendas sign out --key office.key
    """
    sign = open_signing_key(key, passphrase_file)
    if sign is None:
        raise AssertionError("a key was given")
    written = sign(out)
    if as_json:
        emit_json({"signature": written})
    else:
        click.echo(str(written))
