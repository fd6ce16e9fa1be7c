"""Methods as compositions of parts: pure functions over tensors."""
