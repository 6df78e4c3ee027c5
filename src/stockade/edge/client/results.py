"""What a client gets back: results that can be checked, and errors.

`StockadeError` is everything that keeps a request from an answer; `ToolError` is raised only by
`Result.check()`, for a call whose verdict is not a success. A call itself never raises: whatever
happens to it is a `Result`, also when no daemon answers.
"""

from __future__ import annotations

from typing import Final

from stockade.terms.fault import Status
from stockade.terms.result import Error, ToolResult
from stockade.tools.model_text import DEFAULT_BUDGET, for_model

_GOOD: Final = frozenset({Status.SUCCEEDED, Status.PARTIAL})


class StockadeError(Exception):
    """A request was refused, or could not be carried. `error.code` is what to branch on."""

    def __init__(self, error: Error) -> None:
        super().__init__(f"{error.code}: {error.message}")
        self.error = error


class ToolError(StockadeError):
    """A checked call did not succeed; `result` is all of it."""

    def __init__(self, error: Error, result: Result) -> None:
        super().__init__(error)
        self.result = result


class Result(ToolResult):
    """A `ToolResult` with two verbs."""

    def check(self) -> Result:
        """Itself, if it succeeded or is partial. Raises ToolError otherwise."""
        if self.status in _GOOD or self.error is None:
            return self
        raise ToolError(self.error, self)

    def for_model(self, budget: int = DEFAULT_BUDGET) -> str:
        """The text to give a model, at most `budget` characters."""
        return for_model(self, budget)
