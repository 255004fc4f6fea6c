"""Settings with which Sphinx builds the site. `python -m docs.site` writes the pages and calls Sphinx."""

import weft

project = "Weft"
author = copyright = "The Weft developers"
version = release = weft.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "docs.site.extension"]
nitpicky = True

# Single backquotes in a docstring contain the name of something public, which becomes a link.
default_role = "py:obj"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 90
python_display_short_literal_types = True
toc_object_entries_show_parents = "hide"
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"Weft {release}"
html_copy_source = False
html_show_sphinx = False
html_use_index = True
pygments_style = "friendly"
pygments_dark_style = "monokai"
