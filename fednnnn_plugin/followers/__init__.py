"""Who follows a run while it lasts: a progress bar, TensorBoard, Weights & Biases."""
