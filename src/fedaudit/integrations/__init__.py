"""Other frameworks for federated learning: what it takes to audit them."""
