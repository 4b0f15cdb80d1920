"""Data sets as tensors, and the split of their training images between clients."""
