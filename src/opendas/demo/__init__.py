"""A synthetic state, nation and census: data to try everything on, with nobody's data in it."""

from opendas.demo.census import SyntheticCensus, make_census
from opendas.demo.generator import DemoState, make_state, write_demo
from opendas.demo.nation import plan_nation, write_nation

__all__ = [
    "DemoState",
    "SyntheticCensus",
    "make_census",
    "make_state",
    "plan_nation",
    "write_demo",
    "write_nation",
]
