"""Tables as data, which terminal and page print."""
