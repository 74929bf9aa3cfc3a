"""The command ``opendas``: its subcommands by name, each imported when it is called."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import click

from opendas.cli.failures import guarded
from opendas.custody.folders import writable
from opendas.custody.secret_files import forbid_core_files
from opendas.errors import EnvironmentFailure

COMMANDS = {
    "list": "start",
    "doctor": "start",
    "demo": "start",
    "make-nation": "start",
    "make-census": "start",
    "init": "init",
    "fetch": "start",
    "plan": "plan",
    "spine": "plan",
    "run": "runs",
    "measure": "runs",
    "estimate": "runs",
    "status": "runs",
    "forget-key": "runs",
    "ledger": "custody",
    "verify": "release",
    "sign": "custody",
    "keys": "custody",
    "publish": "runs",
    "tabulate": "release",
    "replicates": "release",
    "margin": "release",
    "interval": "release",
    "nmf": "release",
    "export": "release",
    "evaluate": "release",
    "compare": "compare",
    "swap": "compare",
    "account": "budget",
    "allocate": "budget",
    "explore": "start",
    "tune": "tune",
    "phsafe": "phsafe",
    "phsafe-post": "phsafe",
    "phsafe-accuracy": "phsafe",
}
"""Subcommand to the module that holds its function, in the order a newcomer meets them."""

IN_PYTHON = {"release": "run", "improve": "tune"}
"""Function of :mod:`opendas.api` to its command, where they differ and another would be the nearest word."""

LEAST_ADDRESSES = 4 << 30
"""Bytes of address space; a small run takes half of it, and some libraries abort where there is none left."""


class _LazyGroup(click.Group):
    """A group that imports a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        _check_addresses()
        if cmd_name != "doctor":  # which looks at what is there
            _keep_compiled_code()
        module = importlib.import_module(f"opendas.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_") + "_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from opendas.errors import nearest

            ctx.fail(f"no command {args[0]!r}; {nearest(IN_PYTHON.get(args[0], args[0]), COMMANDS)}")
        return super().resolve_command(ctx, args)


def _check_addresses() -> None:
    """Refuse to start where libraries would be ended by a limit of addresses, without a word, half-way."""
    for limit, option in ((resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")):
        allowed, _ = resource.getrlimit(limit)
        if allowed != resource.RLIM_INFINITY and allowed < LEAST_ADDRESSES:
            raise EnvironmentFailure(
                f"not enough memory: this process may address {allowed >> 20:,} MB (ulimit {option}). "
                f"OpenDAS maps {LEAST_ADDRESSES >> 20:,} MB, most of which it never uses. Lift the limit "
                f"(ulimit {option} unlimited); control groups bound memory (systemd-run -p MemoryMax=4G)."
            )


def _keep_compiled_code() -> None:
    """Give compiled kernels a folder for as long as this process lasts, where no other can be written."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    places = [chosen] if chosen else [str(Path(__file__).parents[1]), os.path.expanduser("~/.cache")]
    if not any(writable(Path(place)) for place in places):
        from opendas.cli.output import FOR_ONE_COMMAND

        folder = tempfile.mkdtemp(prefix=FOR_ONE_COMMAND)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["NUMBA_CACHE_DIR"] = folder


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"opendas {version('opendas')}")
        ctx.exit()


@click.command(
    cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version."
)
def cli() -> None:
    """Turn a confidential table over a hierarchy into a formally private release.

    Start with `opendas demo`, or `opendas init table DATA.csv` for your own data. Data go to stdout, messages
    and progress to stderr.

    Exit codes: 0 done; 1 a check failed; 2 wrong usage or configuration; 3 wrong input data; 4 privacy
    refusal; 5 infeasible or solver failure; 6 disk, permission or a missing extra; 70 internal error; 130
    interrupted.
    """


def _open_standard_streams() -> None:
    """Open what the caller closed (``2>&-``): else the next file opened takes its place, and its messages."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # It takes the lowest number that is free, and worker processes need it, too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


_MOMENT = 0.05  # seconds

_MANY_OBJECTS = 200_000
"""Newly made, after which cycles among them are looked for: a search at every 700 takes 5 % of a run."""


def interrupt(number: int, frame: FrameType | None) -> None:
    """End what runs, as Ctrl-C does; a moment later where the compiler calls back, which drops errors."""
    while frame is not None:
        if frame.f_code.co_name.startswith("_raw_object_cache_"):
            again = threading.Timer(_MOMENT, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code.

    SIGTERM, by which schedulers and service managers end a process, ends it as Ctrl-C does.
    """
    _open_standard_streams()
    forbid_core_files()
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as under nohup
        signal.signal(signal.SIGINT, interrupt)
    ours = arguments is None  # with arguments, the process is the caller's
    if ours:
        gc.set_threshold(_MANY_OBJECTS)  # loading modules makes many, none of them garbage
    code = guarded(cli, arguments)
    if ours:
        gc.freeze()  # what is left need not be searched for garbage: the process ends
    sys.exit(code)
