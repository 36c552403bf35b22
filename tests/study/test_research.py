"""Signals, samples, comparisons, grids, figures and tables of audits in Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from IPython.core.formatters import DisplayFormatter

import fedaudit as fa
from fedaudit.core.errors import BadArgument, BadInput
from fedaudit.results.record import ControlResult, Record
from fedaudit.study.comparing import compare_records

FEDERATION = fa.Federation(
    "synthetic",
    clients=fa.partitions.IID(3, samples_per_client=100),
    algorithm=fa.algorithms.FedAvg(rounds=3, epochs=1),
)
NOISE = fa.defenses.DPSGD(clip=1.0, noise_multiplier=0.5)
SETTINGS: dict[str, Any] = {
    "audit": fa.Audit(samples=60, background=0),
    "figures": fa.Figures(permutations=20, blind_classifier=False),
}
GRID = fa.Grid(FEDERATION, {"defenses": {"none": [], "DP-SGD_1 & more": [NOISE]}})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("grid")


@pytest.fixture(scope="module")
def runs(folder: Path) -> fa.GridRuns:
    GRID.audit(folder, attacks=["loss-series"], targets=[0, 1], seeds=[1], **SETTINGS)
    measured = {path: path.stat().st_mtime_ns for path in folder.glob("*/seed-1/measured/*")}
    attacks = ["loss-series", "fedmia-1"]
    runs = GRID.audit(folder, attacks=attacks, targets=[0, 1], seeds=[1, 2], **SETTINGS)
    assert len(measured) == 6
    assert measured == {path: path.stat().st_mtime_ns for path in measured}
    return runs


@pytest.fixture(scope="module")
def run(runs: fa.GridRuns) -> fa.Run:
    return runs["none"]


def test_scores_follow_from_the_table_of_signals(run: fa.Run) -> None:
    signals, samples = run.signals("loss"), run.samples()
    assert isinstance(signals, pandas.DataFrame)
    assert isinstance(samples, pandas.DataFrame)
    assert [*signals] == ["seed", "round", "client", "sample", "label", "owner", "loss"]
    assert len(signals) == 2 * 3 * 3 * signals["sample"].groupby(signals["seed"]).nunique().mean()
    for (seed, target), audited in samples.groupby(["seed", "target"]):
        of_target = signals[(signals.seed == seed) & (signals.client == target)]
        scores = of_target.groupby("sample").loss.mean()[audited["sample"]]
        assert scores.to_numpy() == pytest.approx(audited["loss-series"].to_numpy())
        owners = of_target.groupby("sample").owner.first()[audited["sample"]].to_numpy()
        assert ((owners == target) == audited.is_member).all()
        assert (audited.is_member == (audited.origin == "member")).all()
        assert ((owners == -1) == (audited.origin == "unseen")).all()
    ids, expected, _ = run.scores("fedmia-1", target=1, seed=2)
    chosen = samples[(samples.seed == 2) & (samples.target == 1)]
    assert (chosen["sample"].to_numpy() == ids).all()
    assert (chosen["fedmia-1"].to_numpy() == expected).all()


def test_signals_without_pandas_are_rows(run: fa.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = run.signals("loss", seed=2)
    assert isinstance(frame, pandas.DataFrame)
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    assert run.signals("loss", seed=2) == frame.to_dict("records")


def test_unknown_signals_and_seeds_are_refused(run: fa.Run, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no measured signal named 'los'; did you mean 'loss'"):
        run.signals("los")
    with pytest.raises(BadInput, match="there is no seed 7; set seed= to one of 1, 2"):
        run.signals(seed=7)
    (tmp_path / "record.json").write_bytes((run.folder / "record.json").read_bytes())
    with pytest.raises(BadInput, match="the measured signals are not next to the record"):
        fa.Run(tmp_path).signals()


def test_a_comparison_equals_that_of_the_command(runs: fa.GridRuns, tmp_path: Path) -> None:
    records = [run.record for run in runs.values()]
    compared = fa.compare(*(run.folder for run in runs.values()))
    assert compared.comparison == compare_records(records) == runs.compare().comparison
    frame = compared.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    noisy = frame[(frame.defense != "none") & (frame.metric == "auc")]
    entries = [e for e in compared.comparison.entries if e.row == 1 and e.metric == "auc"]
    changes = [np.nan if e.change is None else e.change.value for e in entries]
    assert noisy.change.tolist() == pytest.approx(changes, nan_ok=True)
    accuracies = frame[frame.metric == "test_accuracy"]
    assert len(accuracies) == 2
    assert accuracies.contrast.isna().all()
    assert repr(compared).startswith("<Comparison of none and DP-SGD")
    assert "dp-sgd" in str(compared)
    assert 'class="fedaudit-result"' in compared._repr_html_()
    assert compared.save_page(tmp_path / "page.html").read_text().startswith("<!")
    with pytest.raises(BadInput, match="at least 2 records, got 1"):
        fa.compare(records[0])
    with pytest.raises(BadInput, match="the folder of an audit; got an int"):
        fa.compare(records[0], 3)  # type: ignore[arg-type]


def test_a_grid_has_every_combination_and_its_estimates(runs: fa.GridRuns, folder: Path) -> None:
    assert list(runs) == ["none", "DP-SGD_1 & more"]
    assert {path.name for path in folder.iterdir()} == {run.folder.name for run in runs.values()}
    frame = runs.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    none = frame[(frame.defenses == "none") & (frame.metric == "auc") & frame.seed.isna()]
    estimates = runs["none"].record.estimates
    means = [e.value for e in estimates if e.metric == "auc" and e.seed is None and e.attack]
    assert sorted(none.value) == pytest.approx(sorted(v for v in means if v is not None))
    grid = fa.Grid(FEDERATION, {"model": ["mlp", "cnn"], "clients": [2, 5]})
    federations = grid.federations()
    assert list(federations) == ["mlp,2", "mlp,5", "cnn,2", "cnn,5"]
    assert federations["cnn,5"].clients == 5
    assert federations["cnn,5"].model == "cnn"
    with pytest.raises(KeyError, match="no point 'x'; points: none"):
        runs["x"]


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"defense": [[]]}, "no argument of Federation named 'defense'; did you mean 'defenses'"),
        ({"clients": []}, r"vary\['clients'\] must be a dictionary from labels to values, or a"),
        ({"clients": "35"}, r"vary\['clients'\] must be a dictionary"),
        ({"clients": list(range(2, 300))}, "this grid has 298 points, but at most 200"),
        ({"clients": ["many"]}, "clients must be a number of clients"),
    ],
)
def test_invalid_grids_are_refused(vary: Mapping[str, list[object]], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        fa.Grid(FEDERATION, vary)


def test_a_grid_needs_a_federation() -> None:
    with pytest.raises(BadArgument, match="federation of Grid takes a Federation, got 3"):
        fa.Grid(3, {})  # type: ignore[arg-type]


def test_roc_band_extends_over_the_seeds(run: fa.Run) -> None:
    record = run.record
    axes = fa.plots.roc(record, attacks=["loss-series"]).axes[0]
    assert len(axes.lines) == 2 + 1  # two targets, and chance level
    curves = [
        curve
        for curve in record.curves
        if (curve.attack, curve.contrast, curve.target) == ("loss-series", "mixed", 0)
    ]
    fprs, means = (np.asarray(values, float) for values in axes.lines[0].get_data())
    for fpr, mean in zip(fprs, means, strict=True):
        rates = [
            max((t for f, t in zip(c.fpr, c.tpr, strict=True) if f <= fpr), default=0)
            for c in curves
        ]
        assert mean == pytest.approx(np.mean(rates))
    assert len(axes.collections) == 2


def test_bars_and_fronts_have_the_values_and_limits_of_the_record(runs: fa.GridRuns) -> None:
    formatter: Any = DisplayFormatter()
    shown, _ = formatter.format(fa.plots.bars(runs, attacks=["fedmia-1"]))
    assert shown["image/png"]
    axes = fa.plots.bars(runs, attacks=["fedmia-1"]).axes[0]
    heights = [bar.get_y() + bar.get_height() for bar in axes.patches]  # type: ignore[attr-defined]
    expected = [
        estimate.value
        for run in runs.values()
        for target in (0, 1)
        for estimate in run.record.findings
        if (estimate.attack, estimate.metric) == ("fedmia-1", "auc")
        and (estimate.contrast, estimate.target, estimate.seed) == ("mixed", target, None)
    ]
    assert heights == pytest.approx(expected)
    compared = runs.compare()
    front = next(
        f
        for f in compared.comparison.fronts
        if (f.attack, f.metric) == ("strongest attack", "auc") and len(f.points) == 2
    )
    lines = fa.plots.front(compared, contrast=front.contrast).axes[0].lines
    points = {
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))  # type: ignore[index, arg-type]
        for line in lines
        if line.get_marker() == "o"
    }
    assert points == {(point.leakage, 1 - point.error) for point in front.points}
    with pytest.raises(BadInput, match="no trade-off of 'x'"):
        fa.plots.front(compared, attack="x")


def test_trajectories_have_a_line_for_each_origin(run: fa.Run) -> None:
    axes = fa.plots.trajectory(run, signal="loss", target=1, seed=2).axes[0]
    expected = [
        item.mean
        for item in run.record.trajectories
        if (item.signal, item.target, item.seed) == ("loss", 1, 2)
    ]
    assert [list(line.get_ydata()) for line in axes.lines] == expected  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"signal 'los'.*signals with trajectories: "):
        fa.plots.trajectory(run, signal="los")


def test_tables_state_value_and_interval_in_every_form(runs: fa.GridRuns) -> None:
    estimate = next(
        e
        for e in runs["none"].record.findings
        if (e.attack, e.metric, e.contrast, e.target, e.seed)
        == ("fedmia-1", "auc", "mixed", 0, None)
    )
    assert estimate.value is not None
    text = fa.table(runs)
    row = next(line for line in text.splitlines() if line.startswith("fedmia-1, client 0"))
    assert f"{estimate.value:.3f} (" in row
    assert "with 95% confidence intervals. Values are means over seeds." in text
    latex = fa.table(runs, "latex", caption="Leakage of 100 % of the clients")
    assert r"attack & none & DP-SGD\_1 \& more \\" in latex
    assert r"\caption{Leakage of 100 \% of the clients. AUC of members" in latex
    assert latex.count(r"\begin{") == latex.count(r"\end{") == 2
    assert "| attack | none | DP-SGD\\_1 &amp; more |" in fa.table(runs, "markdown")
    with pytest.raises(BadInput, match=r"no form of table named 'tex'; did you mean 'text'"):
        fa.table(runs, "tex")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"no values of the metric 'auk'.*metrics: auc, tpr@0.01"):
        fa.table(runs, metric="auk")


def test_a_table_marks_values_that_a_failed_control_invalidates(run: fa.Run) -> None:
    assert "*" not in fa.table(run)
    failed = ControlResult(
        control="untrained model",
        attack="fedmia-1",
        seed=1,
        target=0,
        value=0.9,
        expected="0.5",
        passed=False,
    )
    record = run.record.model_copy(update={"controls": [*run.record.controls, failed]})
    assert isinstance(record, Record)
    text = fa.table(record)
    marked = [line.split("  ")[0] for line in text.splitlines() if "* (" in line]
    assert marked == ["fedmia-1, client 0"]
    assert text.endswith(" *: not relied on: a control failed.")
