"""Convolution and pooling of images in NumPy: one product for some copies of the environment after the other.

Shapes: N agents, W agents with weights of their own (N, or 1 for all), B environment copies; images are
[N, B, height, width, channels].
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from marless.learning.envs.base import FloatArray
from marless.learning.nets.net_kind import Layer, Window

_COPIES = 4
"""Copies whose windows are written out at once: so many stay in a core's cache until they are multiplied."""


def convolve(layer: Layer, images: FloatArray, window: Window) -> FloatArray:
    """See `Ops.convolve`."""
    matrix_WOI: FloatArray = layer.matrix
    _, outputs, inputs = matrix_WOI.shape
    places = _places(_padded(images, window, 0.0), window)
    agents, copies, rows, columns = places.shape[:4]
    out = np.empty((agents, copies, rows, columns, outputs), np.float32)
    # The last column stays 1: it carries the bias.
    written = np.ones((min(_COPIES, copies), rows, columns, inputs), np.float32)
    for n in range(agents):
        matrix_IO = matrix_WOI[n % len(matrix_WOI)].T
        for start in range(0, copies, _COPIES):
            some = places[n, start : start + _COPIES]
            pixels = written[: len(some)]
            pixels[..., :-1].reshape(some.shape, copy=False)[...] = some
            target = out[n, start : start + _COPIES].reshape(-1, outputs)
            np.matmul(pixels.reshape(-1, inputs), matrix_IO, out=target)
    return out


def pool(images: FloatArray, window: Window) -> FloatArray:
    """See `Ops.pool`."""
    places = _places(_padded(images, window, -np.inf), window)
    out: FloatArray = places[..., 0, 0, :].copy()
    for pixel in range(1, window.area):
        np.maximum(out, places[..., pixel // window.size, pixel % window.size, :], out=out)
    return out


def _padded(images: FloatArray, window: Window, value: float) -> FloatArray:
    if not window.padding:
        return np.ascontiguousarray(images)
    agents, copies, height, width, channels = images.shape
    more, edge = 2 * window.padding, slice(window.padding, -window.padding)
    found = np.full((agents, copies, height + more, width + more, channels), value, np.float32)
    found[:, :, edge, edge] = images
    return found


def _places(images: FloatArray, window: Window) -> FloatArray:
    """A view of the square at each place, [N, B, rows, columns, size, size, channels]."""
    agents, copies, height, width, channels = images.shape
    down, across = images.strides[2:4]
    unpadded = Window(window.size, window.stride)
    shape = agents, copies, unpadded.steps(height), unpadded.steps(width), window.size, window.size, channels
    strides = *images.strides[:2], down * window.stride, across * window.stride, down, across, images.strides[4]
    return as_strided(images, shape, strides, writeable=False)
