"""Convolution and pooling of images in torch, with compiled gradients of convolutions' weights.

Shapes: P nets, M samples, R places, O outputs, I inputs of a square; images are [P, M, height, width, channels].
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d

from marless.learning.nets.compiled_images import CGradient, ImageLibrary, library
from marless.learning.nets.net_kind import InputShape, Layer, Window

_PIXELS = 16


def images_of(inputs: InputShape, x_PIM: Tensor) -> Tensor:
    """The images of inputs with the channels of each pixel in one piece, the form in which torch convolves fastest."""
    channels, height, width = inputs.image or (0, 0, 0)
    nets, _, samples = x_PIM.shape
    pixels_PCSM = x_PIM[:, : inputs.pixels].detach().reshape(nets, channels, height * width, samples)
    if x_PIM.device.type != "cpu":
        images_PMSC = pixels_PCSM.permute(0, 3, 2, 1).contiguous()
    elif x_PIM.stride(1) == 1:  # images in one piece: channel by channel takes 0.4 of the time of all at once
        images_PMSC = pixels_PCSM.new_empty(nets, samples, height * width, channels)
        for k in range(channels):
            images_PMSC[..., k] = pixels_PCSM[:, k].mT
    else:  # rows of samples: some pixels at a time, so that what is read stays in a cache until all of it is written
        images_PMSC = pixels_PCSM.new_empty(nets, samples, height * width, channels)
        source, target = pixels_PCSM.numpy(), images_PMSC.numpy()
        for start, k in product(range(0, height * width, _PIXELS), range(channels)):
            some = slice(start, start + _PIXELS)
            target[:, :, some, k] = source[:, k, some].swapaxes(1, 2)
    return images_PMSC.view(nets, samples, height, width, channels)


def convolve(layer: Layer, images_PMHWC: Tensor, window: Window, *, once: bool = False) -> Tensor:
    """See `Ops.convolve`; with `once`, its gradient need not be differentiable, which is quicker."""
    matrix_POI: Tensor = layer.matrix
    # Autocast gives gradients in bfloat16, which the compiled function would read as float32.
    exact = images_PMHWC.dtype is torch.float32 and not torch.is_autocast_enabled("cpu")
    compiled = once and exact and not window.padding and images_PMHWC.is_cpu
    kernels = library() if compiled else None
    if kernels is None or matrix_POI.shape[1] % kernels.width:
        found = [_convolved(*given, window) for given in zip(matrix_POI, images_PMHWC, strict=True)]
    else:
        apply: Callable[..., Tensor] = _Convolution.apply
        found = [apply(*given, window, kernels) for given in zip(matrix_POI, images_PMHWC, strict=True)]
    return found[0].unsqueeze(0) if len(found) == 1 else torch.stack(found)


def _convolved(matrix_OI: Tensor, images_MHWC: Tensor, window: Window) -> Tensor:
    made = conv2d(
        _channels_first(images_MHWC), _filters(matrix_OI, window), matrix_OI[:, -1], window.stride, window.padding
    )
    return made.permute(0, 2, 3, 1)


def _channels_first(images_MHWC: Tensor) -> Tensor:
    return images_MHWC.permute(0, 3, 1, 2)


def _filters(matrix_OI: Tensor, window: Window) -> Tensor:
    # Columns are (row, column, channel), as pixels are: torch's format "channels last", in which it is fastest.
    return matrix_OI[:, :-1].view(len(matrix_OI), window.size, window.size, -1).permute(0, 3, 1, 2)


class _Convolution(torch.autograd.Function):
    """A convolution without padding, whose gradient cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, matrix_OI: Tensor, images_MHWC: Tensor, window: Window, kernels: ImageLibrary) -> Tensor:
        ctx.save_for_backward(matrix_OI, images_MHWC)
        ctx.window, ctx.kernels = window, kernels
        return _convolved(matrix_OI, images_MHWC, window)

    @staticmethod
    def backward(ctx: Any, d_MRRO: Tensor) -> tuple[Tensor, Tensor | None, None, None]:  # shape suffixes
        matrix_OI, images_MHWC = ctx.saved_tensors
        d_MRRO = d_MRRO.contiguous()
        gradient_OI = _weight_gradient(ctx.kernels, matrix_OI, images_MHWC, d_MRRO, ctx.window)
        if not ctx.needs_input_grad[1]:  # the images that are observed
            return gradient_OI, None, None, None
        stride = 2 * [ctx.window.stride]
        given = _channels_first(d_MRRO), _channels_first(images_MHWC), _filters(matrix_OI, ctx.window), None, stride
        at_images, *_ = torch.ops.aten.convolution_backward(
            *given, [0, 0], [1, 1], False, [0, 0], 1, [True, False, False]
        )
        return gradient_OI, at_images.permute(0, 2, 3, 1), None, None


def _weight_gradient(
    kernels: ImageLibrary, matrix_OI: Tensor, images_MHWC: Tensor, d_MRRO: Tensor, window: Window
) -> Tensor:
    samples, rows, columns, outputs = d_MRRO.shape
    image, down, across, channel = images_MHWC.stride()
    begins = _distances((rows, window.stride * down), (columns, window.stride * across))
    channels = images_MHWC.shape[-1]
    offsets = _distances((window.size, down), (window.size, across), (channels, channel))
    sums, gradient_OI = torch.empty(matrix_OI.numel()), torch.empty(matrix_OI.shape)
    given = CGradient(samples, len(begins), outputs, len(offsets), begins.ctypes.data, offsets.ctypes.data, image)
    given.x, given.d = images_MHWC.data_ptr(), d_MRRO.data_ptr()
    kernels.weight_gradient(ctypes.byref(given), sums.data_ptr(), gradient_OI.data_ptr())
    return gradient_OI


def _distances(*axes: tuple[int, int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The distances of all elements of axes with these lengths and strides, in C order, from the first."""
    found = np.zeros(1, np.int64)
    for length, stride in axes:
        found = np.add.outer(found, stride * np.arange(length)).ravel()
    return found


def pool(images_PMHWC: Tensor, window: Window) -> Tensor:
    """See `Ops.pool`."""
    images = images_PMHWC.flatten(0, 1).permute(0, 3, 1, 2)
    found = max_pool2d(images, window.size, window.stride, window.padding)
    made = found.permute(0, 2, 3, 1)
    return made.reshape(*images_PMHWC.shape[:2], *made.shape[1:])
