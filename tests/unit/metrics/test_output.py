"""Files of an evaluation: private, marked, strict, and without plots where matplotlib is missing."""

from __future__ import annotations

import csv
import json
import logging
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from opendas.errors import EnvironmentFailure
from opendas.geography.frame import Frame, official_codes
from opendas.metrics.evaluate import Evaluation, evaluate
from opendas.metrics.output import CONFIDENTIAL, evaluation_files, write_evaluation
from opendas.metrics.plots import evaluation_figures
from opendas.schema.histogram import Histogram
from opendas.schema.pl94 import pl94_persons


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    blocks = np.array([b"440010301001000", b"440010301001001", b"440030201001000", b"440030202001000"])
    frame = Frame(blocks, official_codes(blocks, "state"), "block")
    product = pl94_persons()
    generator = np.random.default_rng(7)
    shape = (4, product.schema.size)
    truth = generator.poisson(0.05, shape)
    estimate = np.maximum(truth + (generator.random(shape) < 0.01), 0)

    def sparse(dense: np.ndarray) -> Histogram:
        rows, cells = np.nonzero(dense)
        return Histogram.from_entries(rows, cells, dense[rows, cells], shape=shape)

    return evaluate(sparse(truth), sparse(estimate), frame, product)


def test_every_file_is_marked_and_private(tmp_path: Path, evaluation: Evaluation) -> None:
    folder = tmp_path / "confidential" / "evaluation" / "pl94-persons"
    written = write_evaluation(folder, evaluation)
    names = {path.name for path in written}
    assert {"evaluation.json", "errors.csv", "by_population.csv", "redistricting.csv", "errors.png"} <= names
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == names
    for path in written:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        if path.suffix != ".png":
            assert CONFIDENTIAL in path.read_text()
        else:
            assert path.read_bytes().startswith(b"\x89PNG")


def test_tables_hold_the_rows_of_the_answer(evaluation: Evaluation) -> None:
    files = evaluation_files(evaluation)
    answer = json.loads(files["evaluation.json"])
    assert answer["confidential"] is True
    lines = files["errors.csv"].decode().splitlines()
    table = list(csv.DictReader(lines[1:]))
    assert len(table) == len(evaluation.rows)
    for line, row in zip(table, evaluation.rows, strict=True):
        assert (line["geolevel"], line["query"]) == (row["geolevel"], row["query"])
        assert float(line["mean_abs_error"]) == row["mean_abs_error"]
        assert int(line["q0.975"]) == row["quantiles"]["0.975"]
    intervals = list(csv.DictReader(files["redistricting.csv"].decode().splitlines()[1:]))
    assert {line["population"] for line in intervals} >= {"0 to 49", "1,000+", "500+"}


def labels(figure: Figure) -> list[Text]:
    """All texts that are drawn; an axis also keeps labels of ticks outside its limits, which are not."""
    found = figure.findobj(Text)
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = (*axis.get_major_ticks(), *axis.get_minor_ticks())
            hidden = [tick for tick in ticks if not low <= tick.get_loc() <= high]
            found = [text for text in found if not any(text in (t.label1, t.label2) for t in hidden)]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def test_no_label_of_a_plot_meets_another_or_leaves_the_picture(evaluation: Evaluation) -> None:
    for name, figure in evaluation_figures(evaluation).items():
        figure.draw_without_rendering()
        boxes = [(text.get_text(), text.get_window_extent()) for text in labels(figure)]
        assert "CONFIDENTIAL" in dict(boxes)
        for at, (text, box) in enumerate(boxes):
            assert box.x0 > -1, (name, text)
            assert box.y0 > -1, (name, text)
            assert box.x1 < figure.bbox.x1 + 1, (name, text)
            assert box.y1 < figure.bbox.y1 + 1, (name, text)
            for other, second in boxes[at + 1 :]:
                assert not box.padded(-1).overlaps(second.padded(-1)), (name, text, other)


def test_a_plot_of_errors_has_a_panel_a_query_and_a_mark_a_level(evaluation: Evaluation) -> None:
    figure = evaluation_figures(evaluation)["errors"]
    panels = {ax.get_title(loc="left"): ax for ax in figure.axes}
    levels = list(dict.fromkeys(row.geolevel for row in evaluation.errors))
    queries = {row.query for row in evaluation.errors}
    assert set(panels) == {query.replace("_", " ") for query in queries}
    for query in queries:
        ax = panels[query.replace("_", " ")]
        marks = {int(mark.get_ydata()[0]): mark.get_xdata()[0] for mark in ax.get_lines()}
        expected = {
            levels.index(r.geolevel): r.errors.mean_abs_error for r in evaluation.errors if r.query == query
        }
        assert marks == {at: error for at, error in expected.items() if error}
        assert sum(text.get_text() == "0" for text in ax.texts) == sum(
            not error for error in expected.values()
        )


def test_same_evaluation_same_bytes(evaluation: Evaluation) -> None:
    assert evaluation_files(evaluation) == evaluation_files(evaluation)


def test_without_matplotlib_tables_are_written_and_a_message_says_so(
    tmp_path: Path, evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "opendas.metrics.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    with caplog.at_level(logging.WARNING):
        written = write_evaluation(tmp_path / "evaluation", evaluation)
    assert all(path.suffix in (".json", ".csv") for path in written)
    assert "opendas[plots]" in caplog.text


def test_refusal_of_the_disk_is_named(tmp_path: Path, evaluation: Evaluation) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(EnvironmentFailure, match="Could not write the evaluation"):
        write_evaluation(tmp_path / "taken", evaluation)
