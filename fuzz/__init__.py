"""What strangers may hand over, and whether anything but a refusal comes of it."""
