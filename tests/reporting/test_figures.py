from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from nalb.reporting.drawing import png, shown
from nalb.reporting.link_figures import binned_rates, rates_over_run, representative
from nalb.reporting.page import FIGURES
from nalb.reporting.record import read_record
from nalb.reporting.share_figures import bytes_by_scheme, shares_over_iterations
from nalb.reporting.summary import command_hint, summarise, verdicts, workload_meaning
from nalb.reporting.time_figures import times_by_scheme
from tests.reporting.runs import write_fake_run

ALL = ("stock", "p3", "average", "elastic", "aware", "exact", "oracle")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("schemes", "nodes", "iterations"), [(("stock",), 1, 1), (("aware", "stock"), 3, 3), (ALL, 13, 4), (ALL[:4], 2, 0)]
)
def test_every_figure_is_drawn_for_small_and_large_runs(tmp_path, schemes, nodes, iterations):
    write_fake_run(tmp_path, schemes, nodes, iterations, changes=True)
    record = read_record(tmp_path)
    for figure in FIGURES:
        assert png(lambda draw=figure.draw: draw(record)).startswith(PNG), figure.file


@pytest.mark.jobs
def test_every_figure_is_drawn_without_events(tmp_path):
    write_fake_run(tmp_path)
    (tmp_path / "samples.jsonl").unlink()
    record = read_record(tmp_path)
    for figure in FIGURES:
        assert png(lambda draw=figure.draw: draw(record)).startswith(PNG), figure.file


def text_of(figure):
    return " ".join(text.get_text() for text in figure.texts)


def test_what_is_missing_is_said_and_not_drawn(tmp_path):
    write_fake_run(tmp_path, schemes=("stock",))
    record = read_record(tmp_path)
    by_file = {figure.file: figure.draw(record) for figure in FIGURES}
    for name in ("shares.png", "bytes.png", "rates_up.png", "rates_down.png", "throughput.png"):
        assert not by_file[name].axes, name
        assert "samples.jsonl" in text_of(by_file[name])
    assert by_file["times.png"].axes


def test_goodput_and_configured_rates_stand_where_they_should(tmp_path):
    write_fake_run(tmp_path)
    figure = rates_over_run(read_record(tmp_path), "up")
    panel = figure.axes[1]  # n1: 10 MB/s
    heights = [patch.get_data().values[0] for patch in panel.patches]
    assert heights == pytest.approx([80.0, 80.0, 80.0 * 1448 / 1514])
    assert list(panel.lines[0].get_ydata()) == pytest.approx([80.0 * 1448 / 1514] * 5)


def test_representative_is_nearest_to_the_median_after_the_warm_up(tmp_path):
    write_fake_run(tmp_path, schemes=("oracle", "aware"), iterations=7)
    scheme, number, step = representative(read_record(tmp_path))
    assert (scheme, number) == ("aware", 3 + 1)  # times repeat with k % 3; the middle one is first met at 4
    assert step.rows


def test_each_scheme_has_a_bound_of_its_own(tmp_path):
    """Schemes with other precisions send other bytes."""
    write_fake_run(tmp_path, schemes=("exact", "exact+int8"))
    record = read_record(tmp_path)
    for scheme, bounds in (("exact", [2.0] * 5), ("exact+int8", [0.7, 0.7, 0.5, 0.5, 0.6])):
        record.steps[scheme] = [
            replace(one, event=structs.replace(one.event, bound_s=bound))
            for one, bound in zip(record.steps[scheme], bounds, strict=True)
        ]
    for axes in times_by_scheme(record).axes:
        drawn = [tuple(line.get_ydata()) for line in axes.lines if list(line.get_xdata()) in ([-0.4, 0.4], [0.6, 1.4])]
        assert drawn == [(2.0, 2.0), (0.5, 0.5)]
        (band,) = axes.collections  # only of the one that varied
        low, high = band.get_datalim(axes.transData).get_points()
        assert [*low, *high] == pytest.approx([0.6, 0.5, 1.4, 0.6])


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 2), st.just(1), st.integers(0, 10**9),
            st.integers(0, 10**6), st.integers(0, 10**6),
        ),
        max_size=30,
    )
)  # fmt: skip
def test_binning_keeps_every_byte_that_crossed_a_link(rows):
    rows = [(s, t, push, size, start, start + length) for s, t, push, size, start, length in rows]
    edges_us = np.linspace(0, 2 * 10**6 + 1, 41)
    up, down = binned_rates(rows, 3, edges_us)
    widths_s = np.diff(edges_us) / 1e6
    for node in range(3):
        sent = sum(size for s, t, _, size, _, _ in rows if s == node != t)
        received = sum(size for s, t, _, size, _, _ in rows if t == node != s)
        assert (up[node] * widths_s).sum() == pytest.approx(sent)
        assert (down[node] * widths_s).sum() == pytest.approx(received)


def test_names_are_made_fit_for_figures():
    assert shown("n0") == "n0"
    assert shown("") == "(no name)"
    assert shown("_hidden").strip() == "_hidden"
    assert not shown("_hidden").startswith("_")
    assert shown("a\nb\x1b") == "a?b?"
    assert len(shown("x" * 500)) == 24


def test_summary_counts_after_the_warm_up_and_against_the_first(tmp_path):
    write_fake_run(tmp_path)
    stock, average, aware = summarise(read_record(tmp_path))
    assert stock.counted == 3
    assert stock.communication_s == pytest.approx(4.05)  # of 4.1, 4.0, 4.05
    assert stock.over_bound == pytest.approx(4.05 / 2.1, rel=0.05)
    assert stock.over_goodput_bound == pytest.approx(stock.over_bound * 2.0 / 2.1)
    assert stock.speed_up == 1
    assert aware.speed_up == pytest.approx(4.05 / (4.0 / 1.6 + 0.05))
    assert aware.link_error == 0.02
    assert np.isnan(average.link_error)


def test_verdicts_say_which_way_it_went(tmp_path):
    write_fake_run(tmp_path)
    rows = summarise(read_record(tmp_path))
    first, second, last = verdicts(rows)
    assert first.startswith("average exchanges gradients 1.3")
    assert "within the range" in second
    assert last.startswith("Nearest to the lossless bound is aware")
    assert last.endswith(f" and {rows[2].over_goodput_bound:.2f} times the goodput bound.")
    unknown = replace(rows[0], over_goodput_bound=float("nan"))
    assert "goodput" not in verdicts([unknown])[-1]
    rounded = replace(rows[1], answers=frozenset({"int8"}))
    assert not any("Nearest" in sentence for sentence in verdicts([rows[0], rounded]))  # bounds differ
    slower = replace(rows[0], speed_up=0.5)
    assert verdicts([rows[1], slower])[0].startswith("stock is slower than average: it takes 2.00 times as long")
    same = replace(rows[0], scheme="other", speed_up=1.01)
    assert verdicts([rows[0], same])[0].startswith("other takes about as long as stock (medians; their ranges overlap")


def test_workload_is_called_what_it_is(tmp_path):
    assert workload_meaning("replay mobilenet").startswith("Replay")
    assert "not training" in workload_meaning("replay mobilenet")
    assert workload_meaning("train cnn").startswith("Train")
    assert workload_meaning("magic").startswith("Not a kind")
    write_fake_run(tmp_path, workload="train cnn", network="my net; rm -rf x")
    assert command_hint(read_record(tmp_path)) == (
        "nalb compare --network 'my net; rm -rf x' --train cnn --schemes stock,average,aware --iterations 5"
        " --out NEW_DIR"
    )


def test_shares_are_drawn_of_the_iterations_that_nalb_planned(tmp_path):
    """In the others the framework routes by itself. Parts are of what travelled, which precisions change."""
    write_fake_run(tmp_path)
    record = read_record(tmp_path)
    *others, routed, small = record.steps["aware"]
    quarter = {node: share / 4 for node, share in small.event.shares.items()}
    routed, small = (
        replace(one, event=structs.replace(one.event, shares=shares))
        for one, shares in ((routed, {}), (small, quarter))
    )
    record.steps["aware"] = [*others, routed, small]
    bars = bytes_by_scheme(record).axes[0].patches
    assert bars
    assert all(np.isfinite(bar.get_height()) for bar in bars)
    parts = shares_over_iterations(record).axes[-2].images[0].get_array().filled(np.nan)
    assert np.isnan(parts[:, 3]).all()
    assert np.delete(parts, 3, axis=1).sum(axis=0) == pytest.approx(100)
