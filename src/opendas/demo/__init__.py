"""A made state and a made nation: data to try everything on, with nobody's data in it."""

from opendas.demo.generator import DemoState, make_state, write_demo
from opendas.demo.nation import plan_nation, write_nation

__all__ = ["DemoState", "make_state", "plan_nation", "write_demo", "write_nation"]
