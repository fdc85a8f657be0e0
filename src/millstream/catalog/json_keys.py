"""Refuses unknown keys in the catalog's JSON.

A version that records a new key includes a migration, and an older version refuses a catalog with that migration. So an
unknown key does not come from a newer version, but from a damaged or edited record. Dropping it silently could lose
information, and keeping it would leave it next to values that it no longer fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millstream.errors import Code, MillstreamError


def refuse_unknown(what: str, data: Mapping[str, object], known: Iterable[str]) -> None:
    """Check that a record has only known keys.

    Raises:
        MillstreamError: CATALOG_FAILED.
    """
    unknown = sorted(data.keys() - set(known))
    if unknown:
        raise MillstreamError(
            Code.CATALOG_FAILED,
            f"the catalog records {', '.join(unknown)} for {what}, which this version of millstream does not know",
            hint="upgrade millstream, or restore the catalog if it was edited",
        )
