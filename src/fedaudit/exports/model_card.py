"""Hugging Face model card of the audit, with estimates as machine-readable metadata."""

from fedaudit.core.importing import raise_if_missing
from fedaudit.exports.evidence import Evidence, describe_check
from fedaudit.formatting.wording import printable_record
from fedaudit.gate.outputs import policy_section
from fedaudit.gate.policy import read_policy
from fedaudit.pack.packing import POLICY_FILE
from fedaudit.summary.page import summary_markdown


def model_card(evidence: Evidence) -> str:
    """Return a model card in Markdown, with the summary as text and judged estimates as metadata.

    Raises:
        BadInput: The package huggingface_hub is not installed.

    Source: Hugging Face Hub, model cards and ``model-index``.
    """
    raise_if_missing("huggingface_hub", needed_by="this export", extra="exports")
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    record, verdict = printable_record(evidence.record), evidence.verdict
    data_name = str(evidence.manifest.data) or "not stated"

    def result(metric: str, name: str, value: float) -> EvalResult:
        return EvalResult(
            task_type="other",
            task_name="privacy audit of federated learning",
            dataset_type=data_name,
            dataset_name=data_name,
            metric_type=metric,
            metric_name=name,
            metric_value=value,
        )

    figures = [
        result(check.metric, describe_check(check), value) for check, _, value in evidence.judged
    ]
    metadata = ModelCardData(
        model_name=record.name,
        tags=["federated-learning", "membership-inference", "fedaudit"],
        eval_results=figures or None,
    )
    policy = evidence.folder / POLICY_FILE
    section = policy_section(evidence.record, verdict, read_policy(policy), policy)
    text = summary_markdown(evidence.record, section, statement=evidence.statement)
    return str(ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n{text}"))
