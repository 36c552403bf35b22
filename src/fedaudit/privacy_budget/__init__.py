"""Privacy accounting of a whole federation: epsilon after each round, and rounds that are left."""
