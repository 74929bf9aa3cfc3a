"""Every Python process of a life starts here: `PYTHONPATH` leads to this folder, in worker processes too."""

import os

if "OPENDAS_CRASH" in os.environ:
    from audit.crashes.recorder import start

    start(os.environ["OPENDAS_CRASH"])
