"""What an experiment may ask of its report: the section `analysis`, read and checked without any run."""
