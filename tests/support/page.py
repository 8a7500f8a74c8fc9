"""Reads a page as a browser does: whether it holds together, what it says, and whether it would ask
for anything.
"""

import re
from html.parser import HTMLParser

ALONE = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """A page's texts by element, and what it refers to.

    Raises AssertionError for an element that is not closed, or closed twice.
    """

    def __init__(self, text):
        super().__init__()
        self.source = text
        self.open, self.elements, self.refers, self.said = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.refers += [
            value
            for key, value in attrs
            if key in ("src", "href", "xlink:href", "action", "data", "srcset")
        ]
        if tag not in ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.said.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.said).split())

    def asks_for(self):
        """Whatever a browser would fetch besides the page."""
        found = [what for what in self.refers if not what.startswith(("data:", "#"))]
        return found + re.findall(r"url\([^)]*\)|@import[^;]*", self.source)

    def count(self, tag, **attributes):
        return sum(t == tag and attributes.items() <= a.items() for t, a in self.elements)
