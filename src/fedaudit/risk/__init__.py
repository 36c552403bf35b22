"""What a model gives away of whom it was trained on, as a server or a client can find out."""
