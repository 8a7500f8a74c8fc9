"""The console that everything is shown on: text is text, wherever it comes from."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedseed.text import clean


class Screen(Console):
    """A rich console that reads no markup and sends no control characters but its own.

    Args:
        settings: of `rich.console.Console`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **settings})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Returns what is shown: texts cleaned, in tables and bars, too."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)
