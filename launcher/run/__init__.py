"""A run's folder: what lies in it, which process owns it, and which states it goes through."""
