"""What an experiment may ask of its report: the section `analysis`, read and checked without any run."""

from analysis.spec import summaries as summaries  # registers them
