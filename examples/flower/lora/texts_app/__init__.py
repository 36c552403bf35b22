"""Short texts by subject: MiniLM with adapters (LoRA), tuned with Flower and PEFT."""
