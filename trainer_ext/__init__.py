"""What one run computes. Knows no scheduler and no other run."""
