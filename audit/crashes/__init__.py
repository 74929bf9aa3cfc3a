"""The crash harness: real runs die at random moments and are resumed; nothing may be lost or drawn twice.

From the root of the repository::

    python -m audit.crashes --times 100 --seed 1 --out crash-results

Modules: :mod:`audit.crashes.recorder` works inside the dying process, :mod:`audit.crashes.disk` says what a
disk may hold after a power cut, :mod:`audit.crashes.subjects` what is run, :mod:`audit.crashes.ways` how it
dies, :mod:`audit.crashes.lives` does one life, :mod:`audit.crashes.trials` a run from first start to last
resumption, :mod:`audit.crashes.checks` looks at the folder, :mod:`audit.crashes.mutants` breaks the program
to show that this is noticed. What survives what, and how often this was tried:
``docs/explanation/crashes.md``.
"""
