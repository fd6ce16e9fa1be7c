"""Methods as compositions of parts: pure functions over tensors. `update` fixes the order in which they apply."""
