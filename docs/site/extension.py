"""An extension of Sphinx for Weft's names, signatures and docstrings."""

from __future__ import annotations

import builtins
import enum
import inspect
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config, GoogleDocstring

from docs.site.contents import NAMESPACES
from docs.site.names import USED_NAME, first_names, full_name, places, written
from docs.site.signatures import signature_text

SECTIONS = Config(napoleon_use_param=True, napoleon_use_rtype=False)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-signature", write_signature)
    app.connect("autodoc-process-docstring", lay_out_docstring)
    app.connect("autodoc-skip-member", leave_out_fields)
    app.connect("object-description-transform", shorten_names)
    app.connect("doctree-read", drop_empty_lines)
    app.connect("doctree-read", link_names_in_code)
    app.connect("missing-reference", find_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, result: str | None
) -> tuple[str, str] | None:
    """The signature of functions, methods and classes. A class that users do not create has none."""
    if what not in ("function", "method", "class") or (inspect.isclass(obj) and issubclass(obj, Exception)):
        return None
    if inspect.isclass(obj) and not _is_made_by_users(obj):
        return "", ""
    return signature_text(obj, is_method=what == "method" and not _is_static(name))


def _is_made_by_users(value: type) -> bool:
    is_public = id(value) in first_names()
    return is_public and not issubclass(value, enum.Enum) and not getattr(value, "_is_protocol", False)


def leave_out_fields(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out fields of named tuples, which the docstring of their class describes; Python gives them one that only
    has their number."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number") else None


def _is_static(name: str) -> bool:
    owner, _, member = name.rpartition(".")
    value = places().get(owner)
    return isinstance(inspect.getattr_static(value, member, None), (staticmethod, classmethod))


def lay_out_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Sections become lists, and the example gets a heading. A function that is described elsewhere gets a sentence and
    a link."""
    first = _described_elsewhere(what, name, obj)
    if first is not None:
        this = ", with this array as the first argument" if what == "method" else ""
        lines[:] = [f"The same as `{written(first)}`{this}: {_first_paragraph(lines)}", ""]
        return
    example = next((number for number, line in enumerate(lines) if line.startswith(">>>")), None)
    if example is not None:
        lines[example:example] = [".. rubric:: Example", ""]
    # As a function, because in the docstring of an attribute napoleon takes the text before a colon for a type.
    lines[:] = GoogleDocstring(lines, SECTIONS, app, "function", name, obj, options).lines()


def _described_elsewhere(what: str, name: str, obj: Any) -> str | None:
    """The name under which a function, or a method of arrays, is described, if it is another name."""
    first = first_names().get(id(obj))
    owner, _, member = name.rpartition(".")
    if what == "method" and owner == "weft.core.array":
        function = places().get(f"weft.core.{member}")
        if function is not None and function.__doc__ == obj.__doc__:
            return f"weft.core.{member}"
    return first if first != name else None


def _first_paragraph(lines: list[str]) -> str:
    return " ".join(lines[: lines.index("")] if "" in lines else lines)


SHORT_NAMES = {**NAMESPACES, "weft.transforms.compile._Compiled": "mx.compile(f)"}


def shorten_names(app: Sphinx, domain: str, objtype: str, content: nodes.Element) -> None:
    """Write names as users do, mx.linalg.svd for weft.core.linalg.svd, and leave out modules that are not public."""
    for node in content.parent.findall(addnodes.desc_addname):
        prefix = node.astext().rstrip(".")
        if prefix in SHORT_NAMES:
            node[:] = [nodes.Text(f"{SHORT_NAMES[prefix]}.")]
        elif prefix.startswith("weft."):
            node[:] = []


def drop_empty_lines(app: Sphinx, doctree: nodes.document) -> None:
    """Drop the empty line at the end of code, which ends a session for tools that do not read Markdown."""
    for node in doctree.findall(nodes.literal_block):
        node.rawsource = node.astext().rstrip()
        node[:] = [nodes.Text(node.rawsource)]


def link_names_in_code(app: Sphinx, doctree: nodes.document) -> None:
    """Make links of code in texts that begins with a public name. A name that does not exist is an error."""
    for node in list(doctree.findall(nodes.literal)):
        used = USED_NAME.match(node.astext())
        if used is None or "__" in used[0] or isinstance(node.parent, (addnodes.pending_xref, nodes.reference)):
            continue
        link = addnodes.pending_xref("", refdomain="py", reftype="obj", reftarget=used[0], refwarn=True)
        link["refdoc"] = app.env.docname
        link.source, link.line = node.source, node.line
        node.replace_self(link)
        link += node


def find_name(app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: Any) -> nodes.Element | None:
    """The link to a name that is not written in full. Names of types, in signatures, may have no target."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    full = full_name(target, node.get("py:module") or "", node.get("py:class") or "")
    if full is not None and full != target:
        kind = "mod" if full in NAMESPACES else "obj"
        found = env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, kind, full, node, content)
        if found is not None:
            return found
    is_builtin = node["reftype"] == "exc" and hasattr(builtins, target)
    return content if is_builtin or node["reftype"] == "class" else None
