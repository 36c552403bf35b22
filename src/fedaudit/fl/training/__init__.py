"""Local training: a client's steps in a round, by autograd or by hand."""
