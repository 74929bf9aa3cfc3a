"""``python -m opendas``: the command line."""

from opendas.cli.main import main

main()
