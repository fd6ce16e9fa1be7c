"""Many points or many lines of one method, drawn as one image, so that a figure does not hold thousands of marks."""

from __future__ import annotations

from typing import Any

from matplotlib.artist import Artist


class Cloud(Artist):
    """A line's marks, or many lines, as an image inside the group `gid`, so that a page can hide them.

    Matplotlib's own `rasterized` puts neighbouring artists into one image, outside of their groups. The artist stays
    among its axes' artists, hidden there, for their limits and the figure's values.
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
