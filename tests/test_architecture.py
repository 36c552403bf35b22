"""The architecture diagram matches the source, and files are opened in few places."""

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_layers import FILES, ours

DOCS = Path(__file__).parents[1] / "docs"
SRC = Path(__file__).parents[1] / "src" / "fedaudit"
SCRIPT = runpy.run_path(str(DOCS / "architecture.py"))
PUBLIC_MODULES = {
    *("algorithms", "errors", "partitions", "tasks", "views", "plots", "__main__"),
    "display",  # notebooks' views of results of all layers
}
"""Modules that only re-export names of packages."""


def test_the_diagram_is_up_to_date() -> None:
    assert (DOCS / "architecture.svg").read_text(encoding="utf-8") == SCRIPT["diagram"]()


@pytest.mark.slow
def test_every_package_is_in_the_diagram_and_imports_no_higher_layer() -> None:
    layers = [
        (name, layer, layer + box.n_layers - 1)
        for layer, boxes in enumerate(SCRIPT["LAYERS"])
        for box in boxes
        for name in box.name.split(", ")
    ]
    top = {name: highest for name, highest, _ in layers}
    bottom = {name: lowest for name, _, lowest in layers}
    modules = {name for name in FILES if name != "fedaudit"}
    assert {name.split(".")[1] for name in modules} - PUBLIC_MODULES == set(top)
    for module in modules:
        for other in ours(module) - {"fedaudit"}:
            package, imported = module.split(".")[1], other.split(".")[1]
            if not {package, imported} & PUBLIC_MODULES:
                assert top[package] <= bottom[imported], (
                    f"{module} imports {other}, from a higher layer"
                )


def test_only_observe_tensors_opens_tensor_files() -> None:
    opening = {
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if re.search(r"\bsafe_open\(|\.metadata\(\)", path.read_text())
    }
    assert opening == {"observe/tensors.py"}


OPENS = {
    *("open", "read_bytes", "read_text", "write_bytes", "write_text", "safe_open", "load_file"),
    *("memmap", "fromfile", "loadtxt", "genfromtxt", "imread", "ZipFile", "GzipFile", "FileIO"),
    *("np.load", "torch.load", "json.load", "tomllib.load", "pickle.load", "load_dataset"),
    *("load_dataset_builder", "fdopen", "rglob", "os.walk"),
}
"""Functions and methods that open files or list folders, by their last names."""

OPENED_ELSEWHERE = {
    "core.files.open_regular": "the function that opens regular files for all others",
    "core.files.write_atomically": "a new file",
    "core.files.open_to_append": "a regular file, checked before it is written",
    "core.importing.module_digest": "the file of a module that was imported",
    "core.definitions._bytes_of": "the same",
    "core.pretrained.read_minilm_file": "an installed package",
    "core.pretrained.load_pretrained": "by its path, after check_header",
    "observe.tensors.read_tensors": "the same",
    "observe.tensors.read_notes": "the same",
    "observe.tensors.has_hash": "the same",
    "observe.tensors.write_tensors": "a file that was just written",
    "datasets.generated.diabetes._bundled_patients": "an installed package",
    "datasets.generated.digits._read_table": "an installed package",
    "datasets.hubs.hf._load": "files of the datasets package, Parquet after a check",
    "datasets.formats.idx._read_array": "a stream of open_regular",
    "datasets.formats.images._read_header": "a stream of open_regular",
    "datasets.formats.npz.read_npz": "a stream of open_regular",
    "live.checkpoints.files._unpickled": "a stream of open_regular",
    "live.checkpoints.files._names_to_replace": "a stream of open_regular",
    "datasets.formats.npz._declared_bytes": "an entry of a stream of open_regular",
    "pack.models._further_contents": "a stream of open_regular",
    "games.samples._net": "an installed package",
    "report.page.package_file": "a file of this package",
    "formatting.fixed._texts": "a file of this package",
    "gate.policy._examples": "a file of this package",
    "exports.ro_crate._list_contexts": "a file that was just written",
    "cli.automating.init": "a file of this package",
    "benchmark.child._own_streams": "the null device",
    "results.ladder.read_ladder": "a file of this package",
    "cli.running.demo": "a file of this package",
    "cli.watching._open_browser": "a page in the browser",
    "sinks.records.log_audit": "a new file in a temporary folder",
    "sinks.tensorboard.TensorBoard.artifact": "a report that was just written",
    "cli.application._TerminalStream._discard_further_output": "the null device",
    "cli.application.robust_printing": "the null device",
    "cli.application._open_closed_descriptors": "the null device",
    "live.forking._close_others": "the null device",
    "filters.isolated._run_check": "the null device",
    "core.importing._entry_points": "metadata of an installed package",
    "pack.packing._fill": "a new file",
    "core.files.sync_folder": "a folder, to flush it",
}
"""Functions that open files themselves, and what they open."""


def opening(node: ast.AST, inside: str) -> Iterator[tuple[str, str]]:
    """Yield each function that opens a file, and the function that it calls for this."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        if {name.rpartition(".")[2], name} & OPENS and not is_ours(name):
            yield inside, name
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        inside = f"{inside}.{node.name}"
    for child in ast.iter_child_nodes(node):
        yield from opening(child, inside)


def is_ours(name: str) -> bool:
    """Return True for functions of core.files, which are called without a module name."""
    return name in ("read_bytes", "read_text")


@pytest.mark.slow
def test_user_files_are_opened_as_regular_files_only() -> None:
    opened = {
        place: name
        for module, path in FILES.items()
        for place, name in opening(
            ast.parse(path.read_text(encoding="utf-8")), module.removeprefix("fedaudit.")
        )
    }
    assert {p: n for p, n in opened.items() if p not in OPENED_ELSEWHERE} == {}
    assert OPENED_ELSEWHERE.keys() - opened.keys() == set(), "this exception is no longer needed"
