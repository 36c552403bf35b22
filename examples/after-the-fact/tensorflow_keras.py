"""A Keras network, averaged over clients and audited from a table of its outputs.

pip install tensorflow
python examples/after-the-fact/tensorflow_keras.py && fedaudit attack runs/tensorflow
"""

import keras
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits

import fedaudit

CLIENTS, ROUNDS, EPOCHS, AUDITED = 4, 8, 10, 150


def network() -> keras.Model:
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    return model


def main() -> None:
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(1)
    x, y = load_digits(return_X_y=True)
    x = x / 16
    client_of = rng.permutation(len(y)) % CLIENTS
    # A coin toss decides for each audited sample whether its client trains on it.
    audited = np.concatenate(
        [rng.permutation(np.flatnonzero(client_of == c))[:AUDITED] for c in range(CLIENTS)]
    )
    is_member = rng.random(len(audited)) < 0.5
    held_out = audited[~is_member]

    weights, tables = network().get_weights(), []
    clients = [network() for _ in range(CLIENTS)]
    for round in range(1, ROUNDS + 1):
        for client, local in enumerate(clients):
            local.set_weights(weights)
            rows = np.setdiff1d(np.flatnonzero(client_of == client), held_out)
            local.fit(x[rows], y[rows], batch_size=32, epochs=EPOCHS, verbose=0)
            # The signals: outputs of each client's model on all audited samples.
            table = pd.DataFrame(local.predict(x[audited], verbose=0)).add_prefix("logit_")
            tables.append(table.assign(round=round, client=client, sample=audited))
        weights = [
            np.mean(layer, 0) for layer in zip(*(c.get_weights() for c in clients), strict=True)
        ]

    table = pd.concat(tables)
    table["label"] = y[table["sample"]]
    table["drawn_for"] = client_of[table["sample"]]
    members = {c: audited[is_member & (client_of[audited] == c)] for c in range(CLIENTS)}
    fedaudit.from_signals(table, out="runs/tensorflow", members=members, fair=True)


if __name__ == "__main__":
    main()
