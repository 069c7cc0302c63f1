"""The pictures of the gallery: sphinx-gallery runs each file of `docs/gallery`.

An example leaves the picture in `ax`. It is saved as vectors, and described by the example's title.
"""

from pathlib import Path

from jaxbo import plotting
from jaxbo.plotting import _curves

#: Inches, in the place of `plotting.SIZE`: the type is of full size on a telephone, 390 pixels wide.
NARROW = (5.2, 3.7)


def narrow(conf, file):
    """A hook of sphinx-gallery, before an example: figures are narrow."""
    _curves.SIZE = NARROW


def scraper(block, found, conf):
    """A hook of sphinx-gallery, after an example: saves the picture and returns its markup."""
    path = Path(next(found["image_path_iterator"])).with_suffix(".svg")
    plotting.save(found["example_globals"]["ax"], path)
    title = Path(found["src_file"]).read_text().splitlines()[1]
    return f"\n.. image:: /{path.relative_to(conf['src_dir'])}\n   :alt: {title}\n"
