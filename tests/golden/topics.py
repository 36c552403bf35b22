"""A small run of each topic, with its estimates as plain numbers."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from fedaudit.games.run import read_points, run_games
from fedaudit.gate.evaluate import evaluate_policy
from fedaudit.gate.policy import policy_from
from fedaudit.live.attack import attack_recording
from fedaudit.plan.sections import Study
from fedaudit.results.comparison import Comparison
from fedaudit.results.games import EXPECTED_SUCCESS, HELD_OUT, PREDICTED_NEGATIVES, SIGN_SUCCESS
from fedaudit.results.guessing import above_chance
from fedaudit.results.record import Record
from fedaudit.study.comparing import compare_records
from fedaudit.study.running.run import run_study
from tests.games.test_games import STUDY as SIGNS
from tests.games.test_rounds import STUDY as ROUNDS
from tests.live.test_recorder import recorded
from tests.study.studies import quick_study
from tests.study.test_clusters import clustered
from tests.study.test_sources import fedmd_study
from tests.study.test_tasks import CASES, audited

Numbers = tuple[float | None, ...]
Figures = dict[str, Numbers]

POLICY = """
name = "golden"
[membership]
auc = 0.6
tpr = { "0.01" = 0.05 }
contrasts = ["unseen"]
seeds = "each"
group_auc = 0.8
smallest_group = 5
[evidence]
least_learned = 0.0
"""
ATTACKS: Mapping[str, object] = {"fedmia-2": {}, "loss-series": {}}


def coalition(folder: Path) -> Figures:
    """Audit a client of CoFedMID's coalition over two seeds, also by group."""
    return dict(_membership(_defended()))


def comparison(folder: Path) -> Figures:
    """Compare the run with an undefended one: changes, accuracy, fronts."""
    plain = run_study(_study(), folder / "plain")
    return dict(_compared(compare_records([plain, _defended()])))


def gate(folder: Path) -> Figures:
    """Evaluate a policy on the run: the worst figure and the outcome counts of each check."""
    verdict = evaluate_policy(_defended(), policy_from(POLICY))
    values: Figures = {}
    for check in verdict.checks:
        for outcome, times in check.outcomes.items():
            values[f"{check.name} {outcome}"] = (times,)
        worst = check.worst
        if worst is not None:
            values[f"{check.name} worst"] = (worst.value, worst.low, worst.high)
        for result in check.open[:4]:
            needs = result.more.count if result.more else None
            values[f"{check.name} {result.what}"] = (result.value, result.low, result.high, needs)
    return {f"{verdict.outcome} {name}": numbers for name, numbers in values.items()}


def tasks(folder: Path) -> Figures:
    """Audit sequences of a small transformer and embeddings of a denoiser."""
    return {
        f"{name} {figure}": numbers
        for name in ("next-token", "denoising")
        for figure, numbers in _membership(audited(CASES[name], folder / name).record)
        # Classes have single samples, whose order may differ on another processor.
        if " class " not in figure
    }


def source(folder: Path) -> Figures:
    """Run source inference against FedMD's clients, which have different networks."""
    study = fedmd_study(model={"name": "mlp"}, seeds=[1, 2], attacks={"sia": {}, "sia-mean": {}})
    return dict(_sources(run_study(study, folder)))


def clusters(folder: Path) -> Figures:
    """Run IFCA-MIR with two groups of clients."""
    return dict(_clusters(run_study(clustered(seeds=[1, 2]), folder)))


def signs(folder: Path) -> Figures:
    """Run active membership inference in games that are decided by signs."""
    return dict(_games(_played(SIGNS, folder)))


def rounds(folder: Path) -> Figures:
    """Run active membership inference in simulated rounds."""
    return dict(_games(_played(ROUNDS, folder)))


def live(folder: Path) -> Figures:
    """Attack a recording of a custom loop."""
    attacks = ["blackbox-loss", "avg-cosine", "sia"]
    record = attack_recording(recorded(folder / "recording"), attacks, folder / "out")
    return {**dict(_membership(record)), **dict(_sources(record))}


TOPICS: Mapping[str, Callable[[Path], Figures]] = {
    topic.__name__: topic
    for topic in (coalition, comparison, gate, tasks, source, clusters, signs, rounds, live)
}


def _study(**changes: object) -> Study:
    return quick_study(
        seeds=[1, 2], attacks=ATTACKS, audit={"targets": [0]}, training={"rounds": 6}, **changes
    )


@cache
def _defended() -> Record:
    defense = {"name": "cofedmid", "clients": [0, 1], "options": {"start": 2}}
    with TemporaryDirectory() as folder:
        return run_study(_study(defense=defense), Path(folder))


def _played(text: str, folder: Path) -> Record:
    path = folder / "games.toml"
    path.write_text(text)
    return run_games(read_points(path), folder / "out")


def _membership(record: Record) -> Iterator[tuple[str, Numbers]]:
    for f in record.findings:
        name = f"{f.attack} {f.contrast} {f.metric} client {f.target} seed {f.seed}"
        point = f.at_threshold
        limits = (f.low, f.high, point.low if point else None, point.high if point else None)
        further = (f.n_members, f.n_nonmembers, f.realised_fpr, f.ceiling, f.significant)
        yield name, (f.value, *limits, *further)
    for g in record.groups:
        if g.contrast == "mixed" and g.attack == "fedmia-2":
            name = f"{g.attack} {g.by} {g.group} client {g.target} seed {g.seed}"
            yield name, (g.value, g.low, g.high, g.n_members, g.n_nonmembers)
    for c in record.controls:
        name = f"control {c.control} {c.attack} client {c.target} seed {c.seed}"
        yield name, (c.value, c.low, c.high, c.passed)
    trained = {estimate.seed: estimate.value for estimate in record.where(metric="train_accuracy")}
    for u in record.where(metric="test_accuracy"):
        yield f"accuracy seed {u.seed}", (u.value, u.low, u.high, trained[u.seed], u.samples)
    for use in record.usage:
        yield f"usage client {use.client} seed {use.seed}", (*use.distinct, use.extra_bytes)


def _sources(record: Record) -> Iterator[tuple[str, Numbers]]:
    for source in record.sources:
        coordinates = {"topic": "source", "attack": source.attack, "seed": source.seed}
        success, excess, baseline = record.where(**coordinates)
        tests = [test for figure in (success, excess, baseline) for test in figure.tests]
        limits = (success.value, success.low, success.high, tests[0].high, tests[1].level)
        p_values = (tests[0].p_value, tests[1].p_value, tests[2].level, tests[2].p_value)
        right = (source.samples, sum(row[i] for i, row in enumerate(source.confusion)))
        yield f"{source.attack} seed {source.seed}", (*limits, *p_values, *right)
    for name in dict.fromkeys(source.attack for source in record.sources):
        success, excess, _ = record.where(topic="source", attack=name, seed=None)
        above = above_chance(success) and above_chance(excess)
        adjusted = (success.tests[0].adjusted, excess.tests[0].adjusted, above)
        yield f"{name} over seeds", (success.value, success.low, success.high, *adjusted)
        yield f"{name} beyond class mixes", (excess.value, excess.low, excess.high)


def _clusters(record: Record) -> Iterator[tuple[str, Numbers]]:
    for mean in record.where(topic="clusters", seed=None):
        runs = record.where(topic="clusters", metric=mean.metric, group=mean.group)
        values = [estimate.value for estimate in runs if estimate.seed is not None]
        yield f"{mean.metric} of {mean.group}", (mean.value, mean.low, mean.high, *values)
    for result in record.clusters:
        for i, model in enumerate(result.rounds[-1].models):
            name = f"model {i} seed {result.seed}"
            yield name, (model.risk, model.low, model.high, model.estimated, model.members)


def _games(record: Record) -> Iterator[tuple[str, Numbers]]:
    for point in record.games:
        success, tpr, tnr = point.success, point.tpr, point.tnr
        rates = (tpr.value, tpr.low, tpr.high, tpr.total, tnr.value, tnr.low, tnr.high, tnr.total)
        yield f"{point.label} success", (success.value, success.low, success.high, *rates)
        bounds = (
            point.empirical_epsilon,
            point.actual_epsilon,
            point.claimed_epsilon,
            point.largest_success,
        )
        yield (
            f"{point.label} bounds",
            (*bounds, point.figure(PREDICTED_NEGATIVES), point.figure(HELD_OUT)),
        )
        if point.rounds is not None:
            by_signs = (point.figure(SIGN_SUCCESS), point.figure(EXPECTED_SUCCESS))
            yield f"{point.label} by signs", by_signs


def _compared(comparison: Comparison) -> Iterator[tuple[str, Numbers]]:
    for entry in comparison.entries:
        change = entry.change
        changed = (change.value, change.low, change.high) if change else ()
        name = f"row {entry.row} {entry.part} {entry.attack} {entry.contrast} {entry.metric}"
        yield name, (entry.value, entry.low, entry.high, entry.above, *changed)
    for row in comparison.on("utility"):
        change, figure = row.change, row.figure
        changed = (change.value, change.low, change.high) if change else ()
        yield f"row {row.row} accuracy", (figure.value, figure.low, figure.high, *changed)
    for position, front in enumerate(comparison.fronts):
        if front.attack == "strongest attack":
            area = (front.hypervolume, front.low, front.high, front.gain)
            points = [(point.leakage, point.error) for point in front.points]
            name = f"front {position} {front.contrast} {front.metric}"
            yield name, (*area, *(number for point in points for number in point))
