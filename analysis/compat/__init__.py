"""The names of other libraries on the statistics of this one."""
