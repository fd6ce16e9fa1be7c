"""Tables: the comparison of an experiment's groups, and tables as text, LaTeX and CSV."""
