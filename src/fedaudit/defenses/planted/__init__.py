"""Signs by which a client can tell that the model it was sent has a neuron planted in it."""
