"""Who may import whom (docs: "The idea that orders everything"), read from the source."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import fedaudit
from tests.report.records import record

ROOT = Path(fedaudit.__file__).parent
ARITHMETIC = "fedaudit.signals.kernels"
"""What gradients and their lengths are, layer by layer: attacks measure by it, DP-SGD clips."""
TRUTH = {"datasets.draws", "core.origin"}
"""Modules that know who trained on what."""
WORDS = {f"fedaudit.core.{name}" for name in ("errors", "files", "metric_names")}
"""Modules of the core that whatever reads records may know."""


class Import(NamedTuple):
    """One imported module, or a name within one ("fedaudit.core.values.Model")."""

    name: str
    at_once: bool  # when the file is imported, and not only in a function


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def imports(module: str) -> tuple[Import, ...]:
    return tuple(_imports(ast.parse(FILES[module].read_text(encoding="utf-8")), at_once=True))


def _imports(node: ast.AST, *, at_once: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, at_once) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute here"
        yield from (Import(f"{node.module}.{alias.name}", at_once) for alias in node.names)
    later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
        isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    )
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, at_once=at_once and not later)


def ours(module: str, *, at_once: bool = False) -> set[str]:
    """Modules of fedaudit that a module imports."""
    found = set()
    for name, first in imports(module):
        if name.split(".")[0] == "fedaudit" and (first or not at_once):
            # "from package import name": the name is a module, or stands in one.
            found.add(name if name in FILES else name.rpartition(".")[0])
    return found


def within(package: str) -> list[str]:
    start = f"fedaudit.{package}"
    return [name for name in FILES if name == start or name.startswith(start + ".")]


def breaches(package: str, forbidden: set[str]) -> list[str]:
    """Imports from a package of something that is forbidden there (a module or a package)."""
    full = {f"fedaudit.{name}" for name in forbidden}
    return [
        f"{module} imports {imported}"
        for module in within(package)
        for imported in sorted(ours(module))
        if any(imported == name or imported.startswith(name + ".") for name in full)
    ]


def test_the_source_is_found() -> None:
    assert len(FILES) > 50
    assert "fedaudit.core.values" in ours("fedaudit.fl.algorithms.fedavg")
    assert "fedaudit.study.setup.algorithm imports fedaudit.fl.algorithms.catalog" in breaches(
        "study", {"fl"}
    )
    assert ours("fedaudit.cli.running") > ours("fedaudit.cli.running", at_once=True)


@pytest.mark.parametrize("package", ["signals", "attacks"])
def test_an_attack_knows_neither_training_nor_defenses_nor_the_truth(package: str) -> None:
    above = {"fl", "defenses", "datasets", "study", "metrics", "report", "risk"}
    assert breaches(package, above | TRUTH) == []


@pytest.mark.parametrize("package", ["fl", "defenses"])
def test_training_knows_no_attack(package: str) -> None:
    forbidden = {"attacks", "signals", "metrics", "study", "report", "datasets", "risk"} | TRUTH
    found = breaches(package, forbidden)
    assert [breach for breach in found if f" imports {ARITHMETIC}." not in breach] == []


def test_whoever_measures_risk_attacks_and_trains_but_knows_no_truth() -> None:
    assert (
        breaches(
            "risk", {"datasets", "study", "report", "fl.simulate", "fl.algorithms.catalog"} | TRUTH
        )
        == []
    )
    metrics = {breach.split()[-1] for breach in breaches("risk", {"metrics"})}
    assert metrics <= {"fedaudit.metrics.balanced"}  # arithmetic on counts


def test_the_arithmetic_of_gradients_knows_neither_attack_nor_defense() -> None:
    assert breaches("signals.kernels", {"attacks", "fl", "defenses", "signals.base"} | TRUTH) == []


def test_what_is_observed_knows_neither_who_attacks_nor_the_truth() -> None:
    forbidden = {"fl", "attacks", "signals", "defenses", "metrics", "study", "report", "datasets"}
    assert breaches("observe", forbidden | TRUTH | {"risk"}) == []


def test_data_and_models_know_nothing_of_federations() -> None:
    above = {"fl", "attacks", "signals", "defenses", "metrics", "study", "report", "observe"}
    above |= {"risk"}
    assert breaches("datasets", above) == []
    assert breaches("models", above | {"datasets"}) == []


def test_other_frameworks_are_known_to_their_integration_alone() -> None:
    outside = set(FILES) - set(within("integrations"))
    for module in outside:
        packages = {name.split(".")[0] for name, _ in imports(module)}
        assert not packages & {"flwr", "nvflare"}, module
        assert not ours(module) & set(within("integrations")), module


def test_metrics_stand_on_numbers_alone() -> None:
    allowed = {"numpy", "scipy", "sklearn", "moocore", "fairlearn", "jaxtyping", "threadpoolctl"}
    known = {f"fedaudit.core.{name}" for name in ("errors", "metric_names", "origin")}
    known |= set(within("metrics"))
    for module in within("metrics"):
        packages = {name.split(".")[0] for name, _ in imports(module)}
        assert packages - allowed - {"fedaudit"} <= set(sys.stdlib_module_names), module
        assert ours(module) <= known, module


def test_results_stand_on_metrics_alone() -> None:
    below = {f"fedaudit.core.{name}" for name in ("seeds", "values")} | WORDS
    allowed = set(within("results")) | set(within("metrics")) | below
    for module in within("results"):
        assert ours(module) <= allowed, module
        packages = {name.split(".")[0] for name, _ in imports(module)}
        assert "torch" not in packages, module


def test_reports_read_records_only() -> None:
    allowed = set(within("report")) | set(within("results"))
    for module in within("report"):
        assert ours(module) <= allowed | WORDS | {"fedaudit"}, module
        packages = {name.split(".")[0] for name, _ in imports(module)}
        assert not packages & {"torch", "sklearn"}, module


def test_a_gate_reads_records_and_calculates_on_what_they_say() -> None:
    allowed = {name for part in ("gate", "report", "metrics", "results") for name in within(part)}
    allowed |= {"fedaudit.study.running.outputs"}
    allowed |= {f"fedaudit.study.settings.{name}" for name in ("toml", "values")}
    for module in within("gate"):
        assert ours(module) <= allowed | WORDS, module


def test_a_pack_is_made_and_checked_from_a_record_and_a_policy_alone() -> None:
    parts = ("gate", "report", "results", "pack")
    allowed = {name for part in parts for name in within(part)} | {"fedaudit"}
    # But for what makes the content hash again from a run, which measures and calculates.
    for module in set(within("pack")) - {"fedaudit.pack.remaking"}:
        assert ours(module) <= allowed | WORDS, module
        assert "fedaudit.pack.remaking" not in ours(module)


def test_the_rooms_of_a_study_stand_on_each_other() -> None:
    rooms = ["settings", "setup", "figures", "controls", "running", "front"]
    for at, room in enumerate(rooms):
        assert within(f"study.{room}")
        assert breaches(f"study.{room}", {f"study.{above}" for above in rooms[at + 1 :]}) == []


def test_rules_do_not_lean_on_each_other() -> None:
    machinery = {f"fedaudit.attacks.{name}" for name in ("base", "catalog", "rule")}
    rules = set(within("attacks")) - machinery - set(within("attacks.ami")) - {"fedaudit.attacks"}
    for rule in rules:
        assert not ours(rule) & (rules - {rule}), rule


def test_no_module_imports_itself_by_a_detour() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for other in sorted(ours(module, at_once=True) & set(FILES)):
                visit(other, (*path, module))
            done.add(module)

    for module in FILES:
        visit(module, ())


def loaded(code: str, of: set[str]) -> list[str]:
    """Which of some packages a fresh interpreter has loaded after a few statements."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*({of} & set(sys.modules)))"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.split()


HEAVY = {"torch", "numpy", "sklearn", "scipy", "pydantic"}


def test_help_answers_without_loading_anything_heavy() -> None:
    assert loaded("import fedaudit.cli", HEAVY) == []


def test_a_report_is_written_without_loading_what_trains_or_calculates(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(record(details=False).model_dump_json(), encoding="utf-8")
    code = f"from fedaudit.cli import report; from pathlib import Path; report(Path({str(path)!r}))"
    found = loaded(code, HEAVY)
    assert path.with_name("report.html").exists()
    assert set(found) <= {"report:", str(path.with_name("report.html")), "pydantic"}


def test_a_gate_judges_without_loading_what_trains(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(record(details=False).model_dump_json(), encoding="utf-8")
    code = (
        "from pathlib import Path; from fedaudit.gate.evaluate import evaluate_policy; "
        "from fedaudit.gate.policy import DEFAULT_POLICY, policy_from; "
        "from fedaudit.results.read import read_record; "
        f"evaluate_policy(read_record(Path({str(path)!r})), policy_from(DEFAULT_POLICY))"
    )
    assert loaded(code, {"torch", "sklearn", "scipy.stats", "scipy.optimize"}) == []


def test_figures_of_metrics_come_without_the_slow_halves_of_scipy_and_scikit_learn() -> None:
    slow = {"scipy.stats", "scipy.optimize", "sklearn", "pandas", "torch"}
    assert loaded("import fedaudit.metrics", slow) == []
