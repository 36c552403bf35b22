"""Networks of scikit-learn, averaged over clients and audited from a table of their outputs.

python examples/after-the-fact/scikit_learn.py && fedaudit attack runs/scikit-learn
"""

import copy

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

import fedaudit

CLIENTS, ROUNDS, EPOCHS, AUDITED, REFERENCES = 4, 8, 10, 150, 8


def average(models: list[MLPClassifier]) -> MLPClassifier:
    mean = copy.deepcopy(models[0])
    for name in ("coefs_", "intercepts_"):
        layers = zip(*(getattr(model, name) for model in models), strict=True)
        setattr(mean, name, [np.mean(layer, axis=0) for layer in layers])
    return mean


def reference_models(x: np.ndarray, y: np.ndarray, inputs: pd.DataFrame) -> pd.DataFrame:
    """Return the outputs of models that the adversary trained on its own data."""
    rng, tables = np.random.default_rng(2), []
    for number in range(REFERENCES):
        half = rng.permutation(len(y))[: len(y) // 2]
        model = MLPClassifier((64,), solver="sgd", learning_rate_init=0.1, max_iter=100)
        model.set_params(random_state=number).fit(x[half], y[half])
        table = pd.DataFrame(model.predict_proba(inputs.to_numpy())).add_prefix("probability_")
        tables.append(table.assign(model=number, sample=inputs.index))
    return pd.concat(tables)


def main() -> None:
    rng = np.random.default_rng(1)
    x, y = load_digits(return_X_y=True)
    x = x / 16
    # The last part of the data belongs to the adversary.
    client_of = rng.permutation(len(y)) % (CLIENTS + 1)
    # A coin toss decides for each audited sample whether its client trains on it.
    audited = np.concatenate(
        [rng.permutation(np.flatnonzero(client_of == c))[:AUDITED] for c in range(CLIENTS)]
    )
    is_member = rng.random(len(audited)) < 0.5
    held_out = audited[~is_member]

    model = MLPClassifier((64,), solver="sgd", learning_rate_init=0.1, random_state=1)
    model.partial_fit(np.zeros((1, 64)), [0], classes=np.arange(10))
    tables = []
    for round in range(1, ROUNDS + 1):
        models = []
        for client in range(CLIENTS):
            local = copy.deepcopy(model)
            rows = np.setdiff1d(np.flatnonzero(client_of == client), held_out)
            for _ in range(EPOCHS):
                for batch in np.array_split(rng.permutation(rows), len(rows) // 32):
                    local.partial_fit(x[batch], y[batch])
            models.append(local)
            # The signals: outputs of each client's model on all audited samples.
            table = pd.DataFrame(local.predict_proba(x[audited])).add_prefix("probability_")
            tables.append(table.assign(round=round, client=client, sample=audited))
        model = average(models)

    table = pd.concat(tables)
    table["label"] = y[table["sample"]]
    table["drawn_for"] = client_of[table["sample"]]
    members = {c: audited[is_member & (client_of[audited] == c)] for c in range(CLIENTS)}
    adversary = client_of == CLIENTS
    inputs = pd.DataFrame(x[audited], index=audited)
    fedaudit.from_signals(
        table,
        out="runs/scikit-learn",
        members=members,
        fair=True,
        references=reference_models(x[adversary], y[adversary], inputs),
    )


if __name__ == "__main__":
    main()
