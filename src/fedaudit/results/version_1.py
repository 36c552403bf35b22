"""Records of version 1, which had a list for each kind of figure, as those of this version.

Documents are converted before they are checked: what does not look like a figure of version 1 is
left as it is, for the format to refuse.
"""

from collections.abc import Mapping

VERSION_1 = 1
GROUP_METHOD = "DeLong 95%"
"""Of an AUC within a group: version 1 stated none there, and made them all so."""


def from_version_1(document: Mapping[str, object]) -> dict[str, object]:
    """The document as this version has it; content hash and numbers stay what they are."""
    found = {name: value for name, value in document.items() if name not in ("findings", "groups")}
    found["version"] = 2
    given = [document.get("findings", []), document.get("groups", [])]
    fault = next((one for one in given if not isinstance(one, list)), None)
    whole, groups = (one if isinstance(one, list) else [] for one in given)
    estimates = [*map(_finding, whole), *map(_group, groups)]
    return found | {"estimates": estimates if fault is None else fault}


def _finding(given: object) -> object:
    if not isinstance(given, dict):
        return given
    found = {name: value for name, value in given.items() if value is not None}
    found.setdefault("value", None)
    low, high = (found.pop(f"{side}_at_threshold", None) for side in ("low", "high"))
    if low is not None or high is not None:
        found["at_threshold"] = {"low": low, "high": high}
    if "significant" in found:
        found["tests"] = [{"significant": found.pop("significant")}]
    return found


def _group(given: object) -> object:
    if not isinstance(given, dict):
        return given
    method = {"method": GROUP_METHOD} if given.get("low") is not None else {}
    return {"metric": "auc", **method, **given}
