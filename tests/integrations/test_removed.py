"""Imports of removed names suggest a replacement."""

from importlib import import_module

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedaudit[flower]'")


@pytest.mark.parametrize("name", ["study_server", "study_client"])
def test_importing_a_removed_app_suggests_workers_and_ray(name: str) -> None:
    with pytest.raises(ImportError, match=r"--workers N`, .* with `--engine ray:auto`"):
        getattr(import_module("fedaudit.integrations.flower"), name)
