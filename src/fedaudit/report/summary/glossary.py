"""One line of explanation for each term that a summary uses."""

import re

_SIGNALS = {
    "loss": "minus the loss",
    "confidence": "probability of the true class",
    "max_posterior": "largest probability of any class",
    "posterior_std": "spread of the probabilities",
    "minus_entropy": "minus the entropy",
    "minus_modified_entropy": "minus the modified entropy",
    "gradient-cosine": "gradient-update cosine",
    "projection-residual": "minus the projection residual",
    "gradient-norm": "minus squared gradient norm",
    "gradient-difference-raw": "gradient difference",
    "gradient-difference-sum": "gradient difference, rescaled",
}


def signal_name(signal: str) -> str:
    """Return what the values of a signal are; larger values stand for members."""
    plain = signal.removeprefix("global_")
    meaning = _SIGNALS.get(plain, plain.replace("_", " "))
    return meaning if plain == signal else f"{meaning}, global model"


_TERMS: tuple[tuple[str, str, str], ...] = (
    (
        "Adversary, view",
        r"[Aa]dversary|\bview\b",
        "whoever tries to learn about the training data, with exactly what “It sees” lists",
    ),
    ("Client", r"clients?\b", "one participant, such as a hospital, that trains on its own data"),
    (
        "Member, non-member",
        r"members?\b",
        "a sample that was in the audited training data, and a comparable one that was not",
    ),
    (
        "Unseen samples",
        r"\bunseen\b",
        "samples that no client trained on",
    ),
    (
        "Attack",
        r"attacks?\b",
        "a published method that gives each sample a score: higher means likelier a member",
    ),
    (
        "AUC",
        r"\bAUC\b",
        "share of pairs of one member and one non-member in which the attack ranks the member "
        "higher: 0.5 is guessing, 1 is always right",
    ),
    (
        "TPR at a FPR",
        r"\bTPR\b",
        "share of members found (true-positive rate) when that share of non-members is wrongly "
        "accused (false-positive rate)",
    ),
    (
        "Range (95%)",
        r"95%",
        "confidence interval: over many audits like this one, 95% of such ranges hold the true "
        "value",
    ),
    (
        "Guessing",
        r"[Gg]uess",
        "what somebody would reach who knows nothing about the model",
    ),
    (
        "Training run, seed",
        r"\bseeds?\b|training runs?\b",
        "the training repeated with other random numbers",
    ),
    (
        "ε (epsilon)",
        r"ε|\b[Ee]psilon",
        "limit of what a release can reveal of one unit; 0 reveals nothing, and a smaller one "
        "reveals less. “At least” is what the audit proves and never shows that a claim is kept",
    ),
    (
        "From labels alone",
        r"labels alone",
        "a guess by the class of a sample, without a look at the model",
    ),
    (
        "Pooled clients",
        r"pooled clients",
        "all audited clients judged together, each with its own members and non-members",
    ),
    (
        "Loss",
        r"\bloss\b",
        "how badly a model predicts a sample; it is often lower for samples that it was trained on",
    ),
    (
        "Gradient-update cosine",
        r"gradient-update cosine",
        "whether what a client sent points where training on the sample would lead",
    ),
    (
        "Not refuted",
        r"not refuted",
        "the audit found less than the limit, which does not show that the limit is kept",
    ),
    (
        "Canary",
        r"[Cc]anary",
        "an artificial sample or client, made to be easy to recognise, so that it shows the worst "
        "case",
    ),
    (
        "Defense",
        r"[Dd]efense",
        "a change to training or uploads that is meant to make the model reveal less",
    ),
    (
        "Update, upload",
        r"\bupdates?\b|\buploads?\b",
        "what a client sends to the server after training: how its data changed the model",
    ),
    (
        "Round",
        r"\brounds?\b",
        "one exchange: the server sends a model, clients train it and send back what changed",
    ),
    (
        "Label distributions",
        r"label distributions?",
        "how often each class occurs at each client, which can identify a client without any "
        "attack on the model",
    ),
    (
        "Unlearning",
        r"[Uu]nlearning|deletion",
        "removing samples from a trained model without training it again from the start",
    ),
    (
        "Control",
        r"[Cc]ontrols?\b",
        "a check with a known right answer; if one fails, the figures that it is about do not "
        "count",
    ),
    (
        "Neuron, mechanism",
        r"[Nn]euron|mechanism",
        "the part that a dishonest server plants in the model, and the noise that clients add "
        "against it",
    ),
    (
        "Digest (SHA-256)",
        r"[Dd]igest|SHA-256",
        "a fingerprint: any change to the result gives another one",
    ),
)


def explained(text: str) -> tuple[tuple[str, str], ...]:
    """Return the terms that a text uses, each with its explanation.

    Args:
        text: Everything that a summary prints.
    """
    return tuple((term, meaning) for term, pattern, meaning in _TERMS if re.search(pattern, text))
