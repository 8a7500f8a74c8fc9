"""What waits to be looked at: lines that take turns, so that whoever says much waits for itself alone."""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

EACH = 1000  # bytes that a message takes besides what it holds


class _Line(Generic[T]):
    """One sender's messages, the oldest first."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[T, int]] = deque()
        self.bytes = 0


class Turns(Generic[T]):
    """Lines of messages. Where there is no room for one more, the newest of the longest line goes.

    Args:
        most: bytes of all messages that wait, each counted with `EACH` more.
        dropped: told what goes.
    """

    def __init__(self, most: int, dropped: Callable[[T], None]) -> None:
        self.bytes = 0
        self._most = most
        self._dropped = dropped
        self._lines: dict[Hashable, _Line[T]] = {}  # those with messages; whose turn it is first
        self._some = asyncio.Event()

    def __len__(self) -> int:
        """How many messages wait."""
        return sum(len(line.waiting) for line in self._lines.values())

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._lines)

    def put(self, whose: Hashable, message: T, size: int) -> None:
        """One more message waits, or something is dropped.

        Args:
            whose: the line's name.
            message: what waits.
            size: its bytes.
        """
        size += EACH
        line = self._lines.get(whose) or _Line()
        while self.bytes + size > self._most:
            longest = self._longest(line, size)
            if longest is line:
                self._dropped(message)
                return
            self._drop_newest(longest)
        self._lines.setdefault(whose, line)
        line.waiting.append((message, size))
        line.bytes += size
        self.bytes += size
        self._some.set()

    def _longest(self, line: _Line[T], more: int) -> _Line[T]:
        """The line that has to give way: this one, if it has more than its share; the others need not be looked at."""
        if not self._lines or (line.bytes + more) * len(self._lines) > self._most:
            return line
        return max(self._lines.values(), key=lambda one: one.bytes)

    def _drop_newest(self, line: _Line[T]) -> None:
        message, size = line.waiting.pop()
        line.bytes -= size
        self.bytes -= size
        if not line.waiting:
            self._lines = {whose: one for whose, one in self._lines.items() if one is not line}
        self._dropped(message)

    async def next(self) -> T:
        """The first of the line whose turn it is; waits for one."""
        while not self._lines:
            self._some.clear()
            await self._some.wait()
        whose = next(iter(self._lines))
        line = self._lines.pop(whose)
        message, size = line.waiting.popleft()
        line.bytes -= size
        self.bytes -= size
        if line.waiting:
            self._lines[whose] = line  # behind the others
        return message
