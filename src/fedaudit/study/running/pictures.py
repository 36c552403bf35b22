"""Pictures of a generative federation: images that a client's model generates, and its samples."""

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
"""Pixels for each pixel of an image, and pixels between images."""
_JUDGE = "fedmia-2"


def store_pictures(run: Setup, round: Round) -> None:
    """Store what the first target's model generates for each concept, if models generate images."""
    target = run.study.audit.targets[0]
    # In other views the target's model is the model of all clients.
    is_own_model = Sees.UPLOADS in run.view.offers and target not in run.study.audit.merge
    exposed = round.exposed.get(target)
    if not is_own_model or exposed is None or exposed.local is None:
        return
    if not _generates_images(exposed.local):
        return
    count = min(run.dataset.classes, _MOST_CONCEPTS)
    low, high = _range(run)
    pictures = generate(
        exposed.local, torch.arange(count), low=low, high=high, rng=seeded(run.seed, "pictures")
    )
    write_tensors({"pictures": pictures}, run.folder / _FILE, private=True)


def write_pictures(run: Setup, findings: "Findings", path: Path) -> None:
    """Write an image: the target's likeliest members above, and what its model generates below.

    Each column is a concept. Nothing is written if no pictures were stored. The image shows
    personal data, so that no evidence pack contains it.

    Source: FedMIA section 4.2: generated images next to those that FedMIA-II calls members.
    """
    if not (run.folder / _FILE).is_file() or not findings.scores:
        return
    from PIL import Image

    from fedaudit.evaluation.truth import target_truth

    target = run.study.audit.targets[0]
    pictures = _read(run)
    by_attack = {
        name: scores
        for (seed, client, name), scores in findings.scores.items()
        if (seed, client) == (run.seed, target)
    }
    if not by_attack:
        return
    scores = by_attack.get(_JUDGE, next(iter(by_attack.values())))
    truth = target_truth(run, target)
    if truth.subject is not None:
        return
    columns, originals = [], []
    for concept in range(len(pictures)):
        members = np.flatnonzero(truth.is_member & (truth.labels == concept))
        if len(members):
            columns.append(concept)
            originals.append(int(truth.ids[members[scores[members].argmax()]]))
    if not columns:
        return
    samples = run.dataset.samples(torch.tensor(originals))
    assert samples.inputs is not None
    members_row = samples.inputs.unpacked(samples.features)["sample"]
    low, high = _range(run)
    rows = [_row(images, low, high) for images in (members_row, pictures[columns])]
    gap = np.full((_GAP, *rows[0].shape[1:]), 255, dtype=np.uint8)
    try:
        # Personal data must not be readable by other users of this machine.
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        Image.fromarray(np.concatenate([rows[0], gap, rows[1]])).save(path)
    except OSError as error:
        raise BadInput(f"{path} could not be written ({error}); free some space") from error


def _read(run: Setup) -> Tensor:
    """Read the pictures of :func:`store_pictures`."""
    path = run.folder / _FILE
    pictures = read_tensors(path)[0].get("pictures", torch.zeros(0))
    inputs = run.dataset.train.inputs
    fields = () if inputs is None else inputs.fields
    shape = next((field.shape for field in fields if field.name == "sample"), None)
    limit = min(run.dataset.classes, _MOST_CONCEPTS)
    if (
        pictures.shape[1:] != shape
        or not 0 < len(pictures) <= limit
        or not pictures.is_floating_point()
        or not bool(pictures.isfinite().all())
    ):
        raise Damaged(
            f"{path} holds no pictures of this run; delete it for a report without pictures"
        )
    return pictures


def generate(
    model: Model,
    concepts: Int[Tensor, " pictures"],
    *,
    low: float,
    high: float,
    rng: torch.Generator,
) -> Float[Tensor, "pictures channels height width"]:
    """Generate one picture per concept from noise with a denoising model.

    Args:
        model: Model of the task ``denoising``.
        concepts: Conditions of the model.
        low: Smallest value of a sample.
        high: Largest value of a sample.
        rng: Generator of the noise.

    Source: Song et al. 2021 (DDIM), Eq. (12) with sigma 0.
    Differs: The estimate of the clean picture is clipped to the range of samples at every step.
    """
    task = model.architecture.task
    assert task.inputs is not None
    module = loaded(model, "evaluation").eval()
    steps = torch.linspace(NOISE_STEPS - 1, 0, _STEPS).long()
    signal_shares = torch.cat([signal_share()[steps], torch.ones(1)]).float()
    pictures = torch.randn(len(concepts), *task.inputs.shape, generator=rng)
    with torch.no_grad():
        for index, step in enumerate(steps):
            times = step.expand(len(concepts), 1)
            noise = task.extract_outputs(module(pictures[:, None], times, concept=concepts))[:, 0]
            now, after = signal_shares[index], signal_shares[index + 1]
            clean = ((pictures - (1 - now).sqrt() * noise) / now.sqrt()).clamp(low, high)
            pictures = after.sqrt() * clean + (1 - after).sqrt() * noise
    return pictures


def _generates_images(model: Model) -> bool:
    task = model.architecture.task
    shape = task.inputs.shape if isinstance(task, Denoising) and task.inputs else ()
    names = [field.name for field in task.inputs.fields] if task.inputs else []
    return len(shape) == 3 and shape[0] in (1, 3) and names == ["sample", "concept"]


def _range(run: Setup) -> tuple[float, float]:
    """Return the smallest and largest value of a pixel."""
    inputs = run.dataset.train.inputs
    assert inputs is not None
    pixels = inputs.unpacked(run.dataset.train.features)["sample"]
    return float(pixels.min()), float(pixels.max())


def _row(images: Float[Tensor, "n c h w"], low: float, high: float) -> np.ndarray:
    """Return images in a row, with 8 bits and three channels."""
    pixels = ((images - low) / (high - low)).clamp(0, 1).mul(255).byte()
    pixels = pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1)
    large = pixels.repeat_interleave(_SCALE, 1).repeat_interleave(_SCALE, 2).numpy()
    gap = np.full((large.shape[1], _GAP, 3), 255, dtype=np.uint8)
    return np.concatenate([part for image in large for part in (image, gap)][:-1], axis=1)
