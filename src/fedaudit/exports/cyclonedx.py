"""CycloneDX 1.6 bill of materials with a model card that lists the judged estimates."""

import json

from fedaudit.core.importing import raise_if_missing
from fedaudit.exports.evidence import Evidence, describe_check, identifier
from fedaudit.formatting.wording import printable_record
from fedaudit.results.estimate import TEST_ACCURACY


def bill_of_materials(evidence: Evidence) -> str:
    """Return a bill of materials with the model, its ancestors and its model card, as JSON.

    The card lists the worst estimate for each ceiling of the policy, and the test accuracies. It
    states as limitations what the record says was not tested.

    Raises:
        BadInput: The package cyclonedx-python-lib is not installed.

    Source: CycloneDX 1.6, ``modelCard`` and ``performanceMetric``.
    """
    raise_if_missing("cyclonedx", needed_by="this export", extra="exports")
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType, Pedigree
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    manifest, file = evidence.manifest, evidence.model
    properties = {
        "fedaudit:outcome": str(evidence.verdict.outcome),
        "fedaudit:policy": manifest.policy_hash,
        "fedaudit:record": manifest.content_hash,
        "fedaudit:pack": manifest.digest,
    }
    if tensors := file.tensors_digest if file else manifest.model:
        properties["fedaudit:tensors"] = tensors
    ancestors = {"initial model": manifest.initial_model, "base model": manifest.base_model}
    model = Component(
        name=printable_record(evidence.record).name,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="model",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=file.sha256)] if file else [],
        properties=[Property(name=key, value=value) for key, value in properties.items()],
        pedigree=Pedigree(
            ancestors=[
                Component(
                    name=name,
                    type=ComponentType.MACHINE_LEARNING_MODEL,
                    properties=[Property(name="fedaudit:tensors", value=digest)],
                )
                for name, digest in ancestors.items()
                if digest
            ]
        ),
    )
    bom = Bom(components=[model], serial_number=identifier(manifest.digest, "pack"))
    bom.metadata.timestamp = evidence.started
    document = json.loads(
        make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    )
    # The library does not support model cards.
    document["components"][0]["modelCard"] = _model_card(evidence)
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _model_card(evidence: Evidence) -> dict[str, object]:
    metrics = [
        _metric(check.metric, describe_check(check), value, worst.low, worst.high)
        | {"slice": worst.what}
        for check, worst, value in evidence.judged
    ]
    metrics += [
        _metric(figure.metric, "", figure.value, figure.low, figure.high)
        | ({"slice": f"seed {figure.seed}"} if figure.seed is not None else {})
        for figure in evidence.record.estimates
        if figure.metric == TEST_ACCURACY and figure.value is not None
    ]
    return {
        "quantitativeAnalysis": {"performanceMetrics": metrics},
        "considerations": {
            "technicalLimitations": [f"Not tested: {text}" for text in evidence.manifest.untested]
        },
    }


def _metric(
    metric: str, check: str, value: float, low: float | None, high: float | None
) -> dict[str, object]:
    limits = {
        name: f"{limit:.6g}"
        for name, limit in (("lowerBound", low), ("upperBound", high))
        if limit is not None
    }
    kind = f"{metric} ({check})" if check else metric
    return {"type": kind, "value": f"{value:.6g}"} | (
        {"confidenceInterval": limits} if limits else {}
    )
