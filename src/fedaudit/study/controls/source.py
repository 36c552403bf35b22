"""Source attacks where there is nothing to find: models that nobody trained."""

from collections.abc import Iterator

import torch

from fedaudit.core.devices import CPU
from fedaudit.core.errors import Refusal
from fedaudit.core.seeds import seeded_numpy
from fedaudit.metrics.source import inferred_source, source_null, source_success
from fedaudit.results.record import ControlResult
from fedaudit.study.controls.membership import measured_untrained
from fedaudit.study.figures.source import posteriors, source_queries
from fedaudit.study.setup.parts import Setup

_SPREADS = 5
"""So far above shuffled owners no sound control lies, once in millions."""


def source_controls(run: Setup, device: torch.device = CPU) -> Iterator[ControlResult]:
    """Source attacks on models that nobody trained: they can know no more than label distributions.

    Args:
        run: The run.
        device: Where untrained models are measured.
    """
    samples = source_queries(run)
    if not run.on_source or samples is None:
        return
    once, twice = measured_untrained(run, samples.kept, device)
    for name, attack in run.on_source.items():
        result = ControlResult(
            control="untrained model",
            attack=name,
            defense=run.study.defense.label,
            seed=run.seed,
            expected="owners named no more often than label distributions explain, on models that "
            "nobody trained",
            value=None,
            passed=None,
        )
        slow = any(signal.name not in twice for signal in attack.signals)
        try:
            posterior = posteriors(run, attack, once if slow else twice, samples)
        except Refusal as refusal:
            yield result.model_copy(update={"note": str(refusal)})
            continue
        named = inferred_source(posterior)
        rng = seeded_numpy(run.seed, "untrained owners")
        null = source_null(named, samples.owner, within=samples.labels, rng=rng)
        limit = min(null.mean + _SPREADS * null.spread, 1.0)
        value = source_success(named, samples.owner).value
        yield result.model_copy(
            update={
                "value": value,
                "high": limit,
                "passed": value <= limit,
                "note": f"shuffles of owners within classes: {null.mean:.3f}, and "
                f"{_SPREADS} of their standard deviations above it {limit:.3f}",
            }
        )
