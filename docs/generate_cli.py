"""Write docs/cli.md from the commands themselves, or check with --check that it is up to date."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from opendas.cli.main import COMMANDS, cli

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 100

HEADER = """\
# Commands

<!-- Written by docs/generate_cli.py. Do not edit: a test compares this page with the commands. -->

Data go to stdout, messages and progress to stderr. `--json` answers are strict JSON: no NaN, no Infinity.

| Exit code | Meaning |
|---|---|
| 0 | done |
| 1 | a check failed |
| 2 | wrong usage, configuration or budget sum, or an output folder that holds something else |
| 3 | wrong input data |
| 4 | privacy refusal: a reused key, other input, a relation under which the guarantee would be empty |
| 5 | infeasible constraints, or no solver reached a certified solution |
| 6 | environment: disk, permission, a missing extra |
| 70 | internal error |
| 130 | interrupted |

The shell completes commands, options and files with the Tab key after one line in its start-up file:

```text
~/.bashrc (bash 4.4 or later)            eval "$(_OPENDAS_COMPLETE=bash_source opendas)"
~/.zshrc (below compinit)                eval "$(_OPENDAS_COMPLETE=zsh_source opendas)"
~/.config/fish/completions/opendas.fish  _OPENDAS_COMPLETE=fish_source opendas | source
```
"""


def _sections(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    """Yield the text of a command, and of its subcommands."""
    context = click.Context(
        command, info_name=name, parent=parent, max_content_width=WIDTH, terminal_width=WIDTH
    )
    title = context.command_path
    depth = "##" if parent is None or parent.parent is None else "###"
    yield f"{depth} {title}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from _sections(found, child, context)


def page() -> str:
    """Return the whole page."""
    root = click.Context(cli, info_name="opendas", **cli.context_settings)
    parts = [HEADER]
    for name in COMMANDS:
        command = cli.get_command(root, name)
        if command is None:
            raise LookupError(name)
        parts += _sections(command, name, root)
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" in arguments:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        if not same:
            sys.stderr.write(f"{PAGE} is out of date: run python {Path(__file__).name}\n")
        return 0 if same else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
