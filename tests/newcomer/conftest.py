"""The paths are scripts for another interpreter, and not imported to look for examples in them."""

collect_ignore = ["agency.py", "demographer.py", "packager.py", "researcher.py", "steps.py"]
