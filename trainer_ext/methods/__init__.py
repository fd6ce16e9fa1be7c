"""Methods as compositions of parts: pure functions over tensors. `update` fixes the order in which they apply.

With them stand the checks of a step's metrics (`health`), and what a run that continues another one shares with it
(`continuing`).
"""
