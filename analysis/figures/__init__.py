"""The figures of a report.

Its modules:

    figures           all figures of a report: differences, survival curves, and those that the experiment asks for
    learning_curves   learning curves of one or several metrics, averaged and smoothed
    scatter           two metrics against each other
    histograms        snapshots of a distribution
    traces            the values behind a figure, for the page and as CSV
    canvas            palette, axes and legends, which all figures share, and their SVG, PDF and PNG
    dense_artists     many points or lines, drawn as one image
"""
