"""The memory and time of a recipe on some GPUs, estimated before it runs there."""
