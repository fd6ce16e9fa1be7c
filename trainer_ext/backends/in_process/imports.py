"""Imports transformers' losses without SciPy, which saves 35 MB in each run: with any model transformers imports its
losses of object detection, and these scipy.optimize where it is installed. Import this module before any model."""

from transformers import utils

_available = utils.is_scipy_available
utils.is_scipy_available = bool  # it answers False, to the modules that are imported here
try:
    from transformers.loss import loss_utils  # noqa: F401
finally:
    utils.is_scipy_available = _available
