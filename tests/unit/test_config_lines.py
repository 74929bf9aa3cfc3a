"""Lines of keys: a scanner beside the standard parser."""

from __future__ import annotations

import tomllib

from opendas.runs.config.lines import line_of, scan_lines

TEXT = '''
# a comment with [brackets] = "x"
top = 1
[a]
b = "text # no comment"
"quoted key" = { x = 1, y = [1, 2] }
many = [
  "one",   # first
  { step = "two", deep = [
      3, 4 ] },
  """three
  lines""",
]
c.d = 2024-01-01 10:00:00
[[items]]
name = 'first'
[items.sub]
k = true
[[items]]
name = "second\\"]"
[z.'y w']
last = -1.5e3
'''


def _paths(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every path of parsed TOML data."""
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    else:
        pairs = []
    found = [path] if path else []
    for key, item in pairs:
        found += _paths(item, (*path, key))
    return found


def test_every_path_of_the_parsed_data_has_a_line() -> None:
    lines = scan_lines(TEXT)
    assert set(_paths(tomllib.loads(TEXT))) == set(lines)


def test_lines_are_where_the_keys_stand() -> None:
    lines = scan_lines(TEXT)
    rows = TEXT.split("\n")
    assert rows[lines["a", "b"] - 1].startswith("b =")
    assert rows[lines["a", "many", 0] - 1].strip().startswith('"one"')
    assert rows[lines["a", "many", 1, "step"] - 1].strip().startswith("{ step")
    assert rows[lines["a", "many", 1, "deep", 1] - 1].strip().startswith("3, 4")
    assert rows[lines["a", "many", 2] - 1].strip().startswith('"""three')
    assert rows[lines["items", 1, "name"] - 1].startswith('name = "second')
    assert rows[lines["items", 0, "sub", "k"] - 1] == "k = true"
    assert rows[lines["z", "y w", "last"] - 1].startswith("last")


def test_a_missing_key_is_placed_at_its_table() -> None:
    lines = scan_lines(TEXT)
    assert line_of(lines, ("a", "no such key")) == lines["a",]
    assert line_of(lines, ("nothing",)) is None
