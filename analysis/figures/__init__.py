"""The figures of a report.

Its modules:

    figures           all figures of a report: the paired differences, and those that the experiment asks for
    learning_curves   learning curves of one or several metrics
    scatter           two metrics against each other
    histograms        snapshots of a distribution
    survival          the share of runs that has not reached a threshold yet
    series            the curves behind a figure, averaged and smoothed
    traces            the values behind a figure, for the page and as CSV
    canvas            palette, axes and legends, which all figures share, and their SVG, PDF and PNG
    dense_artists     many points or lines, drawn as one image
"""
