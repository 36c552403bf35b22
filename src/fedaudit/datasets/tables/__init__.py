"""Tables with columns of numbers and categories, and their encoding as features."""
