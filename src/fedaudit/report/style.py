"""Files of templates, and the style sheets of pages and of results in notebooks."""

from functools import cache
from pathlib import Path

CLASS = "fedaudit-result"
"""Class of the element around a result in a notebook."""

_DARK_HOSTS = '[data-jp-theme-light="false"], [data-theme="dark"], [theme="dark"], .vscode-dark'
_LIGHT_HOSTS = '[data-jp-theme-light="true"], [data-theme="light"], .vscode-light'
"""Pages that choose a theme: JupyterLab, Sphinx themes, Colab and Visual Studio Code."""


@cache
def package_file(name: str) -> str:
    """Return the text of a file in the folder of templates."""
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


@cache
def page_css() -> str:
    """Return the style sheet of reports and comparisons."""
    light, dark = package_file("light.css"), package_file("dark.css")
    return (
        f":root {{\n{light}}}\n"
        f"@media (prefers-color-scheme: dark) {{\n:root:not(.paper) {{\n{dark}}}\n}}\n"
        f"{package_file('screen.css')}{package_file('report.css')}"
    )


@cache
def embedded_css() -> str:
    """Return the style sheet of one result, which applies only within the result.

    Widths are those of the cell's output instead of the window. Colors follow the theme of the
    notebook, or that of the system if the notebook has none.
    """
    light, dark = package_file("light.css"), package_file("dark.css")
    rules = f"{package_file('screen.css')}{package_file('embedded.css')}"
    for bound in ("min", "max"):
        rules = rules.replace(f"@media ({bound}-width", f"@container ({bound}-width")
    on_light = ", ".join(f"{host} *" for host in _LIGHT_HOSTS.split(", "))
    return (
        f".{CLASS} {{\n{light}{rules}}}\n"
        f"@media (prefers-color-scheme: dark) {{\n.{CLASS}:not({on_light}) {{\n{dark}}}\n}}\n"
        f":is({_DARK_HOSTS}) .{CLASS} {{\n{dark}}}\n"
    )
