"""Where verl runs: in one process (`in_process`), on a CPU (`cpu`)."""
