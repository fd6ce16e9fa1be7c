"""Many points or many lines of one method, drawn as one image, so that a figure does not hold thousands of marks.

The image is in the group (gid) of its method, so that a page can hide it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgba
from matplotlib.path import Path
from matplotlib.transforms import IdentityTransform
from numpy.typing import NDArray

Array = NDArray[np.float64]


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


class Members(Artist):
    """What one artist shows of many seeds at once, for the figure's values; itself it draws nothing.

    rows[gid]: label, x (n,) and y (n,) of the line that a seed would be on its own.
    """

    def __init__(self, rows: Mapping[str, tuple[str, Array, Array]]) -> None:
        super().__init__()
        self.rows = rows
        self.set_in_layout(False)

    def draw(self, renderer: Any) -> None:
        """Nothing."""


class Bundle(Members):
    """Many thin lines, all of one colour, as one pale image inside the group `gid`.

    look: color, linewidth (points), alpha of a line, paleness of the image
    (what its alpha is multiplied by), zorder. The image is made once, when the figure has been laid out, and stands in
    every format: a thousand lines, drawn again for each format, take most of a report's time and of a page's size.
    """

    def __init__(
        self, gid: str, rows: Mapping[str, tuple[str, Array, Array]], look: Mapping[str, Any], dpi: float
    ) -> None:
        super().__init__(rows)
        self.look, self.dpi = look, dpi
        self._image: tuple[NDArray[np.uint8], float, float] | None = None
        self.set_gid(gid)
        self.set_zorder(look["zorder"])

    def draw(self, renderer: Any) -> None:
        """Place the image; make it first, if this is the first time."""
        if self._image is None:
            self._image = self._made()
        image, left, bottom = self._image
        if image.size:
            renderer.open_group("bundle", gid=self.get_gid())
            context = renderer.new_gc()
            figure: Any = self.get_figure(root=True)
            inch = figure.dpi
            renderer.draw_image(context, left * inch, bottom * inch, image)
            context.restore()
            renderer.close_group("bundle")

    def _made(self) -> tuple[NDArray[np.uint8], float, float]:
        """The lines (height, width, 4), from the bottom up, without empty margins, and the inches left of and below
        them."""
        axes: Any = self.axes
        scale = self.dpi / axes.figure.dpi
        box = axes.bbox.extents * scale
        left, bottom = np.floor(box[:2])
        width, height = (int(extent) for extent in np.ceil(box[2:] - (left, bottom)))
        agg = RendererAgg(width, height, self.dpi)
        context = agg.new_gc()
        context.set_foreground(to_rgba(self.look["color"], self.look["alpha"]), isRGBA=True)
        context.set_linewidth(self.look["linewidth"])
        for _, x, y in self.rows.values():
            points = axes.transData.transform(np.column_stack((x, y))) * scale - (left, bottom)
            agg.draw_path(context, Path(points), IdentityTransform())
        image = np.array(agg.buffer_rgba())
        image[..., 3] = np.rint(image[..., 3] * self.look["paleness"])
        down, across = (np.flatnonzero(image[..., 3].any(axis=other)) for other in (1, 0))
        if not down.size:
            return np.empty((0, 0, 4), dtype=np.uint8), 0.0, 0.0
        image = image[down[0] : down[-1] + 1, across[0] : across[-1] + 1]
        return image[::-1].copy(), (left + across[0]) / self.dpi, (bottom + height - 1 - down[-1]) / self.dpi
