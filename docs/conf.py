"""Sphinx configuration of the documentation (`make docs`).

`docs/pages.py` first writes the pages that are generated from the code. The tutorials are notebooks
in MyST Markdown, which MyST-NB executes: a cell that raises fails the build.
"""

import logging
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from fedaudit import __version__

project = "fedaudit"
copyright = "the fedaudit maintainers"
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "jupyter_execute"]

nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_merge_streams = True
nb_render_markdown_format = "myst"
# Kernels inherit the environment: cells run `fedaudit` of this environment, in one thread.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ.setdefault("OMP_NUM_THREADS", "1")
logging.getLogger("traitlets").setLevel(logging.WARNING)
# A temporary profile: no settings of the user, and no warnings about the ports of kernels.
_profile = tempfile.TemporaryDirectory()
os.environ["IPYTHONDIR"] = _profile.name
_kernel_settings = Path(_profile.name) / "profile_default" / "ipython_kernel_config.py"
_kernel_settings.parent.mkdir()
_kernel_settings.write_text('get_config().IPKernelApp.log_level = "ERROR"\n', encoding="utf-8")

# Claims are rows of a table, whose anchors MyST does not know; a test follows every link.
suppress_warnings = ["myst.xref_missing"]
highlight_language = "none"
html_theme = "furo"
html_title = "fedaudit"
templates_path: list[str] = []
html_static_path = ["_static"]
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
html_css_files = ["claims.css", "notebooks.css", "papers.css"]

toc_object_entries = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False


def _convert_sections(
    app: Sphinx, what: str, name: str, documented: object, options: object, lines: list[str]
) -> None:
    """Turn the sections "Source: ..." and "Differs: ..." into paragraphs that Sphinx can render."""
    converted: list[str] = []
    in_section = False
    for line in lines:
        label, colon, text = line.partition(": ")
        starts_section = bool(colon) and label in ("Source", "Differs")
        in_section = starts_section or (in_section and line.startswith("    "))
        if starts_section:
            converted += ["", f"**{label}:** {text}"]
        elif in_section:
            converted[-1] += f" {line.strip()}"
        else:
            converted.append(re.sub(r"``(\w+)``(\w)", r"``\1``\\ \2", line))
    lines[:] = converted


def _without_tuple_fields(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Skip fields and the constructor of named tuples, which the class's docstring describes."""
    return name == "__new__" or type(member).__name__ == "_tuplegetter" or None


def _outdated_notebooks(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Execute the tutorials in every build, since their results depend on the package's code."""
    return [name for name in env.found_docs if name.startswith("tutorials/")]


def _without_build_paths(app: Sphinx, doctree: nodes.document) -> None:
    root = f"{Path(app.srcdir).parent}/"
    for block in doctree.findall(nodes.literal_block):
        if root in block.astext():
            text = block.astext().replace(root, "")
            block.children = [nodes.Text(text)]
            block.rawsource = text


def setup(app: Sphinx) -> None:
    """Write the generated pages before every build."""
    app.connect("doctree-read", _without_build_paths)
    # Before napoleon, which runs at the default priority of 500.
    app.connect("autodoc-process-docstring", _convert_sections, priority=400)
    app.connect("autodoc-skip-member", _without_tuple_fields)
    app.connect("env-get-outdated", _outdated_notebooks)
    runpy.run_path(str(Path(app.srcdir) / "pages.py"), run_name="__main__")
