"""What an experiment may ask of its report: the section `analysis`, read and checked without any run.

Its modules:

    settings         the section as a whole
    hypothesis       a declared hypothesis
    figure_spec      a figure that the experiment asks for
    threshold        a threshold that a metric is to reach
    window           the window of summaries that smooth a curve
    registry         the summaries and kinds of figures that can be named, registered by decorator
    summaries        the summaries of this package
    derived_metric   metrics made of recorded ones, such as |KEY|
    metric_catalog   label and unit of each metric
    precheck         whether the planned seeds can decide the hypotheses
    validation       what all sections share as pydantic models, and what is wrong with one
"""

from analysis.spec import summaries as summaries  # registers them
