"""Many points or many lines of one method, drawn as one image, so that a figure does not hold thousands of marks.

The image is in the group (gid) of its method, so that a page can hide it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.colors import to_rgba
from matplotlib.transforms import Affine2D
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


_COARSE = 2  # pixels along a side of a block of one colour in a Bundle, whose hundred lines have no finer detail


class Bundle(Members):
    """Many thin lines, all of one colour, as one pale image inside the group `gid`.

    look: color, linewidth (points), alpha of a line, paleness of the image (what its alpha is multiplied by), zorder.
    The image is made once, when the figure has been laid out, and stands in every format: a thousand lines, drawn again
    for each format, take most of a report's time and of a page's size.
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
            inch, block = figure.dpi, _COARSE / self.dpi
            if renderer.option_scale_image():
                size = Affine2D().scale(*(block * inch * pixels for pixels in image.shape[1::-1]))
                renderer.draw_image(context, left * inch, bottom * inch, image, size)
            else:
                image = image.repeat(_COARSE, axis=0).repeat(_COARSE, axis=1)
                renderer.draw_image(context, left * inch, bottom * inch, image)
            context.restore()
            renderer.close_group("bundle")

    def _made(self) -> tuple[NDArray[np.uint8], float, float]:
        """The lines (height, width, 4), from the bottom up, without empty margins, and the inches left of and below
        them."""
        axes: Any = self.axes
        dpi = self.dpi / _COARSE
        scale = dpi / axes.figure.dpi
        box = axes.bbox.extents * scale
        left, bottom = np.floor(box[:2])
        width, height = (int(extent) for extent in np.ceil(box[2:] - (left, bottom)))
        _, x, y = (list(each) for each in zip(*self.rows.values(), strict=True))
        points = axes.transData.transform(np.column_stack((np.concatenate(x), np.concatenate(y))))
        lines = np.split(points * scale - (left, bottom), np.cumsum([each.size for each in x])[:-1])
        image = np.empty((height, width, 4), dtype=np.uint8)
        image[:] = np.rint(255 * np.array(to_rgba(self.look["color"])))
        thick = self.look["linewidth"] / 72 * dpi
        opaque = 1 - (1 - self.look["alpha"] * min(1.0, thick)) ** _crossings(lines, height, width, thick)
        image[..., 3] = np.rint(255 * self.look["paleness"] * opaque)
        down, across = (np.flatnonzero(image[..., 3].any(axis=other)) for other in (1, 0))
        if not down.size:
            return np.empty((0, 0, 4), dtype=np.uint8), 0.0, 0.0
        image = image[down[0] : down[-1] + 1, across[0] : across[-1] + 1]
        return image, (left + across[0]) / dpi, (bottom + down[0]) / dpi


def _crossings(lines: Sequence[Array], height: int, width: int, thick: float) -> NDArray[np.intp]:
    """How many lines, each (n, 2) in pixels with an increasing x, pass through each pixel (height, width). thick: how
    high they are in a column of pixels, beyond the way that they take in it."""
    edges = np.arange(width + 1.0)
    ends: tuple[list[NDArray[np.intp]], list[NDArray[np.intp]]] = [], []
    for x, y in (line.T for line in lines):
        inside = (x >= 0) & (x < width)
        column = x[inside].astype(np.intp)
        first = np.flatnonzero(np.diff(column, prepend=-1))
        at_edges = np.interp(edges, x, y, left=np.nan, right=np.nan)
        low, high = np.fmin(at_edges[:-1], at_edges[1:]), np.fmax(at_edges[:-1], at_edges[1:])
        if first.size:
            low[column[first]] = np.fmin(low[column[first]], np.fmin.reduceat(y[inside], first))
            high[column[first]] = np.fmax(high[column[first]], np.fmax.reduceat(y[inside], first))
        begin = np.rint(low - thick / 2).clip(0)
        end = np.maximum(np.rint(high + thick / 2), begin + 1).clip(None, height)
        drawn = np.flatnonzero(begin < end)  # no NaN, and nothing above or below
        for at, rows in zip(ends, (begin, end), strict=True):
            at.append(drawn + width * rows[drawn].astype(np.intp))
    first, last = (np.bincount(np.concatenate(at), minlength=(height + 1) * width) for at in ends)
    return np.cumsum((first - last).reshape(height + 1, width), axis=0)[:height]
