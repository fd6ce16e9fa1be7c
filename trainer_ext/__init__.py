"""The training of one run. It knows no scheduler and no other run."""
