"""Pictures for the models that see: 8 x 8 cells of 48 pixels on black, each empty or with one figure of one colour.

A cell is what one soft token shows when an image may have 70 of them: such a picture is not resized. A figure is a figure's
mask (one of a few sizes and places in its cell) times a colour; so a picture is three small integers a cell, and training
draws whole batches on the GPU from the same table of masks.
"""
import struct
import zlib

import numpy as np

CELL, SIDE = 48, 8
COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0),
          "white": (255, 255, 255), "purple": (255, 0, 255)}
SHAPES = ["ball", "ring", "box", "star", "moon", "kite"]
DIGITS = ["01110100011001110101110011000101110", "00100011000010000100001000010001110", "01110100010000100010001000100011111",
          "11111000100010000010000011000101110", "00010001100101010010111110001000010", "11111100001111000001000011000101110",
          "00110010001000011110100011000101110", "11111000010001000100010000100001000", "01110100011000101110100011000101110",
          "01110100011000101111000010001001100"]  # 5 x 7
FIGURES = SHAPES + list("0123456789")
PLACES = [(20, 0, 0), (20, 2, -1), (20, -2, 1), (18, 1, 2), (18, -1, -2), (22, 0, 0)]  # radius, right, down, in pixels
FINE = 4  # samples a pixel and axis at the edges


def _shape(name, x, y):
    """Whether points are inside the figure; x right, y down, both in [-1, 1]."""
    far = x * x + y * y
    if name == "ball":
        return far <= 1
    if name == "ring":
        return (far <= 1) & (far >= 0.36)
    if name == "box":
        return np.maximum(abs(x), abs(y)) <= 0.86
    if name == "moon":
        return (far <= 1) & ((x - 0.5) ** 2 + y * y >= 0.64)
    if name == "kite":
        return abs(x) / 0.7 + abs(y) <= 1
    turn = np.mod(np.arctan2(x, -y), 2 * np.pi / 5)  # star: five times the same edge, mirrored
    turn = np.minimum(turn, 2 * np.pi / 5 - turn)
    return np.sqrt(far) * (np.sin(np.pi / 5 - turn) + 0.45 * np.sin(turn)) <= 0.45 * np.sin(np.pi / 5)


def _mask(figure, place):
    radius, right, down = place
    at = (np.arange(CELL * FINE) + 0.5) / FINE - CELL / 2
    x, y = (at[None] - right) / radius, (at[:, None] - down) / radius
    if figure in SHAPES:
        inside = _shape(figure, x, y)
    else:  # a digit: 5 x 7 squares, 7 of them as high as the figure
        bits = np.array([bit == "1" for bit in DIGITS[int(figure)]]).reshape(7, 5)
        column, row = np.floor(x * 3.5 + 2.5).astype(int), np.floor(y * 3.5 + 3.5).astype(int)
        inside = bits[row.clip(0, 6), column.clip(0, 4)] & (column >= 0) & (column < 5) & (row >= 0) & (row < 7)
    return (inside.reshape(CELL, FINE, CELL, FINE).mean((1, 3)) * 255).round().astype(np.uint8)


def masks():
    """[1 + figures * places, 48, 48] bytes; the first is empty."""
    return np.stack([np.zeros((CELL, CELL), np.uint8)] + [_mask(figure, place) for figure in FIGURES for place in PLACES])


def mask_index(figure, place):
    return 1 + FIGURES.index(figure) * len(PLACES) + place


def draw(cells, table):
    """cells: [(row, column, mask, colour index)] -> [384, 384, 3] bytes. table: masks()."""
    picture = np.zeros((SIDE * CELL, SIDE * CELL, 3), np.uint8)
    colors = list(COLORS.values())
    for row, column, mask, color in cells:
        picture[row * CELL:(row + 1) * CELL, column * CELL:(column + 1) * CELL] = \
            table[mask][:, :, None].astype(int) * colors[color] // 255
    return picture


def png(picture):
    """The file's bytes."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    height, width = picture.shape[:2]
    rows = np.concatenate((np.zeros((height, 1), np.uint8), picture.reshape(height, -1)), 1)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + chunk(b"IEND", b""))
