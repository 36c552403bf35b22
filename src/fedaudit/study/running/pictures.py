"""Images of a federation that trains a diffusion model: generated images and likely members."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedaudit.core.denoising import NOISE_STEPS, Denoising, signal_fraction
from fedaudit.core.errors import BadInput, Damaged
from fedaudit.core.modules import load_module
from fedaudit.core.seeds import seeded
from fedaudit.core.values import Capability, Model
from fedaudit.observe.round import Round
from fedaudit.observe.tensors import read_tensors, write_tensors
from fedaudit.plan.parts import Setup

if TYPE_CHECKING:
    from fedaudit.evaluation.truth import EvaluationResults

_FILE = "drawn.safetensors"
_STEPS = 50
"""Number of denoising steps for a generated image."""
_MAX_CONCEPTS = 10
_SCALE, _GAP = 3, 4
"""Factor by which images are enlarged, and number of pixels between images."""
_RANKING_ATTACK = "fedmia-2"
"""Attack whose scores choose the members that are shown."""


def store_pictures(run: Setup, round: Round) -> None:
    """Store an image for each concept that the first target's model generates, if it can."""
    target = run.study.audit.targets[0]
    # In other views, the adversary sees only models of several clients.
    sees_target_model = (
        Capability.UPLOADS in run.view.offers and target not in run.study.audit.merge
    )
    observed = round.observed.get(target)
    if not sees_target_model or observed is None or observed.local is None:
        return
    if not _generates_images(observed.local):
        return
    count = min(run.dataset.classes, _MAX_CONCEPTS)
    low, high = _pixel_range(run)
    pictures = generate(
        observed.local, torch.arange(count), low=low, high=high, rng=seeded(run.seed, "pictures")
    )
    write_tensors({"pictures": pictures}, run.folder / _FILE, owner_only=True)


def write_pictures(run: Setup, results: "EvaluationResults", path: Path) -> None:
    """Write an image of the target's most likely members, above images that its model generates.

    Each column is a concept. Nothing is written if no images were stored. The image shows personal
    data, so that no evidence pack contains it.

    Source: Zhu et al. 2024 (FedMIA), section 4.2: generated images next to images that FedMIA-II
        classifies as members.
    """
    if not (run.folder / _FILE).is_file() or not results.scores:
        return
    from PIL import Image

    from fedaudit.evaluation.truth import target_truth

    target = run.study.audit.targets[0]
    pictures = _read(run)
    by_attack = {
        name: scores
        for (seed, client, name), scores in results.scores.items()
        if (seed, client) == (run.seed, target)
    }
    if not by_attack:
        return
    scores = by_attack.get(_RANKING_ATTACK, next(iter(by_attack.values())))
    truth = target_truth(run, target)
    if truth.person is not None:
        return
    concepts, member_ids = [], []
    for concept in range(len(pictures)):
        members = np.flatnonzero(truth.is_member & (truth.labels == concept))
        if len(members):
            concepts.append(concept)
            member_ids.append(int(truth.ids[members[scores[members].argmax()]]))
    if not concepts:
        return
    samples = run.dataset.samples(torch.tensor(member_ids))
    assert samples.inputs is not None
    member_images = samples.inputs.unpack(samples.features)["sample"]
    low, high = _pixel_range(run)
    rows = [_row(images, low, high) for images in (member_images, pictures[concepts])]
    gap = np.full((_GAP, *rows[0].shape[1:]), 255, dtype=np.uint8)
    try:
        # Other users of this machine must not be able to read personal data.
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        Image.fromarray(np.concatenate([rows[0], gap, rows[1]])).save(path)
    except OSError as error:
        raise BadInput(f"{path} could not be written ({error}); free some space") from error


def _read(run: Setup) -> Tensor:
    """Read the images that :func:`store_pictures` stored."""
    path = run.folder / _FILE
    pictures = read_tensors(path)[0].get("pictures", torch.zeros(0))
    inputs = run.dataset.train.inputs
    fields = () if inputs is None else inputs.fields
    shape = next((field.shape for field in fields if field.name == "sample"), None)
    limit = min(run.dataset.classes, _MAX_CONCEPTS)
    if (
        pictures.shape[1:] != shape
        or not 0 < len(pictures) <= limit
        or not pictures.is_floating_point()
        or not bool(pictures.isfinite().all())
    ):
        raise Damaged(
            f"{path} has no valid images of this run; delete it for a report without images"
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
    """Generate one image per concept from noise with a diffusion model.

    Args:
        model: Model of the task ``denoising``.
        concepts: Concept of each image, on which the model is conditioned.
        low: Smallest pixel value of a sample.
        high: Largest pixel value of a sample.
        rng: Generator of the noise.

    Source: Song et al. 2021 (DDIM), Eq. (12) with sigma 0.
    Differs: The estimate of the clean image is clipped to the range of samples at every step.
    """
    task = model.architecture.task
    assert task.inputs is not None
    module = load_module(model, "evaluation").eval()
    steps = torch.linspace(NOISE_STEPS - 1, 0, _STEPS).long()
    # After the last step, an image has no noise.
    fractions = torch.cat([signal_fraction()[steps], torch.ones(1)]).float()
    pictures = torch.randn(len(concepts), *task.inputs.first_shape, generator=rng)
    with torch.no_grad():
        for index, step in enumerate(steps):
            times = step.expand(len(concepts), 1)
            noise = task.extract_outputs(module(pictures[:, None], times, concept=concepts))[:, 0]
            current, following = fractions[index], fractions[index + 1]
            clean = ((pictures - (1 - current).sqrt() * noise) / current.sqrt()).clamp(low, high)
            pictures = following.sqrt() * clean + (1 - following).sqrt() * noise
    return pictures


def _generates_images(model: Model) -> bool:
    task = model.architecture.task
    shape = task.inputs.first_shape if isinstance(task, Denoising) and task.inputs else ()
    names = [field.name for field in task.inputs.fields] if task.inputs else []
    return len(shape) == 3 and shape[0] in (1, 3) and names == ["sample", "concept"]


def _pixel_range(run: Setup) -> tuple[float, float]:
    """Return the smallest and largest value of a pixel."""
    inputs = run.dataset.train.inputs
    assert inputs is not None
    pixels = inputs.unpack(run.dataset.train.features)["sample"]
    return float(pixels.min()), float(pixels.max())


def _row(images: Float[Tensor, "n c h w"], low: float, high: float) -> np.ndarray:
    """Concatenate images to a row, with 8 bits and three channels."""
    pixels = ((images - low) / (high - low)).clamp(0, 1).mul(255).byte()
    pixels = pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1)
    large = pixels.repeat_interleave(_SCALE, 1).repeat_interleave(_SCALE, 2).numpy()
    gap = np.full((large.shape[1], _GAP, 3), 255, dtype=np.uint8)
    return np.concatenate([part for image in large for part in (image, gap)][:-1], axis=1)
