"""The commands of `rlsweep` that this application brings."""
