"""Runs many commands in one process: takes their words as JSON lines, writes their exit codes to a file."""

import json
import sys

from opendas.cli.failures import guarded
from opendas.cli.main import cli
from opendas.custody.secret_files import forbid_core_files

forbid_core_files()
codes = [guarded(cli, json.loads(line)) for line in sys.stdin]
with open(sys.argv[1], "w", encoding="ascii") as file:
    json.dump(codes, file)
