"""How the site is built: `make docs`, which is `sphinx-build docs site`. A warning is an error.

Pages are Markdown (MyST), and more happens on the way. Docstrings, which are plain text, become
reStructuredText (`docstrings.py`), and Napoleon makes lists of their sections. A page of `api` gets the
names that belong on it (`names.py`). Links are made that pages do not spell out (`links.py`). Each file
of `gallery` is run, and becomes a page with its picture (`figures.py`).

Optax and BlackJAX use Sphinx, MyST and this theme, too. MkDocs has had no release since 2024, and its
theme Material calls itself inactive.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The gallery's programs run once: compiling them less thoroughly takes a third of the time.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import docstrings  # noqa: E402
import links  # noqa: E402
import names  # noqa: E402

import jaxbo  # noqa: E402

project = author = "jaxbo"
release = jaxbo.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
# `gallery.md` is in the place of the indexes that sphinx-gallery makes.
exclude_patterns = ["_static", "_templates", "gallery", "drawn/index.rst", "drawn/*/index.rst"]
myst_heading_anchors = 4

autodoc_inherit_docstrings = False  # a method of a class is told of where its class adds something
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 90
add_module_names = False
highlight_language = "text"
toc_object_entries = False  # names have headings; as entries they take most of the time

html_theme = "sphinx_book_theme"
html_title = "jaxbo"
html_static_path = ["_static"]
html_css_files = ["jaxbo.css"]
html_use_index = html_domain_indices = html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_navbar_depth": 1,
    "footer_content_items": "",
    "home_page_in_toc": True,
    "show_toc_level": 2,
}
copybutton_exclude = ".linenos, .gp, .go"

# Runs the files of `gallery`, and writes their pages to `drawn`, where they are only read from.
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "drawn",
    "backreferences_dir": "drawn/uses",
    "filename_pattern": "",  # every file is run,
    "run_stale_examples": True,  # also one that did not change itself
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("figures.scraper",),
    "reset_modules": ("figures.narrow",),
    "capture_repr": (),
    "notebook_extensions": set(),
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": float("inf"),
    "abort_on_example_error": True,
}


def setup(app):
    # Before Napoleon, whose priority is 500.
    app.connect("autodoc-process-docstring", docstrings.process, priority=400)
    app.connect("autodoc-process-signature", docstrings.sign)
    app.connect("autodoc-skip-member", docstrings.skip)
    app.connect("source-read", names.add)
    app.connect("include-read", links.of_included)
    app.connect("doctree-read", links.of_names)
    app.connect("doctree-resolved", links.of_sources)
    app.connect("doctree-resolved", links.of_pictures)
    app.connect("html-page-context", links.of_source_pages)
