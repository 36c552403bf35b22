"""Generated images of diffusion models, and where reports show them."""

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import fedaudit as fa
from fedaudit.core.denoising import signal_fraction
from fedaudit.core.files import Lock
from fedaudit.core.tasks import pack_inputs
from fedaudit.core.values import Architecture, Model
from fedaudit.pack.packing import write_pack
from fedaudit.study.running.pictures import generate

SHAPE, CONCEPTS, COUNT = (3, 4, 4), 4, 160
PIXELS = torch.rand(COUNT, *SHAPE, generator=torch.Generator().manual_seed(3)) * 2 - 1


class Knowing(nn.Module):
    """The noise that there is if every image of a concept is its embedding."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.shape = shape
        self.concepts = nn.Embedding(classes, int(np.prod(shape)))

    def forward(self, noisy: Tensor, steps: Tensor, concept: Tensor) -> Tensor:
        image = self.concepts(concept).view(-1, 1, *self.shape)
        signal = signal_fraction().to(noisy)[steps].view(*steps.shape, 1, 1, 1)
        noise: Tensor = (noisy - signal.sqrt() * image) / (1 - signal).sqrt()
        return noise


def test_a_perfect_denoiser_generates_its_image() -> None:
    inputs, _ = pack_inputs({"sample": PIXELS, "concept": torch.zeros(COUNT, dtype=torch.int64)})
    task = fa.tasks.denoising()
    architecture = Architecture(
        "knowing", partial(Knowing, SHAPE, CONCEPTS), task=replace(task, inputs=inputs)
    )
    images = PIXELS[:CONCEPTS].flatten(1)
    model = Model(architecture, {"concepts.weight": images})
    for seed in (1, 2):
        rng = torch.Generator().manual_seed(seed)
        pictures = generate(model, torch.tensor([2, 0]), low=-1.0, high=1.0, rng=rng)
        torch.testing.assert_close(pictures, PIXELS[[2, 0]], atol=0.02, rtol=0)


def audited(out: Path, *attacks: str, view: str = "uploads") -> fa.Run:
    federation = fa.Federation(
        fa.Samples(PIXELS, torch.arange(COUNT) % CONCEPTS),
        clients=3,
        model=Knowing,
        task="denoising",
        algorithm=fa.algorithms.FedEmbedding(rounds=2, lr=0.1, optimizer="adam"),
    )
    audit = fa.Audit(samples=60, background=0, every=1)
    options = fa.AuditOptions(view=view)
    return fa.audit(federation, attacks=attacks, out=out, audit=audit, options=options)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fa.Run:
    return audited(tmp_path_factory.mktemp("run"), "loss-series", "fedmia-2")


def test_the_local_report_shows_members_and_generated_images(run: fa.Run) -> None:
    with Image.open(run.folder / "pictures.png") as image:
        width, height = image.size
    assert (width, height) == (CONCEPTS * 12 + 3 * 4, 2 * 12 + 4)
    assert "data:image/png" in run.save_report().read_text(encoding="utf-8")


def test_packs_contain_no_pictures(run: fa.Run, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('name = "any"\n[membership]\nauc = 0.99\n')
    write_pack(run.folder / "record.json", tmp_path / "policy.toml", tmp_path / "pack")
    for file in (tmp_path / "pack").rglob("*"):
        assert "picture" not in file.name
        assert not file.is_file() or b"data:image/png" not in file.read_bytes()


def test_a_file_that_is_no_picture_is_left_out_of_the_report(run: fa.Run, tmp_path: Path) -> None:
    (tmp_path / "pictures.png").write_bytes(b"<svg onload=alert(1)>")
    assert "data:image/png" not in run.save_report(tmp_path / "report.html").read_text("utf-8")


def test_pictures_are_readable_by_the_owner_only(run: fa.Run) -> None:
    for file in (run.folder / "pictures.png", run.save_report()):
        assert file.stat().st_mode & 0o077 == 0


def test_a_view_without_uploads_has_no_pictures_of_a_client(tmp_path: Path) -> None:
    result = audited(tmp_path, "loss-series", view="globals")
    assert not (result.folder / "pictures.png").exists()


def test_pictures_are_written_under_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquired = list[bool]()

    def try_to_lock(*arguments: object) -> None:
        with closing(Lock(tmp_path)) as lock:
            acquired.append(lock.acquire())

    monkeypatch.setattr("fedaudit.study.running.pictures.write_pictures", try_to_lock)
    audited(tmp_path, "loss-series")
    assert acquired == [False]
