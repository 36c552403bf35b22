"""Tables as data, which the terminal and the page both draw."""
