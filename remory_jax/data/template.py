"""`Template`: the token ids that stand around a summary and around soft memory."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

__all__ = ["Template"]


@dataclass(frozen=True, kw_only=True)
class Template:
    """Markers of a restored context, as token ids: text is tokenised once and never again.

    A restored context reads ``prefix | s_open summary s_close | m_open memory m_close``. Any of them may be empty.
    """

    s_open: tuple[int, ...] = ()
    s_close: tuple[int, ...] = ()
    m_open: tuple[int, ...] = ()
    m_close: tuple[int, ...] = ()

    def describe(self) -> str:
        """The template as canonical JSON, for hashes and manifests."""
        return msgspec.json.encode(self, order="sorted").decode()
