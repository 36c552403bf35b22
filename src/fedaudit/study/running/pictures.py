"""Pictures of a generative federation: what a client's embeddings draw, beside its own images."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.modules import loaded
from fedaudit.core.seeds import seeded
from fedaudit.core.tasks import NOISE_STEPS, Denoising, signal_share
from fedaudit.core.values import Model, Sees
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.plan.parts import Setup

if TYPE_CHECKING:
    from fedaudit.evaluation.truth import Findings

_FILE = "drawn.safetensors"
_STEPS = 50
_MOST_CONCEPTS = 10
_SCALE, _GAP = 3, 4
"""Pixels for each of an image, and between images."""
_JUDGE = "fedmia-2"


def draw(setup: Setup, round: Round, folder: Path) -> None:
    """Keeps what the first target's model draws of each concept, where models draw images.

    Args:
        setup: The run.
        round: Its last, as the adversary sees it.
        folder: Of the run.
    """
    target = setup.study.audit.targets[0]
    # Elsewhere what stands for the target's model is that of all.
    alone = Sees.UPLOADS in setup.view.offers and target not in setup.study.audit.merge
    seen = round.exposed.get(target)
    if not alone or seen is None or seen.local is None or not _draws_images(seen.local):
        return
    count = min(setup.dataset.classes, _MOST_CONCEPTS)
    low, high = _range(setup)
    pictures = drawn(
        seen.local, torch.arange(count), low=low, high=high, rng=seeded(setup.seed, "pictures")
    )
    write_tensors({"pictures": pictures}, folder / _FILE, private=True)


def write_pictures(setup: Setup, folder: Path, findings: "Findings", path: Path) -> None:
    """Writes an image: the target's likeliest members above, what its model draws below.

    A column is a concept. Nothing is written where nothing was drawn. The image shows people's
    data; no pack takes it.

    Args:
        setup: The run.
        folder: Its own.
        findings: With the attacks' scores.
        path: A PNG file.

    Source: FedMIA section 4.2: generated images beside those that FedMIA-II takes for members.
    """
    if not (folder / _FILE).is_file() or not findings.scores:
        return
    from PIL import Image

    from fedaudit.evaluation.truth import target_truth

    target = setup.study.audit.targets[0]
    pictures = _read(folder / _FILE, setup)
    given = {
        name: s
        for (seed, who, name), s in findings.scores.items()
        if (seed, who) == (setup.seed, target)
    }
    if not given:
        return
    scores = given.get(_JUDGE, next(iter(given.values())))
    truth = target_truth(setup, target)
    if truth.subject is not None:
        return
    columns, originals = [], []
    for concept in range(len(pictures)):
        theirs = np.flatnonzero(truth.is_member & (truth.labels == concept))
        if len(theirs):
            columns.append(concept)
            originals.append(int(truth.ids[theirs[scores[theirs].argmax()]]))
    if not columns:
        return
    samples = setup.dataset.samples(torch.tensor(originals))
    assert samples.inputs is not None
    own = samples.inputs.unpacked(samples.features)["sample"]
    low, high = _range(setup)
    rows = [_row(images, low, high) for images in (own, pictures[columns])]
    gap = np.full((_GAP, *rows[0].shape[1:]), 255, dtype=np.uint8)
    try:
        # People's data: nobody else on this machine is to see them.
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        Image.fromarray(np.concatenate([rows[0], gap, rows[1]])).save(path)
    except OSError as error:
        raise BadInput(f"{path} could not be written ({error}); free some space") from error


def _read(path: Path, setup: Setup) -> Tensor:
    """Return what :func:`draw` left."""
    pictures = read_tensors(path)[0].get("pictures", torch.zeros(0))
    inputs = setup.dataset.train.inputs
    fields = () if inputs is None else inputs.fields
    shape = next((field.shape for field in fields if field.name == "sample"), None)
    most = min(setup.dataset.classes, _MOST_CONCEPTS)
    if (
        pictures.shape[1:] != shape
        or not 0 < len(pictures) <= most
        or not pictures.is_floating_point()
        or not bool(pictures.isfinite().all())
    ):
        raise Damaged(
            f"{path} holds no pictures that this run drew; delete it, to have none in the report"
        )
    return pictures


def drawn(
    model: Model,
    concepts: Int[Tensor, " pictures"],
    *,
    low: float,
    high: float,
    rng: torch.Generator,
) -> Float[Tensor, "pictures channels height width"]:
    """Pictures that a denoising model makes of noise, one a concept.

    Args:
        model: Of the task ``denoising``.
        concepts: Conditions.
        low: Least value of a sample.
        high: Largest.
        rng: Of the noise.

    Source: Song et al. 2021 (DDIM), Eq. (12) with sigma 0.
    Differs: What is taken for the clean picture is cut to the range of samples at every step.
    """
    task = model.architecture.task
    assert task.inputs is not None
    module = loaded(model, "evaluation").eval()
    steps = torch.linspace(NOISE_STEPS - 1, 0, _STEPS).long()
    left = torch.cat([signal_share()[steps], torch.ones(1)]).float()
    made = torch.randn(len(concepts), *task.inputs.shape, generator=rng)
    with torch.no_grad():
        for index, step in enumerate(steps):
            at = step.expand(len(concepts), 1)
            noise = task.read(module(made[:, None], at, concept=concepts))[:, 0]
            now, after = left[index], left[index + 1]
            clean = ((made - (1 - now).sqrt() * noise) / now.sqrt()).clamp(low, high)
            made = after.sqrt() * clean + (1 - after).sqrt() * noise
    return made


def _draws_images(model: Model) -> bool:
    task = model.architecture.task
    shape = task.inputs.shape if isinstance(task, Denoising) and task.inputs else ()
    names = [one.name for one in task.inputs.fields] if task.inputs else []
    return len(shape) == 3 and shape[0] in (1, 3) and names == ["sample", "concept"]


def _range(setup: Setup) -> tuple[float, float]:
    """Least and largest value of a pixel."""
    inputs = setup.dataset.train.inputs
    assert inputs is not None
    pixels = inputs.unpacked(setup.dataset.train.features)["sample"]
    return float(pixels.min()), float(pixels.max())


def _row(images: Float[Tensor, "n c h w"], low: float, high: float) -> np.ndarray:
    """Images side by side, of 8 bits and three channels."""
    shown = ((images - low) / (high - low)).clamp(0, 1).mul(255).byte()
    shown = shown.expand(-1, 3, -1, -1).permute(0, 2, 3, 1)
    large = shown.repeat_interleave(_SCALE, 1).repeat_interleave(_SCALE, 2).numpy()
    gap = np.full((large.shape[1], _GAP, 3), 255, dtype=np.uint8)
    return np.concatenate([part for image in large for part in (image, gap)][:-1], axis=1)
