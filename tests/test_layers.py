"""Imports between packages, compared with the allowed dependencies (docs/architecture.md)."""

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

EVERYTHING_BELOW = "everything below"
DEPENDENCIES: dict[str, str] = {
    "core": "",
    "metrics": "core.display core.errors core.importing core.lazy core.limits core.metric_names",
    "observe": "core",
    "engines": "core",
    "models": "core",
    "datasets": "core",
    "partitions": "core datasets.partitions.schemes",
    "results": "core.display core.errors core.files core.limits core.metric_names core.seeds "
    "metrics",
    "formatting": "core.metric_names core.sights results",
    "report": "core.errors core.files core.metric_names formatting results",
    "summary": "core.errors formatting report results",
    "sinks": "core.errors core.lazy formatting report results summary",
    # Gradient norms by layer, which attacks measure and DP-SGD clips.
    "signals.kernels": "core",
    "signals": "core observe engines signals.kernels",
    "attacks": "core observe engines signals",
    # Training calls a defense at every step, and a defense may define its own training.
    "fl.hooks": "core observe",
    "fl.accounting": "core.errors",
    "fl.training": "core engines signals.kernels fl.hooks",
    "defenses": "core observe signals.kernels fl.hooks fl.accounting fl.training",
    "fl": "core observe engines fl.hooks fl.training",
    "algorithms": "core fl",
    "risk": "core observe metrics.balanced signals attacks fl.hooks fl.training fl.algorithms",
    # Checking a filter needs neither training nor metrics.
    "filters": "core fl.hooks observe.round",
    # Settings contain names of the catalogues.
    "plan": "core observe.tensors observe.views results.older results.text "
    "attacks models fl.training.local algorithms defenses "
    "datasets.draws.fair datasets.partitions.schemes datasets.partitions.shifts metrics.catalogue "
    "risk.catalog",
    # Parts of a run that settings refer to.
    "plan.named": EVERYTHING_BELOW,
    "plan.assignment": EVERYTHING_BELOW,
    "plan.identity": EVERYTHING_BELOW,
    "plan.parts": EVERYTHING_BELOW,
    "plan.algorithm": EVERYTHING_BELOW,
    "evaluation": EVERYTHING_BELOW,
    # Each optional table of a study, from set-up to estimates.
    "extensions": EVERYTHING_BELOW,
    "study": "core.errors core.metric_names results plan",
    "study.build": EVERYTHING_BELOW,
    "study.running": EVERYTHING_BELOW,
    "games": EVERYTHING_BELOW,
    "live": EVERYTHING_BELOW,
    # Recordings of federations that have ended.
    "live.checkpoints": EVERYTHING_BELOW,
    "live.tables": EVERYTHING_BELOW,
    "guard": EVERYTHING_BELOW,
    "privacy_budget": EVERYTHING_BELOW,
    "gate": "core.display core.errors core.files core.metric_names core.naming metrics results "
    "formatting report summary plan.values study.running.outputs",
    "pack": "core.errors core.files core.importing core.metric_names core.values observe.views "
    "plan.values results formatting report summary gate",
    # A file of weights is compared with the models of a recording.
    "pack.models": "core live.checkpoints live.weights observe formatting.grid results pack",
    "exports": "core gate pack formatting results summary",
    "integrations": EVERYTHING_BELOW,
    # Pages on running audits.
    "watch": EVERYTHING_BELOW,
    # Comparison of attacks on frozen recordings.
    "benchmark": EVERYTHING_BELOW,
    # The Python interface to studies and games.
    "api": EVERYTHING_BELOW,
    "catalogue": EVERYTHING_BELOW,
    "tasks": "core",
    "errors": "core.errors",
    "views": "core.values observe.views",
    "plots": "core.arguments core.errors core.metric_names results report api",
    # Notebooks display results of every package.
    "display": EVERYTHING_BELOW,
    "cli": EVERYTHING_BELOW,
}
"""Packages from low to high, each with the lower packages and modules that it may import."""

EXCEPTIONS = {
    (
        "pack.recomputing",
        "live.attack",
    ): "records of recordings are recomputed from their measurements",
    ("pack.recomputing", "live.recording"): "with the settings of the recording",
    (
        "pack.recomputing",
        "study.running.folder",
    ): "records of studies are recomputed from their run folder",
    (
        "pack.recomputing",
        "study.running.reattack",
    ): "by repeating attacks, and measurements on kept updates",
    ("pack.recomputing", "plan.sections"): "recordings use the default evaluation settings",
    ("pack.choices", "attacks"): "names of attacks are those of the catalogue",
    ("pack.consistency", "attacks"): "as are their needs",
    ("pack.consistency", "attacks.base"): "as are their needs",
}
"""Imports that the table does not allow, with the reason for each."""

MEMBERSHIP = ("core.metric_names", "datasets.draws")
"""Modules that know the true membership."""
WITHOUT_MEMBERSHIP = (
    "observe",
    "engines",
    "models",
    "signals",
    "attacks",
    "defenses",
    "fl",
    "risk",
)
"""Packages that must not import them."""
MAY_IMPORT_REPORT = {"api", "integrations", "plots", "watch", "benchmark"} | {
    "display",
    "cli",
    "sinks",
}
"""Packages that may import report."""


class Import(NamedTuple):
    """An imported module, or a name within a module ("fedaudit.core.values.Model")."""

    name: str
    at_once: bool  # on import of the file, not only inside a function


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
        # An expression has no imports.
        if not isinstance(child, ast.expr):
            yield from _imports(child, at_once=at_once and not later)


def ours(module: str, *, at_once: bool = False) -> set[str]:
    """Return the modules of fedaudit that a module imports."""
    modules = set()
    for name, first in imports(module):
        if name.split(".")[0] == "fedaudit" and (first or not at_once):
            # In "from package import name", the name is a module or an object of one.
            modules.add(name if name in FILES else name.rpartition(".")[0])
    return modules


def within(package: str) -> list[str]:
    return [name for name in FILES if is_in(name, f"fedaudit.{package}")]


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@cache
def package_of(module: str) -> str:
    """Return the innermost listed package of a module; empty for the package itself."""
    around = [package for package in DEPENDENCIES if is_in(module, f"fedaudit.{package}")]
    return max(around, key=len, default="")


def package_imports() -> Iterator[tuple[str, str]]:
    """Yield every import between listed packages, without the prefix "fedaudit"."""
    for module in set(FILES) - {"fedaudit", "fedaudit.__main__"}:
        for other in ours(module) - {"fedaudit"}:
            if package_of(module) != package_of(other):
                yield module.removeprefix("fedaudit."), other.removeprefix("fedaudit.")


def allowed(module: str, other: str) -> bool:
    package, packages_in_order = package_of(f"fedaudit.{module}"), list(DEPENDENCIES)
    if DEPENDENCIES[package] == EVERYTHING_BELOW:
        below = packages_in_order.index(package_of(f"fedaudit.{other}")) < packages_in_order.index(
            package
        )
        return below and (not is_in(other, "report") or package in MAY_IMPORT_REPORT)
    return any(is_in(other, place) for place in DEPENDENCIES[package].split())


def test_source_files_and_imports_are_found() -> None:
    assert len(FILES) > 50
    assert "fedaudit.core.values" in ours("fedaudit.fl.algorithms.fedavg")
    assert ("plan.algorithm", "algorithms") in set(package_imports())
    assert ours("fedaudit.cli.running") > ours("fedaudit.cli.running", at_once=True)


def test_every_module_belongs_to_a_listed_package() -> None:
    assert {module for module in FILES if not package_of(module)} == {
        "fedaudit",
        "fedaudit.__main__",
    }
    assert all(within(package) for package in DEPENDENCIES)


def test_packages_depend_only_on_lower_layers() -> None:
    packages_in_order = list(DEPENDENCIES)
    for package, depends_on in DEPENDENCIES.items():
        for place in depends_on.split() if depends_on != EVERYTHING_BELOW else []:
            assert within(place), f"{package} depends on {place}, which does not exist"
            below = package_of(f"fedaudit.{place}")
            assert packages_in_order.index(below) < packages_in_order.index(package), (
                f"{package} depends on {place}"
            )


def test_modules_import_only_declared_dependencies() -> None:
    wrong = {pair for pair in package_imports() if not allowed(*pair)}
    assert sorted(wrong - set(EXCEPTIONS)) == []
    assert sorted(set(EXCEPTIONS) - wrong) == [], "an exception that is no longer needed"


def test_declared_dependencies_are_used() -> None:
    imported = list(package_imports())
    for package, depends_on in DEPENDENCIES.items():
        used = {other for module, other in imported if package_of(f"fedaudit.{module}") == package}
        for place in depends_on.split() if depends_on != EVERYTHING_BELOW else []:
            assert any(is_in(other, place) for other in used), f"{package} does not use {place}"


def test_training_measuring_and_attacks_cannot_import_membership() -> None:
    for module, other in package_imports():
        if any(is_in(module, package) for package in WITHOUT_MEMBERSHIP):
            assert not any(is_in(other, place) for place in MEMBERSHIP), f"{module} imports {other}"


def test_importing_the_package_loads_only_lazy_names() -> None:
    assert ours("fedaudit", at_once=True) == {"fedaudit.core.lazy"}


def test_only_integrations_import_other_frameworks() -> None:
    outside = set(FILES) - set(within("integrations"))
    for module in outside:
        packages = {name.split(".")[0] for name, _ in imports(module)}
        assert not packages & {"flwr", "nvflare"}, module
        assert not ours(module) & set(within("integrations")), module


LIBRARIES = {
    "metrics": {"numpy", "scipy", "sklearn", "moocore", "fairlearn", "jaxtyping", "threadpoolctl"},
    "results": {"jaxtyping", "numpy", "pandas", "pydantic", "pydantic_core", "sklearn"},
    "formatting": {"pydantic"},
    "report": {"jinja2", "markupsafe", "numpy", "pydantic", "rich"},
}
"""Third-party packages that metrics, results and reports may import."""


@pytest.mark.parametrize("package", LIBRARIES)
def test_metrics_results_and_reports_need_no_training_libraries(package: str) -> None:
    for module in within(package):
        packages = {name.split(".")[0] for name, _ in imports(module)} - {"fedaudit"}
        assert packages - LIBRARIES[package] <= set(sys.stdlib_module_names), module


def test_packing_and_verifying_do_not_import_recomputing() -> None:
    of_the_run = "fedaudit.pack.recomputing"
    for module in set(within("pack")) - {of_the_run}:
        assert of_the_run not in ours(module), module


def test_attack_rules_do_not_import_each_other() -> None:
    machinery = {"fedaudit.attacks.base", "fedaudit.attacks.catalogue"}
    rules = set(within("attacks")) - machinery - set(within("attacks.ami")) - {"fedaudit.attacks"}
    for rule in rules:
        assert not ours(rule) & (rules - {rule}), rule


def test_there_are_no_import_cycles() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for other in sorted(ours(module, at_once=True) & set(FILES)):
                visit(other, (*path, module))
            done.add(module)

    for module in FILES:
        visit(module, ())


def loaded(code: str, names: set[str]) -> list[str]:
    """Return which of these packages a new interpreter loads when it runs the code."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*({names} & set(sys.modules)))"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.split()


HEAVY = {"torch", "numpy", "sklearn", "scipy", "pydantic"}


def test_help_loads_no_heavy_libraries() -> None:
    assert loaded("import fedaudit.cli", HEAVY) == []


def test_a_report_is_written_without_loading_training_or_metrics(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(record(details=False).model_dump_json(), encoding="utf-8")
    code = f"from fedaudit.cli import report; from pathlib import Path; report(Path({str(path)!r}))"
    loaded_names = loaded(code, HEAVY)
    assert path.with_name("report.html").exists()
    assert set(loaded_names) <= {"report:", str(path.with_name("report.html")), "pydantic"}


@pytest.mark.slow
def test_a_gate_runs_without_loading_training(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(record(details=False).model_dump_json(), encoding="utf-8")
    code = (
        "from pathlib import Path; from fedaudit.gate.evaluate import evaluate_policy; "
        "from fedaudit.gate.policy import DEFAULT_POLICY, policy_from; "
        "from fedaudit.results.read import read_record; "
        f"evaluate_policy(read_record(Path({str(path)!r})), policy_from(DEFAULT_POLICY))"
    )
    assert loaded(code, {"torch", "sklearn", "scipy.stats", "scipy.optimize"}) == []


def test_a_budget_loads_no_training() -> None:
    assert loaded("import fedaudit.privacy_budget.budget", {"torch", "sklearn"}) == []


SLOW = {"scipy.special", "scipy.stats", "scipy.optimize", "sklearn", "pandas", "moocore"}
"""Packages that are slow to load, or that load slow ones."""


def test_metrics_load_no_slow_libraries() -> None:
    assert loaded("from fedaudit.metrics import *", SLOW | {"torch"}) == []


FIRST_ROUND = """
import contextlib, gc, os, pathlib
import fedaudit.core.progress, fedaudit.__main__

@contextlib.contextmanager
def progress_bars():
    def progress(phase, done, total):
        if done:
            print(*(SLOW | LATE) & set(sys.modules), "at the first round of", phase)
            print(gc.get_stats()[2]["collections"], gc.get_freeze_count() > 100_000)
            sys.stdout.flush()
            os._exit(0)
    yield progress

fedaudit.core.progress.progress_bars = progress_bars
fedaudit.__main__.main()
"""


@pytest.mark.slow
def test_a_small_study_loads_no_slow_libraries(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        'name = "small"\ndata.name = "digits"\npartition.clients = 3\ntraining.rounds = 2\n'
        "attacks.fedmia-2 = {}\n"
    )
    # The smallest detectable leak is stated before training, which needs the classes of records.
    late = {"jinja2", "PIL.Image", "fedaudit.report", "fedaudit.study.running.record"}
    late.add("fedaudit.defenses")  # The study uses no defense.
    code = f"import sys; SLOW, LATE = {SLOW}, {late}\n{FIRST_ROUND}"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", study, "--out", tmp_path / "out", "--workers", "1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # Imported objects are frozen, so no full garbage collection has run; a dozen would otherwise.
    expected = ["at the first round of seed 1: training rounds", "0 True"]
    assert done.stdout.splitlines()[-2:] == expected, done.stdout + done.stderr
    assert loaded("import fedaudit.games.run", SLOW) == []
