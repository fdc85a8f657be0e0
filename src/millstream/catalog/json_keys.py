"""Unknown keys in the JSON of the catalog are refused.

A version that records a new key brings a migration, whose number an older version refuses as a whole. So an unknown key
is no record of a newer version but a damaged or edited one. To drop it silently could lose what it means, and to carry
it along would keep it beside values it no longer fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.errors import Code, MillstreamError


def refuse_unknown(what: str, data: Mapping[str, object], known: Iterable[str]) -> None:
    """Check that a record has known keys only.

    Raises:
        MillstreamError: CATALOG_FAILED.
    """
    unknown = sorted(data.keys() - set(known))
    if unknown:
        raise MillstreamError(
            Code.CATALOG_FAILED,
            f"the catalog records {', '.join(unknown)} for {what}; this millstream does not know what that means",
            hint="upgrade millstream, or restore the catalog if it was edited",
        )
