"""A made state: data to try everything on, with nobody's data in it."""

from opendas.demo.generator import DemoState, make_state, write_demo

__all__ = ["DemoState", "make_state", "write_demo"]
