"""The documentation as a site: ``sphinx-build -W --keep-going -c docs . site``.

The pages are the repository's own files, so the source folder is the repository. The reference is
made from the docstrings of the public names.
"""

import inspect
import json
import re
from importlib.util import find_spec
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger
from sphinx.writers.html5 import HTML5Translator

import fednnnn_plugin as fp

PAGES = {
    "Use": {
        "Tutorial": "docs/tutorial",
        "Recipes and settings": "recipes/README",
        "Data sets": "docs/datasets",
        "FedML, ranks and machines": "launch/README",
        "Flower": "launch/flower/README",
        "API reference": "docs/reference",
    },
    "Method and results": {
        "The paper and this package": "docs/paper",
        "Results": "results/README",
        "Comparison on digits": "results/comparison/README",
        "The paper's claims": "results/CLAIMS",
    },
    "Project": {
        "Changes": "CHANGELOG",
        "Security": "SECURITY",
        "Contributing": "CONTRIBUTING",
        "Tests and benchmarks": "tests/README",
    },
}
# The reference's headings, by the folder that a public name comes from.
HEADINGS = {
    "assembly": "Runs",
    "followers": "Runs",
    "run_folder": "Runs",
    "quantities": "Runs",
    "reporting": "Reading runs",
    "tuning": "Tuning",
    "data": "Data",
    "client": "Client training",
    "server": "Aggregation and server rules",
    "fedml": "FedML",
    "errors": "Errors",
}
FIGURE = re.compile(r'<picture>.*?srcset="(.*?)".*?src="(.*?)".*?alt="(.*?)".*?</picture>', re.S)

project, version = "fednnnn-plugin", fp.__version__
project_copyright = "The fednnnn-plugin developers"
root_doc = "README"
source_suffix = {".md": "markdown", ".rst": "restructuredtext", ".ipynb": "markdown"}
include_patterns = ["README.md"]
include_patterns += [f"{page}.*" for part in PAGES.values() for page in part.values()]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_mock_imports = [] if find_spec("flwr") else ["flwr"]
maximum_signature_line_length = 80
napoleon_use_ivar = True
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!fednnnn_plugin).*"),  # other libraries' types
    (
        "py:class",
        r".*\.(Annotated|Class|ClientSum|Layout|MeasuredGroup|ModelState|Objects|Study)",
    ),  # they need no page
]
html_math_renderer = "mathml"

html_theme = "furo"
html_title = "fednnnn-plugin"
html_extra_path = ["index.html"]
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sourcelink = False


def show_math(self: HTML5Translator, node: nodes.math) -> None:
    """Write an equation as MathML, which browsers draw without scripts."""
    try:
        self.body.append(tex2mathml(node.astext(), isinstance(node, nodes.math_block)))
    except MathError as error:
        getLogger(__name__).warning("%s: %s", error, node.astext(), location=node)
    raise nodes.SkipNode


def write_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the list of pages on the front page, and the public names into the reference."""
    if page == "README":
        picture = r"![\3](\2){.only-light}![\3](\1){.only-dark}"
        source[0] = FIGURE.sub(picture, source[0])
        for part, pages in PAGES.items():
            lines = [":hidden:", f":caption: {part}", ""]
            lines += [f"{title} </{path}>" for title, path in pages.items()]
            source[0] += "\n".join(["\n```{toctree}", *lines, "```\n"])
    elif page == "docs/tutorial":
        source[0] = notebook(json.loads(source[0])["cells"])
    elif page == "docs/reference":
        source[0] = app.builder.templates.render_string(source[0], {"groups": public_names()})


def notebook(cells: list[dict[str, Any]]) -> str:
    """Return the cells of a notebook and their stored outputs as Markdown."""
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                image = data["image/png"].strip()
                parts.append(f'<img alt="" src="data:image/png;base64,{image}">')
            elif "text/html" in data:
                parts.append(f"```{{raw}} html\n{''.join(data['text/html'])}\n```")
            else:
                parts.append(f"```text\n{''.join(data['text/plain'])}\n```")
    return "\n\n".join(parts)


def public_names() -> dict[str, list[tuple[str, str]]]:
    """Return what the reference has under each heading: autodoc's directives and their names."""
    found: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS.values()}
    for name in dir(fp):
        value = getattr(fp, name)
        if name.startswith("_"):
            continue
        if inspect.ismodule(value):
            found["Figures"] = [("automodule", value.__name__)]
            found["Figures"] += [
                ("autofunction", f"fednnnn_plugin::{name}.{each}")
                for each in value.__all__
                if inspect.isfunction(getattr(value, each))
            ]
            continue
        folder = value.__module__.split(".")[1]
        kind = "autoclass" if inspect.isclass(value) else "autofunction"
        found[HEADINGS[folder]].append((kind, name))
    return {
        heading: sorted(names, key=lambda each: (each[0] == "autoclass", each[1].lower()))
        for heading, names in found.items()
        if names
    }


def setup(app: Sphinx) -> None:
    """Connect the above."""
    app.add_html_math_renderer("mathml", (show_math, None), (show_math, None))
    app.connect("source-read", write_page)
