"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from opendas.custody.passphrase import Passphrase

_F = TypeVar("_F", bound=Callable[..., Any])
PATH: click.Path = click.Path(path_type=Path)
FOLDER: click.Path = click.Path(path_type=Path, file_okay=False)
FILE: click.Path = click.Path(path_type=Path, dir_okay=False)
GIVEN_FILE: click.Path = click.Path(path_type=Path, exists=True, dir_okay=False)
FILE_OR_STDIN: click.Path = click.Path(path_type=Path, allow_dash=True)


def together(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Return several options as one decorator; help lists them in this order."""

    def add(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


run_file_argument = click.argument("run_file", metavar="RUN.toml", type=PATH)


class _Place(click.Path):
    """A folder of this machine, or an address."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; only one of this machine is looked for."""
        from opendas.files.storage.addresses import RemotePath, located

        place = located(value)
        return place if isinstance(place, RemotePath) else super().convert(value, param, ctx)


MEASURED = _Place(path_type=Path, exists=True, file_okay=False)
out_argument = click.argument("out", metavar="OUT", type=PATH)
out_option = click.option(
    "--out", type=PATH, help="Output folder. Default: the run file's name without .toml."
)
to_option = click.option("--to", type=FOLDER, default=Path(), help="Folder.")
seeded_option = click.option(
    "--allow-seeded", is_flag=True, help="Accept a release whose noise came from a seed."
)
domain_option = click.option(
    "--allow-domain-from-records",
    is_flag=True,
    help="Accept a release that shows labels, levels, leaves or units read from the records.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
seed_option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Noise from a seed, for tests and research: stamps the release NOT FOR RELEASE.",
)
strict_option = click.option(
    "--strict", is_flag=True, help="A disagreement of the input with its own summary records is an error."
)
mdf_format_option = click.option(
    "--mdf-format",
    type=click.Choice(["parquet", "pipe"]),
    default="parquet",
    show_default=True,
    help="Layout of the microdata.",
)
resume_option = click.option(
    "--resume", is_flag=True, help="Finish an interrupted run, with the same noise; no budget is spent again."
)


read_records_option = click.option(
    "--read-records",
    is_flag=True,
    help="Open the confidential records where the frame comes from them, instead of refusing.",
)
group_writable_option = click.option(
    "--group-writable",
    is_flag=True,
    help="Let the group of OUT write there. Default: nobody else, whatever the umask.",
)


key_options = together(
    click.option(
        "--ledger",
        metavar="BOOK",
        type=PATH,
        help="The account of the data set, made by opendas ledger create.",
    ),
    click.option(
        "--key-command",
        metavar="CMD",
        help="Command that prints the run key (64 hexadecimal digits), as opendas keys join; not stored.",
    ),
    click.option(
        "--key-passphrase-file",
        metavar="FILE",
        type=FILE_OR_STDIN,
        help="Encrypt the stored key under the passphrase in FILE (one line, mode 0600; - is stdin).",
    ),
    click.option(
        "--ask-passphrase",
        is_flag=True,
        help="Ask on the terminal for the passphrase that encrypts the stored key.",
    ),
    click.option(
        "--keep-key",
        is_flag=True,
        help="Keep the stored key when the release is complete, to draw the rest of its measurements later.",
    ),
    group_writable_option,
)
ledger_option = click.option(
    "--ledger", metavar="BOOK", type=PATH, help="The account of the data set, in which this reading is noted."
)


sign_options = together(
    click.option(
        "--sign",
        metavar="KEY",
        type=PATH,
        help="Sign the certificate with the private key in KEY (opendas keys new makes one).",
    ),
    click.option(
        "--sign-passphrase-file",
        metavar="FILE",
        type=FILE_OR_STDIN,
        help="Passphrase of the signing key, one line, mode 0600. Default: asked for on the terminal.",
    ),
)


def open_signing_key(key: Path | None, passphrase_file: Path | None) -> Callable[[Path], Path]:
    """Return what signs an output folder and returns the file of the signature; without a key, does nothing.

    The key is opened now: a wrong passphrase is better known before a run than after it.

    Raises `click.UsageError` if the key is encrypted, and there is neither a passphrase nor a terminal to ask
    on; `PrivacyError` if it does not open.
    """
    if key is None:
        if passphrase_file is not None:
            raise click.UsageError("--sign-passphrase-file goes with --sign.")
        return lambda out: out
    from opendas.custody.passphrase import Passphrase, read_passphrase_file
    from opendas.custody.signing_key import SigningKey
    from opendas.report.signature import sign_release

    passphrase = None if passphrase_file is None else read_passphrase_file(passphrase_file)
    if passphrase is None and SigningKey.is_encrypted(key):
        if not sys.stdin.isatty():
            raise click.UsageError(f"{key} is encrypted: give a file with its passphrase.")
        passphrase = Passphrase(click.prompt(f"Passphrase of {key.name}", hide_input=True, err=True))
    private = SigningKey.load(key, passphrase)

    def sign(out: Path) -> Path:
        inside = out / "release"
        return sign_release(inside if inside.is_dir() else out, private)

    return sign


def new_passphrase(file: Path | None, ask: bool, name: str) -> Passphrase | None:
    """Return the passphrase of a new key, where one is wanted."""
    return _passphrase(file, ask, "--passphrase-file", name, new=True)


def given_passphrase(file: Path | None, ask: bool, out: Path, product: str) -> Passphrase | None:
    """Return the passphrase that the options name, after a trial on a key that is there already.

    Raises `click.UsageError` for both options together; `PrivacyError` if others can read the file, or the
    passphrase does not open the key of the run to be resumed.
    """
    key_file = out / "confidential" / "keys" / f"{product}.key"
    name, new = f"the key of {product}", not key_file.exists()
    passphrase = _passphrase(file, ask, "--key-passphrase-file", name, new=new)
    if passphrase is not None:
        from opendas.runs.context.workspace import check_passphrase

        check_passphrase(key_file, passphrase)
    return passphrase


def _passphrase(file: Path | None, ask: bool, option: str, name: str, *, new: bool) -> Passphrase | None:
    """Return a passphrase from a file, or ask without showing what is typed, twice for a new key."""
    from opendas.custody.passphrase import Passphrase, read_passphrase_file

    if file is not None and ask:
        raise click.UsageError(f"{option} and --ask-passphrase exclude each other.")
    if file is not None:
        return read_passphrase_file(file)
    if not ask:
        return None
    if not sys.stdin.isatty():
        raise click.UsageError(f"--ask-passphrase needs a terminal; where there is none, use {option}.")
    text = click.prompt(f"Passphrase of {name}", hide_input=True, confirmation_prompt=new, err=True)
    return Passphrase(text)


engine_options = together(
    click.option(
        "--engine",
        type=click.Choice(["local", "spark"]),
        default="local",
        show_default=True,
        help="Where it runs.",
    ),
    click.option(
        "--master",
        metavar="URL",
        help="Spark master (engine spark). Default: the Spark of this process, else a local one.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="Processes. Default: two, if there are two cores. Of a local Spark: tasks at a time.",
    ),
    resume_option,
)


def listed(given: tuple[str, ...]) -> list[str]:
    """Return names that an option lists, separated by commas or by its being repeated."""
    return [name.strip() for name in ",".join(given).split(",") if name.strip()]


def check_engine(engine: str, master: str | None) -> None:
    """Refuse a master that nobody would go to."""
    if master is not None and engine != "spark":
        raise click.UsageError("--master goes with --engine spark.")


def remember_out(out: Path | None, run_file: Path | None = None) -> Path:
    """Return the output folder, and note it for messages about a failure, with whether --resume applies."""
    chosen = out if out is not None else Path(run_file.stem if run_file is not None else "out")
    context = click.get_current_context()
    if isinstance(context.obj, dict):
        context.obj["out"] = chosen
        if "resume" in context.params and context.params.get("mode", "private") == "private":
            context.obj["resumable"] = chosen
    return chosen
