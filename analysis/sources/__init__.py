"""Logs that other tools wrote, and the experiments that are made of them."""
