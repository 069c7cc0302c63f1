"""Differential privacy: mechanisms, accountants, ledgers, and an audit."""

from typing import TYPE_CHECKING, Any

from jaxbo.privacy.auditing import Audit

if TYPE_CHECKING:
    from jaxbo.runs.auditing import audit

__all__ = ["Audit", "audit"]


def __getattr__(name: str) -> Any:
    # An audit runs methods, which are made of this package: it is imported when it is asked for.
    if name == "audit":
        from jaxbo.runs.auditing import audit

        return audit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
