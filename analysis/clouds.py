"""Clouds of points: drawn as an image where a figure would else hold thousands of marks, in a group of its own."""

from __future__ import annotations

from typing import Any

from matplotlib.artist import Artist


class Cloud(Artist):
    """A line's marks as an image inside the group `gid`, so that a page can hide them.

    Matplotlib's own `rasterized` puts neighbouring artists into one image, outside of their groups. The line stays
    among its axes' lines, hidden there, for their limits and the figure's values.
    """

    def __init__(self, line: Any, gid: str) -> None:
        super().__init__()
        self.line = line
        line.set_visible(False)
        self.set_gid(gid)
        self.set_zorder(line.get_zorder())

    def draw(self, renderer: Any) -> None:
        """Draw the line into an image of the renderer's resolution."""
        renderer.open_group("cloud", gid=self.get_gid())
        renderer.start_rasterizing()
        self.line.set_visible(True)
        self.line.draw(renderer)
        self.line.set_visible(False)
        renderer.stop_rasterizing()
        renderer.close_group("cloud")
