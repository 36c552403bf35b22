"""A study of fedaudit as a Flower app."""
