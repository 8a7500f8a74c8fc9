"""Runs the documentation's notebook and stores its outputs.

python scripts/run_notebook.py [FILE]
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "docs" / "notebooks" / "first-run.ipynb"


def executed(file: Path) -> Any:
    """Run a notebook in an empty folder.

    Args:
        file: the notebook; it is not changed.

    Returns:
        The notebook with new outputs, without times and without what went to standard error.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(file, as_version=4)
    here = Path(sys.executable).parent  # a cell finds this environment's commands
    path = f"{here}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}})
        client.execute(env={**os.environ, "PATH": path})
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main() -> int:
    """Run the file that is named, or the documentation's, and write it."""
    import nbformat

    file = Path(sys.argv[1]) if sys.argv[1:] else FILE
    nbformat.write(executed(file), file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
