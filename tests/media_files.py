"""Files that are large when they are decoded."""

import base64
import pathlib

FILES = pathlib.Path(__file__).resolve().parent / "data" / "media"


def large_jpeg(side, num_scans, seed):
    """A progressive JPEG of side x side pixels in a few hundred bytes: its scans end early, and decode to grey."""
    file = (FILES / "progressive.jpg").read_bytes()
    frame = file.index(b"\xff\xc2")
    file = file[:frame + 5] + side.to_bytes(2, "big") * 2 + file[frame + 9:]
    scans = [at for at in range(len(file)) if file[at:at + 2] == b"\xff\xda"]
    file = file[:scans[num_scans]] if num_scans < len(scans) else file
    comment = b"\xff\xfe\x00\x06%04d" % seed  # tells it from others
    return "data:image/jpeg;base64," + base64.b64encode(file[:2] + comment + file[2:]).decode()
