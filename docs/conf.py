"""Builds the documentation: `make docs`. `docs/pages.py` makes four pages from the code first."""

import re
import runpy
from pathlib import Path

from sphinx.application import Sphinx

from fedaudit import __version__

project = "fedaudit"
copyright = "the fedaudit maintainers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
# Claims are rows of a table, whose anchors MyST does not know; a test follows every link.
suppress_warnings = ["myst.xref_missing"]
html_theme = "furo"
html_title = "fedaudit"
templates_path: list[str] = []
html_static_path = ["_static"]
html_css_files = ["claims.css"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def _for_sphinx(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Makes paragraphs of "Source: ..." and "Differs: ...", which Sphinx does not know."""
    found: list[str] = []
    inside = False
    for line in lines:
        label, colon, text = line.partition(": ")
        starts = bool(colon) and label in ("Source", "Differs")
        inside = starts or (inside and line.startswith("    "))
        if starts:
            found += ["", f"**{label}:** {text}"]
        elif inside:
            found[-1] += f" {line.strip()}"
        else:
            found.append(re.sub(r"``(\w+)``(\w)", r"``\1``\\ \2", line))
    lines[:] = found


def setup(app: Sphinx) -> None:
    """Makes the generated pages anew for every build."""
    # Before napoleon, which runs at the default priority of 500.
    app.connect("autodoc-process-docstring", _for_sphinx, priority=400)
    runpy.run_path(str(Path(app.srcdir) / "pages.py"), run_name="__main__")
